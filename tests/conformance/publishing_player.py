"""The publishing verbs of random histories, and the table as these verbs leave it."""

from __future__ import annotations

import random
from typing import Any

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import (
    BatchRewrite,
    BatchState,
    BatchStatistics,
    DataFile,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Settled
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    PublishedRange,
    PublishLock,
    TableName,
)
from dagster_leasehold.lease_store.store import LeaseStore

FIRST = "first"


class PublishingPlayer:
    """Takes the publish lock, publishes some unpublished batches, and rewrites published ones.

    Attributes:
        files: the files of the table.
    """

    def __init__(self, store: LeaseStore, key: GroupKey, chance: random.Random) -> None:
        self._store = store
        self._key = key
        self._random = chance
        self._table = TableName("default", "leasehold", key.stream)
        self._turns: list[PublishLock] = []
        self._number = 0
        self.files: list[str] = []

    def take_lock(self) -> Any:
        nodes = self._store.pulse(self._key).nodes
        node = self._random.choice(nodes)
        lock = self._store.take_publish_lock(self._key, node.name, node.incarnation, self._table)
        if isinstance(lock, PublishLock):
            self._turns.append(lock)
            self._store.create_table_pointer(lock, FIRST)
        return lock

    def publish(self) -> Any:
        """Publish with the newest lock or an earlier one; the table follows where it counts."""
        pointer = self._store.table_pointer(self._table)
        if pointer is None:
            return None, (), []
        lock = self._random.choice(self._turns[-1:] * 5 + self._turns[-2:])
        self._number += 1
        changes = self._store.pending_changes(self._key)
        backlog = self._store.unpublished(self._key, limit=self._random.choice((1, 3, 100)))
        planned = PlannedPublication(
            f"publication-{self._number}",
            self._number,
            None,
            tuple(
                PublishedRange(each.shard, each.start, each.batches[-1].last + 1, each.version)
                for each in backlog
            ),
            tuple(change.sequence for change in changes),
        )
        move = PointerMove(pointer.location, f"{self._number}.json")
        outcome = self._store.commit_publication(lock, planned, move)
        if outcome == Settled():
            for change in changes:
                self.files = [path for path in self.files if path not in change.removed]
                self.files += [file.path for file in change.added]
            for each in backlog:
                numbers = [batch.sequence for batch in each.batches]
                assert numbers == sorted(set(numbers))
                assert numbers[0] >= each.start
                self.files += [file.path for batch in each.batches for file in batch.files]
            self.check()
        shapes = [(each.kind, each.first, each.removed, each.added) for each in changes]
        return outcome, planned.ranges, shapes

    def publish_all(self) -> None:
        """Publish all unpublished batches without a node."""
        for lock in self._turns:
            self._store.release_publish_lock(lock)
        lock = self._store.take_publish_lock(self._key, None, "once", self._table)
        assert isinstance(lock, PublishLock)
        self._turns = [lock]
        self._store.create_table_pointer(lock, FIRST)
        while self._store.unpublished(self._key, limit=1) or self._store.pending_changes(self._key):
            self.publish()

    def rewrite(self) -> Any:
        """Replay one batch, published or not."""
        batches = self._store.batches(self._key)
        if not batches:
            return None
        batch = self._random.choice(batches)
        self._number += 1
        self._store.claim_rewrite(self._key, batch.shard, "replay", RewriteKind.REPLAY)
        file = DataFile(f"replay-{self._number}", 5, 50)
        made = BatchRewrite(batch.sequence, batch.generation, (file,), BatchStatistics(5, 50, 5))
        outcome = self._store.rewrite_batches(
            self._key, batch.shard, "replay", [made], reason="again"
        )
        self._store.release_rewrite(self._key, batch.shard, "replay")
        return outcome

    def check(self) -> None:
        """Compare the table with the ledger, once no change is pending.

        The batches below the cursors are in the table once each, and no others.
        """
        cursors = self._store.published_until(self._key) or {}
        for batch in self._store.batches(self._key, state=BatchState.INTENT):
            assert batch.sequence >= cursors[batch.shard], "it is not committed"
        batches = self._store.batches(self._key)
        if not self._store.pending_changes(self._key):
            published = [each for each in batches if each.sequence < cursors[each.shard]]
            expected = [file.path for each in published for file in each.files]
            assert sorted(self.files) == sorted(expected)
