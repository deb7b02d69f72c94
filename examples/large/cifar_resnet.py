"""ResNet-18 with GroupNorm on CIFAR-10, labels dealt out by Dirichlet(0.1), over a ring of 10.

    python examples/large/cifar_resnet.py --tiny          # on a laptop, to see that it runs
    python examples/large/cifar_resnet.py --seeds 0,1,2   # on a GPU

--data takes another data set of images, as `pisco.data.load` does.
"""

import methods
import numpy as np
from models import ResNet

import pisco
from pisco.problems.supervised import split
from pisco.problems.transforms import random_crop, random_flip

usual = {"agents": 10, "batch_size": 32, "local_steps": 8, "rounds": 150, "local_lr": "1e-3", "data": "cifar10"}
chosen = methods.options(__doc__, **usual)
model = ResNet("bfloat16")
if chosen.tiny:
    model = ResNet("bfloat16", widths=(32,))
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8), np.arange(200) % 10
    images = pisco.data.Dataset("noise", pixels, labels, pixels[:20], labels[:20])
    chosen.rounds, chosen.local_steps, chosen.batch_size, chosen.agents = 2, 1, 2, 4
else:
    images = pisco.data.load(chosen.data)
order = "iid" if chosen.shuffled else "dirichlet"
how = {} if chosen.shuffled else {"alpha": 0.1}
rows = split(images, chosen.agents, order, {"seed": 0, **how})
chosen.shuffled, told = False, chosen.shuffled
parts = [{"x": images.features[each], "y": images.labels[each].astype(np.int32)} for each in rows]
test = {"x": images.test_features, "y": images.test_labels.astype(np.int32)}


def augmented(batch, key):
    return batch | {"x": random_flip(random_crop(batch["x"], key), key)}


def problem_of(parts):
    measured = {
        "loss": lambda params, batch: model.loss(params, batch, None),
        "accuracy": lambda params, batch: model.logits(params, batch["x"]).argmax(axis=-1) == batch["y"],
    }
    few = {"eval_batch": 1000, "eval_samples": 50}
    return pisco.Problem(model.loss, model.init, parts, test=test, metrics=measured, transform=augmented, **few)


methods.compare("cifar-resnet" + ", shuffled" * told, problem_of, parts, chosen)
