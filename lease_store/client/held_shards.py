"""The shards that a member has open: their tenures, and checkpoints not persisted yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import RLock

from dagster_leasehold.lease_store.errors import (
    CheckpointRefused,
    LeaseLost,
    ShardNotOpen,
    StoreError,
    shown,
)
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened, Stale
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.shard_rows import Progress, Tenure
from dagster_leasehold.lease_store.store import LeaseStore

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """An open tenure, and the checkpoint that the store confirmed; `certain` if none is unknown."""

    tenure: Tenure
    persisted: str | None
    certain: bool


@dataclass(slots=True)
class _Holding:
    """One open shard.

    `ledger_from` is where the ledger ends that runs keep of this shard, None where they keep
    none. `unanswered` is a checkpoint whose writing got no answer. `over` says why the tenure
    ended; empty while it has not.
    """

    tenure: Tenure
    persisted: str | None
    saved_at: float
    ledger_from: str | None = None
    unsaved: str | None = None
    unanswered: str | None = None
    reported: bool = False
    over: str = ""

    @property
    def stands(self) -> Standing:
        """What is known of it now."""
        return Standing(self.tenure, self.persisted, self.unanswered is None)


class HeldShards:
    """Opens, saves and closes under the tenures of one member; safe to use from threads.

    A tenure that is over is told to the caller once, by the next call that names the shard.
    Saves of a shard happen one after another, so that an older cursor cannot overtake a newer.
    """

    def __init__(
        self,
        store: LeaseStore,
        key: GroupKey,
        node: NodeName,
        *,
        incarnation: str,
        clock: Clock,
        flush_s: float,
    ) -> None:
        self._store = store
        self._key = key
        self._node = node
        self._incarnation = incarnation
        self._clock = clock
        self._flush_s = flush_s
        self._lock = RLock()
        self._holdings: dict[ShardId, _Holding] = {}
        self._untold: dict[ShardId, LeaseLost] = {}
        self._opened = 0

    # -- looking --------------------------------------------------------------------------------

    def standing(self) -> dict[ShardId, Standing]:
        """What is open under tenures that are not known to be over."""
        with self._lock:
            return {s: held.stands for s, held in self._holdings.items() if not held.over}

    def holds(self, shard: ShardId) -> bool:
        """Whether the shard is open here, under a tenure that is not known to be over."""
        with self._lock:
            return shard in self._holdings and not self._holdings[shard].over

    def ended(self) -> set[ShardId]:
        """The shards whose tenure is over and that have not been let go of yet."""
        with self._lock:
            return {shard for shard, held in self._holdings.items() if held.over}

    def unsaved(self) -> set[ShardId]:
        """The open shards whose newest checkpoint is not in the store, as far as is known."""
        with self._lock:
            return {
                shard
                for shard, held in self._holdings.items()
                if not held.over and held.unsaved not in (None, held.persisted)
            }

    def take_untold(self) -> list[LeaseLost]:
        """The losses that no caller has heard of; they count as told from now on."""
        with self._lock:
            untold = list(self._untold.values())
            self._untold.clear()
            return untold

    def persisted(self, shard: ShardId) -> str | None:
        """The checkpoint that the store is known to have."""
        with self._lock:
            return self._holdings[shard].persisted if shard in self._holdings else None

    # -- opening --------------------------------------------------------------------------------

    def open(self, shard: ShardId) -> Opened | OpenByOther | NotHeld:
        """Begin a tenure; an earlier one of this very process is replaced."""
        with self._lock:
            if self.holds(shard):
                return OpenByOther(self._holdings[shard].tenure.run)
            self._opened += 1
            run = f"{self._incarnation}.{self._opened}"
            outcome = self._store.open_tenure(self._key, shard, self._node, run)
            if isinstance(outcome, OpenByOther) and self._is_own(outcome.run):
                # Ours, but we do not hold it: its opening got no answer, or we had to stop
                # trusting it. Nobody works under it any more.
                outcome = self._store.open_tenure(
                    self._key, shard, self._node, run, replaces=outcome.run
                )
            if isinstance(outcome, Opened):
                self._untold.pop(shard, None)
                self._holdings[shard] = _Holding(
                    outcome.tenure,
                    outcome.check_point,
                    saved_at=self._clock(),
                    ledger_from=_ledger_end(outcome),
                )
            return outcome

    def _is_own(self, run: str) -> bool:
        return run.rpartition(".")[0] == self._incarnation

    def require(self, shard: ShardId, tenure: Tenure | None = None) -> None:
        """Nothing, where the shard is open here under a tenure that is not known to be over.

        Raises:
            LeaseLost: the tenure is over (told once); `tenure` is not the one that is open.
            ShardNotOpen: the shard is not open here.
        """
        with self._lock:
            self._current(shard, tenure)

    # -- saving ---------------------------------------------------------------------------------

    def save(
        self, shard: ShardId, cursor: str, *, persist: bool, tenure: Tenure | None = None
    ) -> None:
        """Remember a checkpoint, and write it to the store now if `persist`.

        Raises:
            LeaseLost: the tenure is over (told once); `tenure` is not the one that is open.
            ShardNotOpen: the shard is not open here.
            StoreError: it could not be written now; it is tried again by the interval.
        """
        with self._lock:
            held = self._current(shard, tenure)
            held.unsaved = cursor
            if persist:
                self._flush(shard, held)

    def flush_due(self) -> None:
        """Write the checkpoints that have waited for longer than the interval.

        A save that finds its tenure over is told to the shard's own caller; a store that does
        not answer is asked again at the next beat.
        """
        with self._lock:
            for shard, held in list(self._holdings.items()):
                waited_s = self._clock() - held.saved_at
                if held.over or held.unsaved is None or waited_s < self._flush_s:
                    continue
                try:
                    self._flush(shard, held)
                except LeaseLost as error:
                    self._untold[shard] = error
                except StoreError as error:
                    _LOG.warning("The checkpoint of shard %s could not be saved: %s", shard, error)

    def _flush(self, shard: ShardId, held: _Holding) -> None:
        """Persist what is unsaved; what got no answer before is asked for again first.

        1. The write of 7 takes effect, and its reply is lost. The client confirms 9.
        2. A write from the checkpoint before 7 to 9 would be refused, and every later one.
           Repeated, the write of 7 changes nothing; 9 then follows it.
        """
        if held.unsaved is None or held.unsaved == held.persisted:
            held.unsaved = None
            return
        unsaved = held.unsaved
        for cursor in (held.unanswered, unsaved) if held.unanswered else (unsaved,):
            held.unanswered = cursor
            self._fenced_write(shard, held, lambda cursor=cursor: self._persist(held, cursor))
            held.persisted, held.unanswered, held.saved_at = cursor, None, self._clock()
        held.unsaved = None

    def _persist(self, held: _Holding, cursor: str) -> None:
        """Write a checkpoint; a store that contradicts what it confirmed has lost commits.

        Raises:
            LeaseLost: the tenure is over, or has to be: reading goes on where the store is.
        """
        try:
            self._write_checkpoint(held, cursor)
        except CheckpointRefused as error:
            raise LeaseLost(
                f"Shard {held.tenure.shard} has to be opened again: the store does not have the "
                f"checkpoint that it confirmed. {error}"
            ) from error

    def _write_checkpoint(self, held: _Holding, cursor: str) -> None:
        """Persist a checkpoint; what a ledger will never hold becomes a gap of it.

        1. A run commits `[0, 5)`, intends `[5, 8)`, and dies.
        2. This client takes the shard, reads on from 5, and saves 7.
        3. The next run finds checkpoint 7 beside an intent that begins at 5: were that kept, no
           batch of the shard could ever follow. The gap `[5, 7)` gives the intent up, and says
           that those records are not in committed output.
        """
        if held.ledger_from is None or (held.persisted is None and cursor == held.ledger_from):
            self._store.save_checkpoint(held.tenure, cursor)
            return
        self._store.record_gap(
            held.tenure,
            start=held.ledger_from if held.persisted is None else held.persisted,
            end=cursor,
            reason=f"read by {self._node}, a client that keeps no ledger",
        )

    def record_gap(
        self, shard: ShardId, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record that `[start, end)` cannot be read, and with `skip` continue at `end`.

        Raises:
            LeaseLost: the tenure is over (told once).
            ShardNotOpen: the shard is not open here.
            CheckpointRefused: the gap does not begin at the checkpoint.
        """
        with self._lock:
            held = self._current(shard, None)
            self._flush(shard, held)
            self._fenced_write(
                shard,
                held,
                lambda: self._store.record_gap(
                    held.tenure, start=start, end=end, reason=reason, skip=skip
                ),
            )
            if skip:
                held.persisted = end

    def accepted_end(self, shard: ShardId, start: str) -> str | None:
        """The end of the gap at `start` whose loss somebody has accepted; None where nobody has."""
        gaps = self._store.gaps(self._key, shard, start=start, acknowledged=True)
        return gaps[0].end if gaps else None

    def announce(self, shard: ShardId, *, handoff_eta_s: float) -> None:
        """Publish how long the shard's hand-over will take.

        Raises:
            LeaseLost: the tenure is over (told once).
            ShardNotOpen: the shard is not open here.
        """
        with self._lock:
            held = self._current(shard, None)
            self._fenced_write(
                shard, held, lambda: self._store.announce(held.tenure, handoff_eta_s=handoff_eta_s)
            )

    def _fenced_write(self, shard: ShardId, held: _Holding, write: Callable[[], None]) -> None:
        try:
            write()
        except LeaseLost as error:
            self._end(shard, held, str(error))
            self._untold.pop(shard, None)
            raise

    def finish(self, shard: ShardId, cursor: str) -> None:
        """Edge 8: a read-only shard is consumed up to its end at `cursor`; it is let go of.

        Raises:
            LeaseLost: the tenure is over (told once).
            ShardNotOpen: the shard is not open here.
        """
        with self._lock:
            held = self._current(shard, None)
            held.unsaved = cursor
            self._flush(shard, held)
            outcome = self._store.finish_empty(held.tenure, cursor)
            if isinstance(outcome, Stale):
                error = self._lost(held.tenure)
                self._end(shard, held, str(error))
                self._untold.pop(shard, None)
                raise error
            del self._holdings[shard]

    # -- letting go -----------------------------------------------------------------------------

    def release(self, shard: ShardId, reason: str) -> None:
        """Save what is unsaved and end the tenure; a shard in transfer is handed over by that.

        Raises:
            LeaseLost: the tenure was over already (told once).
            ShardNotOpen: the shard is not open here.
            StoreError: the store does not answer; the shard is still open here.
        """
        with self._lock:
            held = self._current(shard, None)
            self._flush(shard, held)
            self._fenced_write(
                shard, held, lambda: self._store.close_tenure(held.tenure, reason=reason)
            )
            del self._holdings[shard]

    def let_go_of_unreported(self, reported: Iterable[ShardId]) -> None:
        """Release what was reported before and is not any more; an unanswered one is kept for next.

        What was opened and never reported is kept:

        1. The beat's thread lists the shards that it will report.
        2. The caller opens one more.
        3. The beat reports the list of step 1. The new shard is not in it, and is not given up.
        """
        named = set(reported)
        with self._lock:
            for shard, held in list(self._holdings.items()):
                if shard in named:
                    held.reported = True
                elif held.reported:
                    self._let_go(shard, held)

    def _let_go(self, shard: ShardId, held: _Holding) -> None:
        if held.over:
            del self._holdings[shard]
            # A holder that had to distrust itself may still own the row: it would stay open.
            self._close_quietly(held)
            return
        try:
            self.release(shard, "its client stopped reporting it")
        except LeaseLost as error:
            self._untold[shard] = error
            self._holdings.pop(shard, None)
        except StoreError as error:
            _LOG.warning("Shard %s could not be let go of: %s", shard, error)

    def _close_quietly(self, held: _Holding) -> None:
        try:
            self._store.close_tenure(held.tenure, reason=held.over)
        except (LeaseLost, StoreError) as error:
            # It is somebody else's already, or its own node's next opening will replace it.
            _LOG.info("Shard %s was not closed: %s", held.tenure.shard, error)

    # -- losing ---------------------------------------------------------------------------------

    def compare(
        self, judged: Mapping[ShardId, Standing], progress: Mapping[ShardId, Progress]
    ) -> None:
        """Find out which tenures the store no longer has, or has without what it confirmed.

        Only what stood like this before `progress` was read is judged:

        1. The beat reads the rows; a shard is free.
        2. The caller opens it: epoch 1.
        3. The beat compares what it read in step 1. By that, epoch 1 does not exist.
        """
        with self._lock:
            for shard, stood in judged.items():
                held = self._holdings.get(shard)
                if held is None or held.over or held.tenure != stood.tenure:
                    continue
                row, tenure = progress.get(shard), held.tenure
                if row is None or (row.consumer_epoch, row.consumer_run) != (
                    tenure.epoch,
                    tenure.run,
                ):
                    self._end(shard, held, str(self._lost(tenure)))
                elif stood.certain and held.stands == stood and row.check_point != stood.persisted:
                    self._end(shard, held, _went_back(tenure, stood.persisted, row.check_point))

    def end_all(self, reason: str) -> None:
        """All tenures are over, or not to be relied on any more."""
        with self._lock:
            for shard, held in self._holdings.items():
                if not held.over:
                    self._end(shard, held, reason)

    def _end(self, shard: ShardId, held: _Holding, reason: str) -> None:
        held.over, held.unsaved = reason, None
        self._untold[shard] = LeaseLost(reason)

    def _lost(self, tenure: Tenure) -> LeaseLost:
        return LeaseLost(
            f"Node {tenure.holder} no longer holds shard {tenure.shard} of group {tenure.key}: "
            f"tenure {tenure.epoch} is over, so nothing more may be saved under it."
        )

    def _current(self, shard: ShardId, tenure: Tenure | None) -> _Holding:
        """The open holding; LeaseLost once after its end, ShardNotOpen from then on."""
        untold = self._untold.pop(shard, None)
        if untold is not None:
            raise untold
        held = self._holdings.get(shard)
        if held is not None and tenure is not None and held.tenure != tenure:
            raise self._lost(tenure)
        if held is None or held.over:
            raise ShardNotOpen(
                f"Shard {shown(shard)} of group {self._key} is not open on node {self._node}: "
                "open it first, once a heartbeat has confirmed it."
            )
        return held


def _ledger_end(opened: Opened) -> str | None:
    """Where the ledger of a shard ends; None where the shard has no batches."""
    if opened.intent is not None:
        return opened.intent.start
    return opened.check_point if opened.next_sequence else None


def _went_back(tenure: Tenure, persisted: str | None, stored: str | None) -> str:
    return (
        f"Shard {tenure.shard} of group {tenure.key} has to be opened again: the store confirmed "
        f"the checkpoint {_named(persisted)}, and now has {_named(stored)}."
    )


def _named(check_point: str | None) -> str:
    return "none" if check_point is None else shown(check_point)
