"""The rules of the protocol, pure.

Each committed batch has a number that is never used again. The name of a file has the numbers of
its first and last batch. Per shard, the ledger keeps `published`, a high-water mark: the ledger
names the files of batches from this number on, and the table names the files of earlier ones.

1. A forced checkpoint withdraws batches from number n on. If one of them is possibly published, the
   shard gets a cut: published files from n on must leave the table. Of two cuts, the smaller one
   applies.
2. A publication removes the files after the cuts, then swaps files at most once, then adds batches
   from `published` on. A replay, a compaction and an expiry are swaps.
3. Recording a publication for another catalog moves the cuts into it. A forced checkpoint after
   that makes a new cut. Settling the publication uses only its own values. Dropping it returns its
   cuts.
4. A swap begins only with a table that no other program has changed. It is refused if the shard's
   version has changed since it began, or if a file that it replaces is not in the table. Forced
   checkpoints, settled swaps and an operator's acceptance of the table change the version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple

from dagster_leasehold.lease_store.identifiers import ShardId


class Cut(NamedTuple):
    """Published files of a shard from batch `number` on, and records from `cursor` on, must go."""

    number: int
    cursor: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A row of the ledger, for the range `[start, end)`.

    Attributes:
        number: the number of the batch.
        first: the first number of the row; less than `number` if the row was read from a table.
        files: the paths of its files, until the row is pruned.
        withdrawn: True if a forced checkpoint has withdrawn it.
        starts_file: False if a published file begins in an earlier batch and has this batch, too.
    """

    number: int
    first: int
    start: int
    end: int
    files: tuple[str, ...] = ()
    withdrawn: bool = False
    starts_file: bool = True


@dataclass(frozen=True, slots=True)
class Shard:
    """The counters of a shard.

    Attributes:
        next: the number of the next batch.
        check_point: the cursor up to which output is committed.
        published: the number after the last published batch; it never decreases.
        records: the number of its records in the table.
        version: incremented by each forced checkpoint and each settled swap.
    """

    next: int = 0
    check_point: int = 0
    published: int = 0
    records: int = 0
    cut: Cut | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the table.

    Attributes:
        shard: its shard; None if another program wrote it.
        records: each begins with its shard and its cursor.
    """

    path: str
    shard: ShardId | None
    first: int
    last: int
    records: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Swap:
    """New files for a range of a shard.

    Attributes:
        first: the first number of the range.
        last: the last number of the range.
        version: the shard's version, read before the table.
        merges: True if one file replaces the range.
        expires: True if the range leaves the table and the ledger.
        replays: the name of the replay; empty for another kind of swap.
    """

    shard: ShardId
    first: int
    last: int
    version: int
    old: tuple[str, ...] = ()
    new: tuple[Entry, ...] = ()
    merges: bool = False
    expires: bool = False
    replays: str = ""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The part of one shard in a publication.

    Attributes:
        start: `Shard.published` when it was planned.
        end: `Shard.published` afterwards.
        cut: the cut that the publication carries out.
        records: the number of the shard's records in the table afterwards.
    """

    start: int
    end: int
    version: int
    cut: Cut | None
    records: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A publication.

    Attributes:
        number: the number of publications up to it.
        base: the id of the snapshot before it.
    """

    id: str
    number: int
    snapshot: int
    base: int
    shards: Mapping[ShardId, ShardPlan]
    swap: Swap | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The group's row.

    Attributes:
        epoch: the epoch of the newest publish lock.
        number: the number of the newest publication, settled or dropped.
        last: the id of the newest publication.
        snapshot: the id of its snapshot.
        pending: the publication that was sent to another catalog and is not settled.
    """

    epoch: int = 0
    number: int = 0
    last: str = ""
    snapshot: int = 0
    pending: Planned | None = None


class PublishedShard(NamedTuple):
    """A shard in the state file of a publication.

    Attributes:
        next: the number after its last batch in the table.
        start: the cursor of its first batch in the table.
        end: the cursor after its last one.
        records: the number of its records in the table.
        batches: the number and the end cursor of each of its batches in the table. A restored
            ledger uses numbers again, possibly for other ranges.
    """

    next: int
    start: int
    end: int
    records: int
    batches: tuple[tuple[int, int], ...]


class Refused(Exception):
    """A checkpoint that cannot be forced."""


