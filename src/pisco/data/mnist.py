"""MNIST: 70,000 grey images of handwritten digits."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from pisco.data.dataset import Dataset
from pisco.data.storage import Record, download, find, read_bytes
from pisco.errors import InputError

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
DOWNLOAD_BYTES = 11_594_722
# Dataset field -> file, and the SHA-256 of the original gzip files.
FILES = {
    "features": ("train-images-idx3", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "labels": ("train-labels-idx1", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "test_features": ("t10k-images-idx3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "test_labels": ("t10k-labels-idx1", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
FILES = {field: (f"{name}-ubyte.gz", sha256) for field, (name, sha256) in FILES.items()}


def load() -> Dataset:
    """MNIST: 60,000 training and 10,000 test images as rows of 784 bytes (0 to 255), labels 0 to 9.

    The files are looked for in `PISCO_DATA`/mnist and in the cache, and downloaded when they are in neither.

    Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document recognition,
    Proceedings of the IEEE 86(11), 1998.
    """
    names = [name for name, _ in FILES.values()]
    arrays = {}
    for field, (name, sha256) in FILES.items():
        path = find("mnist", name) or download("mnist", "MNIST", MIRROR + name, f"sha256:{sha256}", names)
        array = read_idx(path, sha256)
        arrays[field] = array.reshape(len(array), -1) if array.ndim == 3 else array
    return Dataset("mnist", **arrays, classes=tuple("0123456789"))


def record() -> Record:
    """Where the four files are, without reading them."""
    paths = [find("mnist", name) for name, _ in FILES.values()]
    here = [path for path in paths if path is not None]
    if len(here) == len(FILES):
        return Record("mnist", here[0].parent, sum(path.stat().st_size for path in here), "found")
    return Record("mnist", None, DOWNLOAD_BYTES, "downloaded when first loaded")


def read_idx(path: str | Path, sha256: str | None = None) -> np.ndarray:
    """Read an array of bytes in the idx format: two zero bytes, the type 8, the rank, the shape, the data.

    Args:
        path: the file, compressed or not.
        sha256: checksum of the file as it is stored, or None for any file.
    """
    content = read_bytes(path, sha256)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{path} is not an idx file of bytes; get the original MNIST file")
    rank = content[3]
    header = 4 + 4 * rank
    shape = struct.unpack_from(f">{rank}I", content, 4) if len(content) >= header else ()
    if len(content) != header + int(np.prod(shape, dtype=np.int64)):
        raise InputError(f"{path} is cut short or too long for the shape {shape} it states; get it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
