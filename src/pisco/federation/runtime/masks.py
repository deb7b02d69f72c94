"""Pairwise masks: streams that two members share and nobody else knows, added by one and taken away by the other.

Each pair's key is the X25519 secret of their two keys through HKDF. Each exchange's is drawn from it with HKDF again,
by the name of the exchange (the hash of the plan, or of all rolls so far; round, phase), its reporters and its layout.
The mask is the stream of AES-128 in counter mode under that key, which is used once: as strong as X25519, and quicker
than with more rounds. All of it is `cryptography`'s.
"""

from __future__ import annotations

import functools
import hashlib
import time
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
_ZEROS = memoryview(bytes(WORD.itemsize * STEP))
MODES = (modes.CTR(bytes(15) + b"\2"), modes.GCM(bytes(12)))
"""Two ways to one stream."""


def pair_key(private: X25519PrivateKey, other: bytes, federation: bytes, names: tuple[str, str]) -> bytes:
    """The key that two members share, the same from either side; `federation` is the founding plan's hash."""
    public = private.public_key().public_bytes_raw()
    ends = sorted(zip(names, (public, other), strict=True))
    info = b"pisco pair 1\0" + b"".join(name.encode() + b"\0" + key for name, key in ends)
    secret = private.exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(hashes.SHA256(), 32, salt=federation, info=info).derive(secret)


def exchange_context(where: Where, reporters: Sequence[str], layout: MessageLayout) -> bytes:
    """What names one sum: no two have the same masks."""
    who = hashlib.sha256("\0".join([*reporters, "", str(layout.masked)]).encode()).digest()
    number = where.round.to_bytes(8, "big") + where.phase.to_bytes(4, "big")
    return b"pisco mask 2\0" + hashlib.sha256(where.federation).digest() + number + who


class PairMasks:
    """A member's masks in one exchange: of two members, the one whose name comes first adds what the other takes."""

    def __init__(self, name: str, pairs: Mapping[str, bytes], context: bytes):
        self._streams = [
            (_stream(key, context), np.add if name < other else np.subtract) for other, key in pairs.items()
        ]
        self._room = bytearray(_ZEROS.nbytes + _BLOCK)

    def add_to(self, words: np.ndarray) -> None:
        """Add the next ones to at most `STEP` words: all of them while the words are in the cache."""
        zeros, mask = _ZEROS[: words.nbytes], np.frombuffer(self._room, WORD, words.size)
        for stream, apply in self._streams:
            stream.update_into(zeros, self._room)
            apply(words, mask, out=words)


def _stream(key: bytes, context: bytes) -> Any:
    once = HKDFExpand(hashes.SHA256(), 16, info=context).derive(key)
    return Cipher(algorithms.AES(once), _mode()).encryptor()


@functools.cache
def _mode() -> modes.CTR | modes.GCM:
    """The quicker of two ways to the same stream: processors have had more work done on GCM, whose tag nobody asks for.

    GCM counts from 2 on after a nonce of 12 bytes, in 32 bits: a message is far below its 64 GiB.
    """
    room, times = bytearray(_ZEROS.nbytes + _BLOCK), dict.fromkeys(MODES, 1.0)
    for mode in MODES * 8:  # in turns: whatever else the machine does is not in all of them
        stream = Cipher(algorithms.AES(bytes(16)), mode).encryptor()
        began = time.perf_counter()
        stream.update_into(_ZEROS, room)
        times[mode] = min(times[mode], time.perf_counter() - began)
    return min(times, key=times.__getitem__)
