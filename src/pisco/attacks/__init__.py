"""Attacks to try protections on: what an agent's messages tell of its samples, and agents that send poison."""
