"""The summary of a shard's deleted history, and the bounds of deleting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId

PORTION_ROWS = 500
"""The most rows that one transaction deletes."""
ENTRIES_KEPT = 100
"""The number of newest journal entries of each shard that stay, however old they look."""
BATCHES_KEPT = 100
"""The number of newest ledger rows of each shard that stay as they are."""
EVENTS_KEPT = 1_000
"""The number of newest delivered events of each kind that stay in each group."""
CHANGES_KEPT = 1_000
"""The number of newest published changes of a group's table that stay."""
SKIPS_KEPT = 1_000
"""The most deleted gaps of a shard that are remembered; those beyond are not deleted."""
VIOLATIONS_KEPT = 20
"""The most broken promises of a shard's deleted history that are remembered."""


Finding = tuple[str, str]
"""A broken rule and how it is broken, without the shard's name."""


@dataclass(frozen=True, slots=True)
class Opening:
    """An entry of the journal that opened a tenure."""

    sequence: int
    epoch: int
    run: str
    owner: NodeName | None


@dataclass(frozen=True, slots=True)
class End:
    """The end of a committed batch, where the next one starts; its row can be deleted."""

    number: int
    cursor: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Expired:
    """Committed output of a shard that was forgotten: all of it from the start to one batch.

    Attributes:
        last: the last forgotten batch; committed output begins where it ended.
        batches: the number of forgotten batches.
        records: the number of records that they had written.
        events_since: no forgotten record has an earlier event time; None where that is not known.
        events_until: none has a later one, except those from the future of their commit; None
            where no batch had any output.
    """

    last: End
    batches: int
    records: int
    events_since: datetime | None
    events_until: datetime | None

    @property
    def begin(self) -> str:
        """The cursor where committed output begins now."""
        return self.last.cursor

    @property
    def first_number(self) -> int:
        """The first number that a batch which is still there may have."""
        return self.last.number + 1

    def may_hold(self, since: datetime | None, until: datetime | None) -> bool:
        """Return True if forgotten records may have event times of `[since, until)`."""
        if self.events_until is None:
            return False
        early = until is None or self.events_since is None or self.events_since < until
        return early and (since is None or self.events_until >= since)


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """The remains of a shard's deleted history: row of `shard_summary`.

    Attributes:
        shard: None for the entries of the group that concern no shard.
        version: +1 at every write.
        journal_until: entries up to this number are part of the summary, those that stay too.
        entries: the number of deleted entries by kind; an edge's as `edge 3`.
        epoch: the highest fencing number in the summarised entries.
        opening: the newest tenure that was opened in them, or None.
        open: that tenure was not closed in them.
        proven_until: committed batches before this number were found under opened tenures.
        proven_epoch: the highest epoch of those.
        folded_until: rows before this number were looked at for folding since they were written.
        skips: deleted gaps that the checkpoint has moved past, with their cursors.
        violations: the broken promises that deleted rows showed, as rule and sentence.
        expired: the committed output that was forgotten, if any was.
    """

    shard: ShardId | None
    version: int = 0
    journal_until: int = 0
    entries: Mapping[str, int] = field(default_factory=dict[str, int])
    epoch: int = 0
    opening: Opening | None = None
    open: bool = False
    proven_until: int = 0
    proven_epoch: int = 0
    folded_until: int = 0
    skips: tuple[tuple[str, str], ...] = ()
    violations: tuple[Finding, ...] = ()
    expired: Expired | None = None


@dataclass(frozen=True, slots=True)
class Portion:
    """One step of deleting.

    Attributes:
        rows: the number of rows that went.
        more: the next step can find more.
    """

    rows: int = 0
    more: bool = False
