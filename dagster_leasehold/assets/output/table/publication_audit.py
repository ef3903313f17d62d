"""Checks committed batches before they are published, and holds those that fail.

A publisher calls this under its lock, between reading the ledger and staging snapshots:

1. The batches of each shard are checked in order, up to the first one that fails.
2. If records go to quarantine, the batch is written again without them, and the ledger's row is
   swapped. The shard waits for the next publication, which checks the new files.
3. If the batch is held, the hold is recorded in the shard's row before the batches ahead of it are
   published. A publisher that dies in between loses nothing, because the next one obeys the hold.

A check runs again if a publisher dies before its commit, so it must have no side effects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_leasehold.assets.output.attempts import touch_replaced
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.publication_check import PublicationCheck
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, PublicationHold
from dagster_leasehold.lease_store.outcomes import Changed, LockOver
from dagster_leasehold.lease_store.publication_rows import (
    CheckFailure,
    HoldChange,
    PublishLock,
    ShardBacklog,
)
from dagster_leasehold.lease_store.store import LedgerAndRewrites
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.lease_store.tracing import span

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.record_checks import CheckResult

CHECK_BUDGET_S = 20.0
"""The time after which the remaining batches wait for the next publication, in seconds."""
RECHECKED_MAX = 50
"""The most held shards that are checked again at once."""


@dataclass
class CheckedBacklog:
    """The batches that can be published now.

    Attributes:
        backlog: the batches that passed, by shard.
        holds: the new holds.
        findings: a sentence for each check that a batch failed.
        more: True if batches wait that the next publication can check.
        failures: the last failure of each check that holds no batch.
        shards: the shards with checked batches.
    """

    backlog: list[ShardBacklog] = field(default_factory=list[ShardBacklog])
    holds: list[HoldChange] = field(default_factory=list[HoldChange])
    findings: list[str] = field(default_factory=list[str])
    more: bool = False
    failures: list[CheckFailure] = field(default_factory=list[CheckFailure])
    shards: set[ShardId] = field(default_factory=set[ShardId])


@dataclass(frozen=True, slots=True)
class PublicationAudit:
    """The checks of one group's table.

    Attributes:
        names: the current name of each earlier name of the table's columns.
        clock: monotonic seconds.
    """

    store: LedgerAndRewrites
    key: GroupKey
    folder: OutputPlace
    checks: Sequence[PublicationCheck]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    clock: Callable[[], float] = time.monotonic

    @span("publication_checks")
    def check(
        self, lock: PublishLock, backlog: Sequence[ShardBacklog]
    ) -> CheckedBacklog | LockOver:
        """Check the batches of a backlog, in order, and record the holds.

        Raises:
            LogCorrupt: a file is missing or damaged.
        """
        began_s, checked = self.clock(), CheckedBacklog()
        for shard in backlog:
            passed, over = list[Batch](), False
            for batch in shard.batches:
                if passed and self.clock() - began_s >= CHECK_BUDGET_S:
                    checked.more = True
                    break
                if batch.last >= shard.unchecked_until:
                    checked.shards.add(shard.shard)
                    results = self._failures(batch)
                    if rewriting := self._quarantining(results):
                        over = self._quarantine(lock, batch, rewriting, checked)
                        passed.clear()  # the ledger has changed
                        break
                    if self._hold(shard, batch, passed, results, checked):
                        break
                passed.append(batch)
            if over:
                return LockOver()
            if passed:
                more = shard.more or len(passed) < len(shard.batches)
                checked.backlog.append(replace(shard, batches=tuple(passed), more=more))
        failures = self._failures_after(checked)
        if checked.holds or failures is not None:
            outcome = self.store.hold_publication(lock, checked.holds, failures)
            if isinstance(outcome, LockOver):
                return LockOver()
            failpoints.reach("after_hold")
        return checked

    def _failures_after(self, checked: CheckedBacklog) -> tuple[CheckFailure, ...] | None:
        """Return the failures without holds; None if they are as before.

        A failure ends when batches of its shard are checked and pass.
        """
        publication = self.store.publication(self.key)
        before = () if publication is None else publication.failures
        names = {check.name for check in self.checks}
        after = {
            each.check: each
            for each in before
            if each.check in names and each.shard not in checked.shards
        }
        after |= {each.check: each for each in checked.failures}
        failures = tuple(after[name] for name in sorted(after))
        return None if failures == before else failures

    def check_held(self, lock: PublishLock) -> int:
        """Check the first held batch of each held shard again; return how many holds ended."""
        changes: list[HoldChange] = []
        for shard in self.store.held_batches(self.key, limit=RECHECKED_MAX):
            (batch,) = shard.batches
            results = self._failures(batch)
            failed = None if self._quarantining(results) else _first_hold(results)
            hold = None if failed is None else _hold_of(batch, shard.start, failed)
            if shard.hold is not None and hold is not None:
                hold = replace(hold, start=shard.hold.start)
            changes.append(HoldChange(shard.shard, shard.version, hold))
        if not changes or isinstance(self.store.hold_publication(lock, changes), LockOver):
            return 0
        return sum(change.hold is None for change in changes)

    def _failures(self, batch: Batch) -> list[CheckResult]:
        from dagster_leasehold.assets.output.table.record_checks import check_batch

        results = check_batch(self.folder, batch, self.checks, self.names)
        return [result for result in results if result.failed or result.unusable]

    def _quarantining(self, results: Sequence[CheckResult]) -> list[PublicationCheck]:
        """Return the checks whose failed records go to quarantine."""
        return [
            result.check
            for result in results
            if result.check.on_failure == "quarantine" and not result.holds
        ]

    def _quarantine(
        self,
        lock: PublishLock,
        batch: Batch,
        checks: Sequence[PublicationCheck],
        checked: CheckedBacklog,
    ) -> bool:
        """Write a batch again without its failed records; return True if the lock is over."""
        from dagster_leasehold.assets.output.table.record_checks import QuarantiningRewrite

        rewrite = QuarantiningRewrite(self.folder, batch, checks, self.names).write()
        number = rewrite.statistics.quarantined - batch.statistics.quarantined
        names = ", ".join(check.name for check in checks)
        reason = f"{number} records of batch {batch.sequence} failed {names}, and were quarantined"
        touch_replaced(self.folder, batch.files)
        failpoints.reach("before_quarantine")
        outcome = self.store.rewrite_unpublished(lock, batch.shard, rewrite, reason)
        checked.more = True
        if isinstance(outcome, Changed):
            checked.findings.append(f"Shard {batch.shard}: {reason}.")
            for check in checks:
                failure = CheckFailure(check.name, batch.shard, batch.sequence, reason)
                checked.failures.append(failure)
        return isinstance(outcome, LockOver)

    def _hold(
        self,
        shard: ShardBacklog,
        batch: Batch,
        passed: Sequence[Batch],
        results: Sequence[CheckResult],
        checked: CheckedBacklog,
    ) -> bool:
        """Add the findings about a batch; return True if it is held."""
        for result in results:
            checked.findings.append(
                f"Shard {batch.shard}: batch {batch.sequence} failed the publication check "
                f"{result.check.name}: {result.text}."
            )
            if not result.holds:
                checked.failures.append(
                    CheckFailure(result.check.name, batch.shard, batch.sequence, result.text)
                )
        failed = _first_hold(results)
        if failed is not None:
            start = passed[-1].last + 1 if passed else shard.start
            hold = _hold_of(batch, start, failed)
            checked.holds.append(HoldChange(batch.shard, shard.version, hold))
        return failed is not None


def _first_hold(results: Sequence[CheckResult]) -> CheckResult | None:
    return next((result for result in results if result.holds), None)


def _hold_of(batch: Batch, start: int, failed: CheckResult) -> PublicationHold:
    return PublicationHold(start, batch.sequence, failed.check.name, failed.text, utc_now())
