"""Proof of one shard's history: pure rules over its journal and its ledger, row by row.

Rows are taken from iterators, the journal's first; what is remembered is one value per tenure and
per forced checkpoint. Where an earlier proof has covered rows that are not there any more, its
`Proven` is where this one begins.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules.batch_rules import is_before
from dagster_leasehold.lease_store.shard_rows import ShardLease

_BUCKETS = 256

Tenures = Mapping[tuple[int, str], NodeName | None]
Finding = tuple[str, str]
"""A broken rule and how it is broken, without the shard's name."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a history breaks.

    `rule` is one of `overlap` (two tenures at once), `epoch` (a fencing number that did not
    rise), `order` (a child before its parents), `ledger` (a gap or an overlap of batches),
    `checkpoint` (one that is not where the ledger ends), `fence` (a batch without its tenure),
    `files` (a file that two batches list, or one beside a merged file that holds its records),
    `withdrawn` (a batch that was taken back without a forced checkpoint before it).
    """

    rule: str
    shard: ShardId | None
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: shard {self.shard}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Opening:
    """An entry of the journal that opened a tenure."""

    sequence: int
    epoch: int
    run: str
    owner: NodeName | None


@dataclass(frozen=True, slots=True)
class Force:
    """A forced checkpoint: its epoch tells between which batches it came."""

    epoch: int
    check_point: str | None


@dataclass(frozen=True, slots=True)
class End:
    """A committed batch that others may follow, or the last one of those that were removed."""

    number: int
    cursor: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Proven:
    """What an earlier proof covers of a shard: rows that came first and may be removed.

    The journal and the ledger are covered independently of one another, each from its beginning.

    Attributes:
        epoch: the highest epoch of the covered journal.
        open: the tenure that was open at the covered journal's end.
        tenures: openings of the covered journal under which batches that are not covered may
            have been committed.
        forces: forced checkpoints of the covered journal with a higher epoch than `last`.
        last: the last covered batch.
        entries_until: entries up to this number are covered, although some of them are still there.
        fenced_until: of batches with lower numbers, which are still there, the tenures are covered.
        fenced_epoch: the highest epoch of those.
        skipped: gaps that were removed, from and to which cursor.
        violations: what was found in rows that were removed, as rule and detail.
    """

    epoch: int = 0
    open: Opening | None = None
    tenures: tuple[Opening, ...] = ()
    forces: tuple[Force, ...] = ()
    last: End | None = None
    entries_until: int = 0
    fenced_until: int = 0
    fenced_epoch: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    violations: tuple[Finding, ...] = ()


NOTHING_PROVEN = Proven()


@dataclass(slots=True)
class ShardHistory:
    """The rows of one shard that are to be proven.

    Attributes:
        lease: its row, if it has one.
        journal: its entries in order.
        batches: its committed and withdrawn batches in order; read after the journal.
        gaps: its gaps.
        proven: what came before these rows.
        settled: the checkpoint belongs to the ledger's end, and can be compared with it.
    """

    shard: ShardId
    lease: ShardLease | None = None
    journal: Iterable[JournalEntry] = ()
    batches: Iterable[Batch] = ()
    gaps: Iterable[Gap] = ()
    proven: Proven = NOTHING_PROVEN
    settled: bool = True


@dataclass(slots=True)
class ShardProof:
    """The outcome of one shard.

    Attributes:
        violations: in the order of the rules.
        tenures: openings that were looked at.
        batches: committed batches that were looked at.
    """

    violations: list[Violation] = field(default_factory=list[Violation])
    tenures: int = 0
    batches: int = 0


def prove_shard(history: ShardHistory, seen: Callable[[Batch], None] | None = None) -> ShardProof:
    """Check every rule that concerns a shard alone; `seen` gets each committed batch."""
    journal = JournalProof(history.shard, history.proven)
    for entry in history.journal:
        journal.take(entry)
    journal.end(history.lease)
    skipped = _skipped(history.gaps, history.proven.skipped)
    ledger = _LedgerProof(history.shard, history.proven, journal, skipped)
    for batch in history.batches:
        if batch.state is BatchState.COMMITTED:
            ledger.take(batch)
            if seen is not None:
                seen(batch)
        elif batch.state is BatchState.WITHDRAWN:
            ledger.take_withdrawn(batch)
    ledger.end(history.lease if history.settled else None)
    before = [Violation(rule, history.shard, how) for rule, how in history.proven.violations]
    return ShardProof(
        before + journal.violations + ledger.violations,
        tenures=journal.opened,
        batches=ledger.committed,
    )


class JournalProof:
    """Tenures follow one another: each closed before the next, under a higher epoch.

    Attributes:
        violations: what was found so far.
        opened: openings that were looked at.
        epoch: the highest epoch so far.
        current: the tenure that is open.
        newest: the tenure that was opened last.
        tenures: all of them, as far as they are remembered.
        forces: all forced checkpoints, as far as they are remembered.
    """

    def __init__(self, shard: ShardId | None, proven: Proven) -> None:
        self.violations: list[Violation] = []
        self.opened = 0
        self.epoch = proven.epoch
        self.current = proven.open
        self.newest = max(proven.tenures, key=lambda each: each.epoch, default=proven.open)
        self.tenures = {(each.epoch, each.run): each.owner for each in proven.tenures}
        self.forces = list(proven.forces)
        self._shard = shard
        self._until = proven.entries_until
        if self.current is not None:
            self.tenures[self.current.epoch, self.current.run] = self.current.owner

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
                "epoch",
                f"its row has epoch {lease.consumer_epoch}, the journal only {self.epoch}",
            )

    def _violated(self, rule: str, detail: str) -> None:
        self.violations.append(Violation(rule, self._shard, detail))


class _LedgerProof:
    """Batches join end to start, each under its tenure; merged files hold what they say."""

    def __init__(
        self,
        shard: ShardId,
        proven: Proven,
        journal: JournalProof,
        skipped: Mapping[str, Sequence[str]],
    ) -> None:
        self.committed = 0
        self._shard = shard
        self._last = proven.last
        self._epoch = max(proven.last.epoch if proven.last else 0, proven.fenced_epoch)
        self._fenced_until = proven.fenced_until
        self._tenures: Tenures = journal.tenures
        self._forces = journal.forces
        self._skipped = skipped
        self._carriers = {False: ("", 0), True: ("", 0)}
        self._found: dict[str, list[Violation]] = {
            rule: [] for rule in ("ledger", "checkpoint", "fence", "withdrawn", "files")
        }

    @property
    def violations(self) -> list[Violation]:
        """What was found, rule by rule."""
        return [violation for found in self._found.values() for violation in found]

    def take(self, batch: Batch) -> None:
        """Take the next committed batch."""
        self.committed += 1
        self._check_join(batch)
        if batch.sequence >= self._fenced_until:
            for detail in fence_details(batch, self._tenures, self._epoch):
                self._violated("fence", detail)
        self._epoch = max(self._epoch, until_epoch(batch))
        self._check_merged(batch)
        self._last = End(batch.last, batch.end, until_epoch(batch))

    def _check_join(self, batch: Batch) -> None:
        """Only a recorded gap or a forced checkpoint may come between two batches."""
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
        """A merged file holds the records of whole batches, which list none themselves."""
        for quarantine in (False, True):
            carrier, left = self._carriers[quarantine]
            files = [file for file in batch.files if file.quarantine == quarantine]
            if left and files:
                detail = f"lists {files[0].path}, but {carrier} holds its records already"
                self._violated("files", f"batch {batch.sequence} {detail}")
            for file in files:
                if file.batches > left:
                    carrier, left = file.path, file.batches
            self._carriers[quarantine] = (carrier, max(left - batch.batches, 0))

    def take_withdrawn(self, batch: Batch) -> None:
        """What was committed is taken back only by a later forced checkpoint that lies before."""
        if detail := withdrawal_detail(batch, self._forces):
            self._violated("withdrawn", detail)

    def end(self, lease: ShardLease | None) -> None:
        """Compare the end with the shard's checkpoint, where a row is given.

        A shard without any batch belongs to a client that keeps no ledger: its checkpoint is its
        own.
        """
        for carrier, left in self._carriers.values():
            if left:
                detail = f"{carrier} holds {left} more batches than the ledger has behind it"
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
        """Where a shard may go on after `former` and before a batch of an epoch, or now.

        A forced checkpoint that went back has withdrawn all that lay behind it, so that it
        excuses no batch that is left.
        """
        cursor = former.cursor
        for force in self._forces if epoch is None or epoch > former.epoch else ():
            between = former.epoch < force.epoch and (epoch is None or force.epoch < epoch)
            if between and force.check_point and not is_before(force.check_point, former.cursor):
                cursor = force.check_point
        return _reachable(cursor, self._skipped)

    def _violated(self, rule: str, detail: str) -> None:
        self._found[rule].append(Violation(rule, self._shard, detail))


def until_epoch(batch: Batch) -> int:
    """The epoch of the last batch that a ledger row stands for."""
    return batch.epoch if batch.last_epoch is None else batch.last_epoch


def fence_details(batch: Batch, tenures: Tenures, epoch: int) -> list[str]:
    """How a committed batch was not written under a tenure that had been opened, in its turn.

    `epoch` is the highest one of the batches before it.
    """
    found: list[str] = []
    tenure = (batch.epoch, batch.run)
    if tenure not in tenures:
        found.append(f"was committed under epoch {batch.epoch} of run {batch.run}, never opened")
    elif tenures[tenure] != batch.holder:
        opener = tenures[tenure]
        found.append(f"was committed by {batch.holder}, but its tenure was opened by {opener}")
    if batch.epoch < epoch:
        found.append(f"has epoch {batch.epoch}, but one before it already had epoch {epoch}")
    return [f"batch {batch.sequence} {how}" for how in found]


def withdrawal_detail(batch: Batch, forces: Iterable[Force]) -> str:
    """How a withdrawn batch lacks the forced checkpoint that took it back; empty if it does not."""
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


def _skipped(gaps: Iterable[Gap], removed: Iterable[tuple[str, str]] = ()) -> dict[str, list[str]]:
    """The ends of skipped gaps by their start; those of removed ones too."""
    found: dict[str, list[str]] = {}
    for start, end in removed:
        found.setdefault(start, []).append(end)
    for gap in gaps:
        if gap.skipped:
            found.setdefault(gap.start, []).append(gap.end)
    return found


def _reachable(cursor: str, skipped: Mapping[str, Sequence[str]]) -> set[str]:
    """The cursors at which a batch after `cursor` may start, skipped gaps followed."""
    found: set[str] = set()
    pending = [cursor]
    while pending:
        at = pending.pop()
        if at not in found:
            found.add(at)
            pending += skipped.get(at, ())
    return found


def _difference(end: str, start: str) -> str:
    """What lies between two cursors, where they can be told apart by their numbers."""
    if end.isdecimal() and start.isdecimal():
        if int(start) > int(end):
            return f"{int(start) - int(end)} are missing, and no gap is recorded"
        return f"{int(end) - int(start)} are committed twice, and no forced checkpoint is recorded"
    return "neither a gap nor a forced checkpoint is recorded between them"


class PathLedger:
    """Finds paths that two batches list, in eight bytes for each path.

    Paths are compared by their hashes; `doubled` gives the few that have to be looked at again.
    """

    def __init__(self) -> None:
        self._hashes = [array("q") for _ in range(_BUCKETS)]

    def take(self, batch: Batch) -> None:
        """Take the files of a committed batch."""
        for path in {file.path for file in batch.files}:
            hashed = hash(path)
            self._hashes[hashed % _BUCKETS].append(hashed)

    def join(self, other: PathLedger) -> None:
        """Take all that another one has taken."""
        for own, more in zip(self._hashes, other._hashes, strict=True):
            own.extend(more)

    def doubled(self) -> set[int]:
        """The hashes that were taken more than once."""
        found: set[int] = set()
        for bucket in self._hashes:
            ordered = sorted(bucket)
            found.update(one for one, next_ in pairwise(ordered) if one == next_)
        return found


def doubled_files(batches: Iterable[Batch], hashes: set[int] | None = None) -> Iterator[Violation]:
    """The files that two of these committed batches list; of all paths, or of some hashes."""
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
