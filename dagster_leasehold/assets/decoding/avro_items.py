"""The items of Avro values, each read from many values at once into an Arrow array.

`avro_schemas` makes them from a schema. The arrays have types that a table can have; for example,
times are in microseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from typing_extensions import override

from dagster_leasehold.assets.decoding.avro_cursors import Cursors, Rows, subset
from dagster_leasehold.assets.decoding.payloads import Mask

_pc: Any = pyarrow.compute

NUMBER_BYTES_MAX = 10
ROUNDS_MAX = 64
"""If fewer than this many values have a list longer than this, another decoder reads them."""
EMPTY_ITEMS_MAX = 10_000
"""The most items in a list whose items occupy no bytes."""
DECIMAL_BYTES_MAX = 16


@dataclass(frozen=True, kw_only=True)
class Item(ABC):
    """An item of a value.

    Attributes:
        kind: the type of its array.
        reach: the most bytes that are read before or between the lengths in it.
        least: the fewest bytes that it occupies.
    """

    kind: pa.DataType
    reach: int = NUMBER_BYTES_MAX
    least: int = 1

    @abstractmethod
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        """Read the item of the selected values; the items of bad values are arbitrary."""
        ...


@dataclass(frozen=True, kw_only=True)
class NullItem(Item):
    """Null, which occupies no bytes."""

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        return pa.nulls(cursors.count(rows), self.kind)


@dataclass(frozen=True, kw_only=True)
class NumberItem(Item):
    """An integer of variable length, which can stand for a date or a time.

    Attributes:
        within: the smallest and the largest number.
        times: the factor from its unit to the type's unit; a fraction divides and rounds down.
    """

    within: tuple[int, int] = (-(2**63), 2**63 - 1)
    times: int = 1
    divided: int = 1

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        numbers = cursors.numbers(rows)
        low, high = self.within
        if len(numbers) and (numbers.min() < low or numbers.max() > high):
            outside = (numbers < low) | (numbers > high)
            cursors.fail(rows, outside)
            numbers = np.where(outside, 0, numbers)
        if self.times != 1:
            numbers = numbers * self.times
        elif self.divided != 1:
            numbers = numbers // self.divided
        if self.kind.bit_width == 32:
            numbers = numbers.astype(np.int32)
        plain = pa.int32() if self.kind.bit_width == 32 else pa.int64()
        return pa.array(numbers, plain).view(self.kind)


@dataclass(frozen=True, kw_only=True)
class FixedItem(Item):
    """A float, a boolean, or bytes of fixed width; `width` and `form` describe numpy's type."""

    width: int = 1
    form: str = "u1"

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        items = cursors.fixed(rows, self.form, self.width)
        if pa.types.is_boolean(self.kind):
            cursors.fail(rows, items > 1)
            return pa.array(items == 1)
        if pa.types.is_fixed_size_binary(self.kind):
            return pa.Array.from_buffers(self.kind, len(items), [None, pa.py_buffer(items)])
        return pa.array(items)


@dataclass(frozen=True, kw_only=True)
class BytesItem(Item):
    """Bytes of variable length."""

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        return cursors.binary(rows)


@dataclass(frozen=True, kw_only=True)
class TextItem(Item):
    """Text in UTF-8; other bytes make the value bad."""

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        return as_text(cursors.binary(rows), lambda bad: cursors.fail(rows, bad))


@dataclass(frozen=True, kw_only=True)
class EnumItem(Item):
    """One of some symbols, as text."""

    symbols: tuple[str, ...] = ()

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        places = _within(cursors, rows, cursors.numbers(rows), len(self.symbols))
        return pa.array(self.symbols, pa.string()).take(pa.array(places))


