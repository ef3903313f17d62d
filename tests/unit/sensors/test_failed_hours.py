"""Hours whose runs fail, and failing steps of a watermark's tick: other hours continue."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.pruning import OutputExpiry, expire
from dagster_leasehold.lease_store.rules.event_frontier import HOUR
from dagster_leasehold.sensors.requested_hours import (
    FIRST_ATTEMPTS_MAX,
    INCOMPLETE_MAX,
    RETRIES_ACTIVE_MAX,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    IncompleteHour,
    RequestedHours,
)
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.unit.assets.output.test_committed_output import NOON
from tests.unit.sensors.test_watermark import Scene, hour

EVERYTHING = OutputExpiry(timedelta(days=-1), list)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def complete(scene: Scene, hours: int = 1) -> None:
    for shard in ("0", "1"):
        scene.append(shard, 5, 60 * hours + 5)


def test_a_failed_hour_is_requested_again_until_it_is_computed(scene: Scene) -> None:
    complete(scene)
    assert scene.requested() == [hour(0)]
    scene.in_work = {NOON}
    scene.now_s += RETRY_FIRST_S
    assert scene.requested() == [], "its run waits or works"
    scene.in_work = set()
    scene.now_s += RETRY_FIRST_S
    assert scene.requested() == [hour(0, "complete.2")]
    assert "1 hour is still incomplete after up to 2 requests (2026-03-01-12:00)" in str(
        scene.tick().skip_reason
    )
    scene.now_s += 2 * RETRY_FIRST_S - 1
    assert scene.requested() == []
    scene.restart()
    assert scene.requested() == [], "a restart counts again"
    scene.now_s += 2 * RETRY_FIRST_S
    assert scene.requested() == [hour(0, "complete.3")]
    scene.make(0)
    scene.now_s += RETRY_MAX_S
    assert scene.requested() == []
    assert "requested for" not in str(scene.tick().skip_reason)


def test_an_hour_with_expired_output_is_not_requested_again(scene: Scene) -> None:
    complete(scene)
    scene.append("0", 66)
    assert scene.requested() == [hour(0)]
    scene.world.deliver()
    assert expire(scene.world.store, scene.world.key, EVERYTHING).expired
    scene.now_s += RETRY_FIRST_S
    explanation = str(scene.tick().skip_reason)
    assert "1 hour is no longer requested (2026-03-01-12:00): some of their" in explanation
    scene.now_s += RETRY_MAX_S
    assert scene.requested() == []


def test_late_records_are_counted_only_in_remaining_output(scene: Scene) -> None:
    complete(scene)
    scene.tick()
    scene.make(0)
    scene.append("0", 6)
    scene.append("0", 7)
    scene.world.deliver()
    assert expire(scene.world.store, scene.world.key, EVERYTHING).expired
    scene.tick()
    assert list(scene.late().values()) == [1]


def test_a_failed_rerun_for_late_records_is_requested_again(tmp_path: Path) -> None:
    from dagster_leasehold.assets.windows.hourly_asset import LateAction, LatePolicy

    scene = Scene(tmp_path, late=LatePolicy(LateAction.RERUN, wait_s=60))
    complete(scene)
    scene.tick()
    scene.make(0)
    scene.append("0", 6)
    assert scene.requested() == [hour(0, "late.2")]
    scene.now_s += RETRY_FIRST_S
    assert scene.requested() == [hour(0, "late.2.2")]
    scene.restart()
    scene.tick()
    scene.make(0)
    scene.now_s += RETRY_MAX_S
    assert scene.requested() == []


def test_an_hour_that_fails_for_a_year_is_requested_a_bounded_number_of_times() -> None:
    now_s = 0.0
    requested = RequestedHours(lambda: now_s, 60.0, NOON)
    requested.request(NOON)
    attempts, cursor = 0, ""
    for _ in range(365 * 24 * 4):
        now_s += 900
        attempts += sum(requested.request(at).attempts > 0 for at in requested.due(lambda _: set()))
        cursor = requested.save()
    assert 365 * 4 <= attempts <= 365 * 4 + 12
    assert len(cursor) < 200


def test_runs_for_hours_that_failed_are_few_at_a_time() -> None:
    now_s = 0.0
    requested = RequestedHours(lambda: now_s, 60.0, NOON)
    for number in range(100):
        requested.request(NOON + number * HOUR)
    now_s += RETRY_FIRST_S
    first = requested.due(lambda _: set())
    assert first == [NOON + number * HOUR for number in range(RETRIES_ACTIVE_MAX)]
    for at in first:
        requested.request(at)
    now_s += RETRY_MAX_S
    assert requested.due(lambda _: set(first)) == [], "those work still"


def test_the_cursor_is_bounded_and_dropped_hours_are_named() -> None:
    requested = RequestedHours(lambda: 0.0, 60.0, NOON)
    for number in range(INCOMPLETE_MAX + 2):
        requested.incomplete[NOON + number * HOUR] = IncompleteHour(attempts=2)
    cursor = requested.save()
    assert len(cursor) < 30_000
    assert "2 hours are dropped (2026-03-01-12:00, 2026-03-01-13:00)" in " ".join(requested.notes())
    successor = RequestedHours(lambda: 0.0, 60.0, NOON)
    successor.load(cursor, NOON)
    assert successor.incomplete == requested.incomplete


def test_hours_in_the_queue_hold_back_further_ones() -> None:
    requested = RequestedHours(lambda: 0.0, 60.0, NOON)
    for number in range(FIRST_ATTEMPTS_MAX):
        assert not requested.full
        requested.request(NOON + number * HOUR)
    assert requested.full


UNREADABLE = (
    "{",
    '{"next":1}',
    '{"next":"x","hours":{}}',
    '{"next":"2026-03-01T12:00","hours":[]}',
    "rubbish",
    json.dumps({"next": NOON.isoformat(), "hours": {"x": [1, 2]}}),
)


@pytest.mark.parametrize("cursor", UNREADABLE)
def test_an_unreadable_cursor_starts_from_nothing(cursor: str) -> None:
    requested = RequestedHours(lambda: 0.0, 60.0, NOON)
    requested.load(cursor, NOON)
    assert (requested.next, requested.incomplete) == (NOON, {})


def test_late_records_of_an_hour_that_was_not_computed_are_read_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an hour that fails for weeks does not cost a reading of the ledger at each tick."""
    complete(scene)
    scene.tick()
    scene.append("0", 7, 70)
    reads: list[int] = []
    since = MemoryStore.batches_since

    def counted(self: MemoryStore, key: Any, numbers: Any, **given: Any) -> Any:
        batches = list(since(self, key, numbers, **given))
        reads.append(len(batches))
        return batches

    monkeypatch.setattr(MemoryStore, "batches_since", counted)
    scene.tick()
    assert len(reads) == 1
    for _ in range(20):
        scene.now_s += RETRY_MAX_S
        scene.tick()
    assert len(reads) == 1
    scene.make(0)
    scene.append("0", 8)
    scene.tick()
    assert (len(reads), reads[-1]) == (2, 1), "the new batch alone"
    assert scene.late()["2026-03-01-12:00"] == 1


