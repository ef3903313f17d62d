"""The summary of a shard's deleted history, and the bounds of deleting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId

PORTION_ROWS = 500
"""The most rows that one transaction deletes."""
ENTRIES_KEPT = 100
"""The newest journal entries of each shard that stay at any age."""
BATCHES_KEPT = 100
"""The newest ledger rows of each shard that are neither folded nor deleted."""
EVENTS_KEPT = 1_000
"""The newest delivered events of each kind that stay in each group."""
CHANGES_KEPT = 1_000
"""The newest published changes of a group's table that stay."""
SKIPS_KEPT = 1_000
"""The most deleted gaps in a summary; further gaps are not deleted."""
VIOLATIONS_KEPT = 20
"""The most violations in a summary."""


Finding = tuple[str, str]
"""A broken rule, and how it is broken."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A journal entry that opened a tenure."""

    sequence: int
    epoch: int
    run: str
    owner: NodeName | None


@dataclass(frozen=True, slots=True)
class End:
    """The end of a committed batch; its row may be deleted."""

    number: int
    cursor: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Expired:
    """Expired output of a shard: all of it from the start to one batch.

    Attributes:
        last: the last expired batch.
        events_since: the earliest event time of the expired records; None if unknown.
        events_until: the latest one, without times after the commit; None if no batch had output.
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
        """The smallest number that a remaining batch can have."""
        return self.last.number + 1

    def may_hold(self, since: datetime | None, until: datetime | None) -> bool:
        """Return True if expired records can have event times in `[since, until)`."""
        if self.events_until is None:
            return False
        early = until is None or self.events_since is None or self.events_since < until
        return early and (since is None or self.events_until >= since)


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """The summary of a shard's deleted history: row of `shard_summary`.

    Attributes:
        shard: None for the journal entries without a shard.
        version: +1 at every write.
        journal_until: entries up to this number are in the summary; some still have their rows.
        entries: the number of deleted entries by kind; for edges by `edge 3`.
        epoch: the highest fencing number in the summarized entries.
        opening: the newest tenure opened in them, or None.
        open: True if that tenure was not closed in them.
        proven_until: committed batches before this number were compared with their tenures.
        proven_epoch: the highest epoch of these batches.
        folded_until: rows before this number were examined for folding after their last write.
        skips: deleted gaps that the checkpoint has passed, as start and end.
        violations: the violations in deleted rows.
        expired: the expired output, if any.
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
    """One transaction of deleting: the number of deleted rows, and True if more possibly remain."""

    rows: int = 0
    more: bool = False