@dataclass(frozen=True, kw_only=True)
class DecimalItem(Item):
    """A decimal, as the bytes of a whole number; of fixed width if `width` is not 0."""

    width: int = 0

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        if self.width:
            at = np.array(cursors.at[rows])
            lengths = np.full(len(at), self.width)
            cursors.at[rows] = at + self.width
        else:
            at, lengths = cursors.spans(rows)
        cursors.fail(rows, lengths > DECIMAL_BYTES_MAX)
        at, lengths = (
            np.where(lengths > DECIMAL_BYTES_MAX, 0, at),
            np.minimum(lengths, DECIMAL_BYTES_MAX),
        )
        # Read from the last byte to the first: Avro is big-endian, Arrow little-endian.
        from_end = np.arange(DECIMAL_BYTES_MAX)
        places = (at + lengths)[:, None] - 1 - from_end
        digits = cursors.data[np.maximum(places, at[:, None])]
        first = cursors.data[at]
        filling = np.where((lengths > 0) & (first >= 0x80), 0xFF, 0).astype(np.uint8)
        digits = np.where(from_end < lengths[:, None], digits, filling[:, None])
        buffer = pa.py_buffer(np.ascontiguousarray(digits))
        decimals = pa.Array.from_buffers(self.kind, len(at), [None, buffer])
        return _fitting(cursors, rows, decimals)


@dataclass(frozen=True, kw_only=True)
class UuidItem(Item):
    """A UUID in 16 bytes, as text."""

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        raw = cursors.fixed(rows, "V16", 16)
        octets = np.frombuffer(raw.tobytes(), np.uint8).reshape(len(raw), 16)
        digits = np.frombuffer(b"0123456789abcdef", np.uint8)
        text = np.full((len(raw), 36), ord("-"), np.uint8)
        places = np.array([place for place in range(36) if place not in (8, 13, 18, 23)])
        text[:, places[0::2]], text[:, places[1::2]] = digits[octets >> 4], digits[octets & 15]
        ends = np.arange(0, 36 * len(raw) + 1, 36, dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(raw), buffers)


@dataclass(frozen=True, kw_only=True)
class OptionalItem(Item):
    """A union of null and one other type; `place` is the index of the other type."""

    item: Item
    place: int = 1

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        present = _within(cursors, rows, cursors.numbers(rows), 2) == self.place
        if present.all():
            return self.item.read(cursors, rows)
        if not present.any():
            return pa.nulls(len(present), self.kind)
        return _spread(self.item.read(cursors, subset(rows, present)), present)


@dataclass(frozen=True, kw_only=True)
class UnionItem(Item):
    """A union of several types, as a struct with a field for each of them, or as one number."""

    items: tuple[Item, ...] = ()

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        places = _within(cursors, rows, cursors.numbers(rows), len(self.items))
        columns: list[pa.Array] = []
        for place, item in enumerate(self.items):
            chosen = places == place
            if isinstance(item, NullItem):
                continue
            columns.append(_spread(item.read(cursors, subset(rows, chosen)), chosen))
        if not pa.types.is_struct(self.kind):
            return _pc.coalesce(*(column.cast(self.kind) for column in columns))
        nulls = [place for place, item in enumerate(self.items) if isinstance(item, NullItem)]
        absent = pa.array(np.isin(places, nulls))
        return pa.StructArray.from_arrays(columns, fields=[*self.kind], mask=absent)


@dataclass(frozen=True, kw_only=True)
class RecordItem(Item):
    """A record, as a struct."""

    items: tuple[Item, ...] = ()

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        columns = [item.read(cursors, rows) for item in self.items]
        if not columns:
            return pa.array([{}] * cursors.count(rows), self.kind)
        return pa.StructArray.from_arrays(columns, fields=[*self.kind])


