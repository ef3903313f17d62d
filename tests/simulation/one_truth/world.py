"""A history: consumers, publishers, rewriters and an operator, whose steps are interleaved.

Each is a generator that yields where it can be frozen or killed. The ledger and the table are in
memory. There are two ways to commit: the default catalog, whose pointer the ledger moves, and
another one. A request to another catalog can arrive late, and its reply can be lost. Other programs
change that table: they rewrite files, add and delete records, roll the table back, and expire its
snapshots. The ledger can be restored from a backup.

The log has the same records for ever. The first version of the transform drops every fifth record,
and a replay writes it.

Invariants:

- a snapshot has each record at most once;
- a settled snapshot has the records of exactly the published batches and of waiting cuts, unless
  another program has deleted or added some.

At the end, all stop where they are. One more publisher and an operator bring the table up to the
ledger.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_leasehold.lease_store.identifiers import ShardId
from tests.simulation.foreign_table import ForeignTable, Snapshot, Steps
from tests.simulation.one_truth.rules import (
    Batch,
    Entry,
    Group,
    Ledger,
    Planned,
    PublishedShard,
    Refused,
    Rules,
    Shard,
    ShardPlan,
    Swap,
    published_part,
)

Record = tuple[Any, ...]
SHARDS = (ShardId("x"), ShardId("y"))
FIRST = 0
ACTORS_MAX = 5
LAST_TURNS_MAX = 60
SHARES = {"freezing": 0.05, "waking": 0.1, "dying": 0.01}
ARRIVING_SHARE = 0.15
SAFE_AGE = 80
WAITS_MAX, TAKING_OVER_SHARE = 12, 0.05
DROPPED_EVERY = 5
NO_CUT = 2**62


WEIGHTS = {
    "consume": 5.0,
    "publish": 6.0,
    "replay": 2.0,
    "compaction": 2.0,
    "expiry": 1.0,
    "go back": 2.0,
    "clean": 1.0,
    "others": 1.5,
    "operator": 1.5,
}


@dataclass(frozen=True)
class State:
    """The state of a table: its newest snapshot and its properties.

    Attributes:
        mark: the publication that the properties name.
    """

    snapshot: Snapshot
    mark: Planned | None


@dataclass
class World(ForeignTable):
    """One history."""

    number: int
    rules: Rules = field(default_factory=Rules)
    ledger_type: Callable[[Rules], Ledger] = Ledger
    violations: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.chance = random.Random(self.number)
        self.elsewhere = self.chance.random() < 0.75
        self.outside = self.elsewhere and self.chance.random() < 0.5
        self.restores = self.chance.random() < 0.3
        self.touched = self.restored = False
        self.ledger = self.ledger_type(self.rules)
        self.ledger.shards |= {shard: Shard() for shard in SHARDS}
        self.ledger.batches |= {shard: [] for shard in SHARDS}
        self.backup: Ledger | None = None
        self.entries: dict[str, Entry] = {}
        self.records = {}
        self.staged = {FIRST: Snapshot(FIRST, "", ())}
        self.current, self.history = self.staged[FIRST], 0
        self.mark: Planned | None = None
        self.there, self.tags = {FIRST}, set[int]()
        self.states: dict[str, dict[ShardId, PublishedShard]] = {}
        self.planned: dict[int, Planned] = {}
        self.requests: list[Planned] = []
        self.deleted: set[tuple[Any, ...]] = set()
        self.replayed: set[tuple[ShardId, int, int]] = set()
        self.disk: dict[str, int] = {}
        self.actors: list[Steps] = []
        self.frozen: list[Steps] = []
        self.names = self.step = self.holder = 0

    # -- from start to end ----------------------------------------------------------------------

    def run(self, steps: int) -> list[str]:
        """Play a number of steps, let everybody stop, and bring the table up to the ledger."""
        for self.step in range(steps):
            if self.violations:
                return self.violations
            if len(self.actors) < ACTORS_MAX and self.chance.random() < 0.4:
                self.actors.append(self._somebody())
            if self.requests and self.chance.random() < ARRIVING_SHARE:
                self.arrive(self.requests.pop(self.chance.randrange(len(self.requests))))
            self.continue_one(**SHARES)
            if self.restores:
                self._maybe_restore(steps)
        self._stop()
        for _ in range(LAST_TURNS_MAX):
            for _ in self.turn(operator=True):
                if self.requests and self.chance.random() < ARRIVING_SHARE:
                    self.arrive(self.requests.pop())
            if self._is_up_to_date():
                break
        else:
            self.violations.append("the table never follows the ledger")
        self._check_end()
        return self.violations

    def _stop(self) -> None:
        self.actors.clear()
        self.frozen.clear()
        self.holder = 0

    def _maybe_restore(self, steps: int) -> None:
        chance = self.chance.random()
        if self.backup is None:
            if chance < 3 / steps:
                self.backup = self.ledger.backup()
        elif chance < 3 / steps:
            # All processes are stopped first; requests to a catalog can still arrive.
            self._stop()
            self.ledger, self.backup, self.restores = self.backup, None, False
            self.restored = True
            self.replayed.clear()
            if not self.elsewhere:
                self.current = self.staged[self.ledger.group.snapshot]
                self.mark = self.planned.get(self.current.id)

    def _somebody(self) -> Steps:
        kinds = list(WEIGHTS)
        if not self.outside:
            kinds.remove("others")
        if not self.outside and not self.restored:
            kinds.remove("operator")
        weights = [WEIGHTS[each] for each in kinds]
        match self.chance.choices(kinds, weights)[0]:
            case "consume":
                return self._consume()
            case "publish":
                return self.turn()
            case "go back":
                return self._go_back()
            case "clean":
                return self._clean()
            case "others":
                return self._somebody_else()
            case "operator":
                return self.turn(operator=True)
            case kind:
                return self._rewrite(kind)

    # -- files ----------------------------------------------------------------------------------

    def file(self, shard: ShardId, first: int, last: int, records: Sequence[Record]) -> Entry:
        """Write a file with the numbers of its batches in its name."""
        entry = Entry(self.name(f"{shard}.{first}-{last}"), shard, first, last, tuple(records))
        self._write(entry)
        return entry

    def _write(self, entry: Entry) -> None:
        self.entries[entry.path] = entry
        self.records[entry.path] = list(entry.records)
        self.disk[entry.path] = self.step

    def entry(self, path: str) -> Entry:
        """Return a file of the table; the name of another program's file says nothing."""
        own = self.entries.get(path)
        if own is None:
            own = Entry(path, None, 0, 0, tuple(self.records[path]))
            self._write(own)
        return own

    def files(self, paths: Iterable[str]) -> list[Entry]:
        """Return files of the table."""
        return [self.entry(path) for path in paths]

    # -- consumers and the operator -------------------------------------------------------------

    def _consume(self) -> Steps:
        shard = self.chance.choice(SHARDS)
        for _ in range(self.chance.randint(1, 4)):
            own, width = self.ledger.shards[shard], self.chance.randint(1, 2)
            start, number = own.check_point, own.next
            yield
            records = [
                (shard, cursor, number, "")
                for cursor in range(start, start + width)
                if cursor % DROPPED_EVERY
            ]
            paths = (self.file(shard, number, number, records).path,) if records else ()
            yield
            if self.ledger.shards[shard].next != number:
                return  # the tenure is over
            if not self.ledger.commit(shard, start, width, paths):
                return
            yield

    def _go_back(self) -> Steps:
        shard = self.chance.choice(SHARDS)
        rows = [each for each in self.ledger.batches[shard] if not each.withdrawn]
        yield
        if rows:
            with suppress(Refused):
                self.ledger.force(shard, self.chance.choice(rows[-6:]).number)

    def _clean(self) -> Steps:
        """Prune rows, and remove files that nothing names: rows first, then the table.

        It takes the lock after it has listed the files. So a swap that was planned with one of them
        can no longer be published, and a later plan refuses files of that age.
        """
        self.ledger.prune(self.chance.choice(SHARDS))
        yield
        old = [path for path, written in self.disk.items() if written < self.step - SAFE_AGE]
        if self.holder or self.backup is not None:
            return  # a backup needs the files that it names
        self.fence()
        yield
        yield from self.vacuum(old)

    def fence(self) -> None:
        """Take the publish lock before a vacuum."""
        self.ledger.take_lock()

    def is_fresh(self, swap: Swap) -> bool:
        """Return True if no vacuum can have listed the files of a swap."""
        return all(self.step - self.disk.get(e.path, 0) < SAFE_AGE / 2 for e in swap.new)

    def vacuum(self, old: Sequence[str]) -> Steps:
        """Remove old files that are named by no ledger row and no snapshot."""
        names = self.named_by_ledger()
        yield
        names |= self.named_by_table()
        for path in old:
            if path not in names:
                self.disk.pop(path, None)

    def named_by_ledger(self) -> set[str]:
        """Return the files of unpublished batches and of the pending publication."""
        names = {
            path
            for shard, rows in self.ledger.batches.items()
            for each in rows
            if self.rules.is_named(each, self.ledger.shards[shard])
            for path in each.files
        }
        pending = self.ledger.group.pending
        return names | (set(self.staged[pending.snapshot].files) if pending else set())

    def named_by_table(self) -> set[str]:
        """Return the files of all snapshots that exist."""
        return {path for each in self.snapshots() for path in self.staged[each].files}

    def snapshots(self) -> set[int]:
        """Return the ids of the snapshots that exist."""
        if not self.elsewhere:
            return set(self.staged)
        return self.there | self.tags

    # -- rewriters ------------------------------------------------------------------------------

    def _rewrite(self, kind: str) -> Steps:
        shard = self.chance.choice(SHARDS)
        own = self.ledger.shards[shard]
        rows = [
            each
            for each in self.ledger.batches[shard]
            if not each.withdrawn and each.number < own.published
        ]
        yield
        if self.elsewhere and self.is_changed(self.ledger.group, State(self.newest(), self.mark)):
            return
        paths = self.newest().files
        entries = [
            each
            for each in self.files(paths)
            if any(record[0] == shard for record in each.records)
            and not (each.shard and own.cut and each.first >= own.cut.number)
        ]
        yield
        swap = getattr(self, f"_{kind}")(shard, own, rows, entries)
        if swap is None:
            return
        yield
        yield from self.turn(swap=swap)

    def _replay(
        self, shard: ShardId, own: Shard, rows: list[Batch], entries: list[Entry]
    ) -> Swap | None:
        if not rows:
            return None
        at = self.chance.randrange(len(rows))
        rows = rows[at : at + self.chance.randint(1, 3)]
        first, last = rows[0].first, rows[-1].number
        name = self.name("replay")
        old, new = list[str](), list[Entry]()
        for each in entries:
            if each.shard is None:
                start, end = rows[0].start, rows[-1].end
                rest = [r for r in each.records if not _is_within(r, shard, start, end)]
                if len(rest) < len(each.records):
                    old.append(each.path)
                    new += self._theirs(rest)
            elif each.last < first or each.first > last:
                continue
            elif first <= each.first and each.last <= last:
                old.append(each.path)
            else:
                return None
        for row in rows:
            records = [(shard, cursor, row.number, name) for cursor in range(row.start, row.end)]
            new.append(self.file(shard, row.first, row.number, records))
        return Swap(shard, first, last, own.version, tuple(old), tuple(new), replays=name)

    def _theirs(self, records: Sequence[Record]) -> list[Entry]:
        """Write the rest of another program's file."""
        if not records:
            return []
        entry = Entry(self.name("rest"), None, 0, 0, tuple(records))
        self._write(entry)
        return [entry]

    def _compaction(
        self, shard: ShardId, own: Shard, rows: list[Batch], entries: list[Entry]
    ) -> Swap | None:
        ours = sorted((each for each in entries if each.shard), key=lambda each: each.first)
        if len(ours) < 2:
            return None
        at = self.chance.randrange(len(ours) - 1)
        some = ours[at : at + self.chance.randint(2, 3)]
        first, last = some[0].first, max(each.last for each in some)
        records = [record for each in some for record in each.records]
        merged = self.file(shard, first, last, records)
        old = tuple(each.path for each in some)
        return Swap(shard, first, last, own.version, old, (merged,), merges=True)

    def _expiry(
        self, shard: ShardId, own: Shard, rows: list[Batch], entries: list[Entry]
    ) -> Swap | None:
        starts = [each for each in rows[1:] if each.starts_file]
        if not starts:
            return None
        border = self.chance.choice(starts[:4])
        if any(each.shard and each.first < border.first <= each.last for each in entries):
            return None
        old, new = list[str](), list[Entry]()
        for each in entries:
            if each.shard is not None:
                old += [each.path] if each.last < border.first else []
                continue
            rest = [r for r in each.records if not _is_within(r, shard, 0, border.start)]
            if len(rest) < len(each.records):
                old.append(each.path)
                new += self._theirs(rest)
        last = border.first - 1
        return Swap(shard, 0, last, own.version, tuple(old), tuple(new), expires=True)

    # -- other programs -------------------------------------------------------------------------

    def _somebody_else(self) -> Steps:
        yield
        self.touched = True
        change = self.chance.choice(
            (self.rewritten, self.rewritten, self.more, self.less, self.rolled_back, self.expired)
        )
        change()

    def less(self) -> None:
        """Another program deletes the records of a file."""
        if self.current.files:
            self.deleted |= {record[:2] for record in self.records[self.current.files[0]]}
        super().less()

    def expired(self) -> None:
        """Another program expires old snapshots; those with a tag and younger ones stay.

        If it expired snapshots that are younger, a roll-back could look like a rewrite.
        """
        newest = max((self.staged[each].sequence for each in self.tags), default=0)
        remaining, snapshot = set[int](), self.current
        while snapshot.id not in remaining:
            remaining.add(snapshot.id)
            parent = snapshot.parent
            if snapshot.sequence > newest and parent in self.snapshots():
                snapshot = self.staged[parent]
        self.there = remaining

    def rolled_back(self) -> None:
        """Another program makes an earlier snapshot the newest."""
        parent = self.current.parent
        if parent in self.there | self.tags:
            self.current = self.staged[parent]

    # -- the publisher --------------------------------------------------------------------------

    def turn(self, *, swap: Swap | None = None, operator: bool = False) -> Steps:
        """One holding of the publish lock."""
        for _ in range(WAITS_MAX if swap else 1):
            # Sometimes a live holder is taken for dead.
            if not self.holder or self.chance.random() < TAKING_OVER_SHARE:
                break
            yield
        else:
            return
        epoch = self.ledger.take_lock()
        self.holder = epoch
        try:
            yield from self.locked(epoch, swap, operator=operator)
        finally:
            if self.holder == epoch:
                self.holder = 0

    def locked(self, epoch: int, swap: Swap | None, *, operator: bool) -> Steps:
        """Settle the pending publication first, then publish or swap under the lock."""
        yield
        seen = State(self.newest(), self.mark)
        yield
        group = self.ledger.group
        if group.epoch != epoch:
            return
        if self.elsewhere and group.pending is not None:
            yield from self.resume(epoch, group.pending, seen)
            if self.ledger.group.pending is None:
                yield from self.locked(epoch, swap, operator=operator)
            return
        if self.elsewhere and (cause := self.trouble(group, seen)):
            if not self.touched and not self.restored:
                self.violations.append(f"nobody changed the table: {cause}")
            if operator:
                yield from self.adopt(epoch, group, seen)
            return
        if operator and self.restored and not self.elsewhere:
            yield from self.adopt_newest(epoch)
            return
        planned = yield from self.plan(seen.snapshot, swap)
        if planned is None:
            return
        if not self.elsewhere:
            if self.ledger.publish(epoch, planned):
                self.accept(planned)
                self._settled(planned)
            return
        yield
        if not self.ledger.record(epoch, planned):
            return
        yield
        yield from self.send(epoch, planned)

    def resume(self, epoch: int, pending: Planned, seen: State) -> Steps:
        """Settle the pending publication if it is in the table, send it again, or drop it."""
        if seen.mark is not None and seen.mark.id == pending.id:
            if self.ledger.settle(epoch, pending):
                self._settled(pending)
        elif seen.snapshot.id == pending.base:
            yield from self.send(epoch, pending)
        else:
            self.ledger.drop(epoch, pending)

    def send(self, epoch: int, planned: Planned) -> Steps:
        """Send a request; it can arrive late, several times, or never, and without a reply."""
        fate = self.chance.random()
        if fate < 0.25:
            self.requests.append(planned)  # late, and no reply
            return
        if fate < 0.35:
            self.requests.append(planned)  # a proxy repeats it
        self.arrive(planned)
        if fate > 0.85:
            return  # the reply is lost
        yield
        arrived = self.mark is not None and self.mark.id == planned.id
        if arrived and self.ledger.settle(epoch, planned):
            self._settled(planned)

    def arrive(self, planned: Planned) -> None:
        """Commit a request as a catalog does: only if it follows the newest snapshot."""
        if self.current.id == planned.base:
            self.accept(planned)

    def is_changed(self, group: Group, seen: State) -> bool:
        """Return True if a rewrite cannot begin, because of a change by another program.

        A file that is missing now can come back, and a batch without a file gets one.
        """
        return bool(self.trouble(group, seen))

    def trouble(self, group: Group, seen: State) -> str:
        """Return how another program has changed the records of the table, or nothing."""
        mark = seen.mark.id if seen.mark else ""
        if mark != group.last:
            return f"the mark is {mark}, and not {group.last}"
        if self._rolled_back(group, seen):
            return "rolled back"
        records = self.records_of(seen.snapshot.files)
        published = sum(each.records for each in self.ledger.shards.values())
        if len(records) != published:
            return f"{len(records)} records, and {published} are published"
        return ""

    def _rolled_back(self, group: Group, seen: State) -> bool:
        snapshot: Snapshot | None = seen.snapshot
        last = self.staged[group.snapshot].sequence
        while snapshot is not None and group.last:
            if snapshot.id == group.snapshot:
                return False
            if snapshot.sequence <= last:
                return True
            parent = snapshot.parent
            snapshot = self.staged[parent] if parent in self.snapshots() else None
        return False

    def plan(self, base: Snapshot, swap: Swap | None) -> Generator[None, None, Planned | None]:
        """Stage the snapshot of the next publication on top of the one that was read."""
        shards, number = dict(self.ledger.shards), self.ledger.group.number
        batches = {shard: list(rows) for shard, rows in self.ledger.batches.items()}
        limit = self.chance.choice((1, 3, 200))
        yield
        entries = self.cut(self.files(base.files), shards)
        if swap is not None:
            paths = {each.path for each in entries}
            current = self.rules.is_current(swap, shards[swap.shard])
            if not current or not (self.rules.is_possible(swap, paths) and self.is_fresh(swap)):
                swap = None
            else:
                entries = [each for each in entries if each.path not in swap.old]
                entries += [each for each in swap.new if each.records]
        ends = dict[ShardId, int]()
        for shard, own in shards.items():
            waiting = [each for each in batches[shard] if self.rules.is_named(each, own)][:limit]
            ends[shard] = waiting[-1].number + 1 if waiting else own.published
            entries += self.files(path for each in waiting for path in each.files)
        moves = any(ends[name] > each.published or each.cut for name, each in shards.items())
        if swap is None and not moves:
            return None
        yield
        counts = dict.fromkeys(SHARDS, 0)
        for entry in entries:
            for record in entry.records:
                counts[record[0]] += 1
        plans = {
            name: ShardPlan(each.published, ends[name], each.version, each.cut, counts[name])
            for name, each in shards.items()
        }
        through = dict.fromkeys(SHARDS, -1)
        if swap is not None and swap.expires:
            through[swap.shard] = swap.last
        state = {
            name: published_part(batches[name], ends[name], counts[name], through[name])
            for name in SHARDS
        }
        paths = [each.path for each in entries]
        return self.stage(base, paths, number + 1, state, plans, swap)

    def cut(self, entries: Sequence[Entry], shards: dict[ShardId, Shard]) -> list[Entry]:
        """Return the files that remain after the cuts; files of other programs are rewritten."""
        remaining = list[Entry]()
        for each in entries:
            if each.shard is not None:
                cut = shards[each.shard].cut
                if cut is None or each.first < cut.number:
                    remaining.append(each)
                continue
            rest = [record for record in each.records if not _is_cut(record, shards)]
            remaining += [each] if len(rest) == len(each.records) else self._theirs(rest)
        return remaining

    def stage(
        self,
        base: Snapshot,
        paths: Sequence[str],
        number: int,
        state: dict[ShardId, PublishedShard],
        shards: dict[ShardId, ShardPlan],
        swap: Swap | None = None,
    ) -> Planned:
        """Stage a snapshot after another one, with its state file."""
        name, snapshot = self.name("publication"), len(self.staged)
        self.staged[snapshot] = Snapshot(snapshot, name, tuple(paths), base.id, self.history + 1)
        planned = Planned(name, number, snapshot, base.id, shards, swap)
        self.planned[snapshot], self.states[name] = planned, state
        return planned

    def accept(self, planned: Planned) -> None:
        """Make a snapshot the newest; it is tagged, like the last settled one."""
        snapshot = self.staged[planned.snapshot]
        if snapshot.sequence <= self.history:
            snapshot = replace(snapshot, sequence=self.history + 1)
            self.staged[snapshot.id] = snapshot
        self.current, self.history, self.mark = snapshot, snapshot.sequence, planned
        self.there.add(snapshot.id)
        self.tags = {self.ledger.group.snapshot, snapshot.id}
        records = [record[:2] for record in self.records_of(snapshot.files)]
        if len(set(records)) != len(records):
            twice = [record for record, count in Counter(records).items() if count > 1]
            self.violations.append(f"{planned.id} has these records twice: {twice}")

    # -- the operator ---------------------------------------------------------------------------

    def adopt(self, epoch: int, group: Group, seen: State) -> Steps:
        """Accept the table, undo what others did to it, or roll a restored ledger forward."""
        last = self.staged[group.snapshot]
        mark = seen.mark
        ahead = mark is not None and mark.number > group.number
        files, number = seen.snapshot.files, group.number + 1
        if ahead:
            assert mark is not None
            number = mark.number + 1
            expected = sum(each.records for each in self.states[mark.id].values())
            as_marked = replace(group, last=mark.id, snapshot=mark.snapshot)
            if self._rolled_back(as_marked, seen) or expected != len(self.records_of(files)):
                files = self.staged[mark.snapshot].files
        elif mark is not None and (mark.id != group.last or self._rolled_back(group, seen)):
            files = last.files
        fence = self.stage(seen.snapshot, files, number, {}, {})
        basis = mark.id if ahead and mark else group.last
        state = self.states.get(basis, {shard: PublishedShard(0, 0, 0, 0, ()) for shard in SHARDS})
        self.states[fence.id] = state
        yield
        # It needs no record: it changes nothing, and requests before it can no longer arrive.
        self.arrive(fence)
        if self.current.id != fence.snapshot:
            return
        yield
        entries = self.files(files)
        counts = {
            shard: sum(r[0] == shard for each in entries for r in each.records) for shard in SHARDS
        }
        if ahead:
            self.ledger.follow(epoch, fence, state, entries)
        else:
            self.ledger.accept(epoch, fence, counts)

    def adopt_newest(self, epoch: int) -> Steps:
        """After a restored default catalog: continue from the newest staged publication."""
        group = self.ledger.group
        # Files of publications after the restoration take precedence over older ones.
        later = [each for id, each in self.planned.items() if id > group.snapshot]
        newest = max(later, key=lambda each: (each.number, each.snapshot), default=None)
        yield
        if newest is not None and newest.number > group.number:
            entries = self.files(self.staged[newest.snapshot].files)
            if self.ledger.follow(epoch, newest, self.states[newest.id], entries):
                self.accept(newest)
        self.restored = False

    # -- the reader -----------------------------------------------------------------------------

    def newest(self) -> Snapshot:
        """Return the table's newest snapshot."""
        return self.current

    def _settled(self, planned: Planned) -> None:
        """Compare the snapshot of a settled publication with the ledger."""
        swap = planned.swap
        if swap is not None and swap.replays:
            for each in swap.new:
                self.replayed |= {
                    record[:3] for record in each.records if record[3:] == (swap.replays,)
                }
        if self.touched or self.restored:
            return
        self._compare(self.staged[planned.snapshot].files, planned.id)

    def _compare(self, paths: Sequence[str], when: str) -> None:
        """Compare files with the published part of the ledger, before the cuts."""
        shards = self.ledger.shards
        cuts = {name: own.cut.number for name, own in shards.items() if own.cut}
        table = {
            record[:3]
            for record in self.records_of(paths)
            if is_ours(record) and record[2] < cuts.get(record[0], NO_CUT)
        }
        optional = set[tuple[ShardId, int, int]]()
        expected = set[tuple[ShardId, int, int]]()
        for shard, rows in self.ledger.batches.items():
            own = shards[shard]
            for each in rows:
                if each.withdrawn or each.number >= own.published:
                    continue
                for cursor in range(each.start, each.end):
                    if each.first < each.number:
                        numbers = range(each.first, each.number + 1)
                        optional |= {(shard, cursor, number) for number in numbers}
                        continue
                    record = (shard, cursor, each.number)
                    must = cursor % DROPPED_EVERY or record in self.replayed
                    if must and record[:2] not in self.deleted:
                        expected.add(record)
                    else:
                        optional.add(record)
        if missing := expected - table:
            self.violations.append(f"{when}: the table lacks {sorted(missing)}")
        if surplus := table - expected - optional:
            self.violations.append(f"{when}: the table also has {sorted(surplus)}")

    def _is_up_to_date(self) -> bool:
        ledger = self.ledger
        if ledger.group.pending or (not self.elsewhere and self.restored):
            return False
        if any(each.cut for each in ledger.shards.values()):
            return False
        if any(
            self.rules.is_named(each, ledger.shards[shard])
            for shard, rows in ledger.batches.items()
            for each in rows
        ):
            return False
        return not self.elsewhere or not self.trouble(ledger.group, State(self.current, self.mark))

    def _check_end(self) -> None:
        if self.violations:
            return
        for request in self.requests:
            self.arrive(request)
        self._compare(self.current.files, "at the end")
        covered = {record[:2] for record in self.records_of(self.current.files)}
        for shard, rows in self.ledger.batches.items():
            for each in rows:
                for cursor in range(each.start, each.end):
                    needed = cursor % DROPPED_EVERY and (shard, cursor) not in self.deleted
                    if not each.withdrawn and needed and (shard, cursor) not in covered:
                        self.violations.append(f"at the end, the table lacks {shard} {cursor}")
        gone = [path for path in self.current.files if self.entry(path).path not in self.disk]
        if gone:
            self.violations.append(f"at the end, files of the table are removed: {gone}")


def _is_cut(record: Record, shards: dict[ShardId, Shard]) -> bool:
    cut = shards[record[0]].cut
    return cut is not None and is_ours(record) and record[1] >= cut.cursor


def _is_within(record: Record, shard: ShardId, start: int, end: int) -> bool:
    return is_ours(record) and record[0] == shard and start <= record[1] < end


def is_ours(record: Sequence[object]) -> bool:
    """Return True for a record of the log; other programs add records without a number."""
    return len(record) > 2


def failures(
    numbers: Iterable[int], steps: int, world: Callable[[int], World] = World
) -> dict[int, list[str]]:
    """Return the violations of these histories."""
    violations = {number: world(number).run(steps) for number in numbers}
    return {number: each for number, each in violations.items() if each}
