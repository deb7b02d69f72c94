"""Private gradients: every sample's gradient is clipped, noise hides the mean, and the rest of a method sees no more.

Whatever an agent sends is made of such gradients, so gossip and server rounds are private alike, with every method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pisco.errors import InputError, check_number
from pisco.tree import squared_norm, widened
from pisco.types import Key, Params

NOISE_STREAM = 2**32 - 3
"""Apart from the randomness of losses and transformations."""

PerAgentNumber = float | Sequence[float]


@dataclass(frozen=True)
class Privacy:
    """How gradients are made private: g = (Σⱼ clip(∇ℓⱼ) + σ·C·N(0, I))/b, over the b samples of a batch.

    Every number may be one for each agent. Replacing one sample of an agent by any other changes the sum by 2C at most,
    which is what ε counts (docs/privacy.md).

    Args:
      clip: C, the largest norm of one sample's gradient.
      noise: σ, the noise's standard deviation as a multiple of C; 0 only clips.
      epsilon: without `noise`, what the whole run may spend: the noise is found before it starts. With `noise`, where
        the run ends.
      delta: the chance with which ε need not hold; well below one in an agent's samples.
      smooth: clip by C/(C + ‖g‖), as PORTER does, in place of min(1, C/‖g‖).

    >>> Privacy(clip=1.0, noise=1.1)
    Privacy(clip=1.0, noise=1.1, epsilon=None, delta=1e-05, smooth=False)
    """

    clip: PerAgentNumber
    noise: PerAgentNumber | None = None
    epsilon: PerAgentNumber | None = None
    delta: PerAgentNumber = 1e-5
    smooth: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (("clip", 0, np.inf), ("noise", -1, np.inf), ("epsilon", 0, np.inf), ("delta", 0, 1)):
            value = getattr(self, name)
            value = value.tolist() if isinstance(value, np.ndarray | np.generic | jax.Array) else value
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = tuple(float(each) if isinstance(each, int | float | np.number) else each for each in value)
            object.__setattr__(self, name, value)
            for each in value if isinstance(value, tuple) else () if value is None else (value,):
                if name == "noise":
                    check_number("noise", each, low=0)
                else:
                    check_number(name, each, low=low, high=high, open_low=True)
        if not isinstance(self.smooth, bool):
            raise InputError(f"smooth is {self.smooth!r}, expected true or false")
        if self.clip is None or self.delta is None or (self.noise is None and self.epsilon is None):
            raise InputError("privacy needs clip, and noise or epsilon; give noise=0 to clip alone")
        if self.noise is not None and self.epsilon is not None and not np.all(np.asarray(self.noise) > 0):
            raise InputError("without noise no epsilon can be kept; give a noise above 0, or leave out epsilon")

    def of_agents(self, name: str, num_agents: int) -> np.ndarray | None:
        """One of its numbers, for every agent."""
        value = getattr(self, name)
        if value is None:
            return None
        if isinstance(value, tuple) and len(value) != num_agents:
            raise InputError(f"{name} has {len(value)} numbers, expected one for each of the {num_agents} agents")
        return np.broadcast_to(np.asarray(value, float), (num_agents,)).copy()

    def protection(self, num_agents: int, noise: Any = None) -> Protection | None:
        """What gradients are made with; None while the noise is not known."""
        clip = self.of_agents("clip", num_agents)
        for name in ("epsilon", "delta"):
            self.of_agents(name, num_agents)
        noise = self.of_agents("noise", num_agents) if noise is None else np.broadcast_to(noise, (num_agents,))
        return None if noise is None else Protection(jnp.asarray(clip), jnp.asarray(noise))

    def facts(self) -> dict[str, Any]:
        """Its settings, without those that were not given."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items() if v is not None}


class Protection(NamedTuple):
    """C and σ of every agent, and the words that its owner alone knows: batches and noise are drawn with them."""

    clip: jax.Array
    noise: jax.Array
    secret: jax.Array | None = None

    def key(self, key: Key) -> Key:
        """The key of a gradient; without a secret, whoever knows the seed can subtract the noise."""
        if self.secret is None:
            return key
        for word in self.secret:
            key = jax.random.fold_in(key, word)
        return key


def clipped(gradient: Params, clip: jax.Array, smooth: bool) -> Params:
    """One sample's gradient with a norm of at most `clip`, in single precision at least: rounding would move sums more.

    One that is not finite becomes zero.
    """
    gradient = jax.tree.map(widened, gradient)
    norm = jnp.sqrt(squared_norm(gradient))
    clip = clip.astype(norm.dtype)
    factor = clip / (clip + norm) if smooth else jnp.minimum(1, clip / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))

    def cut(leaf: jax.Array) -> jax.Array:
        return jnp.where(jnp.isfinite(norm), leaf * factor.astype(leaf.dtype), 0)

    return jax.tree.map(cut, gradient)


def with_noise(total: Params, deviation: jax.Array, key: Key) -> Params:
    """The same tree with independent normal noise on every number."""
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + deviation.astype(leaf.dtype) * jax.random.normal(own, leaf.shape, leaf.dtype)
        for leaf, own in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)