def test_a_tick_reads_one_snapshot_and_the_shard_list_only_if_needed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(scene)
    calls = Counter[str]()
    for owner, name in ((MemoryStore, "snapshot"), (LocalLog, "list_shards")):
        works = getattr(owner, name)

        def counted(*args: Any, works: Any = works, name: str = name) -> Any:
            calls[name] += 1
            return works(*args)

        monkeypatch.setattr(owner, name, counted)
    assert scene.requested() == [hour(0)]
    assert calls == {"snapshot": 1, "list_shards": 1}
    calls.clear()
    assert scene.requested() == []
    assert calls == {"snapshot": 1}


def test_an_hour_with_uncountable_late_records_does_not_stop_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(scene, hours=3)
    scene.tick()
    for number in range(3):
        scene.make(number)
    scene.tick()
    from dagster_leasehold.sensors import late_records

    works = late_records.plan_table

    def broken(*args: Any, **given: Any) -> Any:
        if given["span"].since == NOON + HOUR:
            raise ZeroDivisionError("unforeseen")
        return works(*args, **given)

    with monkeypatch.context() as patched:
        patched.setattr(late_records, "plan_table", broken)
        scene.append("0", 10, 70, 130, 250)
        scene.append("1", 250)
        result = scene.tick()
    assert [str(request.partition_key) for request in result.run_requests or ()] == [
        "2026-03-01-15:00"
    ]
    assert scene.late() == {"2026-03-01-12:00": 1, "2026-03-01-13:00": 0, "2026-03-01-14:00": 1}
    assert "counting late records of 2026-03-01-13:00 failed" in " ".join(scene.rounds.troubles)
    scene.now_s += 5
    scene.tick()
    assert scene.late()["2026-03-01-13:00"] == 1


def test_an_unreadable_ledger_of_one_shard_does_not_hide_late_records_of_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(scene)
    scene.tick()
    scene.make(0)
    scene.tick()
    since = MemoryStore.batches_since

    def broken(self: MemoryStore, key: Any, numbers: Any, **given: Any) -> Any:
        if ShardId("0") in numbers:
            raise ZeroDivisionError("unforeseen")
        return since(self, key, numbers, **given)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "batches_since", broken)
        scene.append("0", 10)
        scene.append("1", 11)
        scene.tick()
    assert scene.late() == {"2026-03-01-12:00": 1}
    scene.now_s += timedelta(seconds=5).total_seconds()
    scene.tick()
    assert scene.late() == {"2026-03-01-12:00": 2}
