"""Numbered rows of a group, sorted by shard.

A table with an index on shard and number answers for one shard without reading the rows of all the
others, and so does this mapping: a verb on one shard costs what that shard holds.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Generic, TypeVar

from typing_extensions import override

S = TypeVar("S")
V = TypeVar("V")


class ByShard(MutableMapping[tuple[S, int], V], Generic[S, V]):
    """Rows by shard and number; they come by shard in the order of its first row."""

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: dict[S, dict[int, V]] = {}

    @override
    def __getitem__(self, key: tuple[S, int]) -> V:
        shard, number = key
        rows = self._shards.get(shard)
        if rows is None:
            raise KeyError(key)
        return rows[number]

    @override
    def __setitem__(self, key: tuple[S, int], row: V) -> None:
        shard, number = key
        self._shards.setdefault(shard, {})[number] = row

    @override
    def __delitem__(self, key: tuple[S, int]) -> None:
        shard, number = key
        del self._shards[shard][number]

    @override
    def __iter__(self) -> Iterator[tuple[S, int]]:
        return ((shard, number) for shard, rows in self._shards.items() for number in rows)

    @override
    def __len__(self) -> int:
        return sum(map(len, self._shards.values()))

    def of(self, shard: S) -> list[V]:
        """Return the rows of one shard in the order of their numbers."""
        rows = self._shards.get(shard, {})
        return [rows[number] for number in sorted(rows)]

    def all(self) -> list[V]:
        """Return all rows, those of a shard together and in the order of their numbers."""
        return [row for shard in self._shards for row in self.of(shard)]

    def __copy__(self) -> ByShard[S, V]:
        copied = ByShard[S, V]()
        copied._shards = {shard: dict(rows) for shard, rows in self._shards.items()}
        return copied
