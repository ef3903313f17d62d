"""The contents of a snapshot according to its summary: cursors, event time, publication.

| property | value |
|---|---|
| `leasehold.publication` | the id of the publication |
| `leasehold.cursors` | a JSON object: for each shard, the end cursor of its records |
| `leasehold.cursors-file` | above 1,000 shards instead: a file beside the metadata |
| `leasehold.complete-until` | the event time before which the snapshot has all records, if known |

`shard_states` writes the file, which exists until its snapshot expires.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.table.marks import PUBLICATION_KEY
from dagster_leasehold.assets.output.table.shard_states import States, moment, read_states
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from dagster_leasehold.assets.output.table.metadata_files import PlaceIO

CURSORS_KEY = "leasehold.cursors"
CURSORS_FILE_KEY = "leasehold.cursors-file"
COMPLETE_KEY = "leasehold.complete-until"
SHARDS_IN_SUMMARY_MAX = 1_000
"""The most shards whose cursors are in the summary; more cursors are in a file."""


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    """The contents of a snapshot.

    Attributes:
        snapshot_id: the snapshot that Leasehold published. A later snapshot of another program
            with the same records has another id.
        publication: the id of the publication.
        cursors: the end cursor of each shard's records.
        complete_until: the event time before which the snapshot has all records; None if unknown.

    Examples:
        >>> contents = SnapshotContents(7, "4f0c", {ShardId("0"): "12"}, None)
        >>> contents.cursors["0"]
        '12'
    """

    snapshot_id: int
    publication: str
    cursors: Mapping[ShardId, str]
    complete_until: datetime | None


def summary_of(states: States, states_at: str, until: datetime | None) -> dict[str, str]:
    """Return the properties with the contents of a snapshot.

    Args:
        states_at: the location of the file with the states, if the summary does not have them.
    """
    if in_summary(states):
        cursors = {shard: state.end for shard, state in states.items()}
        values = {CURSORS_KEY: json.dumps(cursors, separators=(",", ":"))}
    else:
        values = {CURSORS_FILE_KEY: states_at}
    return values if until is None else values | {COMPLETE_KEY: moment(until)}


def in_summary(states: States) -> bool:
    """Return True if the cursors of these shards are in the summary instead of a file."""
    return len(states) <= SHARDS_IN_SUMMARY_MAX


def cursor_files(metadata: TableMetadata) -> set[str]:
    """Return the locations of the cursor files that snapshots of a table name."""
    summaries = (snapshot.summary for snapshot in metadata.snapshots)
    return {at for each in summaries if each and (at := each.get(CURSORS_FILE_KEY))}


def own_snapshot(metadata: TableMetadata, snapshot: Snapshot | None) -> Snapshot | None:
    """Return a snapshot if Leasehold published it, otherwise its nearest such ancestor, or None."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    while snapshot is not None:
        if snapshot.summary is not None and snapshot.summary.get(PUBLICATION_KEY):
            return snapshot
        snapshot = by_id.get(snapshot.parent_snapshot_id or -1)
    return None


def completeness_of(snapshot: Snapshot | None) -> datetime | None:
    """Return the event time up to which a snapshot is complete according to its summary."""
    text = None if snapshot is None or not snapshot.summary else snapshot.summary.get(COMPLETE_KEY)
    return None if text is None else datetime.fromisoformat(text)


def contents_of(io: PlaceIO, snapshot: Snapshot) -> SnapshotContents:
    """Return the contents of a snapshot that Leasehold published.

    Raises:
        OutputUnreadable: the snapshot has neither cursors nor a file with them.
        LogCorrupt, TableUnavailable: the file with its cursors cannot be read.
    """
    summary = snapshot.summary
    assert summary is not None, "own_snapshot returns snapshots with a summary"
    text, at = summary.get(CURSORS_KEY), summary.get(CURSORS_FILE_KEY)
    cursors: dict[ShardId, str] | None = None
    if text is not None:
        cursors = {ShardId(shard): end for shard, end in json.loads(text).items()}
    elif at is not None and (states := read_states(io, at)) is not None:
        cursors = {shard: state.end for shard, state in states.items()}
    if cursors is None:
        raise OutputUnreadable(
            f"Snapshot {snapshot.snapshot_id} does not have the cursors of its records: use a "
            "newer snapshot."
        )
    publication = summary.get(PUBLICATION_KEY) or ""
    until = completeness_of(snapshot)
    return SnapshotContents(snapshot.snapshot_id, publication, cursors, until)


def published_snapshots(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the published snapshots from the newest to the oldest that still exists."""
    snapshot = own_snapshot(metadata, metadata.current_snapshot())
    while snapshot is not None:
        yield snapshot
        parent = metadata.snapshot_by_id(snapshot.parent_snapshot_id or -1)
        snapshot = own_snapshot(metadata, parent)
