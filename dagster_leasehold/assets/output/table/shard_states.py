"""A file beside the table's metadata that records the published part of each shard.

A lease database that is restored from a backup lacks commits whose output is in the table. The data
files do not have the cursors of their batches. So each publication writes them into a new file,
which the mark of the table names. The file is removed once the next publication is settled, unless
a snapshot names it (see `snapshot_contents`); vacuum removes the files of a killed publisher.

Each publication updates the shards with published batches. After a forced checkpoint, the state of
a shard is read from the ledger. If the ledger of a shard changes during this read, the shard has no
state until its next publication.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
        epoch: the last tenure that committed it.
        watermark: the largest event time of its batches, as `moment` writes it; empty if unknown.
            It can be too early, never too late.
    """

    start: str
    end: str
    next_number: int
    epoch: int
    watermark: str = ""


States = Mapping[ShardId, ShardState]
Watermark = Callable[[Batch], datetime | None]
"""Returns the largest event time of a batch, or None."""


def moment(time: datetime | None) -> str:
    """Return a time as text that orders like the time; empty for None."""
    return "" if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")


def states_location(root: str, publication: str, snapshot: int = 0) -> str:
    """Return the location of the file for one publication.

    Args:
        root: the table's location.
        publication: its id.
        snapshot: the number of a snapshot before its last one; 0 for the last one.
    """
    name = f"{publication}-{snapshot}" if snapshot else publication
    return f"{root.rstrip('/')}/{METADATA_FOLDER}/{name}.shards.json.gz"


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


def states_of_snapshots(
    store: LedgerAndRewrites,
    key: GroupKey,
    before: States | None,
    plan: PublicationPlan,
    watermark: Watermark,
) -> Iterator[States]:
    """Yield the states of all shards after each snapshot of a publication.

    If the publication has no snapshot, they are yielded once.

    Args:
        before: the states before; None if they are unknown, or if the table was adopted.
        plan: the publication.
    """
    ledger = _Ledger(store, key, watermark, max(plan.changes, default=0))
    states = dict(before) if before is not None else ledger.states()
    starts = {shard: state.start for shard, state in states.items()}
    for snapshot in plan.snapshots:
        # If the states of all shards came from the ledger, they have no withdrawn batches.
        if snapshot.withdrawn and before is not None:
            states = {s: each for s, each in states.items() if s not in snapshot.withdrawn}
            states |= ledger.states(snapshot.withdrawn)
        for batches in snapshot.committed:
            shard = batches[0].shard
            state = _joined(states.get(shard), batches, watermark)
            first = starts.get(shard)
            states[shard] = (
                state._replace(start=first) if first and in_order(first, state.start) else state
            )
        yield dict(states)
    if not plan.snapshots:
        yield states


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The published part of the ledger.

    Attributes:
        after: the number of the last change in the publication.
    """

    store: LedgerAndRewrites
    key: GroupKey
    watermark: Watermark
    after: int

    def states(self, shards: Collection[ShardId] | None = None) -> dict[ShardId, ShardState]:
        """Return the states of these shards, or of all."""
        store, key = self.store, self.key
        cursors = store.published_until(key, shards) or {}
        states: dict[ShardId, ShardState] = {}
        for own in [None] if shards is None else sorted(shards):
            for batch in store.each_batch(key, own):
                if batch.sequence < cursors.get(batch.shard, 0):
                    states[batch.shard] = _joined(states.get(batch.shard), (batch,), self.watermark)
        # The ledger may contain withdrawals that are not in this publication.
        for change in each_change(store, key, after=self.after):
            if change.kind is ChangeKind.WITHDRAWAL:
                states.pop(change.shard, None)
        return states


def _joined(
    earlier: ShardState | None, batches: Sequence[Batch], watermark: Watermark
) -> ShardState:
    first, last = batches[0], batches[-1]
    start = earlier.start if earlier and in_order(earlier.start, first.start) else first.start
    times = [time for batch in batches if (time := watermark(batch)) is not None]
    reached = max(moment(max(times, default=None)), earlier.watermark if earlier else "")
    return ShardState(start, last.end, last.last + 1, until_epoch(last), reached)
