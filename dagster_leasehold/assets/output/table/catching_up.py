"""Waits until the table shows all commits, and publishes them if no other process does.

A waiting reader publishes by itself. It takes the publish lock without a node, and a live node can
take over the lock at any time. So committed output can be read without a running deployment, and a
reader that dies or freezes while it publishes does not delay other processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import random

from dagster_leasehold.assets.errors import PublicationHeld, PublicationRefused, TableUnavailable
from dagster_leasehold.assets.output.table.publication import each_change
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.errors import StoreError, one_line
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.outcomes import PublishesElsewhere
from dagster_leasehold.lease_store.publication_rows import PublishLock
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.store import LedgerAndRewrites

PATIENCE_S = 60.0
"""The time that a reader waits while nothing is published, in seconds."""
POLL_EVERY_S = 0.5
REFUSED_WAIT_MAX_S = 15.0


@dataclass(frozen=True, slots=True)
class Committed:
    """The batches and changes that wait for publication at one moment.

    Attributes:
        ends: for each shard with waiting batches, the number after the last one.
        last_change: the number of the last waiting change; 0 for none.
    """

    ends: Mapping[ShardId, int]
    last_change: int

    @classmethod
    def now(cls, store: LedgerAndRewrites, key: GroupKey) -> Committed:
        """Return the batches and changes that wait now."""
        held = [output.shard for output in store.held_output(key)]
        waiting = [*dict.fromkeys([*held, *(lag.shard for lag in store.publication_lag(key))])]
        heads = store.heads(key, waiting) if waiting else {}
        last = max((change.sequence for change in each_change(store, key)), default=0)
        return cls({shard: head.next_number for shard, head in heads.items()}, last)

    def waiting(self, store: Publications, key: GroupKey) -> tuple[int, int]:
        """Return the number of these batches that still wait, and the first waiting change."""
        lags = store.publication_lag(key) if self.ends else ()
        batches = sum(lag.batches for lag in lags if lag.start < self.ends.get(lag.shard, 0))
        first = store.pending_changes(key, limit=1) if self.last_change else ()
        change = first[0].sequence if first and first[0].sequence <= self.last_change else 0
        return batches, change

    def check_held(
        self, store: LedgerAndRewrites, key: GroupKey, shards: Collection[ShardId] | None
    ) -> None:
        """Check that none of these batches is held, in some shards or in all.

        Raises:
            PublicationHeld: a batch is held.
        """
        for output in store.held_output(key) if self.ends else ():
            chosen = shards is None or output.shard in shards
            if chosen and output.hold.start < self.ends.get(output.shard, 0):
                raise PublicationHeld(
                    f"The table of {key} lacks committed output. {output}. Correct the data or the "
                    f"check, or run `leasehold publish {key.stream} {output.shard} --override`. To "
                    "read what is published, do not wait."
                )


def catch_up(
    store: LedgerAndRewrites,
    key: GroupKey,
    place: OutputPlace,
    *,
    table: TableSettings | None,
    catalog: CatalogSettings,
    shards: Collection[ShardId] | None = None,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random,
) -> None:
    """Return once the table shows everything that was committed before the call.

    Args:
        table: the settings of the table, to publish if no other process does; None to only wait.
        shards: the shards that are read; None for all. Held output of other shards is ignored.
        patience_s: the longest time without a publication, in seconds.
        jitter: returns the fraction by which to shorten a wait after a refusal, in [0, 1).

    Raises:
        PublicationHeld: a check holds output; everything else is in the table.
        TableUnavailable: nothing was published for `patience_s`.
    """
    committed = Committed.now(store, key)
    reason = "no process publishes"
    before, since_s = committed.waiting(store, key), clock()
    remaining, refusals = before, 0
    while any(remaining):
        if table is not None:
            try:
                reason, refusals = _publish(store, key, place, table, catalog), 0
            except PublicationRefused as refused:
                reason, refusals = str(refused).rstrip("."), refusals + 1
            remaining = committed.waiting(store, key)
        if remaining != before:
            before, since_s = remaining, clock()
        elif clock() - since_s >= patience_s:
            raise TableUnavailable(
                f"Committed output of {key} waits for publication, and nothing was published for "
                f"{patience_s:.0f} s ({reason}): switch on the housekeeping sensor, or run "
                f"`leasehold table create {key.stream}`."
            )
        if any(remaining):
            wait_s = POLL_EVERY_S
            if refusals:
                most_s, part = REFUSED_WAIT_MAX_S, jitter()
                wait_s = retry_wait_s(refusals, first_s=wait_s, max_s=most_s, jitter=part)
            sleep(wait_s)
            remaining = committed.waiting(store, key)
    committed.check_held(store, key, shards)


def _publish(
    store: LedgerAndRewrites,
    key: GroupKey,
    place: OutputPlace,
    settings: TableSettings,
    catalog: CatalogSettings,
) -> str:
    """Publish if the publish lock is free; return the reason why batches may still be waiting."""
    from dagster_leasehold.assets.output.table.group_table import build_publisher
    from dagster_leasehold.assets.output.table.publish_locks import table_conflict_text

    name = settings.table_name(catalog.name, key)
    try:
        lock = store.take_publish_lock(key, None, "", name)
    except StoreError as error:
        # A process without write access waits for one that has it.
        return f"this account cannot publish: {one_line(str(error)).rstrip('.')}"
    if isinstance(lock, PublishesElsewhere):
        raise TableUnavailable(table_conflict_text(key, name, lock))
    if not isinstance(lock, PublishLock):
        return f"node {lock.node} holds the publish lock"
    publisher = build_publisher(
        store=store, key=key, settings=settings, catalog=catalog, place=place
    )
    try:
        report = publisher.publish(lock)
        while report.more and not report.explanation:
            report = publisher.publish(lock)
    except OSError as error:
        return f"this account cannot write to {place}: {one_line(str(error))}"
    return report.explanation or "more was committed in the meantime"
