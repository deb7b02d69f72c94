"""Fixed-point numbers modulo 2^64: sums that do not depend on the order, and in which masks can cancel.

A number x is the integer nearest to 2^40·x, so that it is off by 2^-41 at most, and so is a mean. Integers
add up exactly. So that a sum of n cannot leave the range, each may be at most 2^20/n in size; the top three bits of a
sum are then never used, and a sum that uses them has masks in it that did not cancel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pisco.federation.runtime.codec import MessageLayout
from pisco.federation.runtime.routes import ServerHop
from pisco.networks.summing import BITS, SUM_BITS

WORD = np.dtype("<u8")
STEP = 1 << 15
"""Words at a time, so that they stay in the cache while they are made, and while one's after the other's are added."""


class OutOfRange(ValueError):
    """A number or a sum that fixed-point numbers cannot hold; the sentence says which."""


def largest(count: int) -> float:
    """The largest number that each of so many may add to a sum.

    >>> largest(8)
    131072.0
    """
    return 2.0**SUM_BITS / count


def check(arrays: Sequence[np.ndarray], count: int) -> None:
    """Refuse numbers that are too large for a sum of `count` members."""
    for array in arrays:
        most = max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))
        if not most <= largest(count):
            raise OutOfRange(
                f"a number of size {most:.6g} is too large: with {count} members it may be at most {largest(count):g}"
            )


def add(arrays: Sequence[np.ndarray], words: np.ndarray) -> None:
    """Add all numbers of some arrays, one after the other, to a vector of words."""
    at, room = 0, np.empty(STEP, np.int64)
    for array in arrays:
        flat = array.reshape(-1)
        for start in range(0, flat.size, STEP):
            numbers = flat[start : start + STEP]
            # A power of two changes no digit, so 32 bits are enough for numbers that have no more.
            numbers = numbers * 2.0**BITS if numbers.itemsize >= 4 else numbers.astype(np.float32) * 2.0**BITS
            np.rint(numbers, out=numbers)
            whole, piece = room[: numbers.size], words[at : at + numbers.size]
            np.copyto(whole, numbers, casting="unsafe")
            np.add(piece, whole.view(WORD), out=piece)
            at += numbers.size


def encode(arrays: Sequence[np.ndarray], count: int) -> np.ndarray:
    """All numbers of some arrays as one vector of words, to be added up with those of `count` members in all.

    >>> encode([np.array([1.0, -2.0**-40])], count=3)
    array([       1099511627776, 18446744073709551615], dtype=uint64)
    """
    check(arrays, count)
    words = np.zeros(sum(array.size for array in arrays), WORD)
    add(arrays, words)
    return words


def total(parts: Sequence[Sequence[np.ndarray]], layout: MessageLayout, divisor: int) -> list[np.ndarray]:
    """The sum of everybody's words, modulo 2^64, as the arrays of a layout and divided by a number."""
    made = []
    for at, (dtype, (_, shape)) in enumerate(zip(layout.dtypes, layout.leaves, strict=True)):
        leaves, numbers = [part[at].reshape(-1) for part in parts], np.empty(math.prod(shape), dtype)
        for start in range(0, numbers.size, STEP):
            here = slice(start, start + STEP)
            words = np.array(leaves[0][here], WORD)
            for leaf in leaves[1:]:
                words += leaf[here]
            whole = words.view(np.int64)
            # Not its absolute value: that of the smallest integer is itself.
            if max(int(whole.max()), -int(whole.min())) > 1 << (BITS + SUM_BITS):
                raise OutOfRange("the masks in a sum did not cancel")
            numbers[here] = whole / (divisor * 2.0**BITS)
        made.append(numbers.reshape(shape))
    return made


def divisor(hop: ServerHop) -> int:
    """By what a sum is divided: reports that carry their weights already add up to the mean."""
    return len(hop.reporters) if hop.weights is None else 1


def weighed(arrays: Sequence[np.ndarray], hop: ServerHop, place: int) -> list[np.ndarray]:
    """What the reporter at a place adds to the sum."""
    if hop.weights is None:
        return list(arrays)
    return [array * array.dtype.type(hop.weights[place]) for array in arrays]


def mean(arrays: Mapping[int, Sequence[np.ndarray]], hop: ServerHop) -> list[np.ndarray]:
    """What the server makes of the reporters' vectors, without masks: the same to the bit."""
    layout = MessageLayout.of(arrays[hop.reporters[0]])
    words = [encode(weighed(arrays[place], hop, place), len(hop.reporters)) for place in hop.reporters]
    return total([layout.masked.split(each.data) for each in words], layout, divisor(hop))
