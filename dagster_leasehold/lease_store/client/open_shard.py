"""One shard that a member has open: its tenure, and checkpoints that the store may not have yet."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dagster_leasehold.lease_store.errors import CheckpointRefused, LeaseLost, shown
from dagster_leasehold.lease_store.outcomes import Opened, Stale
from dagster_leasehold.lease_store.rules.ledger import check_onwards
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.refusals import lease_lost
from dagster_leasehold.lease_store.rules.starting_point import resumption
from dagster_leasehold.lease_store.shard_rows import Progress, Tenure
from dagster_leasehold.lease_store.store import LeaseStore

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """An open tenure, and the checkpoint that the store confirmed; `certain` if none is unknown."""

    tenure: Tenure
    persisted: str | None
    certain: bool


class OpenShard:
    """One open shard of a member; its calls come one after another.

    Each that writes raises `LeaseLost` once the tenure is over.

    Attributes:
        tenure: under which it is open.
        persisted: the checkpoint that the store confirmed, if any.
        unsaved: a newer checkpoint, if any.
        reported: True once a heartbeat named it as held.
        over: the reason for which the tenure ended; empty while it goes on.
    """

    def __init__(self, store: LeaseStore, opened: Opened, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.tenure = opened.tenure
        self.persisted = opened.check_point
        self.unsaved: str | None = None
        self._saved_at = clock()
        self.reported = False
        self.over = ""
        # A checkpoint whose writing got no answer.
        self._unanswered: str | None = None
        # The end of the ledger that runs keep of this shard; None where they keep none.
        kept_by_runs = opened.intent is not None or bool(opened.next_sequence)
        self._ledger_end = resumption(opened.check_point, opened.intent) if kept_by_runs else None

    @property
    def stands(self) -> Standing:
        """The tenure and its checkpoint now, as far as they are certain."""
        return Standing(self.tenure, self.persisted, self._unanswered is None)

    @property
    def behind(self) -> bool:
        """True if the newest checkpoint is not in the store, as far as this process can tell."""
        return not self.over and self.unsaved not in (None, self.persisted)

    def due(self, interval_s: float) -> bool:
        """Return True if a checkpoint has waited for longer than some seconds to be persisted."""
        waits = not self.over and self.unsaved is not None
        return waits and self._clock() - self._saved_at >= interval_s

    def remember(self, cursor: str) -> None:
        """Keep a checkpoint to be persisted.

        Raises:
            CheckpointRefused: it lies before the one that is stored; what was kept stays.
        """
        check_onwards(self.tenure, self._unanswered or self.persisted or self._ledger_end, cursor)
        self.unsaved = cursor

    def flush(self) -> None:
        """Persist the unsaved checkpoint, after an earlier one whose writing got no answer.

        1. The write of 7 takes effect, and its reply is lost. The client confirms 9.
        2. A write from the checkpoint before 7 to 9 would be refused, and every later one.
           Repeated, the write of 7 changes nothing; 9 then follows it.

        Raises:
            CheckpointRefused: only the store could tell that it lies before the one that is
                stored; it is dropped, and the tenure continues.
            StoreError: the store does not answer.
        """
        if self.unsaved is None or self.unsaved == self.persisted:
            self.unsaved = None
            return
        unsaved = self.unsaved
        for cursor in (self._unanswered, unsaved) if self._unanswered else (unsaved,):
            self._unanswered = cursor
            self._persist(cursor)
            self.persisted, self._unanswered, self._saved_at = cursor, None, self._clock()
        self.unsaved = None

    def flush_remembered(self) -> None:
        """Persist what waits; one that only the store could refuse is dropped, and logged."""
        try:
            self.flush()
        except CheckpointRefused as error:
            _LOG.warning("%s", error)

    def _persist(self, cursor: str) -> None:
        """Write a checkpoint; a store that contradicts its own confirmation has lost commits.

        Raises:
            CheckpointRefused: the store has what it confirmed, and does not go back to `cursor`.
            LeaseLost: the tenure is over, or has to be: reading goes on where the store is.
        """
        try:
            self._write_checkpoint(cursor)
        except CheckpointRefused as error:
            rows = self._store.progress(self.tenure.key, [self.tenure.holder])
            row = rows.get(self.tenure.shard)
            if row is not None and row.check_point == self.persisted:
                self.unsaved = self._unanswered = None
                raise
            raise LeaseLost(
                f"Shard {self.tenure.shard} has to be opened again: the store does not have the "
                f"checkpoint that it confirmed. {error}"
            ) from error

    def _write_checkpoint(self, cursor: str) -> None:
        """Persist a checkpoint; records that the ledger will never hold become a gap of it.

        1. A run commits `[0, 5)`, intends `[5, 8)`, and dies.
        2. This client takes the shard, reads on from 5, and saves 7.
        3. The next run finds checkpoint 7 beside an intent that begins at 5: were that kept, no
           batch of the shard could ever follow. The gap `[5, 7)` gives the intent up, and says
           that those records are not in committed output.
        """
        end = self._ledger_end
        if end is None or (self.persisted is None and cursor == end):
            self._store.save_checkpoint(self.tenure, cursor)
            return
        self._store.record_gap(
            self.tenure,
            start=end if self.persisted is None else self.persisted,
            end=cursor,
            reason=f"read by {self.tenure.holder}, a client that keeps no ledger",
        )

    def record_gap(self, *, start: str, end: str, reason: str, skip: bool) -> None:
        """Record that `[start, end)` cannot be read, and with `skip` continue at `end`.

        Raises:
            CheckpointRefused: the gap does not begin at the checkpoint.
        """
        self.flush()
        self._store.record_gap(self.tenure, start=start, end=end, reason=reason, skip=skip)
        if skip:
            self.persisted = end

    def announce(self, *, handoff_eta_s: float) -> None:
        """Publish how long the hand-over will take, in seconds."""
        self._store.announce(self.tenure, handoff_eta_s=handoff_eta_s)

    def finish(self, cursor: str) -> None:
        """Edge 8: a read-only shard is consumed up to its end at `cursor`."""
        self.remember(cursor)
        self.flush()
        if isinstance(self._store.finish_empty(self.tenure, cursor), Stale):
            raise self.lost

    def close(self, reason: str) -> None:
        """End the tenure; a shard in transfer is handed over by that."""
        self._store.close_tenure(self.tenure, reason=reason)

    def contradiction(self, stood: Standing, row: Progress | None) -> str:
        """Compare the shard with its row; return why its tenure is over, or nothing if it goes on.

        Args:
            stood: the shard when the row was about to be read.
            row: its row, if the member has it still.
        """
        tenure = self.tenure
        if row is None or (row.consumer_epoch, row.consumer_run) != (tenure.epoch, tenure.run):
            return str(self.lost)
        if stood.certain and self.stands == stood and row.check_point != stood.persisted:
            return (
                f"Shard {tenure.shard} of group {tenure.key} has to be opened again: the store "
                f"confirmed the checkpoint {_named(stood.persisted)}, and now has "
                f"{_named(row.check_point)}."
            )
        return ""

    def end(self, reason: str) -> None:
        """Take note that the tenure is over, and give up what is unsaved."""
        self.over, self.unsaved = reason, None

    @property
    def lost(self) -> LeaseLost:
        """The error of a tenure that is over."""
        return lease_lost(self.tenure)


def _named(check_point: str | None) -> str:
    return "none" if check_point is None else shown(check_point)
