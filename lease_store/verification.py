"""Proof after the fact: what the journal and the ledger of a live deployment show.

Pure rules over records, so that the same check runs on a store, on a copy of one, and at every
step of a simulation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from lease_store.assignment_plan import rank_key
from lease_store.identifiers import GroupKey, ShardId
from lease_store.order_proof import check_order
from lease_store.records import Batch, BatchState, Gap, JournalEntry, ShardLease
from lease_store.store import LeaseStore

READINGS_MAX = 3


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


def verify(store: LeaseStore, key: GroupKey) -> list[Violation]:
    """Check the whole history of a group as the store has it now; an empty list is the proof.

    A shard that is committed to while it is read is read again; one that never holds still for
    as long as that takes is checked without comparing its checkpoint. Of the rest, what is read
    first is the older: shards before ledger before journal, so that growth cannot look wrong.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    readings = 0
    while True:
        before = store.snapshot(key)
        batches = store.batches(key, state=None)
        gaps = store.gaps(key)
        journal = store.journal(key)
        after = {lease.shard: lease.check_point for lease in store.snapshot(key).shards}
        moving = {
            lease.shard for lease in before.shards if lease.check_point != after.get(lease.shard)
        }
        readings += 1
        if not moving or readings == READINGS_MAX:
            break
    return check_history(
        before.shards, journal, batches, gaps, ordered=before.group.ordered, moving=moving
    )


def check_history(
    shards: Iterable[ShardLease],
    journal: Sequence[JournalEntry],
    batches: Sequence[Batch],
    gaps: Sequence[Gap],
    *,
    ordered: bool,
    moving: Collection[ShardId] = (),
) -> list[Violation]:
    """Every promise that a history of a group breaks, by shard.

    `ordered` is the group's setting now; what it was before is read from the journal. `moving`
    shards were committed to while they were read: their checkpoints are not compared.
    """
    histories = _by_shard(shards, journal, batches, gaps)
    violations: list[Violation] = []
    for shard in sorted(histories, key=rank_key):
        history = histories[shard]
        violations += _check_tenures(history)
        violations += _check_ledger(history)
        violations += _check_checkpoint(history) if shard not in moving else []
        violations += _check_fences(history)
        violations += _check_withdrawn(history)
        violations += _check_merged(history)
    parents = {
        shard: history.lease.parents for shard, history in histories.items() if history.lease
    }
    violations += [
        Violation("order", shard, detail)
        for shard, detail in check_order(parents, journal, ordered=ordered)
    ]
    violations += _check_files(batches)
    return violations


@dataclass(slots=True)
class _History:
    """All that is known about one shard, each list in the order in which it happened."""

    shard: ShardId
    lease: ShardLease | None = None
    journal: list[JournalEntry] = field(default_factory=list[JournalEntry])
    batches: list[Batch] = field(default_factory=list[Batch])
    withdrawn: list[Batch] = field(default_factory=list[Batch])
    gaps: list[Gap] = field(default_factory=list[Gap])


def _by_shard(
    shards: Iterable[ShardLease],
    journal: Iterable[JournalEntry],
    batches: Iterable[Batch],
    gaps: Iterable[Gap],
) -> dict[ShardId, _History]:
    histories: dict[ShardId, _History] = {}

    def history(shard: ShardId) -> _History:
        return histories.setdefault(shard, _History(shard))

    for lease in shards:
        history(lease.shard).lease = lease
    for entry in sorted(journal, key=lambda entry: entry.sequence):
        if entry.shard is not None:
            history(entry.shard).journal.append(entry)
    for batch in sorted(batches, key=lambda batch: batch.sequence):
        if batch.state is BatchState.COMMITTED:
            history(batch.shard).batches.append(batch)
        elif batch.state is BatchState.WITHDRAWN:
            history(batch.shard).withdrawn.append(batch)
    for gap in gaps:
        history(gap.shard).gaps.append(gap)
    return histories


def _check_tenures(history: _History) -> list[Violation]:
    """Tenures follow one another: each closed before the next, under a higher epoch."""
    violations: list[Violation] = []
    current: JournalEntry | None = None
    epoch = 0
    for entry in history.journal:
        if entry.kind == "open":
            if current is not None:
                violations.append(
                    Violation(
                        "overlap",
                        history.shard,
                        f"run {entry.run} opened it at entry {entry.sequence} while run "
                        f"{current.run} had it open since entry {current.sequence}",
                    )
                )
            current = entry
        elif entry.kind == "close" and current is not None and entry.run == current.run:
            current = None
        if entry.kind in ("open", "force"):
            if entry.epoch <= epoch:
                violations.append(
                    Violation(
                        "epoch",
                        history.shard,
                        f"entry {entry.sequence} has epoch {entry.epoch} after epoch {epoch}",
                    )
                )
            epoch = max(epoch, entry.epoch)
    if history.lease is not None and history.lease.consumer_epoch > epoch:
        violations.append(
            Violation(
                "epoch",
                history.shard,
                f"its row has epoch {history.lease.consumer_epoch}, the journal only {epoch}",
            )
        )
    return violations


def _check_ledger(history: _History) -> list[Violation]:
    """Batches join end to start; only a recorded gap or a forced checkpoint may come between."""
    violations: list[Violation] = []
    former: Batch | None = None
    for batch in history.batches:
        if former is not None and batch.start not in _continuations(history, former, batch):
            how = _difference(former.end, batch.start)
            violations.append(
                Violation(
                    "ledger",
                    history.shard,
                    f"batch {batch.sequence} starts at {batch.start}, but batch {former.sequence} "
                    f"ended at {former.end}: {how}",
                )
            )
        if former is not None and batch.sequence == former.sequence:
            violations.append(
                Violation("ledger", history.shard, f"batch {batch.sequence} is committed twice")
            )
        former = batch
    return violations


