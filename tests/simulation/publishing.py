"""A seed of publishers, rewriters and operators whose steps are interleaved.

Each is a generator that yields where it can be frozen or killed. The table is a list of snapshots,
and a reader compares it with the ledger. There are two ways to commit: the default catalog, whose
pointer the store moves, and another one, which accepts a snapshot that follows its newest and which
other programs change as well: they rewrite files, add and delete records, roll the table back, and
expire its snapshots.

Invariants, after every step:

- the table has each record at most once, unless another program added it;
- at most one publication is pending;
- while no other program changed the table, it has exactly the committed and published files, except
  for those of waiting changes.

At the end, when all have stopped, one more publisher brings the table up to the ledger. A table
that it does not publish to is adopted first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.publication import plan_publication
from dagster_leasehold.lease_store.errors import CheckpointRefused
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.ledger_rows import (
    BatchCommit,
    BatchRewrite,
    BatchStatistics,
    DataFile,
    Intent,
    RewriteKind,
)
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened, Settled
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    Publication,
    PublishedRange,
    PublishLock,
    TableName,
)
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.store import LeaseStore
from tests.conformance.test_expired_output import FAR
from tests.simulation.foreign_table import ForeignTable, Snapshot, Steps, View

KEY = GroupKey.parse("group", "stream")
TABLE = TableName("default", "leasehold", "stream")
NODES = (NodeName("a"), NodeName("b"))
SHARDS = (ShardId("x"), ShardId("y"))
FIRST = 0
ACTORS_MAX = 5
LAST_TURNS_MAX = 100
SHARES = {"freezing": 0.1, "waking": 0.1, "dying": 0.02}


@dataclass
class Seed(ForeignTable):
    """One seed's store and table, and everybody who works on them."""

    number: int
    store: LeaseStore = field(default_factory=MemoryStore)
    publishes: Callable[[Seed, NodeName], Steps] = field(
        default=lambda seed, node: seed.publish(node)
    )
    violations: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.chance = random.Random(self.number)
        self.elsewhere = self.chance.random() < 0.7
        self.outside = self.elsewhere and self.chance.random() < 0.6
        self.touched = False
        self.staged = {FIRST: Snapshot(FIRST, "", ())}
        self.current, self.mark, self.history = self.staged[FIRST], ("", 0), 0
        self.there = {FIRST}
        self.actors: list[Steps] = []
        self.frozen: list[Steps] = []
        self.records = {}
        self.names = 0
        self.store.create_group(Group(KEY))
        for node in NODES:
            self.store.register(KEY, Node(node, 0, f"{node}-1"), observer="t")
        self.store.sync_shards(KEY, [ShardListing(shard) for shard in SHARDS], observer="t")
        self.store.claim(KEY, dict.fromkeys(SHARDS, (NODES[0], 0)), observer="t", reason="r")

    # -- from start to end ----------------------------------------------------------------------

    def run(self, steps: int) -> list[str]:
        """Play a number of steps, let everybody stop where they are, and bring up the table."""
        for _ in range(steps):
            if self.violations:
                return self.violations
            if len(self.actors) < ACTORS_MAX and self.chance.random() < 0.4:
                self.actors.append(self._somebody())
            self.continue_one(**SHARES)
            self._check()
        self.actors.clear()
        for _ in range(LAST_TURNS_MAX):
            if self._is_up_to_date():
                break
            for _ in self.publish(NODES[0], adopts=True):
                self._check()
        if not self._is_up_to_date():
            published = sorted(self.table())
            self.violations.append(f"at the end the table has {published}, not {self.committed()}")
        return self.violations

    def _is_up_to_date(self) -> bool:
        """Return True if the table has the committed records, possibly in other files after a
        rewrite.
        """
        row = self.store.publication(KEY)
        if not self.touched:
            return sorted(self.table()) == sorted(self.committed())
        waits = row is None or row.pending or row.changes_pending or self.store.unpublished(KEY)
        table, committed = (self.records_of(each) for each in (self.table(), self.committed()))
        # Records that expired after a rewrite by another program stay.
        return not waits and set(committed) <= set(table)

    def _somebody(self) -> Steps:
        node = self.chance.choice(NODES)
        weights = {
            self._consume(): 5,
            self.publish(node): 5,
            self._rewrite(RewriteKind.REPLAY): 1,
            self._rewrite(RewriteKind.COMPACTION): 1,
            self._go_back(): 1,
            self._expire(): 1,
        }
        if self.outside:
            weights[self._somebody_else()] = 1
        return self.chance.choices(list(weights), list(weights.values()))[0]

    def _file(self, shard: ShardId, *cursors: str) -> str:
        """Return the path of a new file with the records at these cursors."""
        path = self.name(f"{shard}.{'+'.join(cursors)}")
        self.records[path] = [(shard, cursor) for cursor in cursors]
        return path

    # -- those who write to the ledger ----------------------------------------------------------

    def _consume(self) -> Steps:
        shard = self.chance.choice(SHARDS)
        run = self.name("run")
        lease = {each.shard: each for each in self.store.snapshot(KEY).shards}[shard]
        opened = self.store.open_tenure(KEY, shard, NODES[0], run, replaces=lease.consumer_run)
        if not isinstance(opened, Opened):
            return
        at = int(opened.check_point or 0)
        number = opened.next_sequence
        if opened.intent is not None:
            number = opened.intent.sequence
        for _ in range(self.chance.randint(1, 3)):
            intent = Intent(opened.tenure, number, str(at), str(at + 1))
            if not isinstance(self.store.record_intents([intent])[shard], Changed):
                return
            yield
            files = (DataFile(self._file(shard, str(at)), 1, 1),)
            commit = BatchCommit(
                opened.tenure, number, str(at), str(at + 1), run, files, BatchStatistics(1, 1, 1)
            )
            if not isinstance(self.store.commit([commit])[shard], Changed):
                return
            for kind in EventKind:
                events = self.store.pending_events(KEY, kind=kind)
                self.store.mark_delivered(KEY, [event.sequence for event in events])
            at, number = at + 1, number + 1
            yield

    def _go_back(self) -> Steps:
        shard = self.chance.choice(SHARDS)
        batches = self.store.batches(KEY, shard)
        yield
        if batches:
            start = self.chance.choice(batches).start
            # Refused inside a merged file, and before expired output.
            with suppress(CheckpointRefused):
                self.store.force_checkpoint(KEY, shard, start, observer="op", reason="again")

    def _rewrite(self, kind: RewriteKind) -> Steps:
        shard, run = self.chance.choice(SHARDS), self.name("rewriter")
        if not isinstance(self.store.claim_rewrite(KEY, shard, run, kind), Changed):
            return
        yield
        batches = [each for each in self.store.batches(KEY, shard) if each.files]
        batches = batches[: self.chance.randint(1, 4)]
        if batches and all(file.batches == 1 for each in batches for file in each.files):
            cursors = [each.start for each in batches]
            if kind is RewriteKind.REPLAY:
                files = [(DataFile(self._file(shard, at), 1, 1),) for at in cursors]
            else:
                merged = DataFile(self._file(shard, *cursors), 1, 1, batches=len(batches))
                files = [(merged,), *([()] * (len(batches) - 1))]
            rewrites = [
                BatchRewrite(each.sequence, each.generation, new, each.statistics)
                for each, new in zip(batches, files, strict=True)
            ]
            yield
            self.store.rewrite_batches(KEY, shard, run, rewrites, reason="r")
        self.store.release_rewrite(KEY, shard, run)

    def _expire(self) -> Steps:
        shard = self.chance.choice(SHARDS)
        yield
        through = self.chance.randint(0, 10)
        self.store.expire_batches(KEY, shard, before=FAR, through=through)
        self.store.prune_batches(KEY, shard, before=FAR, keep=1)

    # -- other programs -------------------------------------------------------------------------

    def _somebody_else(self) -> Steps:
        yield
        self.touched = True
        change = self.chance.choice(
            (self.rewritten, self.rewritten, self.more, self.less, self.rolled_back, self.expired)
        )
        change()

    # -- the publisher --------------------------------------------------------------------------

    def publish(self, node: NodeName, *, adopts: bool = False) -> Steps:
        """Under the lock: settle the pending publication first, then publish the waiting
        batches.
        """
        self._replace_the_dead()
        lock = self.store.take_publish_lock(KEY, node, self._incarnation(node), TABLE)
        if not isinstance(lock, PublishLock):
            return
        if not self.elsewhere:
            self.store.create_table_pointer(lock, str(FIRST))
        yield
        seen = self.view()
        yield
        row = self.store.publication(KEY)
        if row is None or row.epoch != lock.epoch:
            return
        if row.pending is not None:
            yield from self.resume(lock, row.pending, seen)
        elif self.elsewhere and self.trouble(row, seen):
            if not self.touched:
                self.violations.append(f"nobody changed the table, and {row.last} is not its last")
            if adopts:
                yield from self.adopt(lock, seen)
        else:
            try:
                planned = yield from self.plan(seen.newest)
            except TableUnavailable:
                if adopts:
                    yield from self.adopt(lock, seen)
                return
            if planned is not None:
                yield from (self.commit_elsewhere if self.elsewhere else self.commit)(lock, planned)
        if self.chance.random() < 0.5:
            self.store.release_publish_lock(lock)

    def view(self) -> View:
        """Read the table."""
        return View(self.newest(), frozenset(self.there), self.mark)

    def resume(self, lock: PublishLock, pending: PlannedPublication, seen: View) -> Steps:
        """Settle the pending publication if it is in the table, send it again, or drop it."""
        if seen.mark[0] == pending.id:
            self.store.commit_publication(lock, pending)
        elif seen.newest.id == pending.base:
            yield from self.send(lock, pending)
        else:
            self.store.drop_publication(lock, pending)

    def trouble(self, row: Publication, seen: View) -> bool:
        """Return True if another program has changed the records of the table."""
        if seen.mark[0] != (row.last or ""):
            return True
        snapshot: Snapshot | None = seen.newest
        while snapshot is not None and row.last is not None:
            if snapshot.id == row.snapshot:
                break
            if snapshot.sequence <= seen.mark[1]:
                return True
            snapshot = self.staged[snapshot.parent] if snapshot.parent in seen.ids else None
        return len(self.records_of(seen.newest.files)) != (row.records or 0)

    def adopt(self, lock: PublishLock, seen: View) -> Steps:
        """Make the table show the files that the ledger calls published."""
        changes = self.store.pending_changes(KEY, limit=10_000)
        yield
        cursors = self.store.published_until(KEY) or {}
        files = [
            file.path
            for batch in self.store.batches(KEY)
            if batch.sequence < cursors[batch.shard]
            for file in batch.files
        ]
        planned = self.stage(seen.newest, files, (), [change.sequence for change in changes])
        yield from self.commit_elsewhere(lock, planned)

    def _incarnation(self, node: NodeName) -> str:
        return {row.name: row.incarnation for row in self.store.snapshot(KEY).nodes}[node]

    def _replace_the_dead(self) -> None:
        """Sometimes a node that has the lock is taken for dead, and comes back."""
        row = self.store.publication(KEY)
        if row is None or row.node is None or self.chance.random() < 0.7:
            return
        counter = {each.name: each.lease_id for each in self.store.snapshot(KEY).nodes}[row.node]
        self.store.evict(KEY, row.node, counter, observer="t", reason="silent")
        again = Node(row.node, 0, self.name(row.node))
        self.store.register(KEY, again, observer="t")
        free = {
            lease.shard: (NODES[0], lease.lease_id)
            for lease in self.store.snapshot(KEY).shards
            if lease.consumer_owner is None
        }
        self.store.claim(KEY, free, observer="t", reason="r")

    def plan(self, base: Snapshot) -> Generator[None, None, PlannedPublication | None]:
        """Read the waiting batches, and stage a snapshot of them after the one that was read."""
        limit = self.chance.choice([1, 200])
        changes = self.store.pending_changes(KEY, limit=limit)
        yield
        backlog = self.store.unpublished(KEY, limit=self.chance.choice([1, 3, 200]))
        if not changes and not backlog:
            return None
        yield
        missing = set[str]()
        while True:
            plan = plan_publication(backlog, changes, changes_max=10_000, missing=missing)
            files = list(base.files)
            for snapshot in plan.snapshots:
                missing.update(path for path in snapshot.removed if path not in files)
                files = [path for path in files if path not in snapshot.removed]
                files += [file.path for _, file in snapshot.added]
            if not any(path in missing for each in plan.snapshots for path in each.removed):
                return self.stage(base, files, plan.ranges, plan.changes)

    def stage(
        self,
        base: Snapshot,
        files: Sequence[str],
        ranges: Sequence[PublishedRange],
        changes: Sequence[int],
    ) -> PlannedPublication:
        """Stage a snapshot after another."""
        name, snapshot = self.name("publication"), len(self.staged)
        self.staged[snapshot] = Snapshot(snapshot, name, tuple(files), base.id, self.history + 1)
        records = len(self.records_of(files))
        return PlannedPublication(name, snapshot, base.id, tuple(ranges), tuple(changes), records)

    def commit(self, lock: PublishLock, planned: PlannedPublication) -> Steps:
        """Commit to the default catalog; a lost reply is settled by asking again."""
        move = PointerMove(str(planned.base), str(planned.snapshot))
        outcome = self.store.commit_publication(lock, planned, move)
        yield
        if isinstance(outcome, Settled) and self.chance.random() < 0.2:
            again = self.store.commit_publication(lock, planned, move)
            if self._is_current(lock) and not isinstance(again, Settled):
                self.violations.append(f"{planned.id} is settled, and said to be {again}")

    def _is_current(self, lock: PublishLock) -> bool:
        row = self.store.publication(KEY)
        return row is not None and (row.node, row.epoch) == (lock.node, lock.epoch)

    def commit_elsewhere(self, lock: PublishLock, planned: PlannedPublication) -> Steps:
        """Record it, commit it to the catalog, and settle it."""
        if not isinstance(self.store.record_publication(lock, planned), Settled):
            return
        yield
        yield from self.send(lock, planned)

    def send(self, lock: PublishLock, planned: PlannedPublication) -> Steps:
        """Commit it to the catalog, whose reply may be lost, and settle it."""
        self.take(planned)
        yield
        if self.mark[0] == planned.id:
            self.store.commit_publication(lock, planned)

    def take(self, planned: PlannedPublication) -> None:
        """Commit a snapshot as a catalog does: only if it follows the newest one."""
        if self.current.id == planned.base:
            self.accept(planned)

    def accept(self, planned: PlannedPublication) -> None:
        """Make a snapshot the newest."""
        self.current = self.staged[planned.snapshot]
        if self.current.sequence <= self.history:
            self.current = replace(self.current, sequence=self.history + 1)
            self.staged[planned.snapshot] = self.current
        self.history = self.current.sequence
        self.mark = (planned.id, self.current.sequence)
        self.there.add(planned.snapshot)

    # -- the reader -----------------------------------------------------------------------------

    def newest(self) -> Snapshot:
        """Return the table's newest snapshot."""
        if self.elsewhere:
            return self.current
        pointer = self.store.table_pointer(TABLE)
        return self.staged[FIRST if pointer is None else int(pointer.location)]

    def table(self) -> tuple[str, ...]:
        """Return the table's files in order."""
        return self.newest().files

    def committed(self) -> list[str]:
        """Return the files of all committed batches."""
        return [file.path for batch in self.store.batches(KEY) for file in batch.files]

    def _check(self) -> None:
        table, row = self.table(), self.store.publication(KEY)
        records = self.records_of(table)
        if len(set(records)) != len(records):
            self.violations.append(f"the table has a record twice: {table}")
        if self.touched:
            return
        cursors = self.store.published_until(KEY)
        if row is None or cursors is None:
            return
        if self.elsewhere and row.last != self.newest().publication and table:
            return  # the table's publication is not settled yet
        expected = {
            file.path
            for batch in self.store.batches(KEY)
            if batch.sequence < cursors[batch.shard]
            for file in batch.files
        }
        changes = self.store.pending_changes(KEY)
        # The files of the table until its changes are published: undo them, the newest first.
        for change in reversed(changes):
            expected -= {file.path for file in change.added}
            expected |= {path for path in change.removed if path in table or path in expected}
        added = {file.path for change in changes for file in change.added}
        if set(table) != expected - added:
            self.violations.append(
                f"the table has {sorted(set(table) - expected)} too many and "
                f"{sorted(expected - added - set(table))} too few"
            )
