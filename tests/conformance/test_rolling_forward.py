"""A shard is rolled forward to its table in one transaction, or is unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import UnknownShard
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.outcomes import Changed, LockOver, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import ShardAhead
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.conformance.published import Publisher, until
from tests.conformance.world import A, B, World, X, Y

FILES = (DataFile("table/1", 6, 70), DataFile("table/2", 4, 50))


@pytest.fixture
def tenure(world: World) -> Tenure:
    """Shard x, held by node a in an open run, with batches [0, 5) and [5, 9); y is not known."""
    world.group(ordered=False)
    world.join(A, B)
    world.add(X)
    (tenure,) = world.hold(A, X)
    for number, (start, end) in enumerate([("0", "5"), ("5", "9")]):
        files = (DataFile(f"x/{number}", 5, 60),)
        assert isinstance(world.consume(tenure, start, end, number, files=files), Changed)
    return tenure


@pytest.fixture
def publisher(world: World, tenure: Tenure) -> Publisher:
    """The first batch is published, and the table contradicts the second one."""
    publisher = Publisher(world)
    publisher.start()
    (waiting,) = world.store.unpublished(world.key)
    first = replace(waiting, batches=waiting.batches[:1])
    assert publisher.commit(publisher.plan([first])) == Settled()
    return publisher


def ahead(world: World, **values: object) -> ShardAhead:
    """The table's part of shard x: other records from 5 up to 15, in batches up to number 6."""
    version = world.store.heads(world.key)[X].version
    whole = ShardAhead("publication-9", 9, X, 1, "5", version, "15", 7, 4, FILES)
    return replace(whole, **values)  # type: ignore[arg-type]


def snapshot(world: World) -> object:
    store, key = world.store, world.key
    return (
        world.shard(X), store.batches(key, state=None), len(store.journal(key)),
        store.heads(key), store.publication(key), store.published_until(key),
    )  # fmt: skip


def test_batches_that_contradict_the_table_are_replaced_by_its_files(
    world: World, tenure: Tenure, publisher: Publisher
) -> None:
    epoch = tenure.epoch
    outcome = world.store.roll_forward(publisher.own, ahead(world))
    assert isinstance(outcome, Changed)
    before, rolled = world.store.batches(world.key, X)
    assert (before.start, before.end) == ("0", "5")
    assert (rolled.start, rolled.end, rolled.sequence) == ("5", "15", 6)
    assert rolled.files == FILES
    row = world.shard(X)
    assert row.check_point == "15"
    assert row.consumer_epoch > max(epoch, 4)
    assert not world.store.review([tenure])[X].current, "the open run is fenced"
    assert until(world, X) == rolled.sequence + 1
    assert list(world.store.unpublished(world.key)) == []
    assert verify(world.store, world.key) == []
    (note,) = (each for each in world.journal(X) if "rolled_forward" in each.facts)
    assert note.facts == {"rolled_forward": "publication-9", "first": 1}


def test_consumption_continues_after_the_rolled_forward_batch(
    world: World, tenure: Tenure, publisher: Publisher
) -> None:
    world.store.roll_forward(publisher.own, ahead(world))
    opened = world.open(A, X, "run-2")
    assert (opened.check_point, opened.next_sequence) == ("15", 7)
    assert isinstance(world.consume(opened.tenure, "15", "20", 7), Changed)
    assert verify(world.store, world.key) == []


def test_rolling_forward_abandons_an_intent(
    world: World, tenure: Tenure, publisher: Publisher
) -> None:
    assert isinstance(world.intend(tenure, "9", "12", 2), Changed)
    assert isinstance(world.store.roll_forward(publisher.own, ahead(world)), Changed)
    assert [(each.start, each.end) for each in world.store.batches(world.key, X)] == [
        ("0", "5"),
        ("5", "15"),
    ]
    assert verify(world.store, world.key) == []


def test_nothing_is_published_until_the_table_is_adopted(
    world: World, tenure: Tenure, publisher: Publisher
) -> None:
    world.store.roll_forward(publisher.own, ahead(world))
    publication = world.store.publication(world.key)
    assert publication is not None
    assert publication.last == "rolling-forward-publication-9"
    assert publication.number == 9


def test_rolling_forward_with_a_lost_lock_changes_nothing(
    world: World, tenure: Tenure, publisher: Publisher
) -> None:
    over = publisher.own
    publisher.take()
    before = snapshot(world)
    assert world.store.roll_forward(over, ahead(world)) == LockOver()
    assert snapshot(world) == before


@pytest.mark.parametrize("change", ["version", "end"])
def test_a_changed_or_newer_ledger_is_not_rolled_forward(
    world: World, tenure: Tenure, publisher: Publisher, change: str
) -> None:
    seen = ahead(world)
    other = replace(seen, version=seen.version + 1) if change == "version" else replace(
        seen, end="7"
    )  # fmt: skip
    before = snapshot(world)
    assert world.store.roll_forward(publisher.own, other) == Stale()
    assert snapshot(world) == before


def test_rolling_forward_adds_an_unknown_shard(
    world: World, tenure: Tenure, publisher: Publisher
) -> None:
    new = ahead(world, shard=Y, first=0, start="0", version=0)
    assert isinstance(world.store.roll_forward(publisher.own, new), Changed)
    assert world.shard(Y).check_point == "15"
    assert verify(world.store, world.key) == []


def test_rolling_forward_refuses_an_unknown_shard_in_an_ordered_group(
    world: World, tenure: Tenure, publisher: Publisher
) -> None:
    group = world.store.pulse(world.key).group
    world.store.update_group(replace(group, ordered=True), observer="test")
    before = snapshot(world)
    new = ahead(world, shard=Y, first=0, start="0", version=0)
    with pytest.raises(UnknownShard, match="records of shard 'y'"):
        world.store.roll_forward(publisher.own, new)
    assert snapshot(world) == before


def test_more_files_than_fit_a_row_are_rolled_forward_and_can_be_withdrawn(
    world: World, tenure: Tenure, publisher: Publisher
) -> None:
    files = tuple(DataFile(f"table/{number}", 1, 10) for number in range(1_001))
    assert isinstance(world.store.roll_forward(publisher.own, ahead(world, files=files)), Changed)
    batches = world.store.batches(world.key, X)
    assert sum(len(each.files) for each in batches) == 1 + len(files)
    assert verify(world.store, world.key) == []
    world.store.force_checkpoint(world.key, X, "5", observer="ops", reason="again")
    assert [each.sequence for each in world.store.batches(world.key, X)] == [0]
    assert verify(world.store, world.key) == []