def _continuations(history: _History, former: Batch, following: Batch | None) -> set[str]:
    """Where a shard may go on after `former` and before `following`, or now.

    A forced checkpoint has an epoch of its own, which tells between which batches it came. One
    that went back has withdrawn all that lay behind it, so that it excuses no batch that is left.
    """
    before = following.epoch if following else float("inf")
    cursor = former.end
    for entry in history.journal:
        forced = entry.kind == "force" and former.epoch < entry.epoch < before
        if forced and entry.check_point is not None and not _behind(entry.check_point, former.end):
            cursor = entry.check_point
    return _reachable(cursor, [gap for gap in history.gaps if gap.skipped])


def _behind(cursor: str, other: str) -> bool:
    """Whether a cursor is known to come before another one."""
    return cursor.isdecimal() and other.isdecimal() and int(cursor) < int(other)


def _reachable(cursor: str, skipped: Sequence[Gap]) -> set[str]:
    """The cursors at which a batch after `cursor` may start, skipped gaps followed."""
    found: set[str] = set()
    pending = [cursor]
    while pending:
        at = pending.pop()
        if at not in found:
            found.add(at)
            pending += [gap.end for gap in skipped if gap.start == at]
    return found


def _difference(end: str, start: str) -> str:
    """What lies between two cursors, where they can be told apart by their numbers."""
    if end.isdecimal() and start.isdecimal():
        if int(start) > int(end):
            return f"{int(start) - int(end)} are missing, and no gap is recorded"
        return f"{int(end) - int(start)} are committed twice, and no forced checkpoint is recorded"
    return "neither a gap nor a forced checkpoint is recorded between them"


def _check_checkpoint(history: _History) -> list[Violation]:
    """The checkpoint is where the ledger ends.

    A shard without any batch belongs to a client that keeps no ledger: its checkpoint is its own.
    """
    lease = history.lease
    if lease is None or not history.batches:
        return []
    last = history.batches[-1]
    if lease.check_point is None:
        return [Violation("checkpoint", history.shard, "it has batches, but no checkpoint")]
    if lease.check_point in _continuations(history, last, None):
        return []
    how = _difference(last.end, lease.check_point)
    detail = f"it is at {lease.check_point}, but the ledger ends at {last.end}: {how}"
    return [Violation("checkpoint", history.shard, detail)]


def _check_fences(history: _History) -> list[Violation]:
    """Every committed batch was written under a tenure that had been opened, in its turn."""
    violations: list[Violation] = []
    opened = {
        (entry.epoch, entry.run): entry.to_owner
        for entry in history.journal
        if entry.kind == "open"
    }
    epoch = 0
    for batch in history.batches:
        holder = opened.get((batch.epoch, batch.run))
        if (batch.epoch, batch.run) not in opened:
            detail = f"was committed under epoch {batch.epoch} of run {batch.run}, never opened"
            violations.append(Violation("fence", history.shard, f"batch {batch.sequence} {detail}"))
        elif holder != batch.holder:
            detail = f"was committed by {batch.holder}, but its tenure was opened by {holder}"
            violations.append(Violation("fence", history.shard, f"batch {batch.sequence} {detail}"))
        if batch.epoch < epoch:
            detail = f"has epoch {batch.epoch}, but one before it already had epoch {epoch}"
            violations.append(Violation("fence", history.shard, f"batch {batch.sequence} {detail}"))
        epoch = max(epoch, batch.epoch)
    return violations


def _check_withdrawn(history: _History) -> list[Violation]:
    """What was committed once was taken back only by a later forced checkpoint that lies before."""
    forced = [entry for entry in history.journal if entry.kind == "force"]
    return [
        Violation(
            "withdrawn",
            history.shard,
            f"batch {batch.sequence} was committed under epoch {batch.epoch} and withdrawn, but no "
            f"checkpoint was forced to {batch.start} or before since then",
        )
        for batch in history.withdrawn
        if not any(
            entry.epoch > batch.epoch
            and (entry.check_point is None or not _behind(batch.start, entry.check_point))
            for entry in forced
        )
    ]


def _check_merged(history: _History) -> list[Violation]:
    """A merged file holds the records of whole batches that are there and list none themselves."""
    violations: list[Violation] = []
    for quarantine in (False, True):
        carrier, left = "", 0
        for batch in history.batches:
            files = [file for file in batch.files if file.quarantine == quarantine]
            if left and files:
                detail = f"lists {files[0].path}, but {carrier} holds its records already"
                violations.append(
                    Violation("files", history.shard, f"batch {batch.sequence} {detail}")
                )
            for file in files:
                if file.batches > left:
                    carrier, left = file.path, file.batches
            left = max(left - 1, 0)
        if left:
            detail = f"{carrier} holds {left} more batches than the ledger has behind it"
            violations.append(Violation("files", history.shard, detail))
    return violations


def _check_files(batches: Sequence[Batch]) -> list[Violation]:
    listed: dict[str, Batch] = {}
    violations: list[Violation] = []
    for batch in batches:
        for file in batch.files if batch.state is BatchState.COMMITTED else ():
            other = listed.setdefault(file.path, batch)
            if other is not batch:
                detail = f"{file.path} is listed by {other.batch_id} and by {batch.batch_id}"
                violations.append(Violation("files", batch.shard, detail))
    return violations
