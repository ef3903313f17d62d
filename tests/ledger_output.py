"""Committed output according to the ledger alone, for comparison with readers and rewriting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.rules.withdrawal import Ledger as CommittedBatches


class LedgerFile(NamedTuple):
    """A file, and the row of the ledger that names it."""

    shard: ShardId
    batch: Batch
    path: OutputPlace
    file: DataFile


def ledger_files(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    shard: ShardId | None = None,
    *,
    quarantine: bool = False,
) -> list[LedgerFile]:
    """Return the files of committed batches, by shard and batch."""
    place = output_place(output_root)
    return [
        LedgerFile(batch.shard, batch, place / file.path, file)
        for batch in store.each_batch(key, shard)
        for file in batch.files
        if file.quarantine == quarantine
    ]


def ledger_paths(
    store: Ledger, key: GroupKey, output_root: Output, shard: ShardId | None = None
) -> list[str]:
    """Return the paths of files with records."""
    return [str(each.path) for each in ledger_files(store, key, output_root, shard)]


def ledger_records(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    shard: ShardId | None = None,
    *,
    quarantine: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of those files."""
    for each in ledger_files(store, key, output_root, shard, quarantine=quarantine):
        with each.path.parquet() as file:
            yield from file.iter_batches()


def ledger_of(batches: Sequence[Batch]) -> CommittedBatches:
    """Return a ledger of these committed batches, given in order."""

    def look(*, numbers: range, newest_first: bool) -> Iterator[Batch]:
        order = reversed(batches) if newest_first else batches
        return (batch for batch in order if batch.sequence in numbers)

    return look
