"""Pure rules for tenures: they follow one another, and every committed batch lies in one.

A proof goes through entries and batches in their order, and can begin at what a summary says of
those that were deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lease_store.identifiers import NodeName
from lease_store.records import Batch, JournalEntry
from lease_store.retention import Opening, ShardSummary

Finding = tuple[str, str]
"""A broken rule and how, as a sentence without the shard's name."""
Openers = Mapping[tuple[int, str], NodeName | None]
"""By which node tenures were opened, by epoch and run."""


def until_epoch(batch: Batch) -> int:
    """The epoch of the last batch that a ledger row stands for."""
    return batch.epoch if batch.last_epoch is None else batch.last_epoch


def opening_of(entry: JournalEntry) -> Opening:
    """The tenure that an entry of the kind `open` begins."""
    return Opening(entry.sequence, entry.epoch, entry.run, entry.to_owner)


@dataclass(slots=True)
class TenureProof:
    """Goes through the journal of one shard.

    Attributes:
        epoch: the highest fencing number so far.
        opening: the newest tenure so far.
        open: it was not closed yet.
        findings: what was wrong so far.
    """

    epoch: int = 0
    opening: Opening | None = None
    open: bool = False
    findings: list[Finding] = field(default_factory=list[Finding])

    @classmethod
    def after(cls, summary: ShardSummary | None) -> TenureProof:
        """A proof that goes on behind the entries of a summary."""
        if summary is None:
            return cls()
        return cls(summary.epoch, summary.opening, summary.open)

    def add(self, entry: JournalEntry) -> None:
        """Take the next entry."""
        if entry.kind == "open":
            if self.open and self.opening is not None:
                self.findings.append(
                    (
                        "overlap",
                        f"run {entry.run} opened it at entry {entry.sequence} while run "
                        f"{self.opening.run} had it open since entry {self.opening.sequence}",
                    )
                )
            self.opening, self.open = opening_of(entry), True
        elif entry.kind == "close" and self.opening is not None and entry.run == self.opening.run:
            self.open = False
        if entry.kind in ("open", "force"):
            if entry.epoch <= self.epoch:
                sentence = f"entry {entry.sequence} has epoch {entry.epoch} after epoch"
                self.findings.append(("epoch", f"{sentence} {self.epoch}"))
            self.epoch = max(self.epoch, entry.epoch)


def openers(entries: Iterable[JournalEntry], summary: ShardSummary | None) -> Openers:
    """The tenures that entries and a summary know."""
    found = {(entry.epoch, entry.run): entry.to_owner for entry in entries if entry.kind == "open"}
    if summary is not None and summary.opening is not None:
        opening = summary.opening
        found.setdefault((opening.epoch, opening.run), opening.holder)
    return found


def fence_findings(batch: Batch, opened: Openers, epoch: int) -> list[Finding]:
    """How a committed batch does not fit the tenures; `epoch` is the highest before it."""
    found: list[Finding] = []
    tenure = (batch.epoch, batch.run)
    if tenure not in opened:
        detail = f"was committed under epoch {batch.epoch} of run {batch.run}, never opened"
        found.append(("fence", f"batch {batch.sequence} {detail}"))
    elif opened[tenure] != batch.holder:
        holder = opened[tenure]
        detail = f"was committed by {batch.holder}, but its tenure was opened by {holder}"
        found.append(("fence", f"batch {batch.sequence} {detail}"))
    if batch.epoch < epoch:
        detail = f"has epoch {batch.epoch}, but one before it already had epoch {epoch}"
        found.append(("fence", f"batch {batch.sequence} {detail}"))
    return found


def behind(cursor: str, other: str) -> bool:
    """Tell whether a cursor certainly comes before another one: both are numbers."""
    return cursor.isdecimal() and other.isdecimal() and int(cursor) < int(other)


def withdrawal_findings(batch: Batch, forced: Iterable[JournalEntry]) -> list[Finding]:
    """How a withdrawn batch lacks the forced checkpoint that took it back."""
    if any(
        entry.epoch > until_epoch(batch)
        and (entry.check_point is None or not behind(batch.start, entry.check_point))
        for entry in forced
    ):
        return []
    detail = (
        f"batch {batch.sequence} was committed under epoch {batch.epoch} and withdrawn, but no "
        f"checkpoint was forced to {batch.start} or before since then"
    )
    return [("withdrawn", detail)]
