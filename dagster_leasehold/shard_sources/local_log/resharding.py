"""Split and merge: parents become read-only and children appear, in one step.

1. The parents' writer locks are taken, so that no writer appends. Their last files are repaired.
2. The children's folders and heads are written. After a crash here, the next split uses them.
3. The catalog is replaced. From now on the parents are read-only and the children exist.
4. The locks are released. A writer that waited for one finds a read-only shard and stops.

A shard has a range `[begin, end)` of 128-bit hashes, written as 32 hexadecimal digits. The last
range of a log ends at, and includes, thirty-two `f`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from filelock import Timeout

from dagster_leasehold.lease_store.durable_files import sync_folder
from dagster_leasehold.lease_store.errors import ReshardingRefused, ShardBusy, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log.catalog import (
    Catalog,
    CatalogShard,
    catalog_lock,
    load_catalog,
    save_catalog,
)
from dagster_leasehold.shard_sources.local_log.files import shard_folder
from dagster_leasehold.shard_sources.local_log.heads import HeadsFile
from dagster_leasehold.shard_sources.local_log.writing import ShardWriter

HASH_BITS = 128
_LAST = (1 << HASH_BITS) - 1
_HEX = re.compile(r"[0-9a-fA-F]{1,32}", re.ASCII)

Children = Callable[[Catalog, Sequence[CatalogShard]], list[CatalogShard]]
Writers = Callable[[ShardId], ShardWriter]


def reshard(
    root: Path, parents: Sequence[str], open_writer: Writers, children_of: Children
) -> list[CatalogShard]:
    """Replace parents by the children that `children_of` returns.

    Raises:
        UnknownShard, ShardReadOnly, ReshardingRefused: these parents cannot be replaced.
        ShardBusy: another process is writing to a parent, or resharding the log.
    """
    load_catalog(root)  # raises before the lock creates the folder of a missing log
    try:
        with catalog_lock(root), ExitStack() as locked:
            catalog = load_catalog(root)
            entries = [catalog.find(parent) for parent in parents]
            # All processes lock in the same order, which prevents deadlocks.
            for entry in sorted(entries, key=lambda entry: int(entry.shard)):
                locked.enter_context(open_writer(entry.shard))
            children = children_of(catalog, entries)
            for child in children:
                shard_folder(root, child.shard).mkdir(parents=True, exist_ok=True)
            sync_folder(root / "shards")
            with HeadsFile(root, writable=True) as heads:
                heads.add(child.shard for child in children)
            save_catalog(root, catalog.resharded(entries, children))
            return children
    except Timeout:
        raise ShardBusy(
            f"The log {root} is being split or merged by another process: try again later."
        ) from None


def split_children(at: str | None) -> Children:
    """Return a function that divides a shard at a hash or in the middle."""

    def children(catalog: Catalog, parents: Sequence[CatalogShard]) -> list[CatalogShard]:
        (parent,) = parents
        middle = split_point(parent.hash_begin, parent.hash_end, at)
        low, high = catalog.next_ids(2)
        lineage = (parent.shard,)
        return [
            CatalogShard(low, lineage, parent.hash_begin, middle),
            CatalogShard(high, lineage, middle, parent.hash_end),
        ]

    return children


def merge_children(catalog: Catalog, parents: Sequence[CatalogShard]) -> list[CatalogShard]:
    """Return the child of two neighbours; raise ReshardingRefused for other shards."""
    low, high = sorted(parents, key=lambda parent: parent.hash_begin)
    if low.hash_end != high.hash_begin:
        raise ReshardingRefused(
            f"Shards {parents[0].shard} and {parents[1].shard} cannot be merged: their hash ranges "
            "do not touch."
        )
    (child,) = catalog.next_ids(1)
    lineage = tuple(parent.shard for parent in parents)
    return [CatalogShard(child, lineage, low.hash_begin, high.hash_end)]


def hash_text(value: int) -> str:
    """Return a hash as 32 hexadecimal digits."""
    return f"{value:032x}"


def even_ranges(count: int) -> list[tuple[str, str]]:
    """Return `count` ranges that cover all hashes and differ in size by at most one."""
    edges = [(number << HASH_BITS) // count for number in range(count)] + [_LAST]
    return [(hash_text(edges[n]), hash_text(edges[n + 1])) for n in range(count)]


def split_point(begin: str, end: str, at: str | None) -> str:
    """Return the hash at which to split `[begin, end)`, or raise ReshardingRefused."""
    if at is not None and not _HEX.fullmatch(at):
        raise ReshardingRefused(f"{shown(at)} is not a hash: use 1 to 32 hexadecimal digits.")
    first, last = int(begin, 16), int(end, 16)
    middle = (first + last) // 2 if at is None else int(at, 16)
    if not first < middle < last:
        raise ReshardingRefused(
            f"A range from {begin} to {end} cannot be split at {hash_text(middle)}: use a hash "
            "strictly between the two."
        )
    return hash_text(middle)
