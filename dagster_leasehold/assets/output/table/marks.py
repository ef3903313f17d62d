"""The mark of a table: its newest publication, in a property, and what others did after it.

A property survives the expiry of snapshots, and the ancestry of the newest snapshot shows a
roll-back. Together they tell one from the other:

1. The mark names another publication than the lease store: one of the two was restored or made
   recreated, or another deployment publishes to the table.
2. The snapshot of the mark is behind the newest one, and not among its ancestors: the table was
   rolled back.
3. It is gone, as snapshots expire: the number of records decides.

After any change by others, the number of records has to be the published one. So a rewrite that
keeps the records needs no operator, and one that adds or deletes some stops publication.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.publication_rows import Publication, TableName

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

MARK_PROPERTY = "leasehold.mark"
PUBLICATION_KEY = "leasehold.publication"
REMEDY = (
    "see with `leasehold verify` how they differ, then have the table follow the ledger with "
    "`leasehold table create --adopt`"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest publication of a table.

    Attributes:
        publication: its id.
        sequence: the sequence number of its snapshot.
        number: how many publications there were with it; 0 for one of a release before states.
        epoch: of the publish lock.
        states: the location of the file that tells how far the table has each shard; empty for one
            of a release before them. See `shard_states`.
    """

    publication: str
    sequence: int
    number: int = 0
    epoch: int = 0
    states: str = ""

    def __str__(self) -> str:
        """Return it as the property has it."""
        return json.dumps(asdict(self))


def mark_of(metadata: TableMetadata) -> Mark | None:
    """Return the mark of a table.

    One whose newest publication is of a release before marks bears its id in a snapshot alone.
    """
    if (stored := metadata.properties.get(MARK_PROPERTY)) is not None:
        return Mark(**json.loads(stored))
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and (own := snapshot.summary.get(PUBLICATION_KEY)):
            return Mark(own, snapshot.sequence_number or 0)
        snapshot = by_id.get(snapshot.parent_snapshot_id or -1)
    return None


def table_records(io: FileIO, metadata: TableMetadata) -> int:
    """Return the number of records in a table's data files, whose newest snapshot counts them.

    Where the program that made it does not count, the list of manifests does.
    """
    current = metadata.current_snapshot()
    if current is None:
        return 0
    if current.summary is not None and (total := current.summary.get("total-records")) is not None:
        return int(total)
    from pyiceberg.manifest import ManifestContent

    return sum(
        (each.added_rows_count or 0) + (each.existing_rows_count or 0)
        for each in current.manifests(io)
        if each.content == ManifestContent.DATA
    )


def table_trouble(
    name: TableName, publication: Publication, metadata: TableMetadata | None, io: FileIO
) -> str | None:
    """Return why a table is not as the lease store left it; None if its records are all there.

    It takes the same time however large the table is.
    """
    table = f"the table {name.namespace}.{name.name}"
    if metadata is None:
        if publication.last is None:
            return None
        return f"{table.capitalize()} is gone from catalog {name.catalog}: {REMEDY}."
    mark = mark_of(metadata)
    if (mark.publication if mark else None) != publication.last:
        newest = mark.publication if mark else "there is none"
        return (
            f"The newest publication in {table} ({newest}) is not one of this lease store, or not "
            "its last: one of the two was restored or recreated, or another deployment publishes "
            f"to it; {REMEDY}, or give the stream another table name."
        )
    if mark is not None and _rolled_back(metadata, mark, publication.snapshot):
        return f"Another program has rolled back {table}: {REMEDY}."
    if publication.records is None:
        return None
    return _other_records(table, publication.records, metadata, io)


def rolled_back(metadata: TableMetadata, mark: Mark) -> bool:
    """Return True if a table was rolled back behind its mark, as far as its snapshots tell."""
    named = (each for each in metadata.snapshots if each.sequence_number == mark.sequence)
    return _rolled_back(metadata, mark, next((each.snapshot_id for each in named), None))


def _other_records(table: str, published: int, metadata: TableMetadata, io: FileIO) -> str | None:
    current = metadata.current_snapshot()
    deletes = (current.summary or {}).get("total-delete-files") if current else None
    if deletes not in (None, "0"):
        return (
            f"Another program has deleted records of {table}, which has {deletes} files of "
            f"deletes: {REMEDY}."
        )
    more = table_records(io, metadata) - published
    if not more:
        return None
    what = f"added {more:,} records to" if more > 0 else f"removed {-more:,} records from"
    return f"Another program has {what} {table}: {REMEDY}."


def _rolled_back(metadata: TableMetadata, mark: Mark, snapshot_id: int | None) -> bool:
    """Return True if the newest snapshot is not the one of the mark, and does not follow it."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        return True
    while snapshot is not None:
        if snapshot.snapshot_id == snapshot_id:
            return False
        if (snapshot.sequence_number or 0) <= mark.sequence:
            return True
        snapshot = by_id.get(snapshot.parent_snapshot_id or -1)
    return False  # the ancestors that are older have expired
