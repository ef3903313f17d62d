"""Compaction: merges the small files of consecutive committed batches, in the same order.

The ledger row of the first batch lists the merged file, with the number of its batches; the other
rows list no file. So the ranges of the rows stay contiguous, and a reader of the ledger's files, in
order, reads the same records as before. No record is transformed, and the source is not read.

The records of each route and partition stay in files of their own. If the table has a sort order,
each merged file is sorted by it, and the order of the log is lost. Sorting happens in memory, so a
merge then writes several files if its records are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import RewriteRefused, TransformError
from dagster_leasehold.assets.output import units
from dagster_leasehold.assets.output.attempts import (
    ATTEMPTS_FOLDER,
    attempt_name,
    file_name,
    reading,
)
from dagster_leasehold.assets.output.output_file import (
    ROW_GROUP_BYTES,
    event_times,
    new_parquet,
    untimed,
)
from dagster_leasehold.assets.output.table.columns import (
    ColumnAgreement,
    arrow_schema,
    columns_of,
    in_stored_types,
    merged,
    stored_schema,
    with_current_names,
)
from dagster_leasehold.assets.output.table.partition_values import Partition
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.rewriting import merges
from dagster_leasehold.assets.routes import route_of
from dagster_leasehold.assets.shard_stream import Retention
from dagster_leasehold.assets.table_settings import sort_text
from dagster_leasehold.lease_store.errors import LeaseholdError, LogCorrupt, one_line
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchRewrite, DataFile, RewriteKind
from dagster_leasehold.lease_store.rules.progress import Report
from dagster_leasehold.lease_store.store import LedgerAndRewrites

if TYPE_CHECKING:
    import pyarrow as pa

SORTED_BYTES_MAX = 256 * 1024 * 1024
"""The most bytes of rows that are sorted at once; sorting needs the same memory for a copy."""
SORTED_ROWS = 100_000
"""The rows of a row group in a sorted file; it is small, so that engines can skip row groups."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The results of a compaction for one shard.

    Attributes:
        batches: the number of merged batches.
        files_before: the number of files in the part of the ledger that was read.
        files_after: the number of files in this part afterwards.
        bytes_before: the size of the files before the merges.
        bytes_after: the size of the merged files.
        error: the reason why it ended early; earlier merges are kept.
    """

    shard: ShardId
    batches: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    error: str = ""


@dataclass(slots=True)
class _FileCounter:
    """Counts the files of the rows that are read; `read` receives the number of batches so far."""

    read: Callable[[int], None]
    files: int = 0


@dataclass(kw_only=True)
class Compactor:
    """Compacts committed output of one group in one run, beside live consumption.

    Attributes:
        new_attempt: returns a folder name that was never used; by default, a random name.
        target_bytes: the size of a merged file, in bytes.
        sort_order: the sort order of the table.
        ended: returns True if a run has certainly ended, so that its claims can be taken over.
    """

    store: LedgerAndRewrites
    key: GroupKey
    output_root: OutputPlace
    run: str
    new_attempt: Callable[[], str] | None = None
    target_bytes: int = Retention().compact_target_bytes
    sort_order: Sequence[str] = ()
    ended: units.Ended = lambda _: False
    _names: Mapping[str, str] = field(default_factory=dict[str, str], init=False)

    def compact(
        self, shards: Sequence[ShardId], progress: Report = lambda *_: None
    ) -> dict[ShardId, CompactionReport]:
        """Compact these shards, one after the other; return one report per shard.

        `progress` receives the number of batches that were read, and of all batches.
        """
        reports: dict[ShardId, CompactionReport] = {}
        unique = list(dict.fromkeys(shards))
        ends = {s: head.next_number for s, head in self.store.heads(self.key, unique).items()}
        total, before = sum(ends.values()), 0
        for shard in unique:

            def read(number: int, before: int = before) -> None:
                progress(min(before + number, total), total)

            reports[shard] = self._compact(shard, read)
            before += ends.get(shard, 0)
            progress(before, total)
        return reports

    def _compact(self, shard: ShardId, read: Callable[[int], None]) -> CompactionReport:
        report, counter = CompactionReport(shard), _FileCounter(read)
        try:
            with self.claim(shard):
                for merge in merges.each_merge(
                    units.each_unit(self._rows(shard, counter)),
                    target_bytes=self.target_bytes,
                    columns=self.columns,
                    sorted_by=sort_text(self.sort_order),
                ):
                    report = self.merge(report, merge)
        except LeaseholdError as error:
            report = replace(report, error=str(error))
        files = counter.files
        return replace(report, files_before=files, files_after=files + report.files_after)

    def claim(self, shard: ShardId) -> AbstractContextManager[None]:
        """Hold the claim on a shard's output within the block; see `units.rewriting`."""
        kind = RewriteKind.COMPACTION
        return units.rewriting(self.store, self.key, shard, self.run, kind, ended=self.ended)

    def _rows(self, shard: ShardId, counter: _FileCounter) -> Iterator[Batch]:
        """Yield the committed batches, which no other run can merge under the claim."""
        head = self.store.heads(self.key, [shard])[shard]
        end = units.rewritable_until(self.store, self.key, shard, head.next_number)
        for row in self.store.each_batch(self.key, shard, numbers=range(end)):
            counter.files += len(row.files)
            counter.read(row.last + 1)
            yield row

    def columns(self, unit: units.Unit) -> merges.UnitColumns:
        """Return the common columns of a unit's files, or None if there are none."""
        common = merges.NO_COLUMNS
        for file in (file for batch in unit for file in batch.files):
            try:
                names = {} if file.quarantine else self._names
                schema = _schema(self.output_root / file.path, names)
                own = columns_of(stored_schema(schema))
            except TransformError:
                return None
            common = merges.joined(common, (None, own) if file.quarantine else (own, None))
        return common

    def merge(self, report: CompactionReport, merge: Sequence[units.Unit]) -> CompactionReport:
        """Merge the files of some units, and swap in the result; return the updated report.

        The run must hold the claim on the shard.

        Raises:
            RewriteRefused: the output changed in the meantime, or the file cannot be written.
            LogCorrupt: a file is missing or damaged.
        """
        batches = tuple(batch for unit in merge for batch in unit)
        old = [file for batch in batches for file in batch.files]
        name = self.new_attempt() if self.new_attempt else attempt_name(self.run)
        attempt = f"{ATTEMPTS_FOLDER}/{name}"
        folder = self.output_root / attempt
        try:
            new = self._write(report.shard, merge, attempt)
        except BaseException as error:
            folder.remove_folder()
            if isinstance(error, OSError):
                raise RewriteRefused(
                    f"The merged files of shard {report.shard} of {self.key} cannot be written "
                    f"to {folder} ({error.strerror or one_line(str(error))}). Its output is "
                    "unchanged."
                ) from error
            raise
        changed = [batch for unit in merge for batch in merges.changed_rows(unit)]
        rewrites = [
            BatchRewrite(
                batch.sequence,
                batch.generation,
                () if number else new,
                batch.statistics,
                batch.attempt,
            )
            for number, batch in enumerate(changed)
        ]
        first, last = batches[0].sequence, batches[-1].last
        reason = f"merged {len(old)} files of batches {first} to {last} into {len(new)}"
        if not units.swap(
            self.store,
            self.key,
            report.shard,
            self.run,
            rewrites,
            replaced=old,
            output_root=self.output_root,
            reason=reason,
        ):
            folder.remove_folder()
            raise RewriteRefused(
                f"The output of shard {report.shard} of {self.key} changed while its files were "
                "merged, so the merge was dropped: compact it again."
            )
        return replace(
            report,
            batches=report.batches + sum(batch.batches for batch in batches),
            files_after=report.files_after - len(old) + len(new),
            bytes_before=report.bytes_before + sum(file.bytes for file in old),
            bytes_after=report.bytes_after + sum(file.bytes for file in new),
        )

    def _write(
        self, shard: ShardId, merge: Sequence[units.Unit], attempt: str
    ) -> tuple[DataFile, ...]:
        folder = self.output_root / attempt
        folder.make_folder()
        # The ledger was read before, so each file has the names that are read here, or earlier
        # ones.
        self._names = ColumnAgreement(self.store, self.key).earlier_names()
        batches = sum(batch.batches for unit in merge for batch in unit)
        numbers = range(merge[0][0].sequence, merge[-1][-1].last + 1)
        files: list[DataFile] = []
        for parts in _parts(merge):
            quarantine, order = parts[0].quarantine, self.sort_order
            paths = [(self.output_root / part.path, part.records) for part in parts]
            route = route_of(parts[0].path)
            name = partial(file_name, shard, numbers, "merged", quarantine=quarantine, route=route)
            if order and not quarantine:
                files += self._write_sorted(paths, parts[0].partition, attempt, name, len(files))
                continue
            at = folder / name(part=0 if quarantine else len(files))
            records, bytes_ = _concatenate(paths, at, {} if quarantine else self._names)
            file = DataFile(f"{attempt}/{at.name}", records, bytes_, quarantine)
            first, last = _time_bounds(parts)
            files.append(
                replace(
                    file,
                    first_event_time=first,
                    last_event_time=last,
                    untimed=_untimed_records(parts),
                    partition=parts[0].partition,
                )
            )
        folder.sync_folder()
        return tuple(replace(file, batches=batches) for file in files)

    def _write_sorted(
        self,
        paths: Sequence[tuple[OutputPlace, int]],
        partition: Partition,
        attempt: str,
        name: Callable[..., str],
        number: int,
    ) -> Iterator[DataFile]:
        """Sort the rows of files of one partition, and yield the new files with them."""
        schema = _joined_schema([_schema(path, self._names) for path, _ in paths])
        for rows in _portions(_rows_of(paths, schema, self._names), SORTED_BYTES_MAX):
            number += 1
            at = self.output_root / attempt / name(part=number)
            table = sorted_rows(rows, self.sort_order)
            with new_parquet(at, schema) as out:
                for start in range(0, table.num_rows, SORTED_ROWS):
                    out.writer.write_table(table.slice(start, SORTED_ROWS))
            yield DataFile(
                f"{attempt}/{at.name}",
                table.num_rows,
                out.bytes,
                False,
                1,
                *event_times(table),
                untimed(table),
                partition,
                sort_text(self.sort_order),
            )


