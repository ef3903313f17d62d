"""The mark of a table: a property that names its newest publication.

A property survives the expiry of snapshots, and the ancestors of the newest snapshot reveal a
roll-back. Together they show what other programs did to the table:

1. The mark and the lease store name different publications: one of the two was restored or
   recreated, or another deployment publishes to the table.
2. The snapshot of the mark exists, but is not an ancestor of the newest snapshot: the table was
   rolled back.
3. The snapshot of the mark has expired: only the number of records is compared.

After a change by another program, the table must have the published number of records. So a rewrite
that keeps the records needs no operator; adding or deleting records stops publication.
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
GROUP_KEY = "leasehold.group"
FILES_PROPERTY = "leasehold.files"
"""The property of a route's table with the location of its data files, the stream's table."""
REMEDY = (
    "run `leasehold verify` to see the differences, then make the table follow the ledger with "
    "`leasehold table create --adopt`"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest publication of a table.

    Attributes:
        publication: its id.
        sequence: the sequence number of its snapshot.
        number: the number of publications up to it.
        epoch: the epoch of the publish lock.
        states: the location of the file that records the published part of each shard; see
            `shard_states`. Empty if the property was removed.
    """

    publication: str
    sequence: int
    number: int = 0
    epoch: int = 0
    states: str = ""

    def __str__(self) -> str:
        """Return the value of the property."""
        return json.dumps(asdict(self))


def files_root(metadata: TableMetadata) -> str:
    """Return the location below which the data files of a table are."""
    return metadata.properties.get(FILES_PROPERTY, metadata.location).rstrip("/")


def mark_of(metadata: TableMetadata) -> Mark | None:
    """Return the mark of a table; None if nothing was published.

    If another program has removed the property, our newest snapshot has the publication.
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
    """Return the number of records in a table's data files.

    The number is in the newest snapshot or, if another program wrote it, in the manifest list.
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


def table_conflict(
    name: TableName, publication: Publication, metadata: TableMetadata | None, io: FileIO
) -> str | None:
    """Return a sentence if another program has changed the records of a table, or None.

    The check takes the same time for a table of any size.
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
            f"The newest publication in {table} ({newest}) is not the last one of this lease "
            "store: one of the two was restored or recreated, or another deployment publishes to "
            f"the table. Either {REMEDY}, or give the stream another table name."
        )
    if mark is not None and _rolled_back(metadata, mark, publication.snapshot):
        return f"Another program has rolled back {table}: {REMEDY}."
    if publication.records is None:
        return None
    return _other_records(table, publication.records, metadata, io)


def rolled_back(metadata: TableMetadata, mark: Mark) -> bool:
    """Return True if the snapshots show that a table was rolled back to before its mark."""
    named = (each for each in metadata.snapshots if each.sequence_number == mark.sequence)
    return _rolled_back(metadata, mark, next((each.snapshot_id for each in named), None))


def _other_records(table: str, published: int, metadata: TableMetadata, io: FileIO) -> str | None:
    current = metadata.current_snapshot()
    deletes = (current.summary or {}).get("total-delete-files") if current else None
    if deletes not in (None, "0"):
        return (
            f"Another program has deleted records of {table}, which has {deletes} delete files: "
            f"{REMEDY}."
        )
    surplus = table_records(io, metadata) - published
    if not surplus:
        return None
    if surplus > 0:
        return f"Another program has added {surplus:,} records to {table}: {REMEDY}."
    return f"Another program has removed {-surplus:,} records from {table}: {REMEDY}."


def _rolled_back(metadata: TableMetadata, mark: Mark, snapshot_id: int | None) -> bool:
    """Return True if the newest snapshot does not descend from the snapshot of the mark."""
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
    return False  # older ancestors have expired
