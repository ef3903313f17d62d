"""Proofs of a group's history, for `verification`: its tenures, its batches and its shards' order.

A proof takes rows in order, and begins where the shard's summary of its deleted rows ends.

* **The journal**: each tenure is closed before the next one, which has a higher epoch.
* **The ledger**: no record is committed twice. A batch does not end before it starts, a gap leads
  forward, and each batch starts at the end of the one before it. Between two batches there can only
  be a skipped gap, or a forced checkpoint that does not go back.
* **The order**: an ordered group reads no shard before its parents are over. There are two
  exceptions: the shard became free while the group was unordered; or its parent was reopened, while
  the group was unordered or by an operator who accepted that. Rolling a shard forward to its table
  does not count as reading, because the journal of the original reading is lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.cursors import in_order, is_before
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import End, Opening, ShardSummary

_BUCKETS = 256


Tenures = Mapping[tuple[int, str], NodeName | None]
"""The owner of each opened tenure, by epoch and run."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a history breaks.

    Attributes:
        rule: `overlap` (two tenures at once), `epoch` (a fencing number that did not increase),
            `order` (a child before its parents), `ledger` (a gap or an overlap of batches),
            `checkpoint` (not the end of the ledger), `fence` (a batch without its tenure), `files`
            (a file in two batches, or one whose records are also in a merged file), or `withdrawn`
            (a batch that was withdrawn without a forced checkpoint).
    """

    rule: str
    shard: ShardId | None
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: shard {self.shard}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Force:
    """A forced checkpoint."""

    epoch: int
    check_point: str | None


class JournalProof:
    """Each tenure is closed before the next, which has a higher epoch.

    Attributes:
        tenures: the owners of all tenures, by epoch and run.
    """

    def __init__(self, summary: ShardSummary) -> None:
        self.violations: list[Violation] = []
        self.opened = 0
        self.epoch = summary.epoch
        self.newest = summary.opening
        self.current = summary.opening if summary.open else None
        self.tenures: dict[tuple[int, str], NodeName | None] = {}
        self.forces: list[Force] = []
        self._shard = summary.shard
        self._until = summary.journal_until
        if self.newest is not None:
            self.tenures[self.newest.epoch, self.newest.run] = self.newest.owner

    def take(self, entry: JournalEntry) -> None:
        """Take the next entry."""
        if entry.kind == "force":
            self.forces.append(Force(entry.epoch, entry.check_point))
        if entry.sequence <= self._until:
            return
        if entry.kind == "open":
            if self.current is not None:
                self._violated(
                    "overlap",
                    f"run {entry.run} opened it at entry {entry.sequence} while run "
                    f"{self.current.run} had it open since entry {self.current.sequence}",
                )
            self.current = Opening(entry.sequence, entry.epoch, entry.run, entry.to_owner)
            self.newest = self.current
            self.tenures[entry.epoch, entry.run] = entry.to_owner
            self.opened += 1
        elif entry.kind == "close" and self.current and entry.run == self.current.run:
            self.current = None
        if entry.kind in ("open", "force"):
            if entry.epoch <= self.epoch:
                self._violated(
                    "epoch",
                    f"entry {entry.sequence} has epoch {entry.epoch} after epoch {self.epoch}",
                )
            self.epoch = max(self.epoch, entry.epoch)

    def end(self, lease: ShardLease | None) -> None:
        """Compare the end with the shard's row."""
        if lease is not None and lease.consumer_epoch > self.epoch:
            self._violated(
                "epoch", f"its row has epoch {lease.consumer_epoch}, the journal only {self.epoch}"
            )

    def _violated(self, rule: str, detail: str) -> None:
        self.violations.append(Violation(rule, self._shard, detail))