def _parts(merge: Sequence[units.Unit]) -> list[list[DataFile]]:
    """Return the files of a merge by route and partition, then the files in quarantine."""
    parts: dict[tuple[bool, str, Partition], list[DataFile]] = {}
    for quarantine in (False, True):
        for unit in merge:
            for file in units.unit_files(unit, quarantine=quarantine):
                kind = (quarantine, route_of(file.path), file.partition)
                parts.setdefault(kind, []).append(file)
    return [*parts.values()]


def _time_bounds(parts: Sequence[DataFile]) -> tuple[datetime | None, datetime | None]:
    """Return the bounds of the files' event times; None if a file has no bounds."""
    firsts = [part.first_event_time for part in parts]
    lasts = [part.last_event_time for part in parts]
    if None in firsts or None in lasts:
        return None, None
    return (
        min((time for time in firsts if time is not None), default=None),
        max((time for time in lasts if time is not None), default=None),
    )


def _untimed_records(parts: Sequence[DataFile]) -> int | None:
    """Return the number of records without an event time; None if it is unknown for a file."""
    counts = [part.untimed for part in parts if part.untimed is not None]
    return sum(counts) if len(counts) == len(parts) else None


def _concatenate(
    parts: Sequence[tuple[OutputPlace, int]], target: OutputPlace, names: Mapping[str, str]
) -> tuple[int, int]:
    """Write the rows of files, in order, into a new file; return its rows and bytes.

    `names` has the current name of each earlier name of the columns.

    Raises:
        LogCorrupt: a file is missing or damaged, or its number of rows is not that in the ledger.
    """
    schema = _joined_schema([_schema(path, names) for path, _ in parts])
    records = 0
    with new_parquet(target, schema) as out:
        for rows in _portions(_rows_of(parts, schema, names), ROW_GROUP_BYTES):
            out.writer.write_table(rows)
            records += rows.num_rows
    return records, out.bytes