@dataclass(slots=True)
class Rules:
    """The rules; each of them can be replaced."""

    def smaller(self, one: Cut | None, other: Cut | None) -> Cut | None:
        """Return the cut that contains both."""
        return min((each for each in (one, other) if each is not None), default=None)

    def possibly_published(self, shard: Shard, pending: ShardPlan | None) -> int:
        """Return the number after the last batch that is possibly in the table."""
        return max(shard.published, pending.end if pending else 0)

    def forced(self, shard: Shard, batch: Batch, pending: Planned | None, name: ShardId) -> Shard:
        """Return a shard after a forced checkpoint at the start of a batch.

        Raises:
            Refused: the batch does not start a file.
        """
        swap = pending.swap if pending else None
        merged = swap is not None and swap.shard == name and swap.merges
        if not batch.starts_file or (
            merged and swap is not None and swap.first < batch.number <= swap.last
        ):
            raise Refused
        reached = self.possibly_published(shard, pending.shards.get(name) if pending else None)
        cut = shard.cut
        if batch.first < reached:
            cut = self.smaller(cut, Cut(batch.first, batch.start))
        return replace(shard, check_point=batch.start, version=shard.version + 1, cut=cut)

    def may_follow(self, planned: Planned, shards: Mapping[ShardId, Shard]) -> bool:
        """Return True if nothing has changed since a publication was planned."""
        return all(
            (each.version, each.cut, each.published) == (plan.version, plan.cut, plan.start)
            for name, plan in planned.shards.items()
            for each in [shards[name]]
        )

    def is_current(self, swap: Swap, shard: Shard) -> bool:
        """Return True if no checkpoint was forced since a swap began."""
        return swap.version == shard.version

    def recorded(self, shard: Shard) -> Shard:
        """Return a shard whose cut has moved into the pending publication."""
        return replace(shard, cut=None)

    def settled(self, shard: Shard, plan: ShardPlan) -> Shard:
        """Return a shard after its publication; a new cut stays."""
        return replace(shard, published=plan.end, records=plan.records)

    def swapped(self, shard: Shard) -> Shard:
        """Return a shard after one of its swaps was settled.

        A swap that began earlier is refused. A batch without records has no file in the table, so
        comparing files is not enough.
        """
        return replace(shard, version=shard.version + 1)

    def dropped(self, shard: Shard, plan: ShardPlan) -> Shard:
        """Return a shard after its publication was dropped."""
        return replace(shard, cut=self.smaller(shard.cut, plan.cut))

    def is_possible(self, swap: Swap, paths: Collection[str]) -> bool:
        """Return True if a table has all the files that a swap replaces."""
        return set(swap.old) <= set(paths)

    def is_named(self, batch: Batch, shard: Shard) -> bool:
        """Return True if the ledger names the files of a batch."""
        return batch.number >= shard.published and not batch.withdrawn

    def with_swap(self, batches: Iterable[Batch], swap: Swap) -> list[Batch]:
        """Return the rows of a shard after a swap was settled."""
        rows = list[Batch]()
        for batch in batches:
            within = swap.first <= batch.number <= swap.last
            if within and swap.expires and not batch.withdrawn:
                continue
            starts = not swap.merges or batch.first == swap.first
            rows.append(replace(batch, starts_file=starts) if within else batch)
        return rows


def published_part(
    batches: Iterable[Batch], end: int, records: int, expired: int = -1
) -> PublishedShard:
    """Return the part of a shard that a publication leaves in the table.

    Args:
        end: the number after its last batch.
        records: the number of its records.
        expired: the number of the last batch that the publication removes because of its age.
    """
    rows = [each for each in batches if not each.withdrawn and each.number < end]
    own = [each for each in rows if each.number > expired]
    start = own[0].start if own else rows[-1].end if rows else 0
    ranges = tuple((each.number, each.end) for each in own)
    return PublishedShard(end, start, rows[-1].end if rows else 0, records, ranges)


def first_difference(batches: Iterable[Batch], published: PublishedShard) -> Cut | None:
    """Return the first difference between a ledger and a table, or None."""
    own, at = [each for each in batches if not each.withdrawn], published.start
    for batch, published_batch in zip_longest(own, published.batches):
        if batch is None or (batch.number, batch.end) != published_batch:
            firsts = [batch.first] if batch else []
            firsts += [published_batch[0]] if published_batch else []
            return Cut(min(firsts), at)
        at = batch.end
    return None


