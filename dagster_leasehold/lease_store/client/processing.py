"""A worker that passes the records of its shards to the user's processors, one for each shard.

It calls `initialize`, then `process` repeatedly, then `shutdown`, from the thread that calls `step`
or `run`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from dagster_leasehold.lease_store.client.feed import Record, ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.client.pulling import RECORDS_DEFAULT, PullLoop
from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    CursorInvalid,
    InvalidSetting,
    LeaseholdError,
    LeaseLost,
    RunStalled,
    ShardNotOpen,
    ShardOccupied,
    StoreError,
)
from dagster_leasehold.lease_store.group_rows import STALL_LIMIT_DEFAULT_S
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState, ShardConsumer
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock

IDLE_DEFAULT_S = 0.5
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 60.0

_LOG = logging.getLogger(__name__)


class Processor(Protocol):
    """The user's code for one shard."""

    def initialize(self, shard: ShardId, cursor: str) -> None:
        """Called before the first record; reading begins at `cursor`."""
        ...

    def process(self, records: tuple[Record, ...]) -> str | None:
        """Process some records, in order.

        Returns:
            None if all records are done. Otherwise the cursor to read from next. If it is one of
            these records, the records before it are done. An earlier cursor goes back to processed
            records; the checkpoint stays until they are processed again.
        """
        ...

    def shutdown(self) -> None:
        """Called once, after the last record, if `initialize` returned."""
        ...


@dataclass(slots=True)
class _Work:
    """The work on one shard; `rewind_cursor` is an earlier cursor that the processor returned."""

    consumer: ShardConsumer = field(default_factory=ShardConsumer)
    processor: Processor | None = None
    rewind_cursor: str | None = None
    failures: int = 0
    retry_at: float = -math.inf

    def stop(self, reason: str) -> None:
        self.consumer = self.consumer.stop(reason)

    def fence(self, reason: object) -> None:
        self.consumer = self.consumer.fence(str(reason))


