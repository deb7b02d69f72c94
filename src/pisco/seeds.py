"""What a seed becomes: random streams that do not touch, one for each thing that is drawn in a run."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax


class Streams(NamedTuple):
    """The random streams of a seed: the start, batches, the server's coin, links that vary, who is there, the clock."""

    start: jax.Array
    batches: jax.Array
    coins: jax.Array
    links: jax.Array
    presence: jax.Array
    clock: jax.Array

    def batch_key(self, k: Any) -> jax.Array:
        """The key of round k's batches; round −1 is the start."""
        return jax.random.fold_in(self.batches, k + 1)


@jax.jit
def streams(key: jax.Array) -> Streams:
    """The streams of one run: made outside its programs, which compile the sooner."""
    return Streams(*(jax.random.fold_in(key, stream) for stream in range(6)))


def seed_key(seed: Any) -> jax.Array:
    """The root key of a seed, by a fixed generator whatever the user's jax configuration says."""
    return jax.random.key(seed, impl="threefry2x32")
