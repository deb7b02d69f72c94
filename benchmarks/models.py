"""Networks as a user writes them, in plain JAX: a loss of (params, batch, key) and a start, no word of agents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None].astype(jnp.int32), axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def draw(key: Any, *shape: int, scale: float | None = None) -> jax.Array:
    fan_in = 1
    for size in shape[:-1]:
        fan_in *= size
    return (scale or (2 / fan_in) ** 0.5) * jax.random.normal(key, shape)


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=names)


@dataclass(frozen=True)
class SmallNet:
    """28×28: 3×3 convolutions to 16 and 32 channels, each with ReLU and a maximum over 2×2, then 10 classes."""

    def init(self, key: Any) -> Any:
        a, b, c = jax.random.split(key, 3)
        return {"a": draw(a, 3, 3, 1, 16), "b": draw(b, 3, 3, 16, 32), "out": draw(c, 7 * 7 * 32, 10)}

    def loss(self, params: Any, batch: Any, key: Any) -> jax.Array:
        x = batch["x"].astype(jnp.float32) / 255
        for name in ("a", "b"):
            x = jax.nn.relu(conv(x, params[name]))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(x.reshape(x.shape[0], -1) @ params["out"], batch["y"])


@dataclass(frozen=True)
class ResNet:
    """ResNet-18 for 32×32 images with GroupNorm: 11.2 M parameters in float32, passes in `compute`."""

    compute: str = "float32"
    widths: tuple[int, ...] = (64, 128, 256, 512)

    def init(self, key: Any) -> Any:
        keys = iter(jax.random.split(key, 64))
        unit = {"kernel": draw(next(keys), 3, 3, 3, self.widths[0]), **self._norm(self.widths[0])}
        params: dict[str, Any] = {"stem": unit, "blocks": []}
        inputs = self.widths[0]
        for width in self.widths:
            for _ in range(2):
                block = {
                    "one": {"kernel": draw(next(keys), 3, 3, inputs, width), **self._norm(width)},
                    "two": {"kernel": draw(next(keys), 3, 3, width, width), **self._norm(width)},
                }
                if inputs != width:
                    block["skip"] = {"kernel": draw(next(keys), 1, 1, inputs, width), **self._norm(width)}
                params["blocks"].append(block)
                inputs = width
        params["out"] = draw(next(keys), inputs, 10)
        return params

    def _norm(self, width: int) -> Any:
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    def loss(self, params: Any, batch: Any, key: Any) -> jax.Array:
        return cross_entropy(self.logits(params, batch["x"]), batch["y"])

    def logits(self, params: Any, images: jax.Array) -> jax.Array:
        dtype = jnp.dtype(self.compute)
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        x = (images.astype(dtype) - 127) / 64
        x = jax.nn.relu(self._unit(x, params["stem"], 1))
        for index, block in enumerate(params["blocks"]):
            stride = 2 if index and "skip" in block else 1
            y = jax.nn.relu(self._unit(x, block["one"], stride))
            y = self._unit(y, block["two"], 1)
            x = jax.nn.relu(y + (self._unit(x, block["skip"], stride) if "skip" in block else x))
        return x.mean(axis=(1, 2)) @ params["out"]

    def _unit(self, x: jax.Array, unit: Any, stride: int) -> jax.Array:
        x = conv(x, unit["kernel"], stride)
        grouped = x.reshape(*x.shape[:3], 32, -1).astype(jnp.float32)
        mean = grouped.mean(axis=(1, 2, 4), keepdims=True)
        spread = ((grouped - mean) ** 2).mean(axis=(1, 2, 4), keepdims=True)
        x = ((grouped - mean) * lax.rsqrt(spread + 1e-5)).reshape(x.shape).astype(x.dtype)
        return x * unit["scale"] + unit["bias"]


@dataclass(frozen=True)
class GPT:
    """A language model: bfloat16 passes around float32 parameters, tied embeddings.

    checkpoint: keep only the input of every block for the backward pass. looped: the blocks as a `scan`, which compiles
    in the time of one.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    checkpoint: bool = False
    looped: bool = False

    def init(self, key: Any) -> Any:
        keys = jax.random.split(key, self.layers + 2)
        blocks: Any = [self._block(k) for k in keys[2:]]
        if self.looped:
            blocks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)
        return {
            "words": draw(keys[0], self.vocabulary, self.width, scale=0.02),
            "places": draw(keys[1], self.length, self.width, scale=0.02),
            "blocks": blocks,
            "norm": jnp.ones(self.width),
        }

    def _block(self, key: Any) -> Any:
        a, b, c, d = jax.random.split(key, 4)
        wide, small = partial(draw, scale=0.02), 0.02 / (2 * self.layers) ** 0.5
        return {
            "norm1": jnp.ones(self.width),
            "qkv": wide(a, self.width, 3 * self.width),
            "proj": draw(b, self.width, self.width, scale=small),
            "norm2": jnp.ones(self.width),
            "up": wide(c, self.width, 4 * self.width),
            "down": draw(d, 4 * self.width, self.width, scale=small),
        }

    def loss(self, params: Any, batch: Any, key: Any) -> jax.Array:
        tokens = batch["tokens"]
        return cross_entropy(self.logits(params, tokens), tokens[:, 1:]).mean(axis=1)

    def logits(self, params: Any, tokens: jax.Array) -> jax.Array:
        half = jnp.bfloat16
        words = params["words"].astype(half)
        x = words[tokens[:, :-1]] + params["places"].astype(half)
        apply = jax.checkpoint(self._apply) if self.checkpoint else self._apply
        if self.looped:
            x = lax.scan(lambda x, block: (apply(x, block), None), x, params["blocks"])[0]
        else:
            for block in params["blocks"]:
                x = apply(x, block)
        return jnp.einsum("btd,vd->btv", _norm(x, params["norm"]), words, preferred_element_type=jnp.float32)

    def _apply(self, x: jax.Array, block: Any) -> jax.Array:
        block = jax.tree.map(lambda leaf: leaf.astype(x.dtype), block)
        batch, length, width = x.shape
        qkv = _norm(x, block["norm1"]) @ block["qkv"]
        q, k, v = (part.reshape(batch, length, self.heads, -1) for part in jnp.split(qkv, 3, axis=-1))
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, length, width)
        x = x + seen @ block["proj"]
        return x + jax.nn.gelu(_norm(x, block["norm2"]) @ block["up"]) @ block["down"]


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)
