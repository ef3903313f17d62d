"""The picture that a planning process keeps of its group, and the reads that keep it true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rebalancing import REREAD_S, GroupMemory
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.unit.lease_store.scene import KEY, Scene

A, B, ZERO, ONE = NodeName("a"), NodeName("b"), ShardId("0"), ShardId("1")


class Reading:
    """A settled group of four shards, and a memory of it that counts the shards it is sent."""

    def __init__(self, *, rereads: bool = True) -> None:
        self.scene = Scene(shards=4)
        self.scene.tick(self.scene.rebalancer("a"))
        self.store = self.scene.store
        self.sent: list[int] = []
        snapshot = self.store.snapshot

        def counted(key: object, since: int | None = None) -> object:
            picture = snapshot(KEY, since)
            self.sent.append(len(picture.shards))
            return picture

        self.store.snapshot = counted  # pyright: ignore[reportAttributeAccessIssue]
        above = 3 if rereads else None
        self.memory = GroupMemory(
            self.store, KEY, lambda: self.scene.now, lambda _: None, large_above=above
        )
        self.memory.at(None)
        self.sent.clear()

    def generation(self) -> int:
        return self.store.pulse(KEY).group.generation

    def lease_id(self, shard: ShardId) -> int:
        return self.store._groups[KEY].shards[shard].lease_id

    def transfer(self, shard: ShardId) -> None:
        transfers = {shard: (B, self.lease_id(shard), "test")}
        self.store.begin_transfer(KEY, transfers, observer="test")


def test_only_changed_rows_of_a_group_are_read() -> None:
    reading = Reading()
    reading.store.register(KEY, Node(B, 0, "b.1"), observer="test")
    reading.transfer(ONE)
    snapshot, fresh = reading.memory.at(reading.generation())
    assert fresh
    assert reading.sent == [1]
    owners = {row.shard: row.consumer_owner for row in snapshot.shards}
    assert owners == {"0": A, "1": B, "2": A, "3": A}
    assert reading.memory.at(reading.generation()) == (snapshot, False)
    assert reading.sent == [1]


def test_a_tenure_does_not_change_the_generation() -> None:
    reading = Reading()
    assert isinstance(reading.store.open_tenure(KEY, ZERO, A, "run"), Opened)
    reading.store.register(KEY, Node(B, 0, "b.1"), observer="test")
    reading.memory.at(reading.generation())
    assert reading.sent == [0]


def test_a_lower_generation_makes_the_planner_read_the_whole_group() -> None:
    reading = Reading()
    backup = reading.store.backup()
    reading.store.register(KEY, Node(B, 0, "b.1"), observer="test")
    reading.transfer(ONE)
    reading.memory.at(None)
    reading.store.restore(backup)
    reading.sent.clear()
    snapshot, _ = reading.memory.at(reading.generation())
    assert reading.sent == [0, 4]
    assert {row.consumer_owner for row in snapshot.shards} == {A}


def _changed_unseen(reading: Reading) -> None:
    """Like a failover to a database that lags, whose generation other processes have increased."""
    rows = reading.store._groups[KEY]
    rows.shards[ZERO] = replace(rows.shards[ZERO], state=ShardState.OVER, consumer_owner=None)


@pytest.mark.parametrize("late", [True, False])
def test_an_unexplained_late_move_makes_the_planner_read_the_whole_group(late: bool) -> None:
    reading = Reading(rereads=False)
    _changed_unseen(reading)
    if late:
        reading.memory.stale_shards.add(ZERO)
    snapshot, _ = reading.memory.at(None)
    assert reading.sent == ([0, 4] if late else [0])
    assert any(row.state is ShardState.OVER for row in snapshot.shards) == late


def test_a_late_move_makes_the_planner_read_the_change() -> None:
    reading = Reading()
    reading.store.register(KEY, Node(B, 0, "b.1"), observer="test")
    reading.transfer(ONE)
    reading.memory.stale_shards.add(ONE)
    reading.memory.at(None)
    assert reading.sent == [1]


@pytest.mark.parametrize("rereads", [True, False])
def test_one_process_of_a_deployment_reads_the_whole_group_regularly(rereads: bool) -> None:
    reading = Reading(rereads=rereads)
    _changed_unseen(reading)
    for _ in range(3):
        reading.scene.now += REREAD_S * 0.4
        snapshot, _ = reading.memory.at(reading.generation())
    assert reading.sent == ([4] if rereads else [])
    assert any(row.state is ShardState.OVER for row in snapshot.shards) == rereads


def test_the_progress_of_many_shards_is_followed_by_the_journal() -> None:
    """An idle tick reads no shard, and one after a run has opened two reads two."""
    scene = Scene(shards=4)
    rebalancer = scene.rebalancer("a", follows_above=3)
    scene.tick(rebalancer, times=2)
    (report,) = scene.tick(rebalancer)
    assert report.statements == {"pulse": 1, "beat": 1, "touched": 1}
    for shard in (ZERO, ONE):
        assert isinstance(scene.store.open_tenure(KEY, shard, A, "run"), Opened)
    before = scene.store.statements["progress"]
    (report,) = scene.tick(rebalancer)
    assert scene.store.statements["progress"] == before + 1
    assert {row.shard for row in report.progress.values() if row.consumer_run} == {ZERO, ONE}
    assert len(report.progress) == 4
    scene.list_shards(*(ShardListing(ShardId(str(number))) for number in range(6)))
    (report,) = scene.tick(rebalancer)
    assert len(report.progress) == len(report.owned["a"]) == 6
