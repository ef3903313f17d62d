"""Units of output, claims on a shard, and swaps of files, for replay and compaction.

A unit is the smallest part of output that can be replaced: a batch, or consecutive batches that
share merged files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from dagster_leasehold.assets.errors import RewriteRefused
from dagster_leasehold.assets.output.attempts import touch_replaced
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchRewrite, DataFile, RewriteKind
from dagster_leasehold.lease_store.outcomes import Changed, RewriteByOther
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.roles.rewrites import Rewrites
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END

Unit = tuple[Batch, ...]
Ended = Callable[[str], bool]

VERBS = {RewriteKind.REPLAY: "replaying", RewriteKind.COMPACTION: "compacting"}


def units(batches: Iterable[Batch]) -> list[Unit]:
    """Group the committed batches of one shard, in order, into units."""
    return list(each_unit(batches))


def each_unit(batches: Iterable[Batch]) -> Iterator[Unit]:
    """Yield the committed batches of one shard, in order, unit by unit."""
    unit: list[Batch] = []
    remaining = 0
    for batch in batches:
        if not unit:
            remaining = max((file.batches for file in batch.files), default=1)
        unit.append(batch)
        # The last row can also cover later batches without output.
        remaining -= batch.batches
        if remaining <= 0:
            yield tuple(unit)
            unit = []
    if unit:
        yield tuple(unit)


def units_of(store: Ledger, key: GroupKey, shard: ShardId, numbers: range) -> Iterator[Unit]:
    """Yield the units of a shard that contain committed batches with these numbers.

    The start of the first unit is found by reading the ledger backwards, up to the next file.
    """
    before = _carrier(store, key, shard, numbers.start)
    first = before.sequence if before is not None else numbers.start
    rows = store.each_batch(key, shard, numbers=range(first, NUMBERS_END))
    for unit in each_unit(rows):
        if unit[0].sequence >= numbers.stop:
            return
        yield unit


def _carrier(store: Ledger, key: GroupKey, shard: ShardId, number: int) -> Batch | None:
    """Return the earlier row whose range or file includes this batch, or None."""
    first = next(store.each_batch(key, shard, numbers=range(number, number + 1)), None)
    if number == 0 or (first is not None and _lists_output(first)):
        return None
    own: Batch | None = None
    passed = 0
    for row in store.each_batch(key, shard, numbers=range(number), newest_first=True):
        if row.last >= number:
            own = row
        else:
            passed += row.batches
            if max((file.batches for file in row.files), default=1) > passed:
                return row
        if _lists_output(row):
            break
    return own


def _lists_output(batch: Batch) -> bool:
    return any(not file.quarantine for file in batch.files)


def unit_files(unit: Unit, *, quarantine: bool) -> list[DataFile]:
    """Return the files of a unit, in order, either of records or of records in quarantine."""
    return [file for batch in unit for file in batch.files if file.quarantine == quarantine]


def rewritable_until(store: Publications, key: GroupKey, shard: ShardId, end: int) -> int:
    """Return the number, up to `end`, before which batches of a shard can be rewritten.

    If the output of the group is published, only batches in its table can be rewritten.
    """
    cursors = store.published_until(key, [shard])
    return end if cursors is None else min(end, cursors.get(shard, 0))


def swap(
    store: Rewrites,
    key: GroupKey,
    shard: ShardId,
    run: str,
    rewrites: Sequence[BatchRewrite],
    *,
    replaced: Iterable[DataFile],
    output_root: OutputPlace,
    reason: str,
) -> bool:
    """Replace output in the ledger; return False if the claim or a batch has changed."""
    files = list(replaced)
    touch_replaced(output_root, files)
    failpoints.reach("before_swap")
    outcome = store.rewrite_batches(key, shard, run, rewrites, reason=reason)
    failpoints.reach("after_swap")
    if not isinstance(outcome, Changed):
        return False
    # Again: the swap may have waited for the store while readers still listed these files.
    touch_replaced(output_root, files)
    return True


@contextmanager
def rewriting(
    store: Rewrites, key: GroupKey, shard: ShardId, run: str, kind: RewriteKind, *, ended: Ended
) -> Generator[None]:
    """Hold the claim on the output of a shard within the block.

    `ended` returns True if a run has certainly ended: its claim is then taken over.

    Raises:
        RewriteRefused: another run is rewriting the shard.
        UnknownShard: the group has no such shard.
    """
    outcome = store.claim_rewrite(key, shard, run, kind)
    if isinstance(outcome, RewriteByOther) and ended(outcome.claim.run):
        replaces = outcome.claim.run
        outcome = store.claim_rewrite(key, shard, run, kind, replaces=replaces)
    if isinstance(outcome, RewriteByOther):
        other = outcome.claim
        raise RewriteRefused(
            f"Run {other.run} is {VERBS[other.kind]} shard {shard} of {key}: wait for it to end, "
            f"or, if it has certainly ended, repeat this with --replaces {other.run}."
        )
    failpoints.reach("after_rewrite_claim")
    try:
        yield
    finally:
        # If the store does not answer, the next run takes over the claim.
        with suppress(StoreError):
            store.release_rewrite(key, shard, run)
