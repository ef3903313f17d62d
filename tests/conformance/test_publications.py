"""Publishing: the lock, unpublished batches, and a commit that changes everything or nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.outcomes import (
    Changed,
    LockOver,
    LockTaken,
    PointerMoved,
    PublishesElsewhere,
    Settled,
    Stale,
)
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PublishedRange,
    PublishLock,
    TableColumns,
    TableName,
)
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.conformance.published import FIRST, Publisher, moved, until
from tests.conformance.test_races import at_once
from tests.conformance.world import A, B, World, X, Y


@pytest.fixture
def tenures(world: World) -> list[Tenure]:
    """Nodes a and b alive; a holds x and y."""
    world.group()
    world.join(A, B)
    world.add(X, Y)
    return world.hold(A, X, Y)


def commit(world: World, tenure: Tenure, *numbers: int) -> None:
    for n in numbers:
        files = (DataFile(f"{tenure.shard}/{n}", 4, 50), DataFile("bad", 1, 2, quarantine=True))
        world.consume(tenure, str(n), str(n + 1), n, files=files)


# -- the lock -----------------------------------------------------------------------------------


def test_one_node_has_the_lock(world: World, tenures: list[Tenure]) -> None:
    a, b = Publisher(world), Publisher(world, B)
    first = a.take()
    assert world.store.take_publish_lock(world.key, B, "b-1", b.table) == LockTaken(A)
    again = a.take()
    assert again.epoch == first.epoch + 1, "taking it again fences the lock before"
    assert world.store.release_publish_lock(first) == LockOver()
    assert world.store.release_publish_lock(again) == Settled()
    assert world.store.release_publish_lock(again) == LockOver()
    assert b.take().epoch == again.epoch + 1
    row = world.store.publication(world.key)
    assert row is not None
    assert (row.node, row.epoch, row.table) == (B, again.epoch + 1, b.table)


def test_one_of_two_processes_of_a_node_takes_the_lock(world: World, tenures: list[Tenure]) -> None:
    """Both have seen the same epoch; the later one fences no publisher."""
    table = Publisher(world).table
    take = partial(world.store.take_publish_lock, world.key, A, "a-1", table)
    first = take(run="first", seen_epoch=0)
    assert isinstance(first, PublishLock)
    assert take(run="second", seen_epoch=0) == LockTaken(A)
    row = world.store.publication(world.key)
    assert row is not None
    assert (row.node, row.run, row.epoch) == (A, "first", first.epoch)
    # It knows that the first one has ended.
    assert take(run="second", seen_epoch=first.epoch) == PublishLock(world.key, A, first.epoch + 1)
    assert world.store.release_publish_lock(first) == LockOver()


def test_a_single_publication_needs_no_node(world: World, tenures: list[Tenure]) -> None:
    a = Publisher(world)
    held = a.take()
    assert world.store.take_publish_lock(world.key, None, "", a.table) == LockTaken(A)
    world.store.release_publish_lock(held)
    once = world.store.take_publish_lock(world.key, None, "", a.table)
    assert once == PublishLock(world.key, None, held.epoch + 1)
    row = world.store.publication(world.key)
    assert row is not None
    assert row.node is None
    assert world.store.create_table_pointer(once, FIRST) == Settled()
    commit(world, tenures[0], 0, 1)
    a.lock = once
    a.publish()
    commit(world, tenures[0], 2)
    planned, b = a.plan(), Publisher(world, B)
    b.take()
    assert a.commit(planned) == LockOver(), "a node fences it at any time"
    assert b.commit(planned) == Settled()


def test_another_node_takes_the_lock_of_an_evicted_node(
    world: World, tenures: list[Tenure]
) -> None:
    first = Publisher(world).take()
    counter = world.node(A).lease_id
    world.store.evict(world.key, A, counter, observer="b", reason="silent")
    assert Publisher(world, B).take().epoch == first.epoch + 1
    assert world.store.release_publish_lock(first) == LockOver()


def test_the_locks_for_delivery_and_publication_are_independent(
    world: World, tenures: list[Tenure]
) -> None:
    assert not isinstance(world.store.take_delivery_lock(world.key, B, "b-1"), LockTaken)
    Publisher(world).take()
    assert world.store.take_delivery_lock(world.key, A, "a-1") == LockTaken(B)


def test_only_a_live_node_takes_the_lock(world: World, tenures: list[Tenure]) -> None:
    table = Publisher(world).table
    assert world.store.take_publish_lock(world.key, A, "a-0", table) == LockTaken(None)
    assert world.store.publication(world.key) is None
    assert world.store.published_until(world.key) is None


def test_a_group_publishes_to_one_table_and_a_table_has_one_group(
    world: World, tenures: list[Tenure]
) -> None:
    publisher = Publisher(world)
    publisher.take()
    other = TableName("default", "leasehold", "Another")
    elsewhere = world.store.take_publish_lock(world.key, A, "a-1", other)
    assert elsewhere == PublishesElsewhere(world.key, publisher.table)
    second = World(world.store, replace(world.key, group=type(world.key.group)("second")))
    second.group()
    second.join(A)
    refused = world.store.take_publish_lock(second.key, A, "a-1", publisher.table)
    assert refused == PublishesElsewhere(world.key, publisher.table)
    upper = replace(publisher.table, name=publisher.table.name.upper())
    assert not isinstance(
        world.store.take_publish_lock(second.key, A, "a-1", upper), PublishesElsewhere
    ), "names are compared letter by letter"


def test_one_of_two_nodes_takes_the_first_lock(world: World, tenures: list[Tenure]) -> None:
    table = Publisher(world).table
    outcomes = at_once(
        lambda: world.store.take_publish_lock(world.key, A, "a-1", table),
        lambda: world.store.take_publish_lock(world.key, B, "b-1", table),
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LockTaken", "PublishLock"]


def test_an_unknown_group_has_no_publication(world: World) -> None:
    for look in (
        world.store.publication,
        world.store.unpublished,
        world.store.pending_changes,
        world.store.published_until,
        world.store.publication_lag,
    ):
        with pytest.raises(UnknownGroup):
            look(world.key)


# -- what waits -----------------------------------------------------------------------------------


def test_committed_batches_wait_for_publication(world: World, tenures: list[Tenure]) -> None:
    x, _ = tenures
    assert world.store.unpublished(world.key) == []
    assert world.store.publication_lag(world.key) == []
    commit(world, x, 0, 1, 2)
    world.intend(x, "3", "4", 3)
    (backlog,) = world.store.unpublished(world.key)
    assert (backlog.shard, backlog.start, backlog.more) == (X, 0, False)
    assert [batch.sequence for batch in backlog.batches] == [0, 1, 2]
    assert backlog.batches == tuple(world.store.batches(world.key, X))
    assert backlog.version == world.store.heads(world.key)[X].version
    (lag,) = world.store.publication_lag(world.key)
    assert (lag.shard, lag.start, lag.batches, lag.records) == (X, 0, 3, 12)
    assert lag.oldest_at == backlog.batches[0].committed_at
    assert not lag.more


def test_each_shard_has_its_share_of_a_limit(world: World, tenures: list[Tenure]) -> None:
    x, y = tenures
    commit(world, x, *range(6))
    commit(world, y, 0)
    first, second = world.store.unpublished(world.key, limit=4)
    assert [batch.sequence for batch in first.batches] == [0, 1, 2]
    assert (first.more, second.more) == (True, False)
    assert [batch.sequence for batch in second.batches] == [0]
    (most,) = world.store.unpublished(world.key, limit=1)
    assert most.shard == X, "the shard that waits for most comes first"
    assert len(most.batches) == 1
    assert most.more


def test_an_idle_check_of_the_publisher_costs_two_statements(
    world: World, tenures: list[Tenure]
) -> None:
    publisher = Publisher(world)
    publisher.start()
    commit(world, tenures[0], 0, 1)
    publisher.publish()
    before = world.store.statements.total()
    row = world.store.publication(world.key)
    assert row is not None
    assert not row.changes_pending
    assert world.store.unpublished(world.key) == []
    assert world.store.statements.total() - before == 2


# -- the commit -----------------------------------------------------------------------------------


def test_a_publication_moves_pointer_cursors_and_changes(
    world: World, tenures: list[Tenure]
) -> None:
    x, y = tenures
    commit(world, x, 0, 1)
    commit(world, y, 0)
    publisher = Publisher(world)
    publisher.start()
    planned = publisher.publish()
    assert world.store.published_until(world.key) == {X: 2, Y: 1}
    assert world.store.published_until(world.key, [Y, ShardId("unknown")]) == {Y: 1}
    assert world.store.published_until(world.key, []) == {}
    assert world.store.unpublished(world.key) == []
    row = world.store.publication(world.key)
    assert row is not None
    assert (row.number, row.last, row.snapshot) == (1, planned.id, planned.snapshot)
    assert (row.node, row.pending, row.changes_pending) == (A, None, False)
    assert row.at is not None
    pointer = world.store.table_pointer(publisher.table)
    assert pointer is not None
    assert (pointer.location, pointer.previous) == (f"{planned.id}.metadata.json", FIRST)
    commit(world, x, 2)
    publisher.publish()
    assert (until(world, X), until(world, Y)) == (3, 1)
    assert publisher.files == ["x/0", "x/1", "y/0", "x/2"]


def test_a_repeated_commit_is_settled(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0)
    publisher = Publisher(world)
    publisher.start()
    planned = publisher.plan()
    assert publisher.commit(planned) == Settled()
    assert publisher.commit(planned, seen=FIRST) == Settled()
    commit(world, tenures[0], 1)
    publisher.publish()
    assert publisher.commit(planned, seen=FIRST) == Stale(), "it is not the newest"
    assert until(world, X) == 2


def test_a_fenced_publisher_publishes_nothing(world: World, tenures: list[Tenure]) -> None:
    """1. a plans and is frozen; 2. b takes the lock and publishes; 3. a wakes up and commits."""
    commit(world, tenures[0], 0)
    a, b = Publisher(world), Publisher(world, B)
    a.start()
    planned = a.plan()
    world.store.evict(world.key, A, world.node(A).lease_id, observer="b", reason="silent")
    b.take()
    assert a.commit(planned) == LockOver()
    assert until(world, X) == 0
    b.publish()
    assert a.commit(planned, seen=FIRST) == LockOver()
    assert world.store.record_publication(a.own, planned) == LockOver()
    assert world.store.create_table_pointer(a.own, "other") == LockOver()
    assert until(world, X) == 1
    assert b.files == ["x/0"]


def test_a_publication_starts_at_the_published_cursor(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0, 1)
    publisher = Publisher(world)
    publisher.start()
    planned = publisher.plan()
    (only,) = planned.ranges
    assert publisher.commit(moved(planned, start=1)) == Stale()
    assert publisher.commit(moved(planned, end=0)) == Stale()
    assert publisher.commit(moved(planned, end=3)) == Stale(), "batch 2 was not committed"
    assert publisher.commit(moved(planned, version=only.version + 1)) == Stale()
    assert publisher.commit(moved(planned, shard="z")) == Stale()
    assert until(world, X) == 0
    assert publisher.commit(moved(planned, end=1)) == Settled()
    assert until(world, X) == 1


def test_a_table_that_another_writer_changed_is_not_published_to(
    world: World, tenures: list[Tenure]
) -> None:
    commit(world, tenures[0], 0)
    publisher = Publisher(world)
    publisher.start()
    planned = publisher.plan()
    assert publisher.commit(planned, seen="before.json") == PointerMoved(FIRST)
    assert until(world, X) == 0
    row = world.store.publication(world.key)
    assert row is not None
    assert row.number == 0
    assert publisher.commit(planned) == Settled()


def test_one_of_two_commits_wins(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0)
    publisher = Publisher(world)
    publisher.start()
    plans = [publisher.plan(), publisher.plan()]
    outcomes = at_once(*(lambda plan=plan: publisher.commit(plan, seen=FIRST) for plan in plans))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Settled", "Stale"]
    assert until(world, X) == 1


def test_a_table_is_created_once(world: World, tenures: list[Tenure]) -> None:
    publisher = Publisher(world)
    assert world.store.table_pointer(publisher.table) is None
    lock = publisher.take()
    planned = PlannedPublication("p", 1, ranges=(PublishedRange(X, 0, 1, 0),))
    commit(world, tenures[0], 0)
    assert world.store.create_table_pointer(lock, FIRST) == Settled()
    assert world.store.create_table_pointer(lock, FIRST) == Settled(), "its reply was lost"
    assert world.store.create_table_pointer(lock, "second") == PointerMoved(FIRST)
    assert publisher.commit(planned) == Settled()


def test_a_table_gets_another_name_in_the_default_catalog(
    world: World, tenures: list[Tenure]
) -> None:
    publisher, store = Publisher(world), world.store
    lock, before = publisher.start(), publisher.table
    after = replace(before, namespace="web", name="Visits")
    for _ in range(2):  # the reply to the first call was lost
        assert store.rename_table(lock, after, FIRST) == Settled()
        assert store.table_pointer(before) is None
        pointer = store.table_pointer(after)
        assert pointer is not None
        assert pointer.location == FIRST
    row = store.publication(world.key)
    assert row is not None
    assert row.table == after
    with_other_settings = store.take_publish_lock(world.key, A, "a-1", before)
    assert with_other_settings == PublishesElsewhere(world.key, after)


def test_a_table_leaves_the_default_catalog_and_comes_back(
    world: World, tenures: list[Tenure]
) -> None:
    """It keeps its name, so that only its pointer moves."""
    publisher, store = Publisher(world), world.store
    lock = publisher.start()
    assert store.rename_table(lock, publisher.table, None) == Settled()
    assert store.table_pointer(publisher.table) is None
    assert store.rename_table(lock, publisher.table, "second") == Settled()
    pointer = store.table_pointer(publisher.table)
    assert pointer is not None
    assert pointer.location == "second"


def test_a_table_gets_no_name_that_is_in_use(world: World, tenures: list[Tenure]) -> None:
    publisher, store = Publisher(world), world.store
    lock, before = publisher.start(), publisher.table
    second = World(store, replace(world.key, group=type(world.key.group)("second")))
    second.group()
    second.join(B)
    other = replace(before, name="other")
    theirs = store.take_publish_lock(second.key, B, "b-1", other)
    assert isinstance(theirs, PublishLock)
    assert store.rename_table(lock, other, FIRST) == PublishesElsewhere(second.key, other)
    assert store.create_table_pointer(theirs, "theirs") == Settled()
    free = replace(before, name="free")
    assert store.rename_table(theirs, free, "theirs") == Settled()
    publisher.take()
    assert store.rename_table(lock, free, FIRST) == LockOver()
    assert store.table_pointer(before) is not None


def test_a_table_keeps_its_name_while_a_publication_is_pending(
    world: World, tenures: list[Tenure]
) -> None:
    publisher, store = Publisher(world), world.store
    lock = publisher.start()
    commit(world, tenures[0], 0)
    planned = publisher.plan()
    assert store.record_publication(lock, planned) == Settled()
    assert store.rename_table(lock, replace(publisher.table, name="n"), None) == Stale()
    assert store.drop_publication(lock, planned) == Settled()
    assert store.rename_table(lock, replace(publisher.table, name="n"), None) == Settled()


# -- columns --------------------------------------------------------------------------------------


def test_a_change_of_columns_compares_their_version(world: World, tenures: list[Tenure]) -> None:
    one = [{"name": "a", "type": "long", "id": 1}]
    two = [*one, {"name": "ü", "type": {"list": "string"}, "id": 2}]
    assert world.store.agree_columns(world.key, one, seen_version=1) == Stale()
    assert world.store.agree_columns(world.key, one, seen_version=0) == Changed()
    row = world.store.publication(world.key)
    assert row is not None
    assert row.columns == TableColumns(1, tuple(one))
    assert (row.epoch, row.table, row.node) == (0, None, None)
    assert world.store.published_until(world.key) is None, "nobody publishes yet"
    assert world.store.agree_columns(world.key, two, seen_version=0) == Stale()
    assert world.store.agree_columns(world.key, two, seen_version=1) == Changed()
    assert world.store.agree_columns(world.key, two, seen_version=1) == Changed(), "they are so"
    Publisher(world).take()
    row = world.store.publication(world.key)
    assert row is not None
    assert row.columns == TableColumns(2, tuple(two))


def test_an_operators_change_of_columns_is_in_the_journal(
    world: World, tenures: list[Tenure]
) -> None:
    columns = [{"name": "a", "type": "long"}]
    agree = world.store.agree_columns
    assert agree(world.key, columns, seen_version=0, observer="ann", reason="") == Changed()
    columns[0]["name"] = "b"
    for version in (1, 1):  # the first reply was lost
        change = agree(world.key, columns, seen_version=version, observer="ann", reason="a is b")
        assert change == Changed()
    entries = [each for each in world.store.journal(world.key) if each.kind == "columns"]
    assert [(each.observer, each.reason, each.shard) for each in entries] == [
        ("ann", "a is b", None)
    ]


def test_one_of_two_concurrent_column_changes_wins(world: World, tenures: list[Tenure]) -> None:
    outcomes = at_once(
        lambda: world.store.agree_columns(world.key, [{"name": "a"}], seen_version=0),
        lambda: world.store.agree_columns(world.key, [{"name": "b"}], seen_version=0),
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Changed", "Stale"]


# -- other catalogs -------------------------------------------------------------------------------


def test_a_recorded_publication_is_settled_once_it_is_in_the_table(
    world: World, tenures: list[Tenure]
) -> None:
    """1. a records and dies after its commit to the catalog; 2. b finds it in the table."""
    commit(world, tenures[0], 0, 1)
    a, b = Publisher(world), Publisher(world, B)
    lock = a.take()
    planned = replace(a.plan(base=7), records=25)
    assert world.store.record_publication(lock, planned) == Settled()
    assert world.store.record_publication(lock, planned) == Settled(), "its reply was lost"
    world.store.evict(world.key, A, world.node(A).lease_id, observer="b", reason="silent")
    lock = b.take()
    row = world.store.publication(world.key)
    assert row is not None
    assert row.pending == planned
    assert until(world, X) == 0, "it is not settled"
    assert world.store.commit_publication(lock, planned) == Settled()
    row = world.store.publication(world.key)
    assert row is not None
    assert (row.pending, row.last, row.snapshot) == (None, planned.id, planned.snapshot)
    assert row.records == planned.records == 25
    assert until(world, X) == 2


def test_at_most_one_publication_is_pending(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0)
    publisher = Publisher(world)
    lock = publisher.take()
    first = publisher.plan(base=7)
    assert world.store.record_publication(lock, first) == Settled()
    commit(world, tenures[0], 1)
    second = publisher.plan(base=7)
    assert world.store.record_publication(lock, second) == Stale()
    assert world.store.commit_publication(lock, second) == Stale()
    assert world.store.commit_publication(lock, first) == Settled()
    assert world.store.record_publication(lock, second) == Stale(), "it begins behind the cursor"
    assert until(world, X) == 1


def test_a_publication_that_cannot_arrive_is_dropped(world: World, tenures: list[Tenure]) -> None:
    """1. P is sent; 2. another program commits; 3. P is dropped, and its batches wait again."""
    commit(world, tenures[0], 0, 1)
    a, b = Publisher(world), Publisher(world, B)
    lock = a.take()
    planned = a.plan(base=7)
    assert world.store.drop_publication(lock, planned) == Settled(), "it is not pending"
    assert world.store.record_publication(lock, planned) == Settled()
    assert world.store.drop_publication(lock, a.plan(base=8)) == Settled(), "another one"
    row = world.store.publication(world.key)
    assert row is not None
    assert row.pending == planned
    world.store.evict(world.key, A, world.node(A).lease_id, observer="b", reason="silent")
    former, lock = lock, b.take()
    assert world.store.drop_publication(former, planned) == LockOver()
    assert world.store.drop_publication(lock, planned) == Settled()
    assert world.store.drop_publication(lock, planned) == Settled(), "its reply was lost"
    assert world.store.commit_publication(lock, planned) == Stale()
    row = world.store.publication(world.key)
    assert row is not None
    assert (row.pending, row.last, row.number, until(world, X)) == (None, None, 0, 0)
    (backlog,) = world.store.unpublished(world.key)
    assert [batch.sequence for batch in backlog.batches] == [0, 1]


def test_a_dropped_publication_drops_its_recorded_changes(
    world: World, tenures: list[Tenure]
) -> None:
    """1. Batch 0 is published, 1 and 2 pending; 2. back to 0; 3. the pending ones are dropped."""
    commit(world, tenures[0], 0)
    publisher = Publisher(world)
    publisher.start()
    publisher.publish()
    commit(world, tenures[0], 1, 2)
    planned = publisher.plan(base=7)
    lock = publisher.own
    assert world.store.record_publication(lock, planned) == Settled()
    world.store.force_checkpoint(world.key, X, "0", observer="op", reason="again")
    changes = world.store.pending_changes(world.key)
    assert [(each.first, each.removed) for each in changes] == [
        (0, ("x/0",)),
        (1, ("x/1", "x/2")),
    ], "none is of batches before the cursor and of others"
    assert world.store.drop_publication(lock, planned) == Settled()
    assert world.store.pending_changes(world.key) == changes[:1]
    publisher.publish()
    assert publisher.files == publisher.committed() == []


def test_an_unrecorded_publication_cannot_be_settled(world: World, tenures: list[Tenure]) -> None:
    commit(world, tenures[0], 0)
    publisher = Publisher(world)
    lock = publisher.take()
    assert world.store.commit_publication(lock, publisher.plan()) == Stale()
    assert until(world, X) == 0


def test_a_publication_is_recorded_only_as_it_was_planned(
    world: World, tenures: list[Tenure]
) -> None:
    commit(world, tenures[0], 0, 1)
    publisher = Publisher(world)
    lock = publisher.take()
    planned = publisher.plan()
    assert world.store.record_publication(lock, moved(planned, start=1)) == Stale()
    world.store.force_checkpoint(world.key, X, "1", observer="op", reason="again")
    assert world.store.record_publication(lock, planned) == Stale()


def test_a_deleted_group_leaves_its_table(world: World, tenures: list[Tenure]) -> None:
    publisher = Publisher(world)
    publisher.start()
    world.store.delete_group(world.key, force=True)
    world.group()
    assert world.store.publication(world.key) is None
    assert world.store.table_pointer(publisher.table) is not None, "people read it"
