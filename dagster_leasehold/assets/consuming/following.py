"""Polls and waits for a run that follows its shards; the batch loop calls it.

Between batches, the run polls the source for the bounds of its shards, without a Spark job. It
wakes at least once a second, to handle requests quickly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from dagster_leasehold.assets.consuming.batch_planning import PlannedBatch
from dagster_leasehold.assets.consuming.batch_sizes import FILLED, fill_of
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport
from dagster_leasehold.assets.consuming.open_shards import OpenShard, OpenShards
from dagster_leasehold.assets.consuming.run_progress import SHOW_EVERY_S, RunProgress, records_read
from dagster_leasehold.assets.consuming.run_requests import RunRequests
from dagster_leasehold.assets.pace import POLL_MAX_S, DueTimes, Pace, reached_head
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.progress import Progress
from dagster_leasehold.shard_sources.source import Limits, ShardSource, bounds_for

ANSWER_S = 1.0
"""The longest time until a waiting run handles a request, in seconds."""
POLL_PAUSE = 4.0
"""The pause between two polls, as a multiple of the duration of a poll."""


@dataclass(frozen=True, slots=True)
class Follow:
    """How a run follows its shards.

    Attributes:
        requests: returns new requests to the run; called about once a second.
        show: called with the run's progress twice a minute.
        gained: returns the shards that the node gained during the run; called about once a second.
    """

    pace: Pace
    wait: Callable[[float], None]
    requests: Callable[[], RunRequests] = RunRequests
    show: Callable[[RunProgress], object] = lambda _: None
    gained: Callable[[], Sequence[ShardId]] = tuple


@dataclass(slots=True)
class _Poll:
    """The last poll of a shard: its time, the unread records if known, and the end cursor."""

    at_s: float
    lag: int | None
    end: str


class Following:
    """Polls the source and waits, for one run."""

    def __init__(
        self, follow: Follow, source: ShardSource, shards: OpenShards, clock: Clock
    ) -> None:
        self._pace = follow.pace
        self._wait = follow.wait
        self._source = source
        self._shards = shards
        self._clock = clock
        self._due = DueTimes(follow.pace, clock())
        self._polls: dict[ShardId, _Poll] = {}
        self._poll_s = self._answer_s = clock()
        self._show_s = clock() + SHOW_EVERY_S
        self._read = Progress(clock)

    @property
    def idle(self) -> bool:
        """True if the run has had no unread records for `idle_limit_s`, and should end."""
        return self._due.idle(self._clock())

    def progress(self, reports: Sequence[ConsumptionReport]) -> RunProgress:
        """Return the run's progress, from the reports of its shards so far."""
        now_s, due_s = self._clock(), self._due.due_s
        lags = [poll.lag for poll in self._polls.values()]
        self._read(records_read(reports) or 0)
        return RunProgress(
            reports=tuple(reports),
            unread=None if None in lags else sum(lag or 0 for lag in lags),
            waiting_s=self._due.waiting_s(now_s),
            next_s=None if due_s == math.inf else max(0.0, due_s - now_s),
            rate=self._read.rate,
        )

    def show_due(self) -> bool:
        """Return True if it is time to show the run's progress."""
        if self._clock() < self._show_s:
            return False
        self._show_s = self._clock() + SHOW_EVERY_S
        return True

    def batch_due(self) -> bool:
        """Poll the source if a poll is due; return True if a batch is due."""
        self._drop_closed()
        now_s = self._clock()
        has_new = any(open_.tenure.shard not in self._polls for open_ in self._shards.all())
        if has_new or now_s >= min(self._poll_s, self._due.due_s):
            self._poll()
        return self._due.due_s <= self._clock()

    def answer_due(self) -> bool:
        """Return True if it is time to check for requests."""
        if self._clock() < self._answer_s:
            return False
        self._answer_s = self._clock() + ANSWER_S
        return True

    def wait(self) -> None:
        """Wait until the next poll, batch or check for requests, at most a second."""
        now_s = self._clock()
        next_s = min(self._poll_s, self._due.due_s, self._answer_s)
        failpoints.reach("while_waiting")
        self._wait(min(ANSWER_S, max(0.0, next_s - now_s)))

    def record_sweep(
        self, planned: Sequence[PlannedBatch], committed: Collection[ShardId], limits: Limits,
        *, took_s: float, all_due: bool = True,
    ) -> None:  # fmt: skip
        """Record a sweep, and schedule the next batch.

        Args:
            planned: the sweep's batches; a shard without a batch had no readable record.
            committed: the shards whose batch was committed.
            limits: the limits of each batch.
            took_s: the time from planning to commit, in seconds.
            all_due: False if no batch was planned for the other shards.
        """
        batches = {batch.range_.shard: batch for batch in planned}
        for open_ in self._shards.all():
            shard = open_.tenure.shard
            poll, batch = self._polls.get(shard), batches.get(shard)
            if poll is None or open_.in_flight or (batch is None and not all_due):
                continue
            if batch is None:
                # No record before that end can be read: a service can number records that it
                # never returns.
                self._due.mark_read(shard, poll.at_s)
                poll.end = "" if open_.bounds is None else open_.bounds.end
                open_.empty_end = poll.end
            elif (
                shard in committed
                and not open_.isolating
                and self._at_head(open_, batch, poll, limits)
            ):
                self._due.mark_read(shard, poll.at_s)
            else:
                self._due.mark_behind(shard)
        if committed:
            self._due.committed(self._clock(), took_s=took_s)

    @staticmethod
    def _at_head(open_: OpenShard, batch: PlannedBatch, poll: _Poll, limits: Limits) -> bool:
        size = open_.mean_bytes * batch.range_.records
        return reached_head(
            lag=poll.lag,
            records=batch.range_.records,
            filled=fill_of(limits, batch.range_.records, size) >= FILLED,
            at_end=open_.cursor == poll.end,
        )

    def _drop_closed(self) -> None:
        for shard in [shard for shard in self._polls if shard not in self._shards]:
            del self._polls[shard]
            self._due.drop(shard)

    def _poll(self) -> None:
        now_s = self._clock()
        cursors = {open_.tenure.shard: open_.cursor for open_ in self._shards.all()}
        try:
            bounds = bounds_for(self._source, cursors) if cursors else {}
        except Exception:
            # A shard that the source no longer has must not hide the bounds of the others.
            bounds = {}

        def poll_shard(open_: OpenShard) -> None:
            shard = open_.tenure.shard
            cursor = {shard: open_.cursor}
            open_.bounds = bounds.get(shard) or bounds_for(self._source, cursor)[shard]
            self._record_poll(open_, now_s)

        self._shards.each(poll_shard)
        # A poll can be slow if the service answers for one shard at a time.
        duration_s = self._clock() - now_s
        pause_s = max(self._pace.poll_s, min(POLL_MAX_S, duration_s * POLL_PAUSE))
        self._poll_s = self._clock() + pause_s

    def _record_poll(self, open_: OpenShard, now_s: float) -> None:
        shard, bounds = open_.tenure.shard, open_.bounds
        assert bounds is not None
        if open_.in_flight:
            self._polls[shard] = _Poll(now_s, None, bounds.end)
            self._due.drop(shard)
            return
        lag = self._source.lag(shard, open_.cursor, bounds)
        self._polls[shard] = _Poll(now_s, lag, bounds.end)
        at_once = open_.intent is not None or open_.isolating or bounds.finished
        if not at_once and bounds.end in (open_.cursor, open_.empty_end):
            self._due.mark_read(shard, now_s)
            return
        fills_commit = lag is not None and lag * open_.mean_bytes >= self._pace.commit_bytes
        self._due.mark_unread(shard, now_s, at_once=at_once or fills_commit)
