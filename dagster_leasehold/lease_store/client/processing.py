"""A worker that gives the records of its shards to a processor, written by the user.

For each shard a processor of its own goes through `initialize`, `process` again and again, and
`shutdown`. All calls come from the one thread that calls `step` or `run`.
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
from dagster_leasehold.lease_store.client.pulling import RECORDS_DEFAULT, PullLoop, cursors_of
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
STOP_REQUESTED = "the worker was asked to stop"
SHARD_OVER = "the shard is over"
WANTED_ELSEWHERE = "it is wanted elsewhere, or the group is paused"

_LOG = logging.getLogger(__name__)


class Processor(Protocol):
    """The user's code for one shard."""

    def initialize(self, shard: ShardId, cursor: str) -> None:
        """Called before the first record; reading begins at `cursor`."""
        ...

    def process(self, records: tuple[Record, ...]) -> str | None:
        """Deal with some records, in order.

        Returns:
            None: they are done; the checkpoint moves past them. A cursor: reading continues there.
            One of this batch takes its rest back: what comes before counts as done. An earlier
            one takes all of it back, and brings records again that were done before; the
            checkpoint stays where it is until they have been done once more.
        """
        ...

    def shutdown(self) -> None:
        """Called once, after the last record, if `initialize` returned."""
        ...


@dataclass(slots=True)
class _Work:
    """The work on one shard.

    Attributes:
        again_from: the place that a processor wants records from again, up to the confirmed one.
    """

    consumer: ShardConsumer = field(default_factory=ShardConsumer)
    processor: Processor | None = None
    again_from: str | None = None
    failures: int = 0
    retry_at: float = -math.inf


