"""The engine of many devices, processes and hosts, on JAX's own distributed runtime."""

from pisco.engines.sharded.engine import ShardedEngine

__all__ = ["ShardedEngine"]
