"""A small network on CIFAR-10 at 8×8 pixels, labels dealt out by Dirichlet(0.1), ring of 10: minutes on a laptop.

    python examples/large/cifar_small.py --local-lr 1e-3,3e-3,1e-2 --seeds 0,1,2

--data takes another data set of images, as `pisco.data.load` does.
"""

import jax
import jax.numpy as jnp
import methods
import numpy as np
from jax import lax
from models import cross_entropy, draw

import pisco
from pisco.problems.supervised import split

usual = {"agents": 10, "batch_size": 16, "local_steps": 8, "rounds": 60, "local_lr": "3e-3", "data": "cifar10"}
chosen = methods.options(__doc__, **usual)
if chosen.tiny:
    chosen.rounds, chosen.local_steps, chosen.batch_size = 2, 1, 2
    pixels, labels = np.random.default_rng(0).integers(0, 256, (200, 32, 32, 3), dtype=np.uint8), np.arange(200) % 10
    images = pisco.data.Dataset("noise", pixels, labels, pixels[:20], labels[:20])
else:
    images = pisco.data.load(chosen.data)
SIZES = (8 * 8 * 3, 64, 64, 10)


def small(pixels):
    means = pixels.reshape(-1, 8, 4, 8, 4, 3).mean(axis=(2, 4))
    return ((means.reshape(len(pixels), -1) - 127) / 64).astype(np.float32)


def init(key):
    keys = jax.random.split(key, 3)
    return [{"w": draw(k, a, b), "b": jnp.zeros(b)} for k, a, b in zip(keys, SIZES[:-1], SIZES[1:], strict=True)]


def logits(params, x):
    for layer in params[:-1]:
        x = x @ layer["w"] + layer["b"]
        x = x - x.mean(axis=-1, keepdims=True)
        x = jax.nn.relu(x * lax.rsqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5))
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params, batch, key):
    return cross_entropy(logits(params, batch["x"]), batch["y"])


def accuracy(params, batch):
    return logits(params, batch["x"]).argmax(axis=-1) == batch["y"]


order = {"method": "iid"} if chosen.shuffled else {"method": "dirichlet", "alpha": 0.1}
first = slice(18_000)
images = pisco.data.Dataset(
    *("small", small(images.features[first]), images.labels[first]),
    *(small(images.test_features[:4000]), images.test_labels[:4000]),
)
rows = split(images, chosen.agents, order.pop("method"), {"seed": 0, **order})
chosen.shuffled, told = False, chosen.shuffled
parts = [{"x": images.features[each], "y": images.labels[each].astype(np.int32)} for each in rows]
test = {"x": images.test_features, "y": images.test_labels.astype(np.int32)}


def problem_of(parts):
    measured = {"loss": lambda params, batch: loss(params, batch, None), "accuracy": accuracy}
    return pisco.Problem(loss, init, parts, test=test, metrics=measured, eval_samples=50)


methods.compare("cifar-small" + ", shuffled" * told, problem_of, parts, chosen)