class ProcessorWorker:
    """Works on the shards that a member of a group is given.

    A processor that raises gets the same records again, after a pause that doubles up to a
    minute; its shard waits, the others continue.

    Args:
        member: this worker's place in the group; not registered yet.
        feed: reads the log.
        processor: makes a processor for each shard, whenever one is opened.
        records_max: the most records of one `process` call.
        idle_s: how long `run` waits when no shard had anything to read.
        stall_limit_s: how long one call of a processor or of the feed can take, in seconds. After
            that the worker leaves the group, so that others continue with its shards; the call
            cannot be ended, but nothing that it still does is saved.
        clock: monotonic seconds.

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
        self._lock = threading.RLock()
        self._work: dict[ShardId, _Work] = {}
        self._stall_limit_s = stall_limit_s
        # The shard that is advanced at this moment, and since when.
        self._at_work: tuple[ShardId, float] | None = None
        self._stalled: RunStalled | None = None
        self._left = False

    def states(self) -> dict[ShardId, ConsumerState]:
        """Return the state of each shard that this worker works on, or releases."""
        with self._lock:
            return {shard: work.consumer.state for shard, work in self._work.items()}

    def run(self, stopping: threading.Event) -> None:
        """Join the group and work until `stopping` is set; then save everything and leave.

        Raises:
            NodeNameTaken, AssignmentConflict: the worker cannot be a member.
            StoreError, UnknownGroup: the store did not let it join or leave.
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
        """Beat once: learn the assignment; shards that are wanted elsewhere begin to stop.

        Raises:
            NodeNameTaken, AssignmentConflict: the worker lost its place and cannot join again.
            StoreError: the store does not answer.
        """
        if self._give_up_stalled():
            return
        with self._lock:
            for shard, work in list(self._work.items()):
                if not work.consumer.reported:
                    del self._work[shard]
            shards = list(self._work)
        self._loop.beat()
        confirmed = self._loop.confirmed_shards()
        for shard in shards:
            if shard not in confirmed:
                try:
                    self._loop.require(shard)
                except (LeaseLost, ShardNotOpen) as error:
                    self._fence(shard, str(error))
                else:
                    self._stop(shard, WANTED_ELSEWHERE)

    def _stop(self, shard: ShardId, reason: str) -> None:
        with self._lock:
            work = self._work[shard]
            work.consumer = work.consumer.stop(reason)

    def _fence(self, shard: ShardId, reason: str) -> None:
        with self._lock:
            work = self._work[shard]
            work.consumer = work.consumer.fence(reason)

    def _give_up_stalled(self) -> bool:
        """Leave the group if a call takes too long; return True if it has left, now or before.

        1. A processor hangs. This thread keeps beating, so that the node lives, and no other node
           would ever get the shards.
        2. It leaves the group here, at the checkpoints of its work.
        3. The processor returns after all. Its shard is fenced, and nothing of it is saved.
        """
        with self._lock:
            at_work, now = self._at_work, self._clock()
            if self._stalled is None and at_work and now - at_work[1] > self._stall_limit_s:
                self._stalled = RunStalled(
                    f"Shard {at_work[0]} made no progress for {self._stall_limit_s:g} s, so that "
                    f"node {self._member.node} left its group, and others continue from the "
                    "checkpoints: let the processor and the log answer sooner, or raise "
                    "stall_limit_s."
                )
                _LOG.error("%s", self._stalled)
                for shard in self._work:
                    self._fence(shard, str(self._stalled))
        if self._stalled is not None and not self._left:
            self._leave()
            self._left = True
        return self._stalled is not None

    def _leave(self) -> None:
        try:
            self._loop.leave()
        except LeaseLost as error:
            _LOG.warning("A shard was lost before the worker left: %s", error)

    def step(self) -> bool:
        """Advance every shard by one step; return True if any had something to do.

        Raises:
            RunStalled: an earlier call took longer than the stall limit.
        """
        with self._lock:
            for shard in self._loop.confirmed_shards():
                self._work.setdefault(shard, _Work())
            works = list(self._work.items())
        busy = False
        for shard, work in works:
            self._at_work = (shard, self._clock())
            try:
                busy = self._advance(shard, work) or busy
            finally:
                self._at_work = None
            if self._stalled is not None:
                raise self._stalled
        return busy

    def shutdown(self) -> None:
        """Stop all shards, save their checkpoints and leave the group.

        Raises:
            CheckpointUnsaved: a checkpoint is not persisted, and the worker has not left: it may
                be called again.
            StoreError: all is persisted, but the store did not let the worker leave: its shards
                are free after the group's timeout.
        """
        for shard, work in list(self._work.items()):
            self._stop(shard, STOP_REQUESTED)
            self._advance(shard, work)
        with self._lock:
            self._work.clear()
        if not self._left:
            self._leave()

    # -- one shard ----------------------------------------------------------------------------

    def _advance(self, shard: ShardId, work: _Work) -> bool:
        """Do what comes next; return True if there was anything to do."""
        state = work.consumer.state
        if state is ConsumerState.STOPPING:
            return self._wind_up(shard, work)
        if state is ConsumerState.STOP_COMPLETED or self._clock() < work.retry_at:
            return False
        try:
            begins = state is ConsumerState.INITIALIZING
            busy = self._initialize(shard, work) if begins else self._read(shard, work)
            work.failures = 0
        except (LeaseLost, ShardNotOpen) as error:
            _LOG.warning("Shard %s: %s", shard, error)
            self._fence(shard, str(error))
        except ShardOccupied as error:
            self._stop(shard, str(error))
            return False
        except LeaseholdError as error:
            _LOG.warning("Shard %s is tried again: %s", shard, error)
            self._retry_later(work)
        except Exception:
            _LOG.exception("The processor of shard %s failed: it is tried again", shard)
            self._retry_later(work)
        else:
            return busy
        return True

    def _retry_later(self, work: _Work) -> None:
        work.failures += 1
        wait_s = retry_wait_s(work.failures, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        work.retry_at = self._clock() + wait_s

    def _initialize(self, shard: ShardId, work: _Work) -> bool:
        try:
            cursor = self._loop.require(shard).confirmed
        except ShardNotOpen:
            cursor = self._loop.attach(shard)
        processor = self._new_processor(shard)
        processor.initialize(shard, cursor)
        work.processor = processor
        with self._lock:
            work.consumer = work.consumer.initialized()
        return True

    def _read(self, shard: ShardId, work: _Work) -> bool:
        """Give the next records to the processor, and go where it wants to be."""
        assert work.processor is not None
        if work.again_from is not None:
            return self._read_again(shard, work, work.processor, work.again_from)
        batch = self._loop.next_batch(shard, self._records_max)
        if batch is not None:
            try:
                again_from = work.processor.process(batch.records)
            except BaseException:
                self._loop.roll_back(batch)
                raise
            if again_from is None or again_from in cursors_of(batch):
                self._loop.confirm(batch, again_from)
            else:
                self._loop.roll_back(batch)
                work.again_from = again_from
        connection = self._loop.require(shard)
        if connection.over:
            self._stop(shard, SHARD_OVER)
        return batch is not None or connection.over

    def _read_again(self, shard: ShardId, work: _Work, processor: Processor, start: str) -> bool:
        """Bring back records up to the confirmed checkpoint; nothing is saved meanwhile."""
        done = self._loop.checked(shard).confirmed
        work.again_from = None
        if start == done:
            return True
        try:
            records = self._feed.fetch_between(
                shard, start, done, records_max=self._records_max
            ).records
        except (CursorExpired, CursorInvalid) as error:
            # Everything up to `done` is done: only its repetition is not to be had.
            _LOG.warning("Shard %s cannot go back: %s", shard, error)
            return True
        work.again_from = start
        again_from = processor.process(records) if records else done
        work.again_from = records[-1].next_cursor if again_from is None else again_from
        return True

    def _wind_up(self, shard: ShardId, work: _Work) -> bool:
        """Shut the processor down, save, and end the tenure; tried again if the store is away."""
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
                self._fence(shard, str(error))
            except StoreError as error:
                _LOG.warning("Shard %s is not released yet: %s", shard, error)
                return False
        with self._lock:
            work.consumer = work.consumer.stopped()
        return True
