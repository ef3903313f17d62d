"""Takes the publish lock of a group, and reports the publications under it."""

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
        records: the number of records in their files.
        changes: the number of published changes to earlier batches.
        more: True if more batches or changes wait for publication.
        explanation: the reason why nothing was published, or empty.
        rejected: a sentence for each change that was rejected.
        findings: a sentence for each publication check that a batch failed.
    """

    batches: int = 0
    records: int = 0
    changes: int = 0
    more: bool = False
    explanation: str = ""
    snapshot: int | None = None
    rejected: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    def plus(self, later: PublishReport) -> PublishReport:
        """Combine this report with a later one."""
        return PublishReport(
            self.batches + later.batches,
            self.records + later.records,
            self.changes + later.changes,
            later.more,
            later.explanation if not (self.batches or self.changes) else "",
            later.snapshot or self.snapshot,
            (*self.rejected, *later.rejected),
            (*self.findings, *later.findings),
        )

    def __str__(self) -> str:
        """Return the text for the tick of the sensor."""
        if self.explanation:
            return " ".join((self.explanation, *self.findings))
        changes = f", and {self.changes} changes to earlier ones" if self.changes else ""
        rest = " The next publication has the rest." if self.more else ""
        published = f"Published {self.batches} batches of {self.records:,} records{changes}.{rest}"
        return " ".join((published, *self.rejected, *self.findings))


LOST = PublishReport(explanation="Another node has taken over the publish lock.")
STALE = PublishReport(
    explanation="The ledger changed during the publication, which is planned again.", more=True
)
CREATED = PublishReport(
    explanation="Another writer created the table: the publication is planned again.", more=True
)


def take_lock(
    store: Publications,
    key: GroupKey,
    name: TableName,
    nodes: Mapping[NodeName, str] | Mapping[None, str],
    *,
    run: str = "",
    seen_epoch: int | None = None,
) -> PublishLock | PublishReport:
    """Take the publish lock for one of these nodes, or return a report with the reason.

    `nodes` maps names to incarnations; `{None: ""}` takes the lock without a node.
    """
    for node, incarnation in nodes.items():
        lock = store.take_publish_lock(key, node, incarnation, name, run=run, seen_epoch=seen_epoch)
        if isinstance(lock, PublishLock):
            return lock
        if isinstance(lock, PublishesElsewhere):
            return PublishReport(explanation=table_conflict_text(key, name, lock))
        assert isinstance(lock, LockTaken)
        return PublishReport(explanation=f"Node {lock.node or 'of another deployment'} publishes.")
    return PublishReport(explanation="No node of this deployment is alive in the group.")


def table_conflict_text(key: GroupKey, name: TableName, other: PublishesElsewhere) -> str:
    """Return a sentence on a group that publishes to another table."""
    table = f"{other.table.namespace}.{other.table.name} of catalog {other.table.catalog}"
    if other.group == key:
        return (
            f"The group publishes to the table {table}, and the settings name "
            f"{name.namespace}.{name.name} of catalog {name.catalog}: change the settings back, or "
            f"move the table with `leasehold table move {key.stream}`."
        )
    return f"Group {other.group} publishes to the table {table}: give this stream another name."
