"""Several processes as one job: how they meet, agree and are started again."""