@dataclass(slots=True)
class _Life:
    """A shard's last events in the journal so far, as numbers of entries.

    Attributes:
        over: the end; -1 if there was none.
        reopened: the reopening; -1 if there was none.
        reopened_in_order: True if the group was ordered then.
        free: when it became free to start, if it is free.
        free_in_order: True if the group was ordered then.
        accepted: by parent, the acceptance of its reopening.
        without: by parent, a start before the parent was listed.
    """

    listed: int | None = None
    over: int = -1
    reopened: int = -1
    reopened_in_order: bool = True
    free: int | None = None
    free_in_order: bool = True
    accepted: dict[str, int] = field(default_factory=dict[str, int])
    without: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class _Course:
    """The entries, read as if the group was initially ordered, or as if it was not."""

    parents: Mapping[ShardId, Sequence[ShardId]]
    children: Mapping[ShardId, Sequence[ShardId]]
    ordered: bool
    lives: dict[ShardId, _Life] = field(default_factory=dict[ShardId, _Life])
    early: dict[ShardId, str] = field(default_factory=dict[ShardId, str])

    def take(self, entry: JournalEntry, shard: ShardId) -> None:
        life = self.lives.setdefault(shard, _Life())
        if entry.kind == "edge":
            self._note_edge(entry, shard, life)
        if entry.kind == "accept":
            life.accepted[entry.facts.get("parent", "")] = entry.sequence
        if entry.to_state is ShardState.WAIT:
            life.free = None
            life.without.clear()
        # Edges 1 and 2 make a shard free to start.
        began = (None, ShardState.WAIT)
        freed = entry.to_state is ShardState.NOT_ALLOC and entry.from_state in began
        if freed:
            life.free, life.free_in_order = entry.sequence, self.ordered
        read = entry.kind == "open" and "rolled_forward" not in entry.facts
        starts = read or entry.to_state is ShardState.ALREADY_ALLOC
        if shard not in self.early and (freed or starts):
            self._check(entry, shard, life)

    def _note_edge(self, entry: JournalEntry, shard: ShardId, life: _Life) -> None:
        if entry.from_state is None:
            life.listed = entry.sequence
            for child in self.children.get(shard, ()):
                # The child started without it, so it was read out of order.
                started = self.lives.get(child)
                if started is not None and shard in started.without:
                    self._blame(child, started.without[shard], shard)
        if entry.to_state is ShardState.OVER:
            life.over = entry.sequence
        if entry.from_state is ShardState.OVER:
            life.reopened, life.reopened_in_order = entry.sequence, self.ordered

    def _check(self, entry: JournalEntry, shard: ShardId, life: _Life) -> None:
        if not (self.ordered if life.free is None else life.free_in_order):
            return
        for parent in self.parents.get(shard, ()):
            before = self.lives.get(parent)
            if before is None or before.listed is None:
                # This is a violation only if a later entry lists the parent.
                life.without.setdefault(parent, entry.sequence)
                continue
            accepted = life.accepted.get(parent)
            if before.over <= before.reopened and not _excused(before, accepted):
                self._blame(shard, entry.sequence, parent)
                return

    def _blame(self, shard: ShardId, started: int, parent: ShardId) -> None:
        sentence = f"it could start at entry {started}, before its parent {parent} was over"
        self.early.setdefault(shard, sentence)


class OrderProof:
    """Finds the shards of a group that started too early, from its journal in order.

    The journal shows whether the group was initially ordered only when that changes. Until then the
    entries are read under both assumptions. `parents` has every shard of the group.
    """

    def __init__(self, parents: Mapping[ShardId, Sequence[ShardId]]) -> None:
        children: dict[ShardId, list[ShardId]] = {}
        for child, own_parents in parents.items():
            for parent in own_parents:
                children.setdefault(parent, []).append(child)
        self._courses = {ordered: _Course(parents, children, ordered) for ordered in (True, False)}

    def take(self, entry: JournalEntry) -> None:
        """Take the next entry."""
        if entry.kind == "group" and "ordered" in entry.facts:
            before, after = entry.facts["ordered"]
            course = self._course(before)
            course.ordered = after
            self._courses = {after: course}
        if entry.shard is not None:
            for course in self._courses.values():
                course.take(entry, entry.shard)

    def violations(self, *, ordered: bool) -> list[tuple[ShardId, str]]:
        """Return the shards that started too early, with details; `ordered` is as it is now."""
        early = self._course(ordered).early
        return [(shard, early[shard]) for shard in sorted(early, key=rank_key)]

    def _course(self, ordered: bool) -> _Course:
        return self._courses.get(ordered) or next(iter(self._courses.values()))


def _excused(parent: _Life, accepted: int | None) -> bool:
    """Return True if a parent that is not over was reopened out of order with permission.

    The acceptance is recorded just before the reopening.
    """
    if parent.reopened < 0:
        return False
    return not parent.reopened_in_order or (accepted is not None and accepted > parent.over)


