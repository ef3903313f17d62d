"""A file beside the table's metadata that records the published part of each shard.

A lease database that is restored from a backup lacks commits whose output is in the table. The data
files do not contain the cursors of their batches. So each publication writes the cursors into a new
file, which the mark of the table names. The file is removed once the next publication is settled;
vacuum removes the files of a killed publisher.

Each publication updates the shards with published batches. After a forced checkpoint, the state of
a shard is read from the ledger. If the ledger of a shard changes during this read, the shard has no
state until its next publication.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from dagster_leasehold.assets.output.table.publication import PublicationPlan, each_change
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER
from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.rules.cursors import in_order
from dagster_leasehold.lease_store.rules.history_proof import until_epoch
from dagster_leasehold.lease_store.store import LedgerAndRewrites

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.metadata_files import PlaceIO

_LEVEL = 1


class ShardState(NamedTuple):
    """The part of a shard that is in a table.

    Attributes:
        start: the start cursor of its first batch.
        end: the end cursor of its last batch.
        next_number: the number of the next batch.
        epoch: the epoch of the last tenure that committed it.
    """

    start: str
    end: str
    next_number: int
    epoch: int


States = Mapping[ShardId, ShardState]


def states_location(root: str, publication: str) -> str:
    """Return the location of the file for one publication; `root` is the table's location."""
    return f"{root.rstrip('/')}/{METADATA_FOLDER}/{publication}.shards.json.gz"


def write_states(io: PlaceIO, location: str, states: States) -> None:
    """Write the states of all shards into a new file."""
    content = json.dumps(states, separators=(",", ":")).encode()
    io.write(location, gzip.compress(content, _LEVEL, mtime=0))


def read_states(io: PlaceIO, location: str) -> dict[ShardId, ShardState] | None:
    """Return the states of all shards; None if there is no such file.

    Raises:
        LogCorrupt: it is damaged.
    """
    content = io.read(location) if location else None
    if content is None:
        return None
    try:
        values = json.loads(gzip.decompress(content))
        return {ShardId(shard): ShardState(*state) for shard, state in values.items()}
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise LogCorrupt(
            f"The file {location}, which records the published part of each shard, is damaged: "
            "restore it from a backup, or remove it to follow the ledger instead."
        ) from error


def states_after(
    store: LedgerAndRewrites, key: GroupKey, before: States | None, plan: PublicationPlan
) -> dict[ShardId, ShardState]:
    """Return the states of all shards after a publication.

    Args:
        before: the states before; None if they are unknown, or if the table was adopted.
        plan: the publication.
    """
    spans = {first.shard: (first, last) for first, last in plan.spans}
    if before is None:
        states, looked_up = _looked_up(store, key), None
    else:
        states, looked_up = dict(before), plan.withdrawn - spans.keys()
        for shard in looked_up:
            states.pop(shard, None)
            states |= _looked_up(store, key, shard)
    if looked_up is None or looked_up:
        # The lookup can include withdrawals that are not in this publication.
        for change in each_change(store, key, after=max(plan.changes, default=0)):
            if change.kind is ChangeKind.WITHDRAWAL and (
                looked_up is None or change.shard in looked_up
            ):
                states.pop(change.shard, None)
    for shard, (first, last) in spans.items():
        states[shard] = _joined(states.get(shard), first, last)
    return states


def _looked_up(
    store: LedgerAndRewrites, key: GroupKey, shard: ShardId | None = None
) -> dict[ShardId, ShardState]:
    """Return the states of one shard or of all, from the published part of the ledger."""
    cursors = store.published_until(key, None if shard is None else [shard]) or {}
    states: dict[ShardId, ShardState] = {}
    for batch in store.each_batch(key, shard):
        if batch.sequence < cursors.get(batch.shard, 0):
            states[batch.shard] = _joined(states.get(batch.shard), batch, batch)
    return states


def _joined(earlier: ShardState | None, first: Batch, last: Batch) -> ShardState:
    start = earlier.start if earlier and in_order(earlier.start, first.start) else first.start
    return ShardState(start, last.end, last.last + 1, until_epoch(last))