def _rows_of(
    parts: Sequence[tuple[OutputPlace, int]], schema: pa.Schema, names: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, in order, with the columns of a schema.

    Raises:
        LogCorrupt: a file is missing or damaged, or its number of rows is not that in the ledger.
    """
    for path, expected in parts:
        rows = 0
        for batch in _batches(path):
            rows += batch.num_rows
            yield in_stored_types(with_current_names(batch, names), schema)
        if rows != expected:
            raise LogCorrupt(
                f"The committed file {path} has {rows} records, and {expected} according to the "
                "ledger: restore it from a backup, or replay its batch."
            )


def _portions(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.Table]:
    """Yield rows in tables of a limited size."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= bytes_max:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def sorted_rows(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """Sort rows; rows with equal keys keep their order.

    Nulls come first, or last where the order descends. A column that the rows lack is null.

    Raises:
        RewriteRefused: a column cannot be sorted.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute
    for text in reversed(order):
        name, _, way = text.partition(" ")
        if name not in rows.schema.names:
            continue
        down, column = way == "desc", rows.column(name)
        if pa.types.is_nested(column.type) or pa.types.is_fixed_size_binary(column.type):
            raise RewriteRefused(
                f"Column {name} is {column.type}, and rows cannot be sorted by this type: name "
                "another column in iceberg.sort_order."
            )
        keys = [(column, down), (column.is_null(), not down)]
        if pa.types.is_floating(column.type):
            # Iceberg places NaN above all other numbers.
            keys.insert(1, (pc.is_nan(column), down))
        # The last sort has the most significant key, because each sort keeps the order of ties.
        indices = pa.array(np.arange(rows.num_rows))
        for key, descends in keys:
            own = pa.table({"key": key.take(indices)})
            sort_keys = [("key", "descending" if descends else "ascending")]
            indices = indices.take(pc.sort_indices(own, sort_keys=sort_keys))
        rows = rows.take(indices)
    return rows


def _joined_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    if all(schema.equals(schemas[0]) for schema in schemas):
        return schemas[0]
    return arrow_schema(reduce(merged, (columns_of(stored_schema(each)) for each in schemas)))


def _batches(path: OutputPlace) -> Iterator[pa.RecordBatch]:
    with reading(path), path.parquet() as file:
        yield from file.iter_batches()


def _schema(path: OutputPlace, names: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a file with current names."""
    import pyarrow as pa

    with reading(path):
        schema = path.schema()
    return pa.schema([field.with_name(names.get(field.name, field.name)) for field in schema])
