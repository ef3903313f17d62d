"""A lease store with rows in all its tables, and of every kind of value."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.journal_rows import DeliveryClaim, Gap
from dagster_leasehold.lease_store.ledger_rows import (
    BatchRewrite,
    BatchStatistics,
    DataFile,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Changed, Registered, Settled
from dagster_leasehold.lease_store.window_rows import EventWindow
from tests.conformance.published import Publisher
from tests.conformance.world import NOON, A, World, X, Y

KEY = GroupKey.parse("default", "stream")


def fill(world: World) -> None:
    """One node and two shards, drained: two batches, a gap, a hook called in vain, a window."""
    group = world.group(timeout_s=0.1 + 0.2, initial_position="begin")
    joined = world.register(A, "a-1", address="hôte:1", pinned={X: "3", Y: None})
    assert isinstance(joined, Registered)
    world.add(X, Y)
    x, y = world.hold(A, X, Y)
    world.consume(x, "0", "5")
    world.store.record_gap(x, start="5", end="7", reason="entfernt, 'ohne' \\ \u2028 😀", skip=True)
    gap = Gap(X, "5", "7", "", NOON)
    assert isinstance(world.store.acknowledge_gap(KEY, gap, observer="ops"), Changed)
    world.consume(x, "7", "10", 1)
    world.intend(x, "10", "20", 2)
    world.store.claim_rewrite(KEY, Y, "compaction-1", RewriteKind.COMPACTION)
    world.store.release_rewrite(KEY, Y, "compaction-1")
    node = world.node(A)
    lock = world.store.take_delivery_lock(KEY, A, node.incarnation)
    assert isinstance(lock, DeliveryClaim)
    (first, *_) = world.store.pending_events(KEY)
    world.store.settle_event(lock, first.sequence, error="connection refused")
    files = (DataFile("w/1", 2, 30, first_event_time=NOON, last_event_time=NOON),)
    window = EventWindow("hourly", NOON, NOON + timedelta(hours=1))
    full = replace(
        window, run="run-1", files=files, records=2, covered={X: 4, Y: 0}, computed_at=NOON
    )
    assert world.store.put_window(KEY, full) == Changed()
    assert world.store.begin_window(KEY, "run-2-1", "run-2") == Changed()
    publish(world)
    world.store.identity()
    world.store.log_of_group(KEY, "log-1")
    for tenure in (x, y):
        world.store.close_tenure(tenure, reason="test")
    world.store.update_group(replace(group, paused=True), observer="test")
    gone = world.store.prune_journal(KEY, Y, before=NOON + timedelta(days=36_500), keep=1)
    assert gone.rows


def publish(world: World) -> None:
    """A publication, a replay after it, and another publication whose end is not known."""
    columns = [{"name": "größe", "type": {"list": "long"}, "id": 1}]
    assert world.store.agree_columns(KEY, columns, seen_version=0) == Changed()
    world.incarnations[A] = world.node(A).incarnation
    publisher = Publisher(world)
    publisher.start()
    publisher.publish()
    assert world.store.claim_rewrite(KEY, X, "replay-1", RewriteKind.REPLAY) == Changed((X,))
    files = (DataFile("new/é.parquet", 5, 50, first_event_time=NOON, last_event_time=NOON),)
    rewrite = BatchRewrite(0, 0, files, BatchStatistics(5, 50, 5))
    swapped = world.store.rewrite_batches(KEY, X, "replay-1", [rewrite], reason="again")
    assert swapped == Changed((X,))
    world.store.release_rewrite(KEY, X, "replay-1")
    assert world.store.record_publication(publisher.own, publisher.plan(base=1)) == Settled()
