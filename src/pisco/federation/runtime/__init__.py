"""Agents as processes with private data, over gRPC with mutual TLS.

It is not a name for `pisco.run`, which has everybody's data in one place: every agent runs `pisco agent`, and the
coordinator `pisco server`. The round function is the same one; only `grad` and `mix` differ.
"""
