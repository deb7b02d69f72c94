"""Pairwise masks: streams that two members share and nobody else knows, added by one and taken away by the other.

Each pair's key is the X25519 secret of their two keys through HKDF; each exchange's is drawn from it with HKDF again,
by the name of the exchange (the hash of the plan, or of all rolls so far; round, phase), its reporters and its layout.
The mask is the stream of AES-256 in counter mode under that key, which is used once. All of it is `cryptography`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from pisco.federation.runtime.codec import MessageLayout, Where
from pisco.federation.runtime.fixed import STEP, WORD

_BLOCK = 16


def pair_key(private: X25519PrivateKey, other: bytes, federation: bytes, names: tuple[str, str]) -> bytes:
    """The key that two members share, the same from either side; `federation` is the founding plan's hash."""
    public = private.public_key().public_bytes_raw()
    ends = sorted(zip(names, (public, other), strict=True))
    info = b"pisco pair 1\0" + b"".join(name.encode() + b"\0" + key for name, key in ends)
    secret = private.exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(hashes.SHA256(), 32, salt=federation, info=info).derive(secret)


def exchange_context(where: Where, reporters: Sequence[str], layout: MessageLayout) -> bytes:
    """What names one sum: no two have the same masks."""
    who = hashlib.sha256("\0".join([*reporters, "", str(layout)]).encode()).digest()
    number = where.round.to_bytes(8, "big") + where.phase.to_bytes(4, "big")
    return b"pisco mask 1\0" + hashlib.sha256(where.federation).digest() + number + who


def apply(words: np.ndarray, name: str, pairs: Mapping[str, bytes], context: bytes) -> None:
    """Mask a member's words in place: of two members, the one whose name comes first adds what the other takes away."""
    streams = [(_stream(key, context), np.add if name < other else np.subtract) for other, key in pairs.items()]
    zeros, room = memoryview(bytes(8 * STEP)), bytearray(8 * STEP + _BLOCK)
    mask = np.frombuffer(room, WORD, STEP)
    for start in range(0, words.size, STEP):
        piece = words[start : start + STEP]
        for stream, combine in streams:
            stream.update_into(zeros[: 8 * piece.size], room)
            combine(piece, mask[: piece.size], out=piece)


def _stream(key: bytes, context: bytes) -> Any:
    once = HKDFExpand(hashes.SHA256(), 32, info=context).derive(key)
    return Cipher(algorithms.AES(once), modes.CTR(bytes(_BLOCK))).encryptor()
