"""A language model on texts by author: what both examples with texts do."""

import methods
import numpy as np

import pisco


def train(name, texts, model, chosen):
    """Every author an agent; samples are read at every place, so a sample is its features and its label."""
    parts = [
        {"tokens": _tokens(texts, rows)} for rows in pisco.data.by_group(texts.labels, chosen.agents, texts.groups)
    ]
    held = np.concatenate([texts.test_features, texts.test_labels[:, None]], axis=1)
    some = np.random.default_rng(0).permutation(len(held))[: 20 if chosen.tiny else 2000]

    def accuracy(params, batch):
        return (model.logits(params, batch["tokens"]).argmax(axis=-1) == batch["tokens"][:, 1:]).mean(axis=1)

    measured = {"loss": lambda params, batch: model.loss(params, batch, None), "accuracy": accuracy}
    few = {"eval_samples": 8}

    def problem_of(parts):
        return pisco.Problem(model.loss, model.init, parts, test={"tokens": held[some]}, metrics=measured, **few)

    methods.compare(name, problem_of, parts, chosen)


def _tokens(texts, rows):
    return np.concatenate([texts.features[rows], texts.labels[rows, None]], axis=1)
