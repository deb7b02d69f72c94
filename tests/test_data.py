"""Datasets: the bundled a9a, files of one's own, MNIST and CIFAR-10, and what happens to damaged ones."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pisco import data
from pisco.data import cifar10, mnist, storage
from pisco.data.dataset import Dataset
from pisco.errors import InputError

DATA = Path(os.environ.get("PISCO_DATA", "no-such-folder"))


def needs(*files):
    missing = [file for file in files if not (DATA / file).is_file()]
    return pytest.mark.skipif(bool(missing), reason=f"PISCO_DATA has no {missing[0] if missing else ''}")


@pytest.fixture(scope="module")
def a9a():
    return data.load("a9a")


@pytest.fixture
def empty_places(monkeypatch, tmp_path):
    """Neither `PISCO_DATA` nor anything in the cache; downloads fail unless a test replaces `retrieve`."""
    import pooch

    def refuse(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.delenv("PISCO_DATA", raising=False)
    monkeypatch.setenv("PISCO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pooch, "retrieve", refuse)
    return tmp_path / "cache"


# Dataset


def test_dataset_keeps_small_types_and_reports_itself():
    part = Dataset("d", np.zeros((4, 2), np.int8), np.array([3, 5, 3, 5], np.uint8))
    assert part.features.dtype == np.int8 and part.labels.dtype == np.uint8
    assert (part.num_samples, part.num_classes, part.label_values.tolist()) == (4, 2, [3, 5])
    assert repr(part) == "Dataset('d', 4 samples of shape (2,) int8, 2 classes)"


def test_dataset_converts_whole_floats_and_booleans():
    assert Dataset("d", [1.0, 2.0], [-1.0, 1.0]).labels.dtype == np.int64
    assert Dataset("d", [1.0, 2.0], [True, False]).labels.tolist() == [1, 0]


def test_dataset_counts_named_classes_and_test_labels():
    assert Dataset("d", [1, 2], [0, 1], classes=("a", "b", "c")).num_classes == 3
    assert Dataset("d", [1, 2], [0, 1], [3], [2]).num_classes == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"features": [[1.0], [2.0]], "labels": [1]}, "2 rows of features and 1 labels"),
        ({"features": np.zeros((0, 3)), "labels": []}, "at least one sample"),
        ({"features": 5.0, "labels": [1]}, "shape ()"),
        ({"features": [[1.0], [np.nan], [np.inf]], "labels": [1, 1, 1]}, "not finite at row 1"),
        ({"features": [[1.0], [2.0]], "labels": [0.0, np.inf]}, "inf at row 1"),
        ({"features": [[1.0], [2.0]], "labels": [0.0, 0.5]}, "0.5 at row 1"),
        ({"features": [[1.0], [2.0]], "labels": [[0], [1]]}, "one label per sample"),
        ({"features": [["a"], ["b"]], "labels": [0, 1]}, "real numbers"),
        ({"features": [[1.0], [2.0]], "labels": ["cat", "dog"]}, "number the classes"),
        ({"features": [[1.0]], "labels": [1], "test_features": [[1.0]]}, "without test_labels"),
        ({"features": [[1.0]], "labels": [1], "test_labels": [1]}, "without test_features"),
        ({"features": [[1.0]], "labels": [1], "test_features": [[1.0, 2.0]], "test_labels": [1]}, "shape (2,)"),
        ({"features": [[1.0]], "labels": [1], "test_features": [[np.nan]], "test_labels": [1]}, "test_features of 'd'"),
        ({"features": [1, 2], "labels": [0, 1], "classes": ("a",)}, "names 1 classes"),
    ],
)
def test_dataset_refuses(arguments, words):
    with pytest.raises(InputError) as caught:
        Dataset("d", **arguments)
    assert words in str(caught.value)


# a9a


def test_a9a_has_the_published_counts(a9a):
    assert a9a.features.shape == (32561, 123) and a9a.test_features.shape == (16281, 123)
    assert a9a.features.dtype == a9a.test_features.dtype == a9a.labels.dtype == a9a.test_labels.dtype == np.int8
    assert (int((a9a.labels == 1).sum()), int((a9a.labels == -1).sum())) == (7841, 24720)
    assert (int((a9a.test_labels == 1).sum()), int((a9a.test_labels == -1).sum())) == (3846, 12435)
    assert (int(a9a.features.sum(dtype=int)), int(a9a.test_features.sum(dtype=int))) == (451592, 225731)
    assert not a9a.test_features[:, 122].any()


@pytest.mark.parametrize(
    ("part", "sha256"),
    [
        ("", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
        ("test_", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
    ],
)
def test_a9a_written_as_text_has_the_published_checksum(a9a, part, sha256):
    digest = hashlib.sha256()
    for row, label in zip(getattr(a9a, f"{part}features"), getattr(a9a, f"{part}labels"), strict=True):
        ones = "".join(f"{column + 1}:1 " for column in np.flatnonzero(row))
        digest.update(f"{label:+d} {ones}\n".encode())
    assert digest.hexdigest() == sha256


@needs("a9a", "a9a.t")
def test_a9a_equals_the_published_text(a9a):
    text = data.load(DATA / "a9a")
    for field in ("features", "labels", "test_features", "test_labels"):
        np.testing.assert_array_equal(getattr(a9a, field), getattr(text, field))
        assert getattr(text, field).dtype == np.int8


def test_bundled_file_is_small():
    assert data.available()[0].size < 600_000


# LIBSVM text

TINY = "+1 1:0.5 3:2 # comment\n\n# only a comment\n-1 2:1e-1\r\n2\n"


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_libsvm_reads_plain_and_compressed_text(tmp_path, ending, pack):
    path = tmp_path / f"tiny{ending}"
    path.write_bytes(pack(TINY.encode()))
    read = data.load(path)
    np.testing.assert_allclose(read.features, [[0.5, 0, 2], [0, 0.1, 0], [0, 0, 0]], rtol=1e-6)
    assert read.features.dtype == np.float32 and read.labels.tolist() == [1, -1, 2]


def test_libsvm_takes_the_neighbour_named_t_as_test_part(tmp_path):
    (tmp_path / "d.gz").write_bytes(gzip.compress(b"1 1:1\n0 2:1\n"))
    (tmp_path / "d.t.gz").write_bytes(gzip.compress(b"1 4:1\n"))
    read = data.load(str(tmp_path / "d.gz"))
    assert read.features.shape == (2, 4) and read.test_features.tolist() == [[0, 0, 0, 1]]


def test_libsvm_detects_indices_from_zero_in_either_part(tmp_path):
    (tmp_path / "a").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "b").write_text("1 0:7\n")
    read = data.load_libsvm(tmp_path / "a", test=tmp_path / "b")
    assert read.features.tolist() == [[0, 1, 0], [0, 0, 1]] and read.test_features.tolist() == [[7, 0, 0]]


def test_libsvm_width_dtypes_and_order_of_indices(tmp_path):
    path = tmp_path / "d"
    path.write_text("\ufeff300.0 3:127 1:-128\n-5\n", encoding="utf-8")
    read = data.load_libsvm(path, num_features=5)
    assert read.features.tolist() == [[-128, 0, 127, 0, 0], [0] * 5] and read.features.dtype == np.int8
    assert read.labels.tolist() == [300, -5] and read.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 2", "'2' is not index:value"),
        ("1 1:1 2:x", "'2:x' is not index:value"),
        ("1 2 3:4:5", "'2' is not index:value"),
        ("1 1:2:3", "'1:2:3' is not index:value"),
        ("1 1.5:3", "'1.5:3' is not index:value"),
        ("1 qid:3 1:2", "'qid:3' is not index:value"),
        ("1 -1:3", "index -1 is out of range"),
        ("1 99999999999999999999:3", "is out of range"),
        ("1 1:2 1:3", "occurs twice"),
        ("1 1:nan", "not a finite"),
        ("1 1:1e39", "not a finite"),
        ("one 1:2", "the label 'one'"),
        ("nan 1:2", "the label 'nan'"),
        ("0.5 1:2", "the label 0.5 is not a whole number"),
        ("1,2 1:2", "the label '1,2'"),
        ("\x89PNG\udcff", "is not a number"),
    ],
)
def test_libsvm_names_the_malformed_line(tmp_path, line, words):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"1 1:1\n# fine\n" + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(InputError) as caught:
        data.load_libsvm(path)
    assert words in str(caught.value) and "line 3 of" in str(caught.value) and "bad.txt" in str(caught.value)


def test_libsvm_refuses_what_it_cannot_use(tmp_path):
    path = tmp_path / "d"
    path.write_text("# nothing\n\n")
    with pytest.raises(InputError, match="has no samples"):
        data.load_libsvm(path)
    path.write_text("1 1:1\n\n1 2:1 7:1\n")
    with pytest.raises(InputError, match=r"line 3 of .* has index 7, but num_features is 4"):
        data.load_libsvm(path, num_features=4)
    with pytest.raises(InputError, match="num_features is 0"):
        data.load_libsvm(path, num_features=0)
    path.write_text("1 2000000000:1\n" * 1000)
    with pytest.raises(InputError, match="dense with .* GB of memory"):
        data.load_libsvm(path)
    with pytest.raises(InputError, match="cannot read"):
        data.load_libsvm(tmp_path / "absent")


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_truncated_and_fake_compressed_files(tmp_path, ending, pack):
    path = tmp_path / f"d{ending}"
    for content in (pack(TINY.encode() * 50)[:-9], b"not compressed"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a complete"):
            data.load_libsvm(path)


# NumPy archives


def test_npz_round_trip(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(
        path, features=np.eye(3), labels=[0, 1, 0], test_features=np.eye(3), test_labels=[1, 1, 1], classes=["a", "b"]
    )
    read = data.load(str(path))
    assert read.name == "mine" and read.classes == ("a", "b") and len(read.test_labels) == 3


def test_npz_missing_array_is_named(tmp_path):
    np.savez(tmp_path / "d.npz", features=np.eye(2), label=[0, 1])
    with pytest.raises(InputError, match=r"no array 'labels'.*has: features, label.*test_features"):
        data.load_npz(tmp_path / "d.npz")


def test_npz_refuses_damaged_absent_and_unsafe_files(tmp_path):
    path = tmp_path / "d.npz"
    with pytest.raises(InputError, match="there is no file"):
        data.load(path)
    np.savez(path, features=np.arange(1000.0), labels=np.zeros(1000, int))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[400] ^= 255
    unsafe = io.BytesIO()
    np.savez(unsafe, features=np.array([object()]), labels=[1])
    for content in (whole[:-50], whole[:100], bytes(flipped), b"", b"text", unsafe.getvalue()):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a readable"):
            data.load_npz(path)
    single = io.BytesIO()
    np.save(single, np.eye(2))
    path.write_bytes(single.getvalue())
    with pytest.raises(InputError, match="single array"):
        data.load_npz(path)


# names, places, downloads


def test_load_explains_unknown_names(tmp_path):
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        data.load("cifar")
    with pytest.raises(InputError, match="known: a9a, cifar10, digits, fashion-mnist, mnist, shakespeare, sotu"):
        data.load("imagenet-22k")
    with pytest.raises(InputError, match="is a folder"):
        data.load(tmp_path)
    with pytest.raises(InputError, match="there is no file"):
        data.load("some/where/else.txt")
    with pytest.raises(InputError, match="expected a name"):
        data.load(3)


@pytest.mark.parametrize(
    ("name", "words"), [("mnist", "train-images-idx3-ubyte.gz, train-labels"), ("cifar10", "cifar-10-binary.tar.gz")]
)
def test_failed_download_says_which_files_go_where(empty_places, name, words):
    with pytest.raises(InputError) as caught:
        data.load(name)
    assert words in str(caught.value) and str(empty_places / name) in str(caught.value)
    assert "PISCO_DATA" in str(caught.value) and "\n" not in str(caught.value)


def test_available_downloads_nothing(empty_places):
    records = {record.name: record for record in data.available()}
    assert records["a9a"].found is not None
    assert records["mnist"].found is None and records["mnist"].size == 11_594_722
    assert records["cifar10"].found is None and records["cifar10"].how
    assert not empty_places.exists()


def test_a_wrong_data_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PISCO_DATA", str(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"PISCO_DATA is '.*absent'"):
        data.load("mnist")


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def small_mnist(monkeypatch, folder, which="MNIST"):
    """Four tiny files in the original format, under their own checksums."""
    images = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    contents = [idx(array) for array in (images, np.array([1, 2, 3], np.uint8)) * 2]
    whole = getattr(mnist, which)
    folder.mkdir(parents=True)
    files = {}
    for (field, file), content in zip(whole.files.items(), contents, strict=True):
        (folder / file.name).write_bytes(gzip.compress(content))
        files[field] = file._replace(content=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(mnist, which, whole._replace(files=files))
    return images


@pytest.mark.parametrize("variable", ["PISCO_DATA", "PISCO_CACHE"])
@pytest.mark.parametrize(("name", "which"), [("mnist", "MNIST"), ("fashion-mnist", "FASHION")])
def test_mnist_is_found_in_either_folder_and_verified(monkeypatch, empty_places, tmp_path, variable, name, which):
    images = small_mnist(monkeypatch, tmp_path / "here" / name, which)
    monkeypatch.setenv(variable, str(tmp_path / "here"))
    read = data.load(name)
    np.testing.assert_array_equal(read.features, images.reshape(3, 784))
    assert read.labels.tolist() == [1, 2, 3] and read.num_classes == 10
    assert {record.name: record.found for record in data.available()}[name] == tmp_path / "here" / name
    (tmp_path / "here" / name / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\.gz has SHA-256"):
        data.load(name)


def test_mnist_is_downloaded_once_into_the_cache(monkeypatch, empty_places, tmp_path):
    import pooch

    small_mnist(monkeypatch, tmp_path / "mirror")
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append(url)
        path.mkdir(parents=True, exist_ok=True)
        (path / fname).write_bytes((tmp_path / "mirror" / fname).read_bytes())
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert data.load("mnist").num_samples == data.load("mnist").num_samples == 3
    assert asked == [mnist.MNIST.mirror + file.name for file in mnist.MNIST.files.values()]


def test_idx_reader_refuses_other_and_cut_files(tmp_path):
    path = tmp_path / "x-idx3-ubyte"
    good = idx(np.zeros((2, 3), np.uint8))
    path.write_bytes(good)
    assert mnist.read_idx(path).shape == (2, 3)
    for content, words in ((good[:-1], "cut short"), (good[:7], "cut short"), (good + b"x", "too long")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            mnist.read_idx(path)
    for content in (b"", b"\0\0\x0d\x01" + bytes(8)):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not an idx file"):
            mnist.read_idx(path)


def small_cifar(monkeypatch):
    """Six batches of two images, under their own checksums."""
    generator = np.random.default_rng(0)
    contents = {name: generator.integers(0, 10, 2 * 3073, np.uint8).tobytes() for name in cifar10.BATCHES}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(cifar10, "BATCHES", sums)
    return contents


def write_archive(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("form", ["bin", "xz", "unpacked", "archive"])
def test_cifar10_reads_every_form_alike(monkeypatch, empty_places, form):
    contents = small_cifar(monkeypatch)
    folder = empty_places / "cifar10"
    if form == "archive":
        write_archive(folder / cifar10.ARCHIVE, dict(reversed(contents.items())))
    else:
        folder /= "cifar-10-batches-bin" if form == "unpacked" else ""
        folder.mkdir(parents=True)
        for name, content in contents.items():
            path = folder / (f"{name}.xz" if form == "xz" else name)
            path.write_bytes(lzma.compress(content) if form == "xz" else content)
    read = data.load("cifar10")
    assert read.features.shape == (10, 32, 32, 3) and read.test_features.shape == (2, 32, 32, 3)
    second = contents["data_batch_1.bin"][3073:]
    assert read.labels[1] == second[0]
    assert read.features[1, 4, 9, 2] == second[1 + 2 * 1024 + 4 * 32 + 9]
    assert {record.name: record.found for record in data.available()}["cifar10"] == folder


def test_cifar10_refuses_damaged_files(monkeypatch, empty_places):
    contents = small_cifar(monkeypatch)
    archive = empty_places / "cifar10" / cifar10.ARCHIVE
    write_archive(archive, contents | {"test_batch.bin": bytes(3073)})
    with pytest.raises(InputError, match=r"test_batch\.bin has SHA-256"):
        data.load("cifar10")
    write_archive(archive, {"data_batch_1.bin": contents["data_batch_1.bin"]})
    with pytest.raises(InputError, match=r"has no data_batch_2\.bin"):
        data.load("cifar10")
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(InputError, match="not a complete archive"):
        data.load("cifar10")
    for name, content in contents.items():
        (archive.parent / f"{name}.xz").write_bytes(lzma.compress(content)[:-5])
    with pytest.raises(InputError, match=r"data_batch_1\.bin\.xz is not a complete"):
        data.load("cifar10")
    with pytest.raises(InputError, match="records of 3073"):
        cifar10.decode_batch(bytes(3072))


@needs(*(f"mnist/{file.name}" for file in mnist.MNIST.files.values()))
def test_mnist_has_the_published_counts():
    read = data.load("mnist")
    assert read.features.shape == (60000, 784) and read.features.dtype == np.uint8
    assert np.bincount(read.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(read.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    agents = data.PARTITIONS["by_label"](read.labels, agents=10)
    assert all((read.labels[part] == agent).all() for agent, part in enumerate(agents))


@needs(*(f"fashion-mnist/{file.name}" for file in mnist.FASHION.files.values()))
def test_fashion_mnist_has_the_published_counts():
    read = data.load("fashion-mnist")
    assert read.features.shape == (60000, 784) and read.features.dtype == np.uint8
    assert np.bincount(read.labels).tolist() == [6000] * 10 and np.bincount(read.test_labels).tolist() == [1000] * 10
    assert read.classes[9] == "Ankle boot" and read.labels[0] == 9


@pytest.mark.skipif(not DATA.is_dir() or not any(DATA.glob("cifar10/*")), reason="PISCO_DATA has no cifar10 folder")
@pytest.mark.slow
def test_cifar10_has_the_published_statistics():
    read = data.load("cifar10")
    assert read.features.shape == (50000, 32, 32, 3) and read.features.dtype == np.uint8
    assert np.bincount(read.labels).tolist() == [5000] * 10 and np.bincount(read.test_labels).tolist() == [1000] * 10
    means = read.features.mean(axis=(0, 1, 2), dtype=np.float64) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=5e-5)
    agents = data.PARTITIONS["by_label"](read.labels, agents=5)
    assert [sorted(set(read.labels[part].tolist())) for part in agents] == [[i, i + 5] for i in range(5)]


def test_cache_folder_has_a_default(monkeypatch):
    monkeypatch.delenv("PISCO_CACHE", raising=False)
    assert "pisco" in str(storage.cache_folder())


def test_import_is_light():
    # A bare parent package, so that only what `pisco.data` itself imports is seen.
    code = (
        "import sys, types\n"
        "parent = sys.modules['pisco'] = types.ModuleType('pisco')\n"
        f"parent.__path__ = [{str(Path(data.__file__).parents[1])!r}]\n"
        "import pisco.data\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"jax", "pooch", "matplotlib", "scipy"} & set(loaded.split())
