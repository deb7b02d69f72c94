"""LoRA on a transformer in Equinox: the transformer is frozen and held once, agents train and send the adapters alone.
(pip install equinox)"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pisco


class LoRA(eqx.Module):
    base: eqx.nn.Linear
    down: jax.Array
    up: jax.Array

    def __call__(self, x, key=None):
        return self.base(x) + self.up @ (self.down @ x)


keys = jax.random.split(jax.random.key(0), 3)
attention = eqx.nn.MultiheadAttention(4, 32, key=keys[0])
adapter = LoRA(attention.value_proj, jax.random.normal(keys[1], (8, 32)) / 4, jnp.zeros((32, 8)))
attention = eqx.tree_at(lambda layer: layer.value_proj, attention, adapter)
start, static = eqx.partition({"embed": jax.random.normal(keys[2], (16, 32)) / 2, "attention": attention}, eqx.is_array)


def loss(model, texts, key):  # texts are rows of 9 tokens out of 16
    model, x = eqx.combine(model, static), model["embed"][texts[:, :-1]]
    logits = (x + jax.vmap(lambda x: model["attention"](x, x, x, mask=jnp.tri(8, dtype=bool)))(x)) @ model["embed"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), texts[:, 1:, None], axis=-1).mean(axis=(1, 2))


texts = (np.arange(9) * 3 + np.random.default_rng(0).integers(0, 16, (4, 50, 1))) % 16  # 4 agents
problem = pisco.Problem(loss, start, texts, parts={"frozen": lambda path: not path.endswith(("/down", "/up"))})
rule, ring = pisco.algorithms.pisco(local_lr=0.5, local_steps=2), pisco.Network.ring(4)
result = pisco.run(rule, problem, ring, rounds=100, batch_size=20, eval_every=25)
print(problem.kinds.of("shared"), "are sent; loss:", *result.history["loss"].round(3))
