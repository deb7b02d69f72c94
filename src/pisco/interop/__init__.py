"""Models from elsewhere as an agent's local gradient."""
