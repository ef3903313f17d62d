"""The shards that a member has open, and the losses that its callers have not heard of yet."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from threading import RLock

from dagster_leasehold.lease_store.client.open_shard import OpenShard, Standing
from dagster_leasehold.lease_store.errors import (
    CheckpointRefused,
    LeaseLost,
    ShardNotOpen,
    StoreError,
    shown,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.membership import Membership
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.rules.refusals import lease_lost
from dagster_leasehold.lease_store.shard_rows import Progress, Tenure
from dagster_leasehold.lease_store.store import LeaseStore

_LOG = logging.getLogger(__name__)


class HeldShards:
    """Opens, saves and closes under the tenures of one member; safe to use from threads.

    The caller hears once that a tenure is over: the next call that names the shard raises
    `LeaseLost`, and later ones `ShardNotOpen`, as for any shard that is not open here. So does a
    call that names another `tenure` than the open one. Saves of a shard happen one after another,
    so that an older cursor cannot overtake a newer.

    Args:
        member: the one that holds the shards.
        flush_s: the longest time that a checkpoint waits to be persisted, in seconds.
    """

    def __init__(self, store: LeaseStore, member: Membership, *, flush_s: float) -> None:
        self._store = store
        self._member = member
        self._flush_s = flush_s
        self._lock = RLock()
        self._open: dict[ShardId, OpenShard] = {}
        self._untold: dict[ShardId, LeaseLost] = {}
        self._opened = 0

    def standing(self) -> dict[ShardId, Standing]:
        """Return the shards whose tenures go on, as far as this process can tell."""
        with self._lock:
            return {shard: held.stands for shard, held in self._open.items() if not held.over}

    def holds(self, shard: ShardId) -> bool:
        """Return True if the shard is open here, and its tenure goes on as far as can be told."""
        with self._lock:
            return shard in self._open and not self._open[shard].over

    def ended(self) -> set[ShardId]:
        """Return the shards whose tenure is over and that have not been let go of yet."""
        with self._lock:
            return {shard for shard, held in self._open.items() if held.over}

    def unsaved(self) -> set[ShardId]:
        """Return the shards whose newest checkpoint is not in the store, as far as can be told."""
        with self._lock:
            return {shard for shard, held in self._open.items() if held.behind}

    def take_untold(self) -> list[LeaseLost]:
        """Return the losses that no caller has heard of; they count as told from now on."""
        with self._lock:
            untold = list(self._untold.values())
            self._untold.clear()
            return untold

    def persisted(self, shard: ShardId) -> str | None:
        """Return the checkpoint that the store confirmed, if any."""
        with self._lock:
            return self._open[shard].persisted if shard in self._open else None

    def require(self, shard: ShardId, tenure: Tenure | None = None) -> None:
        """Make sure that the shard is open here under a tenure that goes on."""
        with self._lock:
            self._current(shard, tenure)

    def open(self, shard: ShardId) -> Opened | OpenByOther | NotHeld:
        """Begin a tenure; an earlier one of this very process is replaced."""
        key, node, incarnation = self._member.key, self._member.node, self._member.incarnation
        with self._lock:
            if self.holds(shard):
                return OpenByOther(self._open[shard].tenure.run)
            self._opened += 1
            run = f"{incarnation}.{self._opened}"
            outcome = self._store.open_tenure(key, shard, node, run)
            if isinstance(outcome, OpenByOther) and outcome.run.rpartition(".")[0] == incarnation:
                # Ours, but we do not hold it: its opening got no answer, or we had to stop
                # trusting it. Nobody works under it any more.
                outcome = self._store.open_tenure(key, shard, node, run, replaces=outcome.run)
            if isinstance(outcome, Opened):
                self._untold.pop(shard, None)
                self._open[shard] = OpenShard(self._store, outcome, self._member.clock)
            return outcome

    def save(
        self, shard: ShardId, cursor: str, *, persist: bool, tenure: Tenure | None = None
    ) -> None:
        """Remember a checkpoint, and write it to the store now if `persist`.

        Raises:
            CheckpointRefused: it lies before the one that is stored; the shard stays open.
            StoreError: it could not be written now; it is tried again by the interval.
        """
        with self._lock, self._fenced(shard, held := self._current(shard, tenure)):
            held.remember(cursor)
            if persist:
                held.flush()

    def flush_due(self) -> None:
        """Write the checkpoints that have waited for longer than the interval.

        The shard's own caller hears of a save that found its tenure over; a store that does not
        answer is asked again at the next beat.
        """
        with self._lock:
            for shard, held in list(self._open.items()):
                if not held.due(self._flush_s):
                    continue
                try:
                    with self._fenced(shard, held):
                        _flush_remembered(held)
                except LeaseLost as error:
                    self._untold[shard] = error
                except StoreError as error:
                    _LOG.warning("The checkpoint of shard %s could not be saved: %s", shard, error)

    def record_gap(
        self, shard: ShardId, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record that `[start, end)` cannot be read, and with `skip` continue at `end`.

        Raises:
            CheckpointRefused: the gap does not begin at the checkpoint.
        """
        with self._lock, self._fenced(shard, held := self._current(shard)):
            held.record_gap(start=start, end=end, reason=reason, skip=skip)

    def announce(self, shard: ShardId, *, handoff_eta_s: float) -> None:
        """Publish how long the shard's hand-over will take."""
        with self._lock, self._fenced(shard, held := self._current(shard)):
            held.announce(handoff_eta_s=handoff_eta_s)

    def finish(self, shard: ShardId, cursor: str) -> None:
        """Let go of a read-only shard that is consumed up to its end at `cursor`: it is over."""
        with self._lock, self._fenced(shard, held := self._current(shard)):
            held.finish(cursor)
            del self._open[shard]

    def release(self, shard: ShardId, reason: str) -> None:
        """Save what is unsaved and end the tenure; a shard in transfer is handed over by that.

        Raises:
            StoreError: the store does not answer; the shard is still open here, until a heartbeat
                does not report it.
        """
        with self._lock, self._fenced(shard, held := self._current(shard)):
            held.reported = True
            _flush_remembered(held)
            held.close(reason)
            del self._open[shard]

    def let_go_of_unreported(self, reported: Iterable[ShardId]) -> None:
        """Release the shards that were reported before and are not any more; retried if unanswered.

        A shard that was opened and never reported stays open:

        1. The beat's thread lists the shards that it will report.
        2. The caller opens one more.
        3. The beat reports the list of step 1. The new shard is not in it, and is not given up.
        """
        named = set(reported)
        with self._lock:
            for shard, held in list(self._open.items()):
                if shard in named:
                    held.reported = True
                elif held.reported:
                    self._let_go(shard, held)

    def _let_go(self, shard: ShardId, held: OpenShard) -> None:
        if held.over:
            del self._open[shard]
            try:
                # A holder that had to distrust itself may still own the row: it would stay open.
                held.close(held.over)
            except (LeaseLost, StoreError) as error:
                # It is somebody else's already, or its own node's next opening will replace it.
                _LOG.info("Shard %s was not closed: %s", shard, error)
            return
        try:
            self.release(shard, "its client stopped reporting it")
        except LeaseLost as error:
            self._untold[shard] = error
            self._open.pop(shard, None)
        except StoreError as error:
            _LOG.warning("Shard %s could not be let go of: %s", shard, error)

    def compare(
        self, judged: Mapping[ShardId, Standing], progress: Mapping[ShardId, Progress]
    ) -> None:
        """End the tenures that the store no longer has, or has without what it confirmed.

        Only shards that stood like this before `progress` was read are judged:

        1. The beat reads the rows; a shard is free.
        2. The caller opens it: epoch 1.
        3. The beat compares what it read in step 1. By that, epoch 1 does not exist.
        """
        with self._lock:
            for shard, stood in judged.items():
                held = self._open.get(shard)
                if held is None or held.over or held.tenure != stood.tenure:
                    continue
                if reason := held.contradiction(stood, progress.get(shard)):
                    self._end(shard, held, reason)

    def end_all(self, reason: str) -> None:
        """End all tenures, which are over or not to be relied on any more."""
        with self._lock:
            for shard, held in self._open.items():
                if not held.over:
                    self._end(shard, held, reason)

    def _end(self, shard: ShardId, held: OpenShard, reason: str) -> None:
        held.end(reason)
        self._untold[shard] = LeaseLost(reason)

    @contextmanager
    def _fenced(self, shard: ShardId, held: OpenShard) -> Generator[None]:
        """End the tenure where a write finds it over; its caller hears of it by this very error."""
        try:
            yield
        except LeaseLost as error:
            self._end(shard, held, str(error))
            del self._untold[shard]
            raise

    def _current(self, shard: ShardId, tenure: Tenure | None = None) -> OpenShard:
        """Return the open shard; LeaseLost once after its end, ShardNotOpen from then on."""
        untold = self._untold.pop(shard, None)
        if untold is not None:
            raise untold
        held = self._open.get(shard)
        if held is not None and tenure is not None and held.tenure != tenure:
            raise lease_lost(tenure)
        if held is None or held.over:
            raise ShardNotOpen(
                f"Shard {shown(shard)} of group {self._member.key} is not open on node "
                f"{self._member.node}: open it first, once a heartbeat has confirmed it."
            )
        return held


def _flush_remembered(held: OpenShard) -> None:
    """Persist what waits; one that only the store could refuse is dropped, and logged."""
    try:
        held.flush()
    except CheckpointRefused as error:
        _LOG.warning("%s", error)
