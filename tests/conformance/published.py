"""A publisher that carries out the steps of a publication on a list of files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import LockOver, PointerMoved, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    PublishedRange,
    PublishLock,
    ShardBacklog,
    TableChange,
    TableName,
)
from dagster_leasehold.lease_store.store import LeaseStore
from tests.conformance.world import A, World

_numbers = count(1)
FIRST = "first.metadata.json"


@dataclass
class Publisher:
    """A publisher of the default catalog.

    Attributes:
        files: the files of the table's newest snapshot, without staged files that are not
            committed.
        node: the node that it publishes for.
    """

    world: World
    node: NodeName = A
    files: list[str] = field(default_factory=list[str])
    lock: PublishLock | None = None

    @property
    def table(self) -> TableName:
        return TableName("default", "leasehold", self.world.key.stream)

    @property
    def own(self) -> PublishLock:
        """The lock that was taken last, even if another publisher has it now."""
        assert self.lock is not None
        return self.lock

    def take(self) -> PublishLock:
        lock = self.world.store.take_publish_lock(
            self.world.key, self.node, self.world.incarnations[self.node], self.table
        )
        assert isinstance(lock, PublishLock), lock
        self.lock = lock
        return lock

    def start(self) -> PublishLock:
        """Take the lock, and create the table."""
        lock = self.take()
        assert self.world.store.create_table_pointer(lock, FIRST) == Settled()
        return lock

    def plan(
        self,
        backlog: Iterable[ShardBacklog] | None = None,
        changes: Iterable[TableChange] | None = None,
        *,
        base: int | None = None,
    ) -> PlannedPublication:
        """Plan all unpublished batches, or the given ones."""
        store, key = self.world.store, self.world.key
        changes = store.pending_changes(key) if changes is None else changes
        backlog = store.unpublished(key) if backlog is None else backlog
        number = next(_numbers)
        ranges = tuple(
            PublishedRange(each.shard, each.start, each.batches[-1].last + 1, each.version)
            for each in backlog
        )
        numbers = tuple(change.sequence for change in changes)
        return PlannedPublication(f"publication-{number}", number, base, ranges, numbers)

    def commit(
        self, planned: PlannedPublication, *, seen: str | None = None
    ) -> Settled | LockOver | Stale | PointerMoved:
        """Commit to the default catalog, as from the newest metadata file or the one given."""
        pointer = self.world.store.table_pointer(self.table)
        assert pointer is not None
        move = PointerMove(seen or pointer.location, f"{planned.id}.metadata.json")
        return self.world.store.commit_publication(self.own, planned, move)

    def publish(self) -> PlannedPublication:
        """Publish all that waits, and have it in the table."""
        store, key = self.world.store, self.world.key
        changes, backlog = store.pending_changes(key), store.unpublished(key)
        planned = self.plan(backlog, changes)
        assert self.commit(planned) == Settled()
        for change in changes:
            self.files = [path for path in self.files if path not in change.removed]
            self.files += [file.path for file in change.added]
        for each in backlog:
            files = (file for batch in each.batches for file in batch.files)
            self.files += [file.path for file in files if not file.quarantine]
        return planned

    def committed(self) -> list[str]:
        """Return the files of the ledger's committed batches."""
        batches = self.world.store.batches(self.world.key)
        return [file.path for batch in batches for file in batch.files if not file.quarantine]


def until(world: World, shard: ShardId) -> int:
    cursors = world.store.published_until(world.key)
    assert cursors is not None
    return cursors[shard]


def moved(planned: PlannedPublication, **values: object) -> PlannedPublication:
    """The same publication with other values in its only range."""
    (only,) = planned.ranges
    return replace(planned, ranges=(replace(only, **values),))  # type: ignore[arg-type]


def publish_batches(
    store: LeaseStore, key: GroupKey, node: NodeName, shard: ShardId, number: int
) -> Publisher:
    """Publish the first batches of one shard, as a live node; return its publisher."""
    world = World(store, key)
    world.incarnations[node] = world.node(node).incarnation
    publisher = Publisher(world, node)
    publisher.start()
    (own,) = (each for each in store.unpublished(key) if each.shard == shard)
    first = replace(own, batches=own.batches[:number])
    assert publisher.commit(publisher.plan([first])) == Settled()
    return publisher
