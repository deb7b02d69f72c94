"""The benchmark of the field: tasks × networks × methods, every cell tuned by one rule and kept as a file.

It computes with jax, numpy and scipy alone (and networkx for a real network), so that cells can be measured on a bare
machine with an accelerator and carried home.
"""