class ProcessorWorker:
    """Passes the records of a member's shards to processors.

    A processor that raises gets the same records again, after a pause that doubles up to a
    minute; the other shards continue.

    Args:
        member: this worker's member of the group; not registered yet.
        processor: creates a processor for each shard that is opened.
        records_max: the most records of one `process` call.
        idle_s: how long `run` sleeps after no shard had records, in seconds.
        stall_limit_s: the longest time that one call of a processor or of the feed can take, in
            seconds. After that the worker leaves the group, so that other nodes continue with its
            shards, and no result of the call is saved.

    Raises:
        InvalidSetting: the stall limit is not positive.
    """

    def __init__(
        self,
        member: GroupMember,
        feed: ShardFeed,
        processor: Callable[[ShardId], Processor],
        *,
        records_max: int = RECORDS_DEFAULT,
        idle_s: float = IDLE_DEFAULT_S,
        stall_limit_s: float = STALL_LIMIT_DEFAULT_S,
        clock: Clock = steady_clock,
    ) -> None:
        if stall_limit_s <= 0:
            raise InvalidSetting(f"The stall limit is {stall_limit_s} s: use more than 0 s.")
        self._member = member
        self._feed = feed
        self._loop = PullLoop(member, feed, clock=clock, protect_s=math.inf, settles=False)
        self._new_processor = processor
        self._records_max = records_max
        self._idle_s = idle_s
        self._clock = clock
        self._stall_limit_s = stall_limit_s
        self._lock = threading.RLock()
        self._work: dict[ShardId, _Work] = {}
        # The shard that `step` works on now, and when it began.
        self._active: tuple[ShardId, float] | None = None
        self._stalled: RunStalled | None = None
        self._left = False

    def states(self) -> dict[ShardId, ConsumerState]:
        """Return the state of each shard of this worker."""
        with self._lock:
            return {shard: work.consumer.state for shard, work in self._work.items()}

    def run(self, stopping: threading.Event) -> None:
        """Join the group and work until `stopping` is set; then save all checkpoints and leave.

        Raises:
            NodeNameTaken, AssignmentConflict: the worker cannot be a member.
            StoreError, UnknownGroup: the worker could not join or leave.
            RunStalled: a call took longer than the stall limit; the worker has left the group.
        """
        self._member.register()
        try:
            self.beat()
            self._member.start(self.beat)
            while not stopping.is_set() and self._member.problem is None:
                if not self.step():
                    stopping.wait(self._idle_s)
        finally:
            self._member.stop()
            self.shutdown()
        if self._member.problem is not None:
            raise self._member.problem

    def beat(self) -> None:
        """Send a heartbeat, and begin to stop the shards that the node no longer owns.

        Raises as `GroupMember.heartbeat`.
        """
        if self._has_stalled():
            return
        with self._lock:
            self._work = {
                shard: work for shard, work in self._work.items() if work.consumer.reported
            }
            works = dict(self._work)
        self._loop.beat()
        for shard in works.keys() - set(self._loop.owned_shards()):
            with self._lock:
                try:
                    self._loop.require(shard)
                    works[shard].stop("another node waits for it, or the group is paused")
                except (LeaseLost, ShardNotOpen) as error:
                    works[shard].fence(error)

    def _has_stalled(self) -> bool:
        """Leave the group if a call takes too long; return True if it has.

        1. A processor hangs. This thread still beats, so no other node would ever get the shards.
        2. The worker leaves the group here. Other nodes continue from its checkpoints.
        3. The processor returns late. Its shard is fenced, so none of its results are saved.
        """
        with self._lock:
            active, now = self._active, self._clock()
            if self._stalled is None and active and now - active[1] > self._stall_limit_s:
                self._stalled = RunStalled(
                    f"Shard {active[0]} made no progress for {self._stall_limit_s:g} s, so node "
                    f"{self._member.node} left its group, and others continue from the "
                    "checkpoints: make the processor and the log faster, or raise stall_limit_s."
                )
                _LOG.error("%s", self._stalled)
                for work in self._work.values():
                    work.fence(self._stalled)
        if self._stalled is not None:
            self._leave()
        return self._stalled is not None

    def _leave(self) -> None:
        if self._left:
            return
        try:
            self._loop.leave()
        except LeaseLost as error:
            _LOG.warning("A shard was lost before the worker left: %s", error)
        self._left = self._stalled is not None

    def step(self) -> bool:
        """Advance every shard; return True if any had work; raise RunStalled after a stall."""
        with self._lock:
            for shard in self._loop.owned_shards():
                self._work.setdefault(shard, _Work())
            works = list(self._work.items())
        busy = False
        for shard, work in works:
            self._active = (shard, self._clock())
            try:
                busy = self._advance(shard, work) or busy
            finally:
                self._active = None
            if self._stalled is not None:
                raise self._stalled
        return busy

    def shutdown(self) -> None:
        """Stop all shards, save their checkpoints and leave; raises as `GroupMember.shutdown`."""
        for shard, work in list(self._work.items()):
            with self._lock:
                work.stop("the worker was asked to stop")
            self._advance(shard, work)
        with self._lock:
            self._work.clear()
        self._leave()

    # -- one shard ----------------------------------------------------------------------------

    def _advance(self, shard: ShardId, work: _Work) -> bool:
        state = work.consumer.state
        if state is ConsumerState.STOPPING:
            return self._shut_down(shard, work)
        if state is ConsumerState.STOP_COMPLETED or self._clock() < work.retry_at:
            return False
        try:
            begins = state is ConsumerState.INITIALIZING
            busy = self._initialize(shard, work) if begins else self._read(shard, work)
        except ShardOccupied as error:
            with self._lock:
                work.stop(str(error))
            return False
        except (LeaseLost, ShardNotOpen) as error:
            _LOG.warning("Shard %s: %s", shard, error)
            with self._lock:
                work.fence(error)
        except Exception as error:
            unforeseen = None if isinstance(error, LeaseholdError) else error
            _LOG.warning("Shard %s is retried: %s", shard, error, exc_info=unforeseen)
            work.failures += 1
            wait_s = retry_wait_s(work.failures, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
            work.retry_at = self._clock() + wait_s
        else:
            work.failures = 0
            return busy
        return True

    def _initialize(self, shard: ShardId, work: _Work) -> bool:
        try:
            cursor = self._loop.require(shard).confirmed
        except ShardNotOpen:
            cursor = self._loop.attach(shard)
        processor = self._new_processor(shard)
        processor.initialize(shard, cursor)
        with self._lock:
            work.processor, work.consumer = processor, work.consumer.initialized()
        return True

    def _read(self, shard: ShardId, work: _Work) -> bool:
        """Pass the next records to the processor; confirm them, or go back to its cursor."""
        assert work.processor is not None
        if work.rewind_cursor is not None:
            return self._read_again(shard, work, work.processor, work.rewind_cursor)
        batch = self._loop.next_batch(shard, self._records_max)
        if batch is not None:
            try:
                rewind_cursor = work.processor.process(batch.records)
            except BaseException:
                self._loop.roll_back(batch)
                raise
            if rewind_cursor is None or batch.has_cursor(rewind_cursor):
                self._loop.confirm(batch, rewind_cursor)
            else:
                self._loop.roll_back(batch)
                work.rewind_cursor = rewind_cursor
        over = self._loop.require(shard).over
        if over:
            with self._lock:
                work.stop("the shard is over")
        return batch is not None or over

    def _read_again(self, shard: ShardId, work: _Work, processor: Processor, start: str) -> bool:
        """Process records again, up to the confirmed checkpoint, which does not change."""
        end = self._loop.checked(shard).confirmed
        work.rewind_cursor = None
        if start == end:
            return True
        try:
            fetched = self._feed.fetch_between(shard, start, end, records_max=self._records_max)
        except (CursorExpired, CursorInvalid) as error:
            # All of these records were processed before.
            _LOG.warning("Shard %s cannot go back: %s", shard, error)
            return True
        work.rewind_cursor, records = start, fetched.records
        rewind_cursor = processor.process(records) if records else end
        work.rewind_cursor = records[-1].next_cursor if rewind_cursor is None else rewind_cursor
        return True

    def _shut_down(self, shard: ShardId, work: _Work) -> bool:
        """Shut down the processor, save, and end the tenure; return False to retry."""
        processor, work.processor = work.processor, None
        if processor is not None:
            try:
                processor.shutdown()
            except Exception:
                _LOG.exception("The processor of shard %s did not shut down", shard)
        if not work.consumer.fenced:
            try:
                with suppress(ShardNotOpen):
                    self._loop.settle(shard)
            except LeaseLost as error:
                _LOG.warning("Shard %s: %s", shard, error)
                with self._lock:
                    work.fence(error)
            except StoreError as error:
                _LOG.warning("Shard %s is not released yet: %s", shard, error)
                return False
        with self._lock:
            work.consumer = work.consumer.stopped()
        return True
