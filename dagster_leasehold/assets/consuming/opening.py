"""Opens a run's shards: opens their tenures, and determines the cursor where each begins.

The batch loop calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dagster_leasehold.assets.consuming.bootstrapping import Bootstrapping
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.consuming.gap_handling import GapHandling
from dagster_leasehold.assets.consuming.open_shards import OpenShard, OpenShards
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import InvalidSetting, StoreError, shown
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.lease_store.rules.starting_point import first_position, resumption
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tracing import span
from dagster_leasehold.shard_sources import source as reading
from dagster_leasehold.shard_sources.positions import parse_position
from dagster_leasehold.shard_sources.source import Position, ShardBounds

_LOG = logging.getLogger(__name__)


def initial_position(text: str) -> Position | datetime:
    """Parse a group's initial position.

    Raises:
        InvalidSetting: it is not `begin`, `end` or an ISO 8601 time.
    """
    position = parse_position(text)
    if position is None:
        raise InvalidSetting(
            f"The initial position is {shown(text)}: use 'begin', 'end' or a time such as "
            "2026-01-31T08:00:00+00:00."
        )
    return position


@dataclass(frozen=True, slots=True)
class Opening:
    """Opens the shards of one run.

    Attributes:
        replaces: for a shard that an ended run left open, the id of that run.
        unfinished_by: called with the id of each run that left an intent uncommitted.
    """

    stream: ShardStream
    store: LeaseStore
    shards: OpenShards
    gaps: GapHandling
    bootstrap: Bootstrapping
    node: NodeName
    run: str
    replaces: Mapping[ShardId, str]
    unfinished_by: Callable[[str], None] = lambda _: None

    def open(self, shards: Sequence[ShardId], *, gained: bool = False) -> None:
        """Open these shards, and determine where each begins; report failures.

        Shards that are already open are skipped. A shard that the node has `gained` during the run
        is not reported if another run has opened it, or the node has lost it again.
        """
        new_shards = [shard for shard in dict.fromkeys(shards) if shard not in self.shards]
        if new_shards:
            with span("open", shards=len(new_shards)):
                self._open(new_shards, gained=gained)

    def _open(self, new_shards: Sequence[ShardId], *, gained: bool) -> None:
        self._open_tenures(new_shards, gained=gained)
        self._read_bounds(new_shards)
        children: set[ShardId] = set()
        position = self.stream.initial_position
        if any(open_.report.start is None for open_ in self.shards.all()):
            snapshot = self.store.snapshot(self.stream.key)
            position = snapshot.group.initial_position
            children = {lease.shard for lease in snapshot.shards if lease.parents}

        def begin(open_: OpenShard) -> None:
            if open_.intent is None:
                start = self.bootstrap.beginning(open_.tenure, open_.report.start)
                open_.report = replace(open_.report, start=start, end=start)
            cursor = open_.report.start
            if cursor is None:
                cursor = self._first_cursor(
                    open_, first_position(position, child=open_.tenure.shard in children)
                )
                open_.report = replace(open_.report, start=cursor, end=cursor)
            open_.cursor = cursor
            open_.report = replace(open_.report, lag_before=self._lag(open_))
            open_.consumer = open_.consumer.initialized()

        self.shards.each(begin, new_shards)

    def _open_tenures(self, new_shards: Sequence[ShardId], *, gained: bool) -> None:
        """Open tenures together; if one row cannot be read, one by one."""
        key, ready = self.stream.key, list[ShardId]()
        for shard in new_shards:
            try:
                self.bootstrap.apply(key, shard, self.node, self.run)
                ready.append(shard)
            except Exception as error:
                self.shards.unanswered |= isinstance(error, StoreError)
                self.shards.refuse(shard, StopReason.FAILED, sentence_of(error))
        outcomes: dict[ShardId, Opened | OpenByOther | NotHeld] = {}
        try:
            outcomes = self.store.open_tenures(
                key, ready, self.node, self.run, replaces=self.replaces
            )
        except StoreError as error:
            # One call per shard would wait as long again. If only the reply was lost, each call
            # would find this run's own tenure open.
            self.shards.unanswered = True
            for shard in ready:
                self.shards.refuse(shard, StopReason.FAILED, sentence_of(error))
            return
        except Exception as error:
            # One unreadable row must not block the other shards.
            _LOG.warning("%d shards could not be opened together: %s", len(ready), error)
        for shard in ready:
            try:
                outcome = outcomes.get(shard) or self.store.open_tenure(
                    key, shard, self.node, self.run, replaces=self.replaces.get(shard)
                )
            except Exception as error:
                self.shards.unanswered |= isinstance(error, StoreError)
                self.shards.refuse(shard, StopReason.FAILED, sentence_of(error))
            else:
                if isinstance(outcome, Opened) or not gained:
                    self._record_outcome(shard, outcome)

    def _record_outcome(self, shard: ShardId, outcome: Opened | OpenByOther | NotHeld) -> None:
        match outcome:
            case Opened(tenure, check_point, sequence, intent, failures, suspicion):
                start = resumption(check_point, intent)
                report = ConsumptionReport(shard, StopReason.INTERRUPTED, start=start, end=start)
                if intent is not None:
                    self.unfinished_by(intent.run)
                open_ = OpenShard(tenure, sequence, intent, intent is not None, report)
                open_.failures, open_.suspicion = failures, suspicion
                self.shards.add(open_)
            case OpenByOther(run):
                sentence = f"Shard {shard} is being consumed by run {run}: wait until it ends."
                self.shards.refuse(shard, StopReason.OPEN_BY_OTHER, sentence, run)
            case NotHeld(state, owner):
                held_by = f", held by node {owner}" if owner else ""
                sentence = (
                    f"Node {self.node} cannot consume shard {shard} of {self.stream.key}: it is "
                    f"{state}{held_by}."
                )
                self.shards.refuse(shard, StopReason.NOT_HELD, sentence)

    def _read_bounds(self, new_shards: Collection[ShardId]) -> None:
        source = self.stream.source
        cursors = {
            open_.tenure.shard: open_.report.start
            for open_ in self.shards.all()
            if open_.tenure.shard in new_shards
        }
        bounds: Mapping[ShardId, ShardBounds] = {}
        try:
            bounds = reading.bounds_for(source, cursors) if cursors else {}
        except Exception:
            bounds = {}

        def read_bounds(open_: OpenShard) -> None:
            # A shard that the source no longer has must not hide the bounds of the others.
            shard, cursor = open_.tenure.shard, open_.report.start
            open_.bounds = bounds.get(shard) or reading.bounds_for(source, {shard: cursor})[shard]

        self.shards.each(read_bounds, new_shards)

    def _first_cursor(self, open_: OpenShard, position: str | None) -> str:
        """Return the first cursor of a new shard; `position` is None for a child."""
        child = position is None
        at = Position.BEGIN if position is None else initial_position(position)
        shard, bounds = open_.tenure.shard, open_.bounds
        removed = bounds is not None and bounds.removed and at is not Position.END
        if bounds is not None and (child or removed):
            # Begin and origin come from one reply: two replies about an idle shard can differ.
            cursor = bounds.begin
            if bounds.origin not in (None, cursor):
                reason = "the first records of a child expired before its parents were finished"
                if removed:
                    reason = "the whole shard expired before it was read"
                cursor = self.gaps.handle(open_.tenure, str(bounds.origin), reason)
        else:
            cursor = self.stream.source.cursor_at(shard, at)
        if at is not Position.BEGIN:
            # The end moves. If this run died before its first commit, the next run would begin
            # elsewhere without this checkpoint.
            self.store.save_checkpoint(open_.tenure, cursor)
        return cursor

    def _lag(self, open_: OpenShard) -> int | None:
        if open_.bounds is None:
            return None
        return self.stream.source.lag(open_.tenure.shard, open_.cursor, open_.bounds)
