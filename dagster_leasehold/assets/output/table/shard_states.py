"""A file beside the table's metadata that records, for each shard, how much is in the table.

A lease database that is restored from a backup has lost commits whose output is in the table. The
files of the table do not tell where they begin and end, so each publication writes that
into a new file, and the mark of the table names it. The file is removed once the next publication
is settled; vacuum removes the files of a killed publisher.

Each publication moves on the shards that it has batches of. A forced checkpoint takes a shard back,
which is looked up in the ledger. A shard whose ledger changes while it is looked up has no state
until it is published again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from dagster_leasehold.assets.output.table.publication import PublicationPlan
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
    """The part of a shard that a table has.

    Attributes:
        start: the cursor of its first batch.
        end: the cursor behind its last batch.
        next_number: the number of the next batch.
        epoch: of the last tenure that committed output of it.
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
    """Write the states of all shards into a new file.

    Raises:
        TableUnavailable: it cannot be written.
    """
    content = json.dumps(states, separators=(",", ":")).encode()
    io.write(location, gzip.compress(content, _LEVEL, mtime=0))


def read_states(io: PlaceIO, location: str) -> dict[ShardId, ShardState] | None:
    """Return the states of all shards; None if there is no such file.

    Raises:
        LogCorrupt: it is damaged.
        TableUnavailable: it cannot be read.
    """
    content = io.read(location) if location else None
    if content is None:
        return None
    try:
        values = json.loads(gzip.decompress(content))
        return {ShardId(shard): ShardState(*state) for shard, state in values.items()}
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise LogCorrupt(
            f"The file {location}, which tells how far the table has each shard, is damaged: "
            "restore it from a backup, or remove it, so that the ledger is followed."
        ) from error


def states_after(
    store: LedgerAndRewrites, key: GroupKey, before: States | None, plan: PublicationPlan
) -> dict[ShardId, ShardState]:
    """Return the states of all shards once a publication is in the table.

    Args:
        store: has the ledger.
        key: the group.
        before: the states; None where they are not known, or where the table was adopted.
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
        for shard in _withdrawn_since(store, key, plan.changes):
            if looked_up is None or shard in looked_up:
                states.pop(shard, None)
    for shard, (first, last) in spans.items():
        states[shard] = _joined(states.get(shard), first, last)
    return states


def _looked_up(
    store: LedgerAndRewrites, key: GroupKey, shard: ShardId | None = None
) -> dict[ShardId, ShardState]:
    """Return the states of one shard or of all, as far as the ledger says they are published."""
    cursors = store.published_until(key, None if shard is None else [shard]) or {}
    states: dict[ShardId, ShardState] = {}
    for batch in store.each_batch(key, shard):
        if batch.sequence < cursors.get(batch.shard, 0):
            states[batch.shard] = _joined(states.get(batch.shard), batch, batch)
    return states


def _joined(earlier: ShardState | None, first: Batch, last: Batch) -> ShardState:
    start = earlier.start if earlier and in_order(earlier.start, first.start) else first.start
    return ShardState(start, last.end, last.last + 1, until_epoch(last))


def _withdrawn_since(
    store: LedgerAndRewrites, key: GroupKey, changes: Collection[int]
) -> set[ShardId]:
    """Return the shards with a withdrawal behind the changes of a plan."""
    after, shards = max(changes, default=0), set[ShardId]()
    while page := store.pending_changes(key, after=after):
        shards |= {each.shard for each in page if each.kind is ChangeKind.WITHDRAWAL}
        after = page[-1].sequence
    return shards
