"""Steps of a rebalancing tick that raise something: for the other shards and nodes all is done."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import OutcomeUnknown, StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.memory_store import MemoryStore
from tests.unit.lease_store.scene import KEY, Scene


def break_verb(monkeypatch: pytest.MonkeyPatch, verb: str, *named: str, **given: Any) -> None:
    """Let a verb of the store raise where one of its arguments is, or holds, one of these names."""
    works = getattr(MemoryStore, verb)
    error = given.get("error") or ZeroDivisionError("unforeseen")

    def broken(self: MemoryStore, *args: Any, **keywords: Any) -> Any:
        for argument in args:
            names = set(argument) if isinstance(argument, dict) else {argument}
            if not isinstance(argument, Node) and names & set(named):
                raise error
            if isinstance(argument, Node) and argument.name in named:
                raise error
        return works(self, *args, **keywords)

    monkeypatch.setattr(MemoryStore, verb, broken)


@pytest.mark.parametrize("error", [None, StoreUnavailable("The row is locked: try later.")])
def test_a_failed_beat_of_one_node_does_not_stop_others(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    scene = Scene()
    both = scene.rebalancer("a", "b")
    scene.tick(both, times=2)
    before = {node.name: node.lease_id for node in scene.store.pulse(KEY).nodes}
    with monkeypatch.context() as patched:
        break_verb(patched, "beat", "a", error=error)
        reports = scene.tick(both, times=2)
    after = {node.name: node.lease_id for node in scene.store.pulse(KEY).nodes}
    assert after[NodeName("a")] == before[NodeName("a")]
    assert after[NodeName("b")] > before[NodeName("b")]
    assert "node a failed" in reports[-1].explanation
    scene.tick(both)
    last = {node.name: node.lease_id for node in scene.store.pulse(KEY).nodes}
    assert last[NodeName("a")] > before[NodeName("a")], "a beat is tried again at once"


def test_a_node_that_cannot_join_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    break_verb(monkeypatch, "register", "a")
    (report,) = scene.tick(scene.rebalancer("a", "b"))
    assert report.owned == {"a": (), "b": tuple("01234567")}


def test_a_failed_eviction_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    watcher = scene.rebalancer("c")
    scene.tick(scene.rebalancer("a"), scene.rebalancer("b"), watcher, times=3)
    break_verb(monkeypatch, "evict", "a")
    for _ in range(5):
        scene.now += 5.0
        report = watcher.tick()
    assert "b" not in set(scene.owners().values())
    assert "a" in set(scene.owners().values())
    assert "evicting node a" in report.explanation


def test_a_failed_claim_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    with monkeypatch.context() as patched:
        break_verb(patched, "claim", "3")
        (report,) = scene.tick(scene.rebalancer("a"))
        assert report.owned == {"a": tuple("0124567")}
        assert "claiming shard 3 failed (ZeroDivisionError: unforeseen)" in report.explanation
    rebalancer = scene.rebalancer("a")
    scene.tick(rebalancer, times=3)
    assert set(scene.owners().values()) == {"a"}


def test_a_failed_move_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(shards=10)
    a, b = scene.rebalancer("a"), scene.rebalancer("b")
    scene.tick(a, times=2)
    stuck = next(iter(scene.owners()))
    break_verb(monkeypatch, "begin_transfer", stuck)
    reports = scene.tick(a, b, times=3)
    moved = [shard for shard, owner in scene.owners().items() if owner == "b"]
    assert len(moved) >= 4
    assert stuck not in moved
    assert all(report.owned for report in reports)


def test_after_a_write_of_unknown_outcome_the_group_is_read_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    error = OutcomeUnknown("The reply was lost.")
    break_verb(monkeypatch, "claim", "3", error=error)
    (report,) = scene.tick(scene.rebalancer("a"))
    assert "the outcome of a write is unknown" in report.explanation


def test_a_shard_that_is_stuck_for_years_costs_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    tries: list[int] = []
    works = MemoryStore.claim

    def broken(self: MemoryStore, key: Any, claims: Any, **keywords: Any) -> Any:
        if "3" in claims:
            tries.append(len(claims))
            raise ZeroDivisionError("unforeseen")
        return works(self, key, claims, **keywords)

    monkeypatch.setattr(MemoryStore, "claim", broken)
    rebalancer = scene.rebalancer("a")
    hours = 2
    scene.tick(rebalancer, times=hours * 720)
    assert len(tries) < hours * 12 + 12, "every five minutes at most, after the first few"
    assert len(scene.owners()) == 8
