"""Abandons calls that make no progress for too long.

A node sends heartbeats while its run hangs, so its lease does not show whether the run makes
progress. Therefore each call that a run waits for (the source, Spark, Dagster's storage) runs on a
separate thread, and the run waits only while there is progress:

1. A read of the source hangs in a socket, or a Spark worker stalls. Heartbeats continue.
2. There is no progress for `limit_s`: the run stops waiting, and abandons the thread.
3. The run releases its shards at their last checkpoints, and fails with an error message.
4. The thread wakes up. The run has no tenure, so nothing that the thread does is committed.

A call makes progress when it returns or reports progress, as a Spark job does while it processes
records.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from typing_extensions import override

from dagster_leasehold.lease_store.errors import RunStalled
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.source import (
    BoundedFromCursors,
    DivisibleRanges,
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
    ShardSource,
    identity_of_log,
    times_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from dagster_leasehold.lease_store.rules.liveness import Clock

SEARCHING_FRACTION = 0.1
SEARCHING_MIN_S = 60.0
"""The shortest limit for a part of a batch: a worker sometimes loads a library first."""
POLL_S = 0.2
UNWIND_S = 10.0
"""The longest wait for a call that the run has interrupted, in seconds."""

T = TypeVar("T")


def searching_limit_s(limit_s: float) -> float:
    """Return the limit for a part of a batch that is searched for a bad record, in seconds.

    If the limit is too short, the part is tried again; no record is blamed.
    """
    return min(limit_s, max(SEARCHING_MIN_S, limit_s * SEARCHING_FRACTION))


class _Call:
    """Work for the thread, and its result or error."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._context = contextvars.copy_context()
        self._result: Any = None
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:
            # The waiting thread raises it again, even an interruption.
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class StallGuard:
    """Waits for the calls of one run, and abandons a call that makes no progress.

    A context manager. Once a call was abandoned, every later call fails at once with its error.

    Args:
        limit_s: the longest time without progress, in seconds.
        consequence: what the run does then, as the end of a sentence after "so it".
    """

    def __init__(
        self,
        limit_s: float,
        clock: Clock,
        consequence: str = "released its shards, which the next run continues",
    ) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._consequence = consequence
        self._progress_at = clock()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stalled: RunStalled | None = None
        self._ending = threading.Event()

    def for_batch(self, *, searching: bool) -> StallGuard:
        """Return a guard for one batch that is read while the run does other work.

        Args:
            searching: True for a part of a batch that is searched for a bad record.
        """
        limit_s = searching_limit_s(self._limit_s) if searching else self._limit_s
        return StallGuard(limit_s, self._clock, "released this shard at its checkpoint")

    def interrupt(self) -> None:
        """Request the end of the running call, because no caller waits for it."""
        self._ending.set()

    @property
    def stalled(self) -> RunStalled | None:
        """The error of the abandoned call, or None."""
        return self._stalled

    @property
    def ending(self) -> bool:
        """True if the running call should end, because no caller waits for it."""
        return self._ending.is_set()

    def progressed(self) -> None:
        """Record that the running call has made progress."""
        self._progress_at = self._clock()

    def call(self, what: str | Callable[[], str], work: Callable[[], T]) -> T:
        """Run `work`, and wait for its result while it makes progress; raise its errors.

        Args:
            what: what the run waits for, as part of a sentence, or a function that returns it.

        Raises:
            RunStalled: there was no progress for the limit, now or in an earlier call.
        """
        if self._stalled is not None:
            raise self._stalled
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_calls, name="guarded", daemon=True)
            self._thread.start()
        call = _Call(work)
        self.progressed()
        self._calls.put(call)
        try:
            while not call.done.wait(min(POLL_S, self._limit_s)):
                if self._clock() - self._progress_at > self._limit_s:
                    self._ending.set()
                    awaited = what if isinstance(what, str) else what()
                    self._stalled = RunStalled(
                        f"This run made no progress for {self._limit_s:g} s while it waited for "
                        f"{awaited}, so it {self._consequence}. Find out why there was no answer, "
                        "or raise stall_limit_s if the work can take longer."
                    )
                    raise self._stalled
        except RunStalled:
            raise
        except BaseException:
            # The run is interrupted. The call must end too, because Spark jobs outlive a client.
            self._ending.set()
            call.done.wait(UNWIND_S)
            raise
        self.progressed()
        return call.outcome()

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._calls.put(None)


class GuardedSource(ShardSource):
    """A source whose calls run under the guard."""

    def __init__(self, source: ShardSource, guard: StallGuard) -> None:
        self._source = source
        self._guard = guard

    @override
    def list_shards(self) -> list[ShardListing]:
        return self._guard.call("the source's list of shards", self._source.list_shards)

    @override
    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        return self._guard.call(
            "the source's bounds of its shards", lambda: self._source.bounds(shards)
        )

    @override
    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        return self._guard.call(
            f"the source's cursor of shard {shard}", lambda: self._source.cursor_at(shard, position)
        )

    @override
    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        return self._guard.call(
            f"the source to plan a batch of shard {shard}",
            lambda: self._source.plan(shard, start, limits),
        )

    @override
    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        return self._source.lag(shard, cursor, bounds)

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the times of the records at these cursors, where the source has them."""
        return self._guard.call(
            "the source's times of unread records", lambda: times_for(self._source, cursors)
        )

    def log_identity(self) -> str | None:
        """Return the identity of the log, if the source has one."""
        return self._guard.call("the identity of the log", lambda: identity_of_log(self._source))

    @override
    def spark_options(self) -> Mapping[str, str]:
        return self._source.spark_options()

    @override
    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        # Without the guard: only Spark's workers read.
        return self._source.read(range_)


class _GuardedCursorsSource(GuardedSource):
    """A guarded source that determines bounds from its readers' cursors."""

    def __init__(self, source: BoundedFromCursors, inner: ShardSource, guard: StallGuard) -> None:
        super().__init__(inner, guard)
        self._from_cursors = source

    def bounds_after(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, ShardBounds]:
        """Return the bounds of shards with readers at these cursors."""
        return self._guard.call(
            "the source's bounds of its shards", lambda: self._from_cursors.bounds_after(cursors)
        )


class _GuardedOffsetsSource(GuardedSource):
    """A guarded source that can divide ranges, which needs no request."""

    def __init__(self, source: DivisibleRanges, inner: ShardSource, guard: StallGuard) -> None:
        super().__init__(inner, guard)
        self.divide = source.divide


def guarded_source(source: ShardSource, guard: StallGuard) -> ShardSource:
    """Return the source with its calls under the guard."""
    if isinstance(source, BoundedFromCursors):
        return _GuardedCursorsSource(source, source, guard)
    if isinstance(source, DivisibleRanges):
        return _GuardedOffsetsSource(source, source, guard)
    return GuardedSource(source, guard)
