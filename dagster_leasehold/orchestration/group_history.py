"""The recent history of a consumer group, from its journal and ledger, for display only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.states import ShardState

RELEASES = frozenset({4, 9})
"""The edges that make a shard unassigned because its holder died or left."""
BUCKETS = 240
"""The number of points of a curve."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A period in which a node held a shard."""

    shard: ShardId
    node: NodeName
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Move:
    """A shard's change of holder.

    Attributes:
        begin: when the transfer began, or the shard became unassigned.
        end: when the next node became the holder.
        planned: True for a transfer, False if the holder died or left.
    """

    shard: ShardId
    begin: datetime
    end: datetime
    source: NodeName
    target: NodeName
    planned: bool

    @property
    def seconds(self) -> float:
        """The duration of the move in seconds."""
        return (self.end - self.begin).total_seconds()


@dataclass(slots=True)
class RunRow:
    """The work of one run.

    Attributes:
        begin: when it first opened a shard or committed a batch.
        end: when it last closed a shard or committed a batch.
    """

    run: str
    node: NodeName | None
    begin: datetime
    end: datetime
    shards: set[ShardId]
    batches: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """The commits in one interval; all intervals have the same length.

    Attributes:
        at: the end of the interval.
        delay_s: the age of the oldest record at its commit, in seconds; None without event times.
    """

    at: datetime
    records: int
    rate: float
    delay_s: float | None


def holdings_over_time(
    journal: Sequence[JournalEntry],
    until: datetime,
    *,
    first_holders: Mapping[ShardId, NodeName] | None = None,
) -> list[Holding]:
    """Return the holdings in order of shards and time; current ones end at `until`.

    Args:
        journal: the newest entries.
        first_holders: the holders of shards before the first entry.
    """
    since = journal[0].at if journal else until
    current = {shard: (node, since) for shard, node in (first_holders or {}).items()}
    holdings: list[Holding] = []
    for entry in journal:
        if entry.kind != "edge" or entry.shard is None or entry.to_state is ShardState.TRANSFER:
            continue  # The holder is unchanged during a transfer; the next edge has the outcome.
        before = current.pop(entry.shard, None)
        has_holder = entry.to_state is ShardState.ALREADY_ALLOC
        if before is not None and has_holder and before[0] == entry.to_owner:
            current[entry.shard] = before
            continue
        if before is not None:
            holdings.append(Holding(entry.shard, *before, entry.at))
        if has_holder and entry.to_owner is not None:
            current[entry.shard] = (entry.to_owner, entry.at)
    holdings += [Holding(shard, *last, max(until, last[1])) for shard, last in current.items()]
    return sorted(holdings, key=lambda each: (rank_key(each.shard), each.begin))


def holders_before(
    journal: Sequence[JournalEntry], now: Mapping[ShardId, NodeName]
) -> dict[ShardId, NodeName]:
    """Return the holder of each shard before the first entry of the journal.

    The first edge of a shard names its earlier holder. A shard without an edge had its current
    holder all the time.
    """
    holders = dict(now)
    for entry in reversed(journal):
        if entry.kind != "edge" or entry.shard is None:
            continue
        holders.pop(entry.shard, None)
        had_holder = entry.from_state in (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
        if had_holder and entry.from_owner is not None:
            holders[entry.shard] = entry.from_owner
    return holders


def moves(journal: Iterable[JournalEntry]) -> list[Move]:
    """Return the completed moves, ordered by end time."""
    starts: dict[ShardId, tuple[datetime, NodeName, bool]] = {}
    completed: list[Move] = []
    for entry in journal:
        if entry.kind != "edge" or entry.shard is None:
            continue
        if entry.to_state is ShardState.TRANSFER and entry.from_owner is not None:
            starts[entry.shard] = (entry.at, entry.from_owner, True)
        elif entry.edge in RELEASES and entry.from_owner is not None:
            starts[entry.shard] = (entry.at, entry.from_owner, False)
        elif entry.to_state is ShardState.ALREADY_ALLOC and entry.to_owner is not None:
            if (start := starts.pop(entry.shard, None)) is not None:
                at, source, planned = start
                completed.append(Move(entry.shard, at, entry.at, source, entry.to_owner, planned))
        else:
            starts.pop(entry.shard, None)
    return completed


def runs(journal: Iterable[JournalEntry], batches: Iterable[Batch]) -> list[RunRow]:
    """Return the runs, ordered by start time."""
    rows: dict[str, RunRow] = {}

    def row(run: str, node: NodeName | None, at: datetime) -> RunRow:
        result = rows.setdefault(run, RunRow(run, node, at, at, set()))
        result.begin, result.end = min(result.begin, at), max(result.end, at)
        result.node = result.node or node
        return result

    for entry in journal:
        if entry.kind in ("open", "close") and entry.run and entry.shard is not None:
            owner = entry.to_owner or entry.from_owner
            row(entry.run, owner, entry.at).shards.add(entry.shard)
    for batch in batches:
        if batch.committed_at is not None:
            own = row(batch.run, batch.holder, batch.committed_at)
            own.shards.add(batch.shard)
            own.batches += batch.batches
            own.records += batch.statistics.written
    return sorted(rows.values(), key=lambda each: (each.begin, each.run))


def points(batches: Iterable[Batch], buckets: int = BUCKETS) -> list[Point]:
    """Return the commits per interval, in order."""
    commits = [
        (batch.committed_at, batch.statistics)
        for batch in batches
        if batch.committed_at is not None
    ]
    if not commits:
        return []
    first, last = min(at for at, _ in commits), max(at for at, _ in commits)
    span = max((last - first) / buckets, timedelta(seconds=1))
    count = min((last - first) // span + 1, buckets)
    records = [0] * count
    ages: list[float | None] = [None] * count
    for at, statistics in commits:
        place = min((at - first) // span, count - 1)
        records[place] += statistics.written
        if statistics.first_event_time is not None:
            age_s = max((at - statistics.first_event_time).total_seconds(), 0.0)
            ages[place] = max(ages[place] or 0.0, age_s)
    seconds = span.total_seconds()
    return [
        Point(first + (place + 1) * span, written, written / seconds, ages[place])
        for place, written in enumerate(records)
    ]