@dataclass(slots=True)
class Ledger:
    """The ledger of one group: each method is one transaction."""

    rules: Rules
    group: Group = field(default_factory=Group)
    shards: dict[ShardId, Shard] = field(default_factory=dict[ShardId, Shard])
    batches: dict[ShardId, list[Batch]] = field(default_factory=dict[ShardId, list[Batch]])

    def backup(self) -> Ledger:
        """Return a backup."""
        backup = copy(self)
        backup.shards = dict(self.shards)
        backup.batches = {name: list(own) for name, own in self.batches.items()}
        return backup

    def commit(self, name: ShardId, start: int, width: int, files: tuple[str, ...]) -> bool:
        """Commit a batch, if its start is still the checkpoint."""
        shard = self.shards[name]
        if shard.check_point != start:
            return False
        self.batches[name].append(Batch(shard.next, shard.next, start, start + width, files))
        self.shards[name] = replace(shard, next=shard.next + 1, check_point=start + width)
        return True

    def force(self, name: ShardId, number: int) -> None:
        """Force the checkpoint to the start of a batch.

        Raises:
            Refused: the row is gone, or does not start a file.
        """
        rows = self.batches[name]
        batch = next((b for b in rows if b.number == number and not b.withdrawn), None)
        if batch is None:
            raise Refused
        self.shards[name] = self.rules.forced(self.shards[name], batch, self.group.pending, name)
        self.batches[name] = [
            replace(each, withdrawn=True) if each.number >= batch.first else each for each in rows
        ]

    def take_lock(self) -> int:
        """Take the publish lock; return its epoch."""
        self.group = replace(self.group, epoch=self.group.epoch + 1)
        return self.group.epoch

    def prune(self, name: ShardId) -> None:
        """Clear the files of rows that the table names."""
        shard = self.shards[name]
        self.batches[name] = [
            each if self.rules.is_named(each, shard) else replace(each, files=())
            for each in self.batches[name]
        ]

    def record(self, epoch: int, planned: Planned) -> bool:
        """Record a publication before it is sent to another catalog."""
        if self.group.epoch != epoch or self.group.pending:
            return False
        if not self.rules.may_follow(planned, self.shards):
            return False
        for name in planned.shards:
            self.shards[name] = self.rules.recorded(self.shards[name])
        self.group = replace(self.group, pending=planned)
        return True

    def settle(self, epoch: int, planned: Planned) -> bool:
        """Settle the pending publication, which the table has."""
        pending = self.group.pending
        if self.group.epoch != epoch or pending is None or pending.id != planned.id:
            return False
        self._publish(pending)
        return True

    def drop(self, epoch: int, planned: Planned) -> bool:
        """Drop the pending publication, which its catalog can no longer accept."""
        pending = self.group.pending
        if self.group.epoch != epoch or pending is None or pending.id != planned.id:
            return False
        for name, plan in pending.shards.items():
            self.shards[name] = self.rules.dropped(self.shards[name], plan)
        self.group = replace(self.group, number=pending.number, pending=None)
        return True

    def publish(self, epoch: int, planned: Planned) -> bool:
        """Commit to the default catalog, whose pointer moves in the same transaction."""
        if self.group.epoch != epoch or self.group.snapshot != planned.base:
            return False
        if not self.rules.may_follow(planned, self.shards):
            return False
        for name in planned.shards:
            self.shards[name] = self.rules.recorded(self.shards[name])
        self._publish(planned)
        return True

    def _publish(self, planned: Planned) -> None:
        for name, plan in planned.shards.items():
            self.shards[name] = self.rules.settled(self.shards[name], plan)
        if planned.swap is not None:
            name = planned.swap.shard
            self.shards[name] = self.rules.swapped(self.shards[name])
            self.batches[name] = self.rules.with_swap(self.batches[name], planned.swap)
        self._becomes(planned)

    def _becomes(self, planned: Planned) -> None:
        self.group = replace(
            self.group,
            last=planned.id,
            snapshot=planned.snapshot,
            number=planned.number,
            pending=None,
        )

    def accept(self, epoch: int, planned: Planned, records: Mapping[ShardId, int]) -> bool:
        """Accept a state of the table, as an operator requests; `records` are counted in it."""
        if self.group.epoch != epoch or self.group.pending:
            return False
        for name, number in records.items():
            # Swaps that began earlier are refused: they may have read another table.
            shard = self.rules.swapped(self.shards[name])
            self.shards[name] = replace(shard, records=number)
        self._becomes(planned)
        return True

    def follow(
        self,
        epoch: int,
        planned: Planned,
        published: Mapping[ShardId, PublishedShard],
        entries: Sequence[Entry],
    ) -> bool:
        """Roll a restored ledger forward to a table."""
        if self.group.epoch != epoch:
            return False
        for name, state in published.items():
            self._follow(name, state, entries)
        self._becomes(planned)
        return True

    def _follow(self, name: ShardId, state: PublishedShard, entries: Sequence[Entry]) -> None:
        rows, shard = self.batches[name], self.shards[name]
        difference = first_difference(rows, state)
        if difference is not None:
            first, start = difference
            rows = [
                replace(each, withdrawn=True) if each.number >= first else each for each in rows
            ]
            if start < state.end:
                rows = [each for each in rows if each.number != state.next - 1]
                rows.append(Batch(state.next - 1, first, start, state.end))
        merged = {
            number
            for each in entries
            if each.shard == name
            for number in range(each.first + 1, each.last + 1)
        }
        rows = [replace(each, starts_file=each.first not in merged) for each in rows]
        self.batches[name] = sorted(rows, key=lambda each: each.number)
        count = sum(record[0] == name for each in entries for record in each.records)
        self.shards[name] = Shard(
            max(shard.next, state.next), state.end, state.next, count, None, shard.version + 1
        )
