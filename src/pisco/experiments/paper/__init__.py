"""The paper's figures and tables, one module each, and what our runs say about its claims.

Computing needs jax and numpy alone; drawing and writing come afterwards, where the rest is installed.
"""
