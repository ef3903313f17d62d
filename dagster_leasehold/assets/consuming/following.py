"""A run that follows its shards: between batches it asks the source for bounds, and waits.

Waiting starts no Spark job. The run wakes at least once a second, so that a request for one of
its shards, or for its end, is answered soon.
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
from dagster_leasehold.assets.pace import LOOK_MAX_S, DueTimes, Pace, reached_head
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.progress import Progress
from dagster_leasehold.shard_sources.source import Limits, ShardSource, bounds_for

ANSWER_S = 1.0
"""The longest time until a waiting run answers a request, in seconds."""
LOOK_PAUSE = 4.0
"""The pause between two looks, in multiples of a look's time."""


@dataclass(frozen=True, slots=True)
class Follow:
    """How a run follows its shards.

    Attributes:
        pace: of the stream.
        wait: waits for some seconds.
        requests: asked about once a second.
        show: gets the run's progress twice a minute.
        gained: asked about once a second: the shards that the run's node has gained meanwhile.
    """

    pace: Pace
    wait: Callable[[float], None]
    requests: Callable[[], RunRequests] = RunRequests
    show: Callable[[RunProgress], object] = lambda _: None
    gained: Callable[[], Sequence[ShardId]] = tuple


@dataclass(slots=True)
class _Shard:
    """The last look at a shard: when, its unread records where the source can tell, its end."""

    looked_s: float
    lag: int | None
    end: str


class Following:
    """The looks at the source, and the waits, of one run.

    Args:
        follow: pace and wait.
        source: of the shards.
        shards: the open ones.
        clock: monotonic seconds.
    """

    def __init__(
        self, follow: Follow, source: ShardSource, shards: OpenShards, clock: Clock
    ) -> None:
        self._pace = follow.pace
        self._wait = follow.wait
        self._source = source
        self._shards = shards
        self._clock = clock
        self._due = DueTimes(follow.pace, clock())
        self._seen: dict[ShardId, _Shard] = {}
        self._look_s = self._answer_s = clock()
        self._show_s = clock() + SHOW_EVERY_S
        self._read = Progress(clock)

    @property
    def idle(self) -> bool:
        """True if there has been nothing to read for so long that the run ends."""
        return self._due.idle(self._clock())

    def progress(self, reports: Sequence[ConsumptionReport]) -> RunProgress:
        """Return the state of the run, whose shards have come as far as the reports say."""
        now_s, due_s = self._clock(), self._due.due_s
        lags = [seen.lag for seen in self._seen.values()]
        self._read(records_read(reports) or 0)
        return RunProgress(
            reports=tuple(reports),
            unread=None if None in lags else sum(lag or 0 for lag in lags),
            waits_s=self._due.waits_s(now_s),
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
        """Look at the source if it is time to; return True if the run is to make a batch now."""
        self._forget_closed()
        now_s = self._clock()
        fresh = any(open_.tenure.shard not in self._seen for open_ in self._shards.all())
        if fresh or now_s >= min(self._look_s, self._due.due_s):
            self._look()
        return self._due.due_s <= self._clock()

    def answer_due(self) -> bool:
        """Return True if it is time to look for what others ask of the run."""
        if self._clock() < self._answer_s:
            return False
        self._answer_s = self._clock() + ANSWER_S
        return True

    def wait(self) -> None:
        """Wait until there is something to look at."""
        now_s = self._clock()
        next_s = min(self._look_s, self._due.due_s, self._answer_s)
        failpoints.reach("while_waiting")
        self._wait(min(ANSWER_S, max(0.0, next_s - now_s)))

    def made(
        self, planned: Sequence[PlannedBatch], committed: Collection[ShardId], limits: Limits,
        *, took_s: float, all_due: bool = True,
    ) -> None:  # fmt: skip
        """Take note of a sweep: `planned` is its batches, and `committed` the shards that have one.

        Args:
            planned: the batches; a shard without one had nothing to read after all.
            committed: the shards whose batch is committed.
            limits: of each batch.
            took_s: the time from planning to commit, in seconds.
            all_due: False if no other shard was asked for a batch.
        """
        batches = {batch.range_.shard: batch for batch in planned}
        for open_ in self._shards.all():
            shard = open_.tenure.shard
            seen, batch = self._seen.get(shard), batches.get(shard)
            if seen is None or open_.under_way or (batch is None and not all_due):
                continue
            if batch is None:
                # Nothing can be read up to that end: a service can number records that it does not
                # show.
                self._due.see_read(shard, seen.looked_s)
                seen.end = "" if open_.bounds is None else open_.bounds.end
                open_.empty_end = seen.end
            elif (
                shard in committed
                and not open_.isolating
                and self._at_head(open_, batch, seen, limits)
            ):
                self._due.see_read(shard, seen.looked_s)
            else:
                self._due.see_behind(shard)
        if committed:
            self._due.committed(self._clock(), took_s=took_s)

    @staticmethod
    def _at_head(open_: OpenShard, batch: PlannedBatch, seen: _Shard, limits: Limits) -> bool:
        size = open_.mean_bytes * batch.range_.records
        return reached_head(
            lag=seen.lag,
            records=batch.range_.records,
            filled=fill_of(limits, batch.range_.records, size) >= FILLED,
            at_end=open_.cursor == seen.end,
        )

    def _forget_closed(self) -> None:
        for shard in [shard for shard in self._seen if shard not in self._shards]:
            del self._seen[shard]
            self._due.forget(shard)

    def _look(self) -> None:
        now_s = self._clock()
        places = {open_.tenure.shard: open_.cursor for open_ in self._shards.all()}
        try:
            bounds = bounds_for(self._source, places) if places else {}
        except Exception:
            # One shard that the source no longer knows must not hide the others.
            bounds = {}

        def take(open_: OpenShard) -> None:
            shard = open_.tenure.shard
            place = {shard: open_.cursor}
            open_.bounds = bounds.get(shard) or bounds_for(self._source, place)[shard]
            self._see(open_, now_s)

        self._shards.each(take)
        # Asking can take a while where a service tells one shard at a time.
        looked_s = self._clock() - now_s
        pause_s = max(self._pace.look_s, min(LOOK_MAX_S, looked_s * LOOK_PAUSE))
        self._look_s = self._clock() + pause_s

    def _see(self, open_: OpenShard, now_s: float) -> None:
        shard, bounds = open_.tenure.shard, open_.bounds
        assert bounds is not None
        if open_.under_way:
            self._seen[shard] = _Shard(now_s, None, bounds.end)
            self._due.forget(shard)
            return
        lag = self._source.lag(shard, open_.cursor, bounds)
        self._seen[shard] = _Shard(now_s, lag, bounds.end)
        at_once = open_.intent is not None or open_.isolating or bounds.finished
        if not at_once and bounds.end in (open_.cursor, open_.empty_end):
            self._due.see_read(shard, now_s)
            return
        many = lag is not None and lag * open_.mean_bytes >= self._pace.commit_bytes
        self._due.see_unread(shard, now_s, at_once=at_once or many)