def check_order(
    parents: Mapping[ShardId, Sequence[ShardId]], journal: Iterable[JournalEntry], *, ordered: bool
) -> list[tuple[ShardId, str]]:
    """Return the shards that started too early, with details; see `OrderProof`."""
    proof = OrderProof(parents)
    for entry in sorted(journal, key=lambda entry: entry.sequence):
        proof.take(entry)
    return proof.violations(ordered=ordered)


class LedgerProof:
    """Batches are contiguous, each under its tenure; merged files have whole batches."""

    def __init__(self, summary: ShardSummary, journal: JournalProof, gaps: Iterable[Gap]) -> None:
        self.committed = 0
        self._shard = summary.shard
        self._last = summary.expired.last if summary.expired else None
        self._epoch = max(self._last.epoch if self._last else 0, summary.proven_epoch)
        self._proven_until = summary.proven_until
        self._tenures: Tenures = journal.tenures
        self._forces = journal.forces
        self._skipped: dict[str, list[str]] = {}
        self._carriers = {False: ("", 0), True: ("", 0)}
        self._broken: dict[str, list[Violation]] = {
            rule: [] for rule in ("ledger", "checkpoint", "fence", "withdrawn", "files")
        }
        for start, end in summary.skips:
            self._take_gap(start, end, skipped=True)
        for gap in gaps:
            self._take_gap(gap.start, gap.end, skipped=gap.skipped)

    @property
    def last(self) -> End | None:
        """The end of the last batch."""
        return self._last

    @property
    def violations(self) -> list[Violation]:
        """The violations, by rule."""
        return [violation for broken in self._broken.values() for violation in broken]

    def _take_gap(self, start: str, end: str, *, skipped: bool) -> None:
        if not in_order(start, end):
            self._violated("ledger", f"a gap leads from {start} back to {end}")
        elif skipped:
            self._skipped.setdefault(start, []).append(end)

    def take(self, batch: Batch) -> None:
        """Take the next committed batch."""
        self.committed += 1
        if not in_order(batch.start, batch.end):
            detail = f"starts at {batch.start} and ends before that, at {batch.end}"
            self._violated("ledger", f"batch {batch.sequence} {detail}")
        self._check_join(batch)
        if batch.sequence >= self._proven_until:
            for detail in fence_details(batch, self._tenures, self._epoch):
                self._violated("fence", detail)
        self._epoch = max(self._epoch, until_epoch(batch))
        self._check_merged(batch)
        self._last = End(batch.last, batch.end, until_epoch(batch))

    def _check_join(self, batch: Batch) -> None:
        former = self._last
        if former is None:
            return
        if batch.start not in self._continuations(former, batch.epoch):
            how = _difference(former.cursor, batch.start)
            self._violated(
                "ledger",
                f"batch {batch.sequence} starts at {batch.start}, but batch {former.number} "
                f"ended at {former.cursor}: {how}",
            )
        if batch.sequence <= former.number:
            self._violated("ledger", f"batch {batch.sequence} is committed twice")

    def _check_merged(self, batch: Batch) -> None:
        """Check that the batches of a merged file list no file themselves."""
        for quarantine in (False, True):
            carrier, remaining = self._carriers[quarantine]
            files = [file for file in batch.files if file.quarantine == quarantine]
            if remaining and files:
                detail = f"lists {files[0].path}, but {carrier} already has its records"
                self._violated("files", f"batch {batch.sequence} {detail}")
            for file in files:
                if file.batches > remaining:
                    carrier, remaining = file.path, file.batches
            self._carriers[quarantine] = (carrier, max(remaining - batch.batches, 0))

    def take_withdrawn(self, batch: Batch) -> None:
        """Take the next withdrawn batch."""
        if detail := withdrawal_detail(batch, self._forces):
            self._violated("withdrawn", detail)

    def end(self, lease: ShardLease | None) -> None:
        """Compare the end with the shard's checkpoint, if a row is given.

        A shard without batches belongs to a client without a ledger.
        """
        for carrier, remaining in self._carriers.values():
            if remaining:
                detail = f"{carrier} has {remaining} batches that do not follow it in the ledger"
                self._violated("files", detail)
        last = self._last
        if lease is None or last is None:
            return
        if lease.check_point is None:
            self._violated("checkpoint", "it has batches, but no checkpoint")
        elif lease.check_point not in self._continuations(last, None):
            how = _difference(last.cursor, lease.check_point)
            detail = f"it is at {lease.check_point}, but the ledger ends at {last.cursor}: {how}"
            self._violated("checkpoint", detail)

    def _continuations(self, former: End, epoch: int | None) -> set[str]:
        """Return where a shard can continue after `former`, before a batch of an epoch or now.

        A force that went back has withdrawn the batches after it, so it excuses no other batch.
        """
        cursor = former.cursor
        for force in self._forces if epoch is None or epoch > former.epoch else ():
            between = former.epoch < force.epoch and (epoch is None or force.epoch < epoch)
            if between and force.check_point and in_order(former.cursor, force.check_point):
                cursor = force.check_point
        return _reachable(cursor, self._skipped)

    def _violated(self, rule: str, detail: str) -> None:
        self._broken[rule].append(Violation(rule, self._shard, detail))


