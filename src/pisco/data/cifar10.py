"""CIFAR-10: 60,000 small colour images of ten kinds of things."""

from __future__ import annotations

import os
import tarfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pisco.data.dataset import Dataset
from pisco.data.storage import Record, check_sha256, download, folders, read_bytes
from pisco.errors import InputError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"
ARCHIVE_BYTES = 170_052_171
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# SHA-256 of the decompressed batches: the same however the batch is stored.
BATCHES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def load() -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 x 3 bytes (0 to 255), labels 0 to 9.

    The binary version is looked for in `PISCO_DATA`/cifar10 and in the cache, as the official archive or as
    its six batches (.bin or .bin.xz), and the archive is downloaded when neither place has it.

    A. Krizhevsky, Learning multiple layers of features from tiny images, University of Toronto, 2009.
    """
    wanted = [f"{ARCHIVE} (or all of {', '.join(BATCHES)}, each also as .xz)"]
    paths = _find() or [download("cifar10", "CIFAR-10", URL, ARCHIVE_HASH, wanted)]
    if len(paths) == 1:
        batches = [_decode(*item) for item in _read_archive(paths[0]).items()]
    else:
        # Decompressing and hashing release the interpreter lock, so threads make this several times faster.
        with ThreadPoolExecutor(max_workers=min(len(paths), os.cpu_count() or 1)) as pool:
            batches = list(pool.map(lambda name, path: _decode(name, read_bytes(path), path), BATCHES, paths))
    features, labels = zip(*batches, strict=True)
    return Dataset(
        "cifar10", np.concatenate(features[:-1]), np.concatenate(labels[:-1]), features[-1], labels[-1], CLASSES
    )


def record() -> Record:
    """Where the batches or the archive are, without reading them."""
    paths = _find()
    if paths:
        return Record("cifar10", paths[0].parent, sum(path.stat().st_size for path in paths), "found")
    return Record("cifar10", None, ARCHIVE_BYTES, "downloaded when first loaded")


def decode_batch(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images (height, width, channel) and labels of a batch: records of a label and three colour planes.

    >>> images, labels = decode_batch(bytes([7]) + bytes(1024) + b"\\x01" * 1024 + b"\\x02" * 1024)
    >>> images[0, 5, 6], labels
    (array([0, 1, 2], dtype=uint8), array([7], dtype=uint8))
    """
    if not content or len(content) % 3073:
        raise InputError(f"a CIFAR-10 batch has {len(content)} bytes, expected records of 3073; get it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0].copy()


def _find() -> list[Path]:
    """The six batch files in order, or the archive alone, or nothing."""
    for folder in folders("cifar10"):
        for place in (folder, folder / "cifar-10-batches-bin"):
            stored = [
                next((path for end in ("", ".xz") if (path := place / f"{name}{end}").is_file()), None)
                for name in BATCHES
            ]
            here = [path for path in stored if path is not None]
            if len(here) == len(BATCHES):
                return here
        if (folder / ARCHIVE).is_file():
            return [folder / ARCHIVE]
    return []


def _decode(name: str, content: bytes, path: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    check_sha256(path or name, content, BATCHES[name])
    return decode_batch(content)


def _read_archive(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                if name in BATCHES and (stream := archive.extractfile(member)) is not None:
                    found[name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a complete archive ({error}); delete it and load again") from error
    missing = [name for name in BATCHES if name not in found]
    if missing:
        raise InputError(f"{path} has no {missing[0]}; get the binary version, {ARCHIVE}")
    return {name: found[name] for name in BATCHES}
