"""Datasets, the ways to split them over agents, and how data comes in: as arrays, or as a stream from where it is."""

from pisco.data.dataset import Dataset
from pisco.data.files import load_libsvm, load_npz
from pisco.data.partition import PARTITIONS, by_group, by_label, dirichlet, iid, label_counts, shards, sorted_even
from pisco.data.registry import DATASETS, available, load
from pisco.data.storage import Record
from pisco.data.tables import load_table
from pisco.data.text import load_texts

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "Record",
    "available",
    "by_group",
    "by_label",
    "dirichlet",
    "iid",
    "label_counts",
    "load",
    "load_libsvm",
    "load_npz",
    "load_table",
    "load_texts",
    "shards",
    "sorted_even",
]
