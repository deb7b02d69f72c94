"""Convolutions that stay fast when every agent has a kernel of its own, in the place of a user's."""
