"""A round of deleting history and expired output: shard by shard, in small transactions.

A failed shard is reported and retried in the next round; the others continue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.shard_summary import Portion
from dagster_leasehold.lease_store.store import GroupsAndRetention

FOREVER = "forever"
HISTORY_DAYS_DEFAULT = 30.0
HISTORY_DAYS_MIN = 1.0
HISTORY_DAYS_MAX = 36_500.0
EXPIRED = "expired"
FAILURES_MAX = 5
"""After this many failures in a row the round ends, because the store seems to fail."""


def history_age(days: float | Literal["forever"]) -> timedelta | None:
    """Return the age at which history is deleted, or None; raise InvalidSetting if out of range."""
    if days == FOREVER:
        return None
    return _age(
        days,
        f"History cannot be kept for {days:g} days: use {HISTORY_DAYS_MIN:g} to "
        f"{HISTORY_DAYS_MAX:g} days, or {FOREVER!r} to keep all of it.",
    )


def output_age(days: float | None) -> timedelta | None:
    """Return the age at which output expires, or None; raise InvalidSetting if out of range."""
    if days is None:
        return None
    return _age(
        days,
        f"Committed output cannot expire after {days:g} days: use {HISTORY_DAYS_MIN:g} to "
        f"{HISTORY_DAYS_MAX:g} days, or omit output_days to keep it for good.",
    )


def _age(days: float, refusal: str) -> timedelta:
    if not HISTORY_DAYS_MIN <= days <= HISTORY_DAYS_MAX:
        raise InvalidSetting(refusal)
    return timedelta(days=days)


@dataclass(frozen=True, slots=True)
class OutputExpiry:
    """The age at which committed output expires.

    Attributes:
        age: the age of a batch, relative to the newest entries of its group's journal.
        renew: renews the modification times of files, so that vacuum keeps them for readers.
    """

    age: timedelta
    renew: Callable[[Iterable[DataFile]], None]


@dataclass(slots=True)
class PruneReport:
    """The work of a round so far: deleted rows by table, rows of expired output, and failures."""

    rows: Counter[str] = field(default_factory=Counter[str])
    expired: int = 0
    failures: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class _Task:
    table: str
    shard: ShardId | None
    portion: Callable[[], Portion]


class PruneRound:
    """One round over a group; each step is one short transaction.

    Args:
        age: the age of rows to delete, relative to the group's newest; None keeps all.
        output: the expiry of committed output; None keeps it.
    """

    def __init__(
        self,
        store: GroupsAndRetention,
        key: GroupKey,
        age: timedelta | None,
        output: OutputExpiry | None = None,
    ) -> None:
        self.report = PruneReport()
        self._store = store
        self._failed = 0
        self._key = key
        self._tasks: deque[_Task] = deque()
        newest = store.reference_time(key)
        if newest is None:
            return
        shards = sorted((lease.shard for lease in store.snapshot(key).shards), key=rank_key)
        if output is not None:
            for shard in shards:
                self._add(EXPIRED, shard, partial(self._expire, shard, newest, output))
        if age is None:
            return
        before = newest - age
        for shard in shards:
            self._add("batch", shard, lambda s=shard: store.prune_batches(key, s, before=before))
            self._add(
                "lease_journal", shard, lambda s=shard: store.prune_journal(key, s, before=before)
            )
        self._add("lease_journal", None, lambda: store.prune_journal(key, None, before=before))
        self._add("outbox", None, lambda: store.prune_outbox(key, before=before))
        self._add("table_change", None, lambda: store.prune_changes(key, before=before))
        self._add("gap", None, lambda: store.prune_gaps(key, before=before))

    def _expire(self, shard: ShardId, newest: datetime, output: OutputExpiry) -> Portion:
        """Delete the oldest ledger rows of a shard whose output has expired.

        1. A reader lists the ledger; its files are old.
        2. The rows are deleted. A vacuum that begins now finds files without a row.
        3. Their modification times were renewed, so vacuum keeps them for the reader.
        """
        before = newest - output.age
        rows = self._store.expirable(self._key, shard, before=before)
        if not rows:
            return Portion()
        output.renew(file for row in rows for file in row.files)
        failpoints.reach("before_expiry")
        through = rows[-1].sequence
        portion = self._store.expire_batches(self._key, shard, before=before, through=through)
        if portion.rows:
            # Renewed again, because readers could list the files until the transaction ended.
            output.renew(file for row in rows for file in row.files)
        return portion

    def _add(self, table: str, shard: ShardId | None, portion: Callable[[], Portion]) -> None:
        self._tasks.append(_Task(table, shard, portion))

    @property
    def over(self) -> bool:
        """True if the round has no further step."""
        return not self._tasks

    def step(self) -> None:
        """Delete one portion; report a failure and leave it to the next round."""
        task = self._tasks[0]
        try:
            portion = task.portion()
        except Exception as error:
            # The other shards continue, also after an unforeseen error.
            of = f" of shard {task.shard}" if task.shard else ""
            rows = "Expired output" if task.table == EXPIRED else f"Old rows of {task.table}"
            self.report.failures.append(f"{rows}{of} of {self._key} could not be deleted: {error}")
            self._tasks.popleft()
            self._failed += 1
            if self._failed == FAILURES_MAX:
                self._tasks.clear()
            return
        self._failed = 0
        if task.table == EXPIRED:
            self.report.expired += portion.rows
        else:
            self.report.rows[task.table] += portion.rows
        if not portion.more:
            self._tasks.popleft()


def prune(
    store: GroupsAndRetention,
    key: GroupKey,
    age: timedelta,
    progress: Callable[[int], None] = lambda _: None,
) -> PruneReport:
    """Complete a round over history; `progress` gets the number of deleted rows."""
    return _whole(PruneRound(store, key, age), progress)


def expire(
    store: GroupsAndRetention,
    key: GroupKey,
    output: OutputExpiry,
    progress: Callable[[int], None] = lambda _: None,
) -> PruneReport:
    """Delete the ledger rows of all expired output of a group; `progress` as for `prune`."""
    return _whole(PruneRound(store, key, None, output), progress)


def _whole(round_: PruneRound, progress: Callable[[int], None]) -> PruneReport:
    while not round_.over:
        round_.step()
        progress(round_.report.rows.total() + round_.report.expired)
    return round_.report