def until_epoch(batch: Batch) -> int:
    """Return the epoch of the last batch in a ledger row."""
    return batch.epoch if batch.last_epoch is None else batch.last_epoch


def fence_details(batch: Batch, tenures: Tenures, epoch: int) -> list[str]:
    """Return the violations of a committed batch's tenure; `epoch` is the highest one before it."""
    details: list[str] = []
    tenure = (batch.epoch, batch.run)
    if tenure not in tenures:
        details.append(f"was committed under epoch {batch.epoch} of run {batch.run}, never opened")
    elif tenures[tenure] != batch.holder:
        opener = tenures[tenure]
        details.append(f"was committed by {batch.holder}, but its tenure was opened by {opener}")
    if batch.epoch < epoch:
        details.append(f"has epoch {batch.epoch}, but an earlier batch had epoch {epoch}")
    return [f"batch {batch.sequence} {how}" for how in details]


def withdrawal_detail(batch: Batch, forces: Iterable[Force]) -> str:
    """Return the violation of a batch that was withdrawn without a forced checkpoint, or empty."""
    if any(
        force.epoch > until_epoch(batch)
        and (force.check_point is None or not is_before(batch.start, force.check_point))
        for force in forces
    ):
        return ""
    return (
        f"batch {batch.sequence} was committed under epoch {batch.epoch} and withdrawn, "
        f"but no checkpoint was forced to {batch.start} or before since then"
    )


def _reachable(cursor: str, skipped: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the cursors reachable from a cursor by skipped gaps."""
    reached: set[str] = set()
    pending = [cursor]
    while pending:
        at = pending.pop()
        if at not in reached:
            reached.add(at)
            pending += skipped.get(at, ())
    return reached


def _difference(end: str, start: str) -> str:
    if not (in_order(end, start) or is_before(start, end)):
        return "they cannot be ordered"
    numbers = abs(int(end) - int(start)) if end.isdecimal() and start.isdecimal() else "records"
    if is_before(start, end):
        return f"{numbers} are committed twice, and no forced checkpoint is recorded"
    return f"{numbers} are missing, and no gap is recorded"


class PathLedger:
    """Finds the paths that two batches list, with eight bytes of memory for each path.

    It compares hashes; `doubled_files` then compares the paths of colliding hashes.
    """

    def __init__(self) -> None:
        # Sorted bucket by bucket, so that sorting takes little memory.
        self._buckets = [array("q") for _ in range(_BUCKETS)]

    def take(self, batch: Batch) -> None:
        """Take the files of a committed batch."""
        for path in {file.path for file in batch.files}:
            hashed = hash(path)
            self._buckets[hashed % _BUCKETS].append(hashed)

    def join(self, other: PathLedger) -> None:
        """Take the paths of another one."""
        for bucket, more in zip(self._buckets, other._buckets, strict=True):
            bucket.extend(more)

    def doubled(self) -> set[int]:
        """Return the hashes that were taken more than once."""
        ordered = (sorted(bucket) for bucket in self._buckets)
        return {one for bucket in ordered for one, next_ in pairwise(bucket) if one == next_}


def doubled_files(batches: Iterable[Batch], hashes: set[int] | None = None) -> Iterator[Violation]:
    """Yield the files that two committed batches list: of all paths, or of some hashes."""
    listed: dict[str, Batch] = {}
    for batch in batches:
        if batch.state is not BatchState.COMMITTED:
            continue
        for file in batch.files:
            if hashes is not None and hash(file.path) not in hashes:
                continue
            other = listed.setdefault(file.path, batch)
            if other.batch_id != batch.batch_id:
                detail = f"{file.path} is listed by {other.batch_id} and by {batch.batch_id}"
                yield Violation("files", batch.shard, detail)
