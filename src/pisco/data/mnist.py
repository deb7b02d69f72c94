"""MNIST and Fashion-MNIST: 70,000 grey images each, of handwritten digits and of clothes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pisco.data.dataset import Dataset
from pisco.data.storage import Record, check_sha256, download, find, read_bytes
from pisco.errors import InputError


class IdxFile(NamedTuple):
    """One array of a set: its file, the checksum of the published file, and the SHA-256 of what is in it."""

    name: str
    published: str
    content: str


class IdxSet(NamedTuple):
    """Four files in MNIST's format, by the field of `Dataset` that they fill."""

    name: str
    title: str
    mirror: str
    size: int
    classes: tuple[str, ...]
    files: dict[str, IdxFile]


NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _files(kind: str, sums: list[tuple[str, str]]) -> dict[str, IdxFile]:
    fields = ("features", "labels", "test_features", "test_labels")
    return {
        field: IdxFile(f"{name}-ubyte.gz", f"{kind}:{published}", content)
        for field, name, (published, content) in zip(fields, NAMES, sums, strict=True)
    }


# fmt: off
MNIST = IdxSet(
    "mnist", "MNIST", "https://ossci-datasets.s3.amazonaws.com/mnist/", 11_594_722, tuple("0123456789"),
    _files("sha256", [
        ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
         "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
         "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
         "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
         "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ]),
)
FASHION = IdxSet(
    "fashion-mnist", "Fashion-MNIST", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", 30_878_645,
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    _files("md5", [
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        ("25c81989df183df01b3e8a0aad5dffbe", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        ("bef4ecab320f06d8554ea6380940ec79", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        ("bb300cfdad3c16e7a12a480ee83cd310", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ]),
)
# fmt: on


def load() -> Dataset:
    """MNIST: 60,000 training and 10,000 test images as rows of 784 bytes (0 to 255), labels 0 to 9.

    The files are looked for in `PISCO_DATA`/mnist and in the cache, and downloaded when they are in neither.

    Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document recognition,
    Proceedings of the IEEE 86(11), 1998.
    """
    return _load(MNIST)


def load_fashion() -> Dataset:
    """Fashion-MNIST: photographs of clothes in the form of MNIST, from `PISCO_DATA`/fashion-mnist in the same way.

    H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning
    algorithms, 2017 (MIT licence).
    """
    return _load(FASHION)


def record() -> Record:
    """Where MNIST's four files are, without reading them."""
    return _record(MNIST)


def record_fashion() -> Record:
    """Where Fashion-MNIST's four files are, without reading them."""
    return _record(FASHION)


def _load(images: IdxSet) -> Dataset:
    names = [file.name for file in images.files.values()]
    arrays = {}
    for field, file in images.files.items():
        path = find(images.name, file.name) or download(
            images.name, images.title, images.mirror + file.name, file.published, names
        )
        array = read_idx(path, file.content)
        arrays[field] = array.reshape(len(array), -1) if array.ndim == 3 else array
    return Dataset(images.name, **arrays, classes=images.classes)


def _record(images: IdxSet) -> Record:
    paths = [find(images.name, file.name) for file in images.files.values()]
    here = [path for path in paths if path is not None]
    if len(here) == len(images.files):
        return Record(images.name, here[0].parent, sum(path.stat().st_size for path in here), "found")
    return Record(images.name, None, images.size, "downloaded when first loaded")


def read_idx(path: str | Path, sha256: str | None = None) -> np.ndarray:
    """Read an array of bytes in the idx format: two zero bytes, the type 8, the rank, the shape, the data.

    Args:
        path: the file, compressed or not.
        sha256: checksum of the content once decompressed, the same however it is stored; None for any file.
    """
    content = read_bytes(path)
    if sha256 is not None:
        check_sha256(path, content, sha256)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{path} is not an idx file of bytes; get the original file")
    rank = content[3]
    header = 4 + 4 * rank
    shape = struct.unpack_from(f">{rank}I", content, 4) if len(content) >= header else ()
    if len(content) != header + int(np.prod(shape, dtype=np.int64)):
        raise InputError(f"{path} is cut short or too long for the shape {shape} it states; get it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
