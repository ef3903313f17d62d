"""The files of committed output that hold some shards, batches or event times, at one moment.

Shards and batches are chosen in the ledger, before a file is opened; event times by the bounds that
the ledger has of every file. What a file holds besides, its reader filters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output import ledger_view
from dagster_leasehold.assets.output.output_file import TIME_COLUMN
from dagster_leasehold.assets.output.units import Unit
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.rules.event_spans import may_hold
from dagster_leasehold.lease_store.times import time_text

if TYPE_CHECKING:
    import pyarrow.dataset as ds

BatchNumbers = Mapping[ShardId, range]


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """A file of committed output, or the rows of it that were asked for.

    Attributes:
        path: the file.
        rows: number of the first row and of the one after the last; None for all of the file.
        first: the number of the first batch that the file holds records of.
    """

    shard: ShardId
    first: int
    path: OutputPlace
    file: DataFile
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class EventSpan:
    """Event times `[since, until)`; None is no bound. Both need a time zone.

    Raises:
        InvalidSetting: a time has no zone.
    """

    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        for time in (self.since, self.until):
            if time is not None and time.tzinfo is None:
                raise InvalidSetting(
                    f"The event time {time_text(time)} has no time zone: give one, such as UTC."
                )

    @property
    def everything(self) -> bool:
        """True if nothing is left out."""
        return self.since is None and self.until is None

    def may_hold(self, file: DataFile) -> bool:
        """Return True if a file can have records of the span, by its bounds in the ledger."""
        return may_hold(file, self.since, self.until)

    def expression(self, column: str = TIME_COLUMN) -> ds.Expression | None:
        """Return the span as a filter on a column; None if nothing is left out."""
        import pyarrow.dataset as ds

        field: Any = ds.field(column)
        sides: list[Any] = []
        if self.since is not None:
            sides.append(field >= self.since)
        if self.until is not None:
            sides.append(field < self.until)
        return None if not sides else sides[0] if len(sides) == 1 else sides[0] & sides[1]


ALWAYS = EventSpan()


def committed_parts(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    *,
    shards: Collection[ShardId] | None = None,
    numbers: BatchNumbers | None = None,
    span: EventSpan = ALWAYS,
) -> list[CommittedPart]:
    """Return the files of some shards, batches or event times, as they are at this moment.

    The arguments are those of `committed_dataset`; of a span, files that hold no record of it are
    left out.

    Raises:
        OutputUnreadable: some batches of a merged file are asked for, and the ledger does not
            tell which rows are theirs; or a shard's output is replaced again and again; or batches
            that `numbers` names have expired.
    """
    return listed_parts(store, key, output_root, shards=shards, numbers=numbers, span=span)[0]


def listed_parts(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    *,
    shards: Collection[ShardId] | None = None,
    numbers: BatchNumbers | None = None,
    span: EventSpan = ALWAYS,
) -> tuple[list[CommittedPart], ledger_view.Heads]:
    """Return `committed_parts`, and the heads of the shards: the parts hold all batches below."""
    folder = output_place(output_root)

    def read(heads: ledger_view.Heads) -> Iterator[tuple[ShardId, CommittedPart]]:
        if numbers is not None:
            for shard, head in heads.items():
                end = min(numbers[shard].stop, head.next_number)
                wanted = range(numbers[shard].start, end)
                for unit in ledger_view.units_of(store, key, shard, wanted) if wanted else ():
                    for part in _parts_of(unit, folder, wanted):
                        yield shard, part
            return
        for batch in _batches(store, key, heads, span):
            for file in batch.files if batch.sequence < heads[batch.shard].next_number else ():
                if not file.quarantine:
                    path = folder / file.path
                    yield batch.shard, CommittedPart(batch.shard, batch.sequence, path, file)

    wanted = shards
    if numbers is not None:
        wanted = [shard for shard in numbers if shards is None or shard in shards]
    parts_of_shards, heads = ledger_view.at_one_moment(store, key, wanted, read)
    if numbers is not None:
        _refuse_expired(store, key, numbers)
    parts = [
        part
        for own in parts_of_shards.values()
        for part in sorted(own, key=lambda part: part.first)
        if span.may_hold(part.file)
    ]
    return parts, heads


def _refuse_expired(store: Ledger, key: GroupKey, numbers: BatchNumbers) -> None:
    """Refuse to read batches that have expired; looked at after the ledger, or it could be late.

    Raises:
        OutputUnreadable: some have.
    """
    for shard, expired in ledger_view.expired_output(store, key, numbers).items():
        wanted = numbers[shard]
        if wanted and wanted.start < expired.first_number:
            raise OutputUnreadable(
                f"{ledger_view.output_begins(key, shard, expired)} Ask for batches from "
                f"{expired.first_number} on."
            )


def _batches(
    store: Ledger, key: GroupKey, heads: ledger_view.Heads, span: EventSpan
) -> Iterator[Batch]:
    """Return committed batches of these shards with output in a span."""
    if not span.everything:
        batches = store.batches_within(key, span.since, span.until)
        return (batch for batch in batches if batch.shard in heads)
    return chain.from_iterable(store.each_batch(key, shard) for shard in heads)


def _parts_of(unit: Unit, folder: OutputPlace, wanted: range | None) -> list[CommittedPart]:
    """Return the files of a unit, cut to the batches that are wanted."""
    chosen = [batch for batch in unit if wanted is None or _overlap(batch, wanted)]
    if not chosen:
        return []
    shard, first = unit[0].shard, unit[0].sequence
    files = [file for batch in unit for file in batch.files if not file.quarantine]
    parts = [CommittedPart(shard, first, folder / file.path, file) for file in files]
    divided = any(
        batch.statistics.written and wanted is not None and not _inside(batch, wanted)
        for batch in chosen
    )
    if len(chosen) == len(unit) and not divided:
        return parts
    counts = [batch.statistics.written for batch in unit]
    if not files:
        return []
    if divided or len(files) != 1 or sum(counts) != files[0].records:
        raise OutputUnreadable(
            f"Batches {first} to {unit[-1].last} of shard {shard} lie together in "
            f"{files[0].path}, and the ledger does not tell their rows apart: ask for all of them."
        )
    begin = sum(counts[: unit.index(chosen[0])])
    rows = (begin, begin + sum(batch.statistics.written for batch in chosen))
    return [CommittedPart(shard, first, parts[0].path, files[0], rows)]


def _overlap(batch: Batch, numbers: range) -> bool:
    return batch.sequence < numbers.stop and batch.last >= numbers.start


def _inside(batch: Batch, numbers: range) -> bool:
    return batch.sequence in numbers and batch.last in numbers
