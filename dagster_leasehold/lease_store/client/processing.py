"""A worker that gives the records of its shards to a processor, written by the user.

For each shard a processor of its own goes through `initialize`, `process` again and again, and
`shutdown`. All calls come from the one thread that calls `step` or `run`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from threading import RLock

from dagster_leasehold.lease_store.client.feed import ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.client.shard_worker import Processor, ShardWorker
from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseLost, RunStalled
from dagster_leasehold.lease_store.group_rows import STALL_LIMIT_DEFAULT_S
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock

_LOG = logging.getLogger(__name__)
RECORDS_DEFAULT = 1000
IDLE_DEFAULT_S = 0.5
STOP_REQUESTED = "the worker was asked to stop"


class ProcessorWorker:
    """Works on the shards that a member of a group is given.

    A processor that raises gets the same records again, after a pause that doubles up to a
    minute; its shard waits, the others go on.

    Args:
        member: this worker's place in the group; not registered yet.
        feed: reads the log.
        processor: makes a processor for each shard, whenever one is opened.
        records_max: the most records of one `process` call.
        idle_s: how long `run` waits when no shard had anything to read.
        stall_limit_s: how long one call of a processor or of the feed may take, in seconds. After
            that the worker leaves the group, so that others go on with its shards; the call
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
        self._new_processor = processor
        self._records_max = records_max
        self._idle_s = idle_s
        self._clock = clock
        self._lock = RLock()
        self._confirmed: tuple[ShardId, ...] = ()
        self._workers: dict[ShardId, ShardWorker] = {}
        self._stall_limit_s = stall_limit_s
        # The shard that is advanced at this moment, and since when.
        self._at_work: tuple[ShardId, float] | None = None
        self._stalled: RunStalled | None = None
        self._left = False

    def states(self) -> dict[ShardId, ConsumerState]:
        """Return the state of each shard that this worker works on, or lets go of."""
        with self._lock:
            return {shard: worker.state for shard, worker in self._workers.items()}

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
            # A shard that has completed its stop is named no more, and so goes to the next node.
            for shard, worker in list(self._workers.items()):
                if not worker.reported:
                    del self._workers[shard]
            held = list(self._workers)
        confirmed = self._member.heartbeat(held)
        with self._lock:
            self._confirmed = confirmed
            for shard in held:
                worker = self._workers.get(shard)
                if worker is None or shard in confirmed:
                    continue
                if worker.opened and not self._member.holds(shard):
                    worker.fence("its tenure is over")
                else:
                    worker.stop("it is wanted elsewhere, or the group is paused")

    def _give_up_stalled(self) -> bool:
        """Leave the group if a call takes too long; return True if it has left, now or before.

        1. A processor hangs. This thread beats on, so that the node lives, and nobody else would
           ever get the shards.
        2. It leaves the group here, at the checkpoints of what was done.
        3. The processor returns after all. Its shard is fenced, and nothing of it is saved.
        """
        with self._lock:
            at_work, now = self._at_work, self._clock()
            if self._stalled is None and at_work and now - at_work[1] > self._stall_limit_s:
                self._stalled = RunStalled(
                    f"Shard {at_work[0]} made no progress for {self._stall_limit_s:g} s, so that "
                    f"node {self._member.node} left its group, and others go on from the "
                    "checkpoints: let the processor and the log answer sooner, or raise "
                    "stall_limit_s."
                )
                _LOG.error("%s", self._stalled)
                self._confirmed = ()
                for worker in self._workers.values():
                    worker.fence(str(self._stalled))
        if self._stalled is not None and not self._left:
            self._leave()
            self._left = True
        return self._stalled is not None

    def _leave(self) -> None:
        try:
            self._member.shutdown()
        except LeaseLost as error:
            _LOG.warning("A shard was lost before the worker left: %s", error)

    def step(self) -> bool:
        """Advance every shard by one step; return True if any had something to do.

        Raises:
            RunStalled: an earlier call took longer than the stall limit.
        """
        with self._lock:
            for shard in self._confirmed:
                if shard not in self._workers:
                    self._workers[shard] = self._new_worker(shard)
            workers = list(self._workers.items())
        busy = False
        for shard, worker in workers:
            self._at_work = (shard, self._clock())
            try:
                busy = worker.advance() or busy
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
        with self._lock:
            workers = list(self._workers.values())
            self._confirmed = ()
        for worker in workers:
            worker.stop(STOP_REQUESTED)
            worker.advance()
        with self._lock:
            self._workers.clear()
        if not self._left:
            self._leave()

    def _new_worker(self, shard: ShardId) -> ShardWorker:
        return ShardWorker(
            shard,
            self._member,
            self._feed,
            self._new_processor,
            records_max=self._records_max,
            clock=self._clock,
        )
