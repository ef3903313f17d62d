"""Confluent's wire format: a zero byte and the schema's id, before each value.

Before a Protobuf value there is also the path of its message type in the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagster_leasehold.assets.decoding.payloads import Mask, Payloads

HEADER_BYTES = 5
MAGIC = 0
_PATH_MAX = 64
"""The most parts of a path; each part is a level of nested types."""


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """The name of a schema in a header.

    Attributes:
        number: the id of the schema in the registry.
        path: the path of the message type in a Protobuf schema; empty for other formats.
    """

    number: int
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Values with the same schema: the numbers of their rows, and the bytes after the header."""

    key: SchemaKey
    rows: npt.NDArray[np.int64]
    payloads: Payloads


def headed(payloads: Payloads, present: Mask) -> Mask:
    """Return a mask of the present values that begin with a header."""
    mask = present & (payloads.ends - payloads.starts >= HEADER_BYTES)
    mask[mask] = payloads.data[payloads.starts[mask]] == MAGIC
    return mask


def groups(payloads: Payloads, mask: Mask, *, with_paths: bool) -> Iterator[Group]:
    """Yield the values with a header, grouped by the schema in the header.

    The path is `(-1,)`, which no schema has, if it cannot be read.
    """
    rows = np.flatnonzero(mask)
    starts = payloads.starts[rows]
    numbers = np.zeros(len(rows), np.int64)
    for place in range(1, HEADER_BYTES):
        numbers = numbers * 256 + payloads.data[starts + place]
    for number in np.unique(numbers).tolist():
        own = rows[numbers == number]
        after = payloads.at_rows(own).after(HEADER_BYTES)
        if with_paths:
            yield from _by_path(number, own, after)
        else:
            yield Group(SchemaKey(number), own, after)


def _by_path(number: int, rows: npt.NDArray[np.int64], payloads: Payloads) -> Iterator[Group]:
    nonempty = payloads.ends > payloads.starts
    first = np.ones(len(rows), np.bool_)
    first[nonempty] = payloads.data[payloads.starts[nonempty]] != 0
    by_path: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for place in np.flatnonzero(first).tolist():
        path, length = _path(bytes(payloads.data[payloads.starts[place] : payloads.ends[place]]))
        by_path.setdefault(path, []).append((place, length))
    usual = np.flatnonzero(~first)
    if len(usual):
        yield Group(SchemaKey(number, (0,)), rows[usual], payloads.at_rows(usual).after(1))
    for path, places in by_path.items():
        chosen, lengths = (np.array(column) for column in zip(*places, strict=True))
        yield Group(SchemaKey(number, path), rows[chosen], payloads.at_rows(chosen).after(lengths))


def _path(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the path at the beginning of a value, and its length in bytes."""
    count, at = _number(value, 0)
    if not 0 < count <= _PATH_MAX:
        return (-1,), 0
    parts: list[int] = []
    for _ in range(count):
        part, at = _number(value, at)
        parts.append(part)
    return ((-1,), 0) if min(parts) < 0 else (tuple(parts), at)


def _number(value: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length and the position after it; -1 if there is none."""
    bits = shift = 0
    while at < len(value) and shift < 64:
        bits |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if value[at - 1] < 0x80:
            return (bits >> 1) ^ -(bits & 1), at
    return -1, at
