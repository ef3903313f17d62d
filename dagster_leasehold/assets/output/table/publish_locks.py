"""Takes the publish lock of a group, and reports on the publications under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.outcomes import LockTaken, PublishesElsewhere
from dagster_leasehold.lease_store.publication_rows import PublishLock, TableName
from dagster_leasehold.lease_store.roles.publications import Publications


@dataclass(frozen=True, slots=True)
class PublishReport:
    """The result of one publication, or of several under one lock.

    Attributes:
        batches: the number of batches that were published.
        records: the number of records in their files.
        changes: the number of published changes of earlier batches.
        more: True if more waits for publication.
        snapshot: the id of the table's newest snapshot; None if nothing was published.
        explanation: why nothing was published, or empty.
        rejected: a sentence for each change that was rejected.
    """

    batches: int = 0
    records: int = 0
    changes: int = 0
    more: bool = False
    explanation: str = ""
    snapshot: int | None = None
    rejected: tuple[str, ...] = ()

    def and_then(self, later: PublishReport) -> PublishReport:
        """Combine this report with a later one."""
        return PublishReport(
            self.batches + later.batches,
            self.records + later.records,
            self.changes + later.changes,
            later.more,
            later.explanation if not (self.batches or self.changes) else "",
            later.snapshot or self.snapshot,
            (*self.rejected, *later.rejected),
        )

    def __str__(self) -> str:
        """Return the text for the tick of the sensor."""
        if self.explanation:
            return self.explanation
        changes = f", and {self.changes} changes of earlier ones" if self.changes else ""
        rest = " More is left to the next publication." if self.more else ""
        published = f"Published {self.batches} batches of {self.records:,} records{changes}.{rest}"
        return " ".join((published, *self.rejected))


LOST = PublishReport(explanation="Another node has taken over.")
STALE = PublishReport(
    explanation="The ledger has changed meanwhile: the publication is planned again.", more=True
)
CREATED = PublishReport(
    explanation="Another writer has created the table: the publication is planned again.", more=True
)


def lock_of(
    store: Publications,
    key: GroupKey,
    name: TableName,
    nodes: Mapping[NodeName, str] | Mapping[None, str],
    *,
    run: str = "",
    seen_epoch: int | None = None,
) -> PublishLock | PublishReport:
    """Take the publish lock for one of these nodes; if none can, return a report that says why.

    `nodes` maps names to incarnations; `{None: ""}` takes the lock for no node.
    """
    for node, incarnation in nodes.items():
        lock = store.take_publish_lock(key, node, incarnation, name, run=run, seen_epoch=seen_epoch)
        if isinstance(lock, PublishLock):
            return lock
        if isinstance(lock, PublishesElsewhere):
            return PublishReport(explanation=elsewhere(key, name, lock))
        assert isinstance(lock, LockTaken)
        return PublishReport(explanation=f"Node {lock.node or 'of another deployment'} publishes.")
    return PublishReport(explanation="No node that this deployment serves is alive in the group.")


def elsewhere(key: GroupKey, name: TableName, other: PublishesElsewhere) -> str:
    """Return a sentence on a group that publishes to another table."""
    table = f"{other.table.namespace}.{other.table.name} of catalog {other.table.catalog}"
    if other.group == key:
        return (
            f"The group publishes to the table {table}: name it in the settings, as "
            f"{name.namespace}.{name.name} of catalog {name.catalog} is another one."
        )
    return f"Group {other.group} publishes to the table {table}: give this stream another name."
