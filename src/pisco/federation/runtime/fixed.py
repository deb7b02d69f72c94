"""Fixed-point numbers modulo 2^48 and 2^64: sums that do not depend on the order, and in which masks can cancel.

A number x of 32 bits or fewer is the integer nearest to 2^28·x, so that it is off by 2^-29 at most, and so is a mean;
in float64 2^40·x and 2^-41. Integers add up exactly. So that a sum of n cannot leave the range, each may be at most
2^16/n in size (2^20/n). The top three bits of a sum are then never used, and a sum that uses them has masks in it that
did not cancel. (Of evenly drawn words one in eight does not use them: d numbers are not noticed once in 8^d times.)

Words of 8 bytes are added up as they are, those of 6 as their upper 32 and their lower 16 bits: see `MessageLayout`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pisco.federation.runtime.codec import MessageLayout
from pisco.federation.runtime.routes import ServerHop
from pisco.privacy.summing import SHORT, WIDE, WordSize, word_of

WORD = np.dtype("<u8")
"""Of masks, whatever is sent of them."""
STEP = 1 << 15
"""Words at a time, so that they stay in the cache while they are made, and while one's after the other's are added."""

Words = Sequence[np.ndarray]
"""A vector as it is sent: words of 8 bytes, and of those of 6 the upper 32 bits and the lower 16."""


class OutOfRange(ValueError):
    """A number or a sum that fixed-point numbers cannot hold; the sentence says which."""


def largest(count: int, dtype: np.dtype | str) -> float:
    """The largest number that each of so many may add to a sum.

    >>> largest(8, "float32"), largest(8, "float64")
    (8192.0, 131072.0)
    """
    return 2.0 ** word_of(dtype).sum_bits / count


def check(arrays: Sequence[np.ndarray], count: int) -> None:
    """Refuse numbers that are too large for a sum of `count` members."""
    for array in arrays:
        most = max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))
        if not most <= largest(count, array.dtype):
            raise OutOfRange(
                f"a number of size {most:.6g} is too large: with {count} members it may be at most "
                f"{largest(count, array.dtype):g} in {array.dtype}"
            )


def write(arrays: Sequence[np.ndarray], masks: Callable[[np.ndarray], None] | None, words: Words) -> None:
    """Write all numbers of some arrays, one after the other, as words; `masks` adds theirs to some integers at a time.

    To leave the first bits of an integer away is to take it modulo a smaller power of two, and sums with it.
    """
    at, floats = {WIDE: 0, SHORT: 0}, np.empty(STEP)
    for array in arrays:
        flat, word = array.reshape(-1), word_of(array.dtype)
        for start in range(0, flat.size, STEP):
            numbers = floats[: min(STEP, flat.size - start)]
            np.copyto(numbers, flat[start : start + STEP])
            first, *rest = _cut(words, word, at[word], numbers.size)
            if word is WIDE:
                np.rint(np.multiply(numbers, 2.0**word.bits, out=numbers), out=numbers)
                np.copyto(first.view(np.int64), numbers, casting="unsafe")
                whole = first
            else:
                # A float64 near 2^(52 - bits) is a multiple of 2^-bits: this rounds as `rint` does, and its last bits
                # are the integer.
                np.add(numbers, 1.5 * 2.0 ** (52 - word.bits), out=numbers)
                whole = numbers.view(WORD)
            if masks is not None:
                masks(whole)
            for low in rest:
                np.copyto(low, whole, casting="unsafe")
                np.right_shift(whole, 8 * low.itemsize, out=whole)
                np.copyto(first, whole, casting="unsafe")
            at[word] += numbers.size


def encode(
    arrays: Sequence[np.ndarray], count: int, masks: Callable[[np.ndarray], None] | None = None
) -> list[np.ndarray]:
    """All numbers of some arrays as one vector of words, to be added up with those of `count` members in all.

    >>> [plane.tolist() for plane in encode([np.array([1.0, -(2.0**-40)]), -np.ones(1, np.float32)], count=3)]
    [[1099511627776, 18446744073709551615], [4294963200], [0]]
    """
    check(arrays, count)
    layout = MessageLayout.of(arrays).masked
    words = layout.split(bytearray(layout.size))
    write(arrays, masks, words)
    return words


def total(parts: Sequence[Words], layout: MessageLayout, divisor: int) -> list[np.ndarray]:
    """The sum of everybody's words as the arrays of a layout, divided by a number."""
    made, at, floats = [], {WIDE: 0, SHORT: 0}, np.empty((2, STEP))
    room = [np.empty(STEP, kind) for kind in (np.uint64, np.uint32, np.uint32)]
    for dtype, (_, shape) in zip(layout.dtypes, layout.leaves, strict=True):
        word, numbers = word_of(dtype), np.empty(math.prod(shape), dtype)
        for start in range(0, numbers.size, STEP):
            here = numbers[start : start + STEP]
            first, *rest = words = _cut(room, word, 0, here.size)
            _add_up([_cut(part, word, at[word], here.size) for part in parts], words)
            top, unit = first.view(f"i{first.itemsize}"), 8 * (word.size - first.itemsize)
            # Not its absolute value: that of the smallest integer is itself. What the lower bits carry is not in it.
            if max(int(top.max()), -int(top.min())) > (1 << (word.bits + word.sum_bits - unit)) + len(parts):
                raise OutOfRange("the masks in a sum did not cancel")
            whole, lower = floats[:, : here.size]
            np.copyto(whole, top)
            for low in rest:  # a float has room for 48 bits, and for what they carry
                np.copyto(lower, low)
                np.multiply(whole, 2.0**unit, out=whole)
                np.add(whole, lower, out=whole)
            np.copyto(here, np.divide(whole, divisor * 2.0**word.bits, out=whole), casting="same_kind")
            at[word] += here.size
        made.append(numbers.reshape(shape))
    return made


def _add_up(parts: Sequence[Words], into: Words) -> None:
    """The sum of words of one size, into the same with room for what the lower bits carry."""
    for part in parts:
        for total, plane in zip(into, part, strict=True):
            if part is parts[0]:
                np.copyto(total, plane)
            else:
                np.add(total, plane, out=total)


def _cut(words: Words, word: WordSize, start: int, size: int) -> list[np.ndarray]:
    """Some words of one size."""
    return [plane[start : start + size] for plane in (words[:1] if word is WIDE else words[1:])]


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
    return total(words, layout, divisor(hop))