@dataclass(frozen=True, kw_only=True)
class ListItem(Item):
    """An array, or a map with `keys`, in blocks of items.

    Attributes:
        items: the items of an array, or the values of a map.
        keys: the keys of a map; None for an array.
        alone: True if a value with many items can be left to another decoder.
    """

    items: Item
    keys: Item | None = None
    alone: bool = True

    @override
    def read(self, cursors: Cursors, rows: Rows) -> pa.Array:
        owners: list[Any] = []
        parts: list[tuple[pa.Array, ...]] = []
        parted = (self.keys, self.items) if self.keys else (self.items,)
        places = np.arange(cursors.count(rows))
        numbers = np.arange(len(cursors.at))[rows]
        remaining = np.zeros(len(places), np.int64)
        rounds = 0
        while len(places):
            remaining[places] = self._block(cursors, numbers[places])
            places = at_work = places[remaining[places] > 0]
            while len(at_work):
                owners.append(at_work)
                own = numbers[at_work]
                parts.append(tuple(each.read(cursors, own) for each in parted))
                cursors.fail(own, cursors.at[own] > cursors.ends[own])
                remaining[at_work] -= 1
                at_work = at_work[remaining[at_work] > 0]
                at_work = at_work[~cursors.stopped[numbers[at_work]]]
                rounds += 1
                if self.alone and rounds > ROUNDS_MAX > len(at_work):
                    cursors.leave(numbers[at_work])
                    break
            places = places[~cursors.stopped[numbers[places]]]
        return self._joined(len(remaining), owners, parts)

    def _block(self, cursors: Cursors, rows: Any) -> Any:
        """Read the beginning of a block; return the number of its items, 0 after the last block."""
        counts = cursors.numbers(rows)
        sized = counts < 0
        if sized.any():
            cursors.numbers(rows[sized])
            counts = np.abs(counts)
        least = self.items.least + (self.keys.least if self.keys else 0)
        room = cursors.ends[rows] - cursors.at[rows]
        most = room // least if least else np.full(len(rows), EMPTY_ITEMS_MAX)
        impossible = (counts > most) | (counts < 0)
        cursors.fail(rows, impossible)
        return np.where(impossible, 0, counts)

    def _joined(self, count: int, owners: Any, parts: Any) -> pa.Array:
        owner = np.concatenate(owners) if owners else np.empty(0, np.int64)
        order = pa.array(np.argsort(owner, kind="stable"))
        ends = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))])
        offsets = pa.array(ends.astype(np.int32))
        kinds = (pa.string(), self.items.kind) if self.keys else (self.items.kind,)
        columns = [
            (pa.concat_arrays(column) if column else pa.array([], kind)).take(order)
            for column, kind in zip(
                zip(*parts, strict=True) if parts else [()] * len(kinds), kinds, strict=True
            )
        ]
        if self.keys:
            return pa.MapArray.from_arrays(offsets, *columns, type=self.kind)
        return pa.ListArray.from_arrays(offsets, *columns, type=self.kind)


def as_text(values: pa.Array, fail: Callable[[Mask], None]) -> pa.Array:
    """Return bytes as text; `fail` receives a mask of the bytes that are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        bad = np.zeros(len(values), np.bool_)
        for index, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                texts.append("")
                bad[index] = True
        fail(bad)
        return pa.array(texts, pa.string())


def _within(cursors: Cursors, rows: Rows, places: Any, count: int) -> Any:
    """Return places below a count; a value with any other place is bad and gets place 0."""
    if len(places) and (places.min() < 0 or places.max() >= count):
        outside = (places < 0) | (places >= count)
        cursors.fail(rows, outside)
        return np.where(outside, 0, places)
    return places


def _spread(items: pa.Array, present: Mask) -> pa.Array:
    """Return the items at the places where a mask is true, and null at the others."""
    if present.all():
        return items
    return items.take(pa.array(np.cumsum(present) - 1, mask=~present))


def _fitting(cursors: Cursors, rows: Rows, decimals: pa.Array) -> pa.Array:
    """Return decimals; values with more digits than the type are bad."""
    try:
        decimals.validate(full=True)
    except pa.ArrowInvalid:
        most = 10**decimals.type.precision
        raw = np.frombuffer(decimals.buffers()[1], np.uint8).reshape(-1, DECIMAL_BYTES_MAX)
        wide = [abs(int.from_bytes(each.tobytes(), "little", signed=True)) >= most for each in raw]
        outside = np.array(wide)
        cursors.fail(rows, outside)
        digits = np.where(outside[:, None], 0, raw).astype(np.uint8)
        return pa.Array.from_buffers(decimals.type, len(raw), [None, pa.py_buffer(digits)])
    return decimals
