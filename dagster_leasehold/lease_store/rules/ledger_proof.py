"""Proof of one shard's ledger: batches that join end to start, each under its tenure.

That no record is committed twice follows from three rules: a batch does not end before it starts;
a recorded gap leads onwards; and the next batch starts where the one before it ended, behind a gap
from there, or where a checkpoint was forced to since, not before that end.

Pure rules over rows in order. Which files two batches list is found by hashes, in eight bytes for
each path.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules import journal_proof
from dagster_leasehold.lease_store.rules.cursors import in_order, is_before
from dagster_leasehold.lease_store.rules.journal_proof import Violation
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import End, ShardSummary

_BUCKETS = 256
_BLOCK = 1024


class LedgerProof:
    """Batches join end to start, each under its tenure; merged files hold what they say."""

    def __init__(
        self, summary: ShardSummary, journal: journal_proof.JournalProof, gaps: Iterable[Gap]
    ) -> None:
        self.committed = 0
        self._shard = summary.shard
        self._last = summary.expired.last if summary.expired else None
        self._epoch = max(self._last.epoch if self._last else 0, summary.proven_epoch)
        self._proven_until = summary.proven_until
        self._tenures: journal_proof.Tenures = journal.tenures
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
        """The last batch that was taken."""
        return self._last

    @property
    def violations(self) -> list[Violation]:
        """The broken promises, rule by rule."""
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
        """Take the next withdrawn batch: only a later forced checkpoint takes one back."""
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
            if between and force.check_point and in_order(former.cursor, force.check_point):
                cursor = force.check_point
        return _reachable(cursor, self._skipped)

    def _violated(self, rule: str, detail: str) -> None:
        self._broken[rule].append(Violation(rule, self._shard, detail))


def until_epoch(batch: Batch) -> int:
    """The epoch of the last batch that a ledger row stands for."""
    return batch.epoch if batch.last_epoch is None else batch.last_epoch


def fence_details(batch: Batch, tenures: journal_proof.Tenures, epoch: int) -> list[str]:
    """List how a committed batch was not written under an open tenure, or out of its turn.

    `epoch` is the highest one of the batches before it.
    """
    details: list[str] = []
    tenure = (batch.epoch, batch.run)
    if tenure not in tenures:
        details.append(f"was committed under epoch {batch.epoch} of run {batch.run}, never opened")
    elif tenures[tenure] != batch.holder:
        opener = tenures[tenure]
        details.append(f"was committed by {batch.holder}, but its tenure was opened by {opener}")
    if batch.epoch < epoch:
        details.append(f"has epoch {batch.epoch}, but one before it already had epoch {epoch}")
    return [f"batch {batch.sequence} {how}" for how in details]


def withdrawal_detail(batch: Batch, forces: Iterable[journal_proof.Force]) -> str:
    """Describe a withdrawn batch that no forced checkpoint took back; empty if one did."""
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
    """The cursors at which a batch after `cursor` may start, skipped gaps followed."""
    reached: set[str] = set()
    pending = [cursor]
    while pending:
        at = pending.pop()
        if at not in reached:
            reached.add(at)
            pending += skipped.get(at, ())
    return reached


def _difference(end: str, start: str) -> str:
    """Describe the difference of two cursors, if their numbers tell it."""
    if not (in_order(end, start) or is_before(start, end)):
        return "they cannot be ordered"
    numbers = abs(int(end) - int(start)) if end.isdecimal() and start.isdecimal() else "records"
    if is_before(start, end):
        return f"{numbers} are committed twice, and no forced checkpoint is recorded"
    return f"{numbers} are missing, and no gap is recorded"


class PathLedger:
    """Finds paths that two batches list, in eight bytes for each path.

    Paths are compared by their hashes; `doubled` gives the few that have to be looked at again.
    Hashes are kept in blocks of one size: arrays that grow for good would leave holes in the memory
    of the process, as large as all of them together.
    """

    def __init__(self) -> None:
        self._hashes: list[list[array[int]]] = [[] for _ in range(_BUCKETS)]

    def take(self, batch: Batch) -> None:
        """Take the files of a committed batch."""
        for path in {file.path for file in batch.files}:
            self._add(hash(path))

    def join(self, other: PathLedger) -> None:
        """Take all that another one has taken, which is empty then."""
        for blocks in other._hashes:
            while blocks:
                for hashed in blocks.pop():
                    self._add(hashed)

    def doubled(self) -> set[int]:
        """The hashes that were taken more than once."""
        repeated: set[int] = set()
        for bucket in self._hashes:
            ordered = sorted(chain.from_iterable(bucket))
            repeated.update(one for one, next_ in pairwise(ordered) if one == next_)
        return repeated

    def _add(self, hashed: int) -> None:
        blocks = self._hashes[hashed % _BUCKETS]
        if not blocks or len(blocks[-1]) == _BLOCK:
            blocks.append(array("q"))
        blocks[-1].append(hashed)


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
