"""Positions in many Avro values: each call reads the next item of all selected values.

Avro has no field tags, so the position of an item depends on the items before it. But values are
independent of each other: one call of numpy reads the same item of thousands of values.

A value that ends too early or has an impossible length fails. Its position then moves to the zeros
after the data, where every further item is empty. So only lengths need a check when they are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_leasehold.assets.decoding.payloads import Mask, Payloads, Positions, byte_strings

Rows = Any
"""The selected values: `ALL`, or ascending row numbers."""
ALL = slice(None)
_CONTINUED = np.uint64(0x8080808080808080)
_PAYLOAD = np.uint64(0x7F7F7F7F7F7F7F7F)
_SEVENTHS = tuple(
    (np.uint64(shift), np.uint64(low), np.uint64(high))
    for shift, low, high in (
        (1, 0x007F007F007F007F, 0x7F007F007F007F00),
        (2, 0x00003FFF00003FFF, 0x3FFF00003FFF0000),
        (4, 0x000000000FFFFFFF, 0x0FFFFFFF00000000),
    )
)
"""The steps that join the seven low bits of all bytes of a word."""
_WORD = 16
_ONE = np.uint64(1)


def subset(rows: Rows, mask: Mask) -> Positions:
    """Return the selected values for which a mask is true."""
    return np.flatnonzero(mask) if isinstance(rows, slice) else rows[mask]


class Cursors:
    """The next position in each value.

    Attributes:
        bad: a mask of the values that do not conform to the schema.
        left: a mask of the values that are left to another decoder.
        stopped: a mask of the values that are bad or left.

    Args:
        payloads: the values.
        reach: the most bytes that are read from a value between two lengths.
    """

    def __init__(self, payloads: Payloads, reach: int) -> None:
        begin = int(payloads.starts[0]) if len(payloads) else 0
        end = int(payloads.ends[-1]) if len(payloads) else 0
        self._safe = end - begin
        self.data = np.zeros(self._safe + 2 * reach + _WORD, np.uint8)
        self.data[: self._safe] = payloads.data[begin:end]
        self.at: Positions = payloads.starts - begin
        self.ends: Positions = payloads.ends - begin
        self.bad: Mask = np.zeros(len(payloads), np.bool_)
        self.left: Mask = np.zeros(len(payloads), np.bool_)
        self.stopped: Mask = np.zeros(len(payloads), np.bool_)

    def count(self, rows: Rows) -> int:
        """Return the number of selected values."""
        return len(self.at) if isinstance(rows, slice) else len(rows)

    def fail(self, rows: Rows, mask: Mask) -> None:
        """Mark the selected values as bad for which the mask is true."""
        if mask.any():
            failures = subset(rows, mask)
            self.bad[failures] = True
            self._stop(failures)

    def leave(self, numbers: Positions) -> None:
        """Leave values to another decoder."""
        self.left[numbers] = True
        self._stop(numbers)

    def _stop(self, numbers: Positions) -> None:
        self.stopped[numbers] = True
        self.at[numbers] = self._safe
        self.ends[numbers] = len(self.data)

    def unfinished(self) -> Mask:
        """Return a mask of the values that are bad or have bytes left."""
        return self.bad | ((self.at != self.ends) & ~self.left)

    def numbers(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Read a zigzag-encoded number of variable length from each selected value."""
        at = self.at[rows]
        first = self.data[at]
        if not len(first) or first.max() < 0x80:
            self.at[rows] = at + 1
            bits = first.astype(np.uint64)
        else:
            bits, lengths = self._long_numbers(rows, at)
            self.at[rows] = self.at[rows] + lengths
        return ((bits >> _ONE) ^ (np.uint64(0) - (bits & _ONE))).view(np.int64)

    def _long_numbers(self, rows: Rows, at: Positions) -> tuple[Any, Any]:
        """Return the 64 bits of each number, and its length in bytes, at most 10."""
        words = self._items("<u8", at)
        stops = ~words & _CONTINUED
        stop = stops & (np.uint64(0) - stops)
        bits = words & ((stop << _ONE) - _ONE) & _PAYLOAD
        for shift, low, high in _SEVENTHS:
            bits = (bits & low) | ((bits & high) >> shift)
        # `stop` is a power of two, so a float holds it exactly; its exponent determines the byte.
        lengths = ((stop.astype(np.float64).view(np.int64) >> 52) - 1022) >> 3
        longer = stops == 0
        if longer.any():
            ninth, tenth = self.data[at + 8][longer], self.data[at + 9][longer]
            continued = ninth >= 0x80
            bits[longer] |= (ninth & 0x7F).astype(np.uint64) << np.uint64(56)
            bits[longer] |= np.where(continued, tenth, 0).astype(np.uint64) << np.uint64(63)
            lengths[longer] = 9 + continued
            too_long = np.zeros(len(words), np.bool_)
            too_long[longer] = continued & (tenth > 1)
            self.fail(rows, too_long)
        return bits, lengths

    def fixed(self, rows: Rows, kind: str, width: int) -> npt.NDArray[Any]:
        """Read an item of fixed width, as numpy's type `kind`."""
        at = self.at[rows]
        items = self._items(kind, at)
        self.at[rows] = at + width
        return items

    def spans(self, rows: Rows) -> tuple[Positions, Positions]:
        """Read a length and skip that many bytes; return their positions and lengths."""
        lengths = self.numbers(rows)
        at = self.at[rows]
        impossible = (lengths < 0) | (lengths > self.ends[rows] - at)
        if impossible.any():
            self.fail(rows, impossible)
            lengths = np.where(impossible, 0, lengths)
            at = self.at[rows]
        at = np.array(at)
        self.at[rows] = at + lengths
        return at, lengths

    def binary(self, rows: Rows) -> pa.Array:
        """Read bytes of variable length."""
        at, lengths = self.spans(rows)
        ends = at + lengths
        if (stopped := self.stopped[rows]).any():
            at[stopped] = ends[stopped] = 0
            at, ends = np.maximum.accumulate([at, ends], axis=1)
            at[stopped] = ends[stopped]
        return byte_strings(self.data, at, ends)

    def _items(self, kind: str, at: Positions) -> npt.NDArray[Any]:
        item = np.dtype(kind)
        size = len(self.data) - item.itemsize + 1
        return np.ndarray((size,), item, self.data, strides=(1,))[at]
