"""Rolls a ledger that was restored from a backup forward to its table, shard by shard.

The states of the table (`shard_states`) have the end cursor of each shard. A shard whose checkpoint
is before this end, or whose files differ, follows the table:

1. The first batch with files that the table lacks, and all later batches, are removed: they were
   replaced after the backup, or consumed again after the restoration.
2. They are replaced with the files of the table that the other batches do not name.
3. Files in quarantine are not in the table. The ledger keeps the files that its rows name, and
   loses the others.

A shard that was consumed beyond its end in the table keeps its ledger; the table follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.catalogs import GroupTable, OpenTable
from dagster_leasehold.assets.output.table.comparison import absent_files, path_list
from dagster_leasehold.assets.output.table.data_files import ledger_file
from dagster_leasehold.assets.output.table.maintenance import current_entries
from dagster_leasehold.assets.output.table.marks import Mark, mark_of, rolled_back
from dagster_leasehold.assets.output.table.shard_states import ShardState, States, read_states
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile, LedgerHead
from dagster_leasehold.lease_store.outcomes import LockOver, Stale
from dagster_leasehold.lease_store.publication_rows import Publication, PublishLock, ShardAhead
from dagster_leasehold.lease_store.rules.rolling_forward import may_follow, unsettled_id

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.metadata_files import PlaceIO

LOGGED_MAX = 20
"""The most shards that are logged one by one."""


@dataclass(slots=True)
class _Shard:
    """One shard of the table, compared with the batches of the ledger in order.

    Attributes:
        files: files of the table that no batch has named so far.
        border: the first batch to remove.
        quarantined: the quarantined files of batches to remove.
    """

    state: ShardState
    head: LedgerHead | None
    files: dict[str, DataFile] = field(default_factory=dict[str, DataFile])
    border: Batch | None = None
    quarantined: list[DataFile] = field(default_factory=list[DataFile])
    _joined: list[Batch] = field(default_factory=list[Batch])
    _remaining: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})

    def take(self, batch: Batch) -> None:
        """Compare the next batch; batches that share a merged file are treated as one."""
        if self.border is None:
            if not any(self._remaining.values()):
                self._keep()
            self._joined.append(batch)
            if all(file.quarantine or file.path in self.files for file in batch.files):
                for file in batch.files:
                    before = self._remaining[file.quarantine]
                    self._remaining[file.quarantine] = max(before, file.batches)
                for kind, number in self._remaining.items():
                    self._remaining[kind] = max(number - batch.batches, 0)
                return
            self.border = self._joined[0]
        else:
            self._joined.append(batch)
        for each in self._joined:
            self.quarantined += [replace(file, batches=1) for file in each.files if file.quarantine]
        self._joined.clear()

    def _keep(self) -> None:
        for batch in self._joined:
            for file in batch.files:
                self.files.pop(file.path, None)
        self._joined.clear()

    def ahead(self, shard: ShardId, mark: Mark) -> ShardAhead | None:
        """Return the part of the shard that only the table has, or None; call it after `take`."""
        self._keep()
        state, head = self.state, self.head
        if self.border is not None:
            first, start = self.border.sequence, self.border.start
        else:
            check_point = None if head is None else head.check_point
            if check_point == state.end and not self.files:
                return None
            first = 0 if head is None else head.next_number
            start = state.start if check_point is None else check_point
        return ShardAhead(
            mark.publication,
            mark.number,
            shard,
            first,
            start,
            0 if head is None else head.version,
            state.end,
            state.next_number,
            state.epoch,
            (*self.files.values(), *self.quarantined),
        )


def shards_ahead(
    group: GroupTable, table: OpenTable, mark: Mark, states: States
) -> list[ShardAhead]:
    """Return the shards with more batches in the table than in the ledger.

    Shards that are missing in the ledger come first.

    Raises:
        TableUnavailable: the shard of a file is unknown.
    """
    heads = group.store.heads(group.key)
    shards = {
        shard: _Shard(state, head)
        for shard, state in states.items()
        for head in [heads.get(shard)]
        if head is None or may_follow(head.check_point, state.end)
    }
    if not shards:
        return []
    for shard, file in _files(group.io, table):
        if shard in shards:
            shards[shard].files[file.path] = file
    for batch in group.store.each_batch(group.key):
        if batch.shard in shards:
            shards[batch.shard].take(batch)
    ahead = [one for shard, each in shards.items() if (one := each.ahead(shard, mark))]
    return sorted(ahead, key=lambda each: (each.shard in heads, each.shard))


def _files(io: PlaceIO, table: OpenTable) -> Iterator[tuple[ShardId, DataFile]]:
    from pyiceberg.manifest import DataFileContent

    root = table.metadata.location.rstrip("/")
    for entry in current_entries(io, table):
        if entry.content != DataFileContent.DATA:
            continue
        shard, file = ledger_file(table.metadata, root, entry)
        if shard is None:
            raise TableUnavailable(
                f"The ledger cannot follow its table: the file {file.path}, which another program "
                "wrote, has records of several shards. Nothing was changed. Roll the table back "
                "to an earlier snapshot, and repeat this."
            )
        yield shard, file


@dataclass(frozen=True, slots=True)
class RollingForward:
    """Rolls the ledger of a group forward to its table.

    Attributes:
        log: receives a sentence about each shard before it is changed.
    """

    group: GroupTable
    log: Callable[[str], None]

    def in_progress(self, table: OpenTable) -> bool:
        """Return True if an earlier process has rolled some shards forward to this state."""
        mark = mark_of(table.metadata)
        return mark is not None and self._publication().last == unsettled_id(mark.publication)

    def shards(self, table: OpenTable | None) -> list[ShardAhead]:
        """Return the shards with more batches in a table than in the ledger.

        Raises:
            LogCorrupt: the states of the table are damaged.
            TableUnavailable: the metadata cannot be read, or files of the table do not exist.
        """
        mark = None if table is None else mark_of(table.metadata)
        if table is None or mark is None or mark.publication == self._publication().last:
            return []
        states = read_states(self.group.io, mark.states)
        if states is None or rolled_back(table.metadata, mark):
            self.log("The table does not record its part of each shard: the ledger is unchanged.")
            return []
        ahead = shards_ahead(self.group, table, mark, states)
        paths = [file.path for each in ahead for file in each.files if not file.quarantine]
        if absent := absent_files(self.group.place, paths):
            raise TableUnavailable(
                f"The ledger cannot follow the table: {len(absent):,} files that the table names "
                f"do not exist ({path_list(absent)}). Nothing was changed. Restore the files from "
                f"a backup. To make the table follow the ledger instead, remove {mark.states}."
            )
        return ahead

    def carry_out(self, lock: PublishLock, ahead: Sequence[ShardAhead]) -> LockOver | None:
        """Roll shards forward, each in its own transaction.

        Raises:
            TableUnavailable: a run has changed the ledger of a shard in the meantime.
            UnknownShard: an ordered group lacks one of these shards.
        """
        for each in ahead[:LOGGED_MAX]:
            self.log(f"Shard {each.shard} is rolled forward: {each}.")
        if len(ahead) > LOGGED_MAX:
            self.log(f"{len(ahead) - LOGGED_MAX:,} more shards are rolled forward.")
        for each in ahead:
            outcome = self.group.store.roll_forward(lock, each)
            if isinstance(outcome, LockOver):
                return outcome
            if isinstance(outcome, Stale):
                raise TableUnavailable(
                    f"Shard {each.shard} was consumed while it was compared with the table, and "
                    "not all shards are rolled forward yet. Stop the nodes, and repeat this."
                )
        return None

    def _publication(self) -> Publication:
        publication = self.group.store.publication(self.group.key)
        assert publication is not None, "A publisher with the lock has a publication."
        return publication
