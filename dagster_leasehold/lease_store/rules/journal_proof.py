"""Proof of one shard's journal: tenures that follow one another under rising epochs.

Pure rules. A proof begins where the shard's summary of its deleted rows ends. What is remembered is
one value per tenure and per forced checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import Opening, ShardSummary


class Tenures(Protocol):
    """The owners of opened tenures by epoch and run; a mapping is one."""

    def __contains__(self, tenure: object, /) -> bool:
        """Tell if this tenure was opened."""
        ...

    def __getitem__(self, tenure: tuple[int, str], /) -> NodeName | None:
        """Return the owner that it was opened for."""
        ...


class HashedTenures:
    """Tenures of years, each remembered by a hash of its epoch and run: about 80 bytes, not 300."""

    def __init__(self) -> None:
        self._owners: dict[int, NodeName | None] = {}
        self._names: dict[NodeName | None, NodeName | None] = {}

    def __contains__(self, tenure: object) -> bool:
        return hash(tenure) in self._owners

    def __getitem__(self, tenure: tuple[int, str]) -> NodeName | None:
        return self._owners[hash(tenure)]

    def add(self, epoch: int, run: str, owner: NodeName | None) -> None:
        """Remember a tenure; all tenures of one owner share its name."""
        self._owners[hash((epoch, run))] = self._names.setdefault(owner, owner)


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a history breaks.

    `rule` is one of `overlap` (two tenures at once), `epoch` (a fencing number that did not
    rise), `order` (a child before its parents), `ledger` (a gap or an overlap of batches),
    `checkpoint` (one that is not where the ledger ends), `fence` (a batch without its tenure),
    `files` (a file that two batches list, or one beside a merged file that holds its records),
    `withdrawn` (a batch that was taken back without a forced checkpoint before it).
    """

    rule: str
    shard: ShardId | None
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: shard {self.shard}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Force:
    """A forced checkpoint: its epoch tells between which batches it came."""

    epoch: int
    check_point: str | None


class JournalProof:
    """Tenures follow one another: each closed before the next, under a higher epoch.

    Attributes:
        violations: those noticed so far.
        opened: openings that were looked at.
        epoch: the highest epoch so far.
        current: the tenure that is open.
        newest: the tenure that was opened last.
        tenures: all of them, as far as they are remembered.
        forces: all forced checkpoints, as far as they are remembered.
    """

    def __init__(self, summary: ShardSummary) -> None:
        self.violations: list[Violation] = []
        self.opened = 0
        self.epoch = summary.epoch
        self.newest = summary.opening
        self.current = summary.opening if summary.open else None
        self.tenures = HashedTenures()
        self.forces: list[Force] = []
        self._shard = summary.shard
        self._until = summary.journal_until
        if self.newest is not None:
            self.tenures.add(self.newest.epoch, self.newest.run, self.newest.owner)

    def take(self, entry: JournalEntry) -> None:
        """Take the next entry."""
        if entry.kind == "force":
            self.forces.append(Force(entry.epoch, entry.check_point))
        if entry.sequence <= self._until:
            return
        if entry.kind == "open":
            if self.current is not None:
                self._violated(
                    "overlap",
                    f"run {entry.run} opened it at entry {entry.sequence} while run "
                    f"{self.current.run} had it open since entry {self.current.sequence}",
                )
            self.current = Opening(entry.sequence, entry.epoch, entry.run, entry.to_owner)
            self.newest = self.current
            self.tenures.add(entry.epoch, entry.run, entry.to_owner)
            self.opened += 1
        elif entry.kind == "close" and self.current and entry.run == self.current.run:
            self.current = None
        if entry.kind in ("open", "force"):
            if entry.epoch <= self.epoch:
                self._violated(
                    "epoch",
                    f"entry {entry.sequence} has epoch {entry.epoch} after epoch {self.epoch}",
                )
            self.epoch = max(self.epoch, entry.epoch)

    def end(self, lease: ShardLease | None) -> None:
        """Compare the end with the shard's row."""
        if lease is not None and lease.consumer_epoch > self.epoch:
            self._violated(
                "epoch", f"its row has epoch {lease.consumer_epoch}, the journal only {self.epoch}"
            )

    def _violated(self, rule: str, detail: str) -> None:
        self.violations.append(Violation(rule, self._shard, detail))
