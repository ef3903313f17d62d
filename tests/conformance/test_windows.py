"""Windows of event time: a row changes only in the place of the version that was seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.window_rows import EventWindow
from tests.conformance.test_races import at_once
from tests.conformance.world import NOON, A, World, X, Y

HOUR = timedelta(hours=1)


def window(hour: int = 0, asset: str = "hourly", **values: object) -> EventWindow:
    start = NOON + hour * HOUR
    return replace(EventWindow(asset, start, start + HOUR), **values)  # type: ignore[arg-type]


def test_a_window_is_read_back_as_it_was_written(world: World) -> None:
    world.group()
    files = (
        DataFile("w/1", 2, 30, first_event_time=NOON, last_event_time=NOON),
        DataFile("2", 1, 1),
    )
    full = window(run="run-1", files=files, records=3, covered={X: 4, Y: 0}, late=2, rerun=True)
    full = replace(full, computed_at=NOON)
    assert world.store.put_window(world.key, full) == Changed()
    assert world.store.windows(world.key) == [full]


def test_each_version_of_a_window_is_written_once(world: World) -> None:
    world.group()
    first = window(run="run-1")
    assert world.store.put_window(world.key, replace(first, version=2)) == Stale()
    assert world.store.put_window(world.key, first) == Changed()
    assert world.store.put_window(world.key, first) == Changed(), "a repeated call is harmless"
    assert world.store.put_window(world.key, replace(first, run="run-2")) == Stale()
    second = replace(first, version=2, generation=2, run="run-2")
    assert world.store.put_window(world.key, second) == Changed()
    assert world.store.put_window(world.key, replace(second, run="run-3")) == Stale()
    assert world.store.windows(world.key, "hourly") == [second]


@pytest.mark.parametrize("before", [0, 1])
def test_one_of_two_concurrent_writers_of_a_window_wins(world: World, before: int) -> None:
    world.group()
    for version in range(1, before + 1):
        world.store.put_window(world.key, window(version=version, run="before"))
    tries = [window(version=before + 1, run=f"run-{number}") for number in range(4)]
    outcomes = at_once(
        *(lambda each=each: world.store.put_window(world.key, each) for each in tries)
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Changed", *["Stale"] * 3]
    (stored,) = world.store.windows(world.key)
    assert stored == tries[[isinstance(outcome, Changed) for outcome in outcomes].index(True)]


def test_windows_are_found_by_asset_and_overlap(world: World) -> None:
    world.group()
    rows = [window(hour, asset) for asset in ("daily", "hourly") for hour in (0, 1, 2)]
    for row in reversed(rows):
        world.store.put_window(world.key, row)
    assert world.store.windows(world.key) == rows
    assert world.store.windows(world.key, "hourly") == rows[3:]
    inside = NOON + HOUR + timedelta(minutes=1)
    windows = world.store.windows(world.key, "hourly", since=inside, until=inside)
    assert [row.start for row in windows] == [NOON + HOUR]
    at_the_edge = world.store.windows(world.key, "hourly", since=NOON + HOUR, until=NOON + 2 * HOUR)
    assert [row.start for row in at_the_edge] == [NOON + HOUR]


def test_batches_are_read_from_a_number_on(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X, Y)
    x, y = world.hold(A, X, Y)
    for number in range(3):
        world.consume(x, str(number), str(number + 1), number)
        world.consume(y, str(number), str(number + 1), number)
    world.intend(x, "3", "4", 3)
    batches = world.store.batches_since(world.key, {X: 1, Y: 3})
    assert [(batch.shard, batch.sequence) for batch in batches] == [(X, 1), (X, 2)]
    assert list(world.store.batches_since(world.key, {})) == []


def test_deleting_a_group_deletes_its_windows(world: World) -> None:
    with pytest.raises(UnknownGroup):
        world.store.put_window(world.key, window())
    world.group()
    world.store.put_window(world.key, window())
    world.store.delete_group(world.key)
    world.group()
    assert world.store.windows(world.key) == []


def test_a_watermark_never_goes_back(world: World) -> None:
    """A run that reads late records does not lower a watermark that an earlier one had reached."""
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "1", 0, watermark=NOON)
    world.consume(tenure, "1", "2", 1, watermark=NOON - HOUR)
    world.consume(tenure, "2", "3", 2)
    assert world.shard(X).watermark == NOON


def test_an_attempt_is_in_progress_until_its_window_is_written(world: World) -> None:
    world.group()
    for _ in range(2):
        assert world.store.begin_window(world.key, "try-1", "run-1") == Changed()
    assert world.store.begin_window(world.key, "try-2", "run-2") == Changed()
    attempts = world.store.window_attempts(world.key)
    assert [(each.attempt, each.run) for each in attempts] == [
        ("try-1", "run-1"),
        ("try-2", "run-2"),
    ]
    first = window(run="run-1")
    for _ in range(2):
        assert world.store.put_window(world.key, first, attempt="try-1") == Changed()
    assert [each.attempt for each in world.store.window_attempts(world.key)] == ["try-2"]
    assert world.store.put_window(world.key, replace(first, run="run-2"), attempt="try-2") == (
        Stale()
    ), "the other one was faster"
    assert [each.attempt for each in world.store.window_attempts(world.key)] == ["try-2"]
    assert world.store.end_window(world.key, "try-2") == Changed()
    assert world.store.end_window(world.key, "try-2") == Stale()
    assert world.store.window_attempts(world.key) == []
    assert world.store.begin_window(world.key, "try-3", "run-3") == Changed()
    assert [each.attempt for each in world.store.window_attempts(world.key)] == ["try-3"]


def test_an_attempt_that_was_ended_writes_nothing(world: World) -> None:
    """Its files may be gone: vacuum keeps them no longer."""
    world.group()
    world.store.begin_window(world.key, "try-1", "run-1")
    world.store.end_window(world.key, "try-1")
    assert world.store.put_window(world.key, window(), attempt="try-1") == Stale()
    assert world.store.windows(world.key) == []


def test_concurrent_attempts_are_all_in_progress(world: World) -> None:
    world.group()
    names = [f"try-{number}" for number in range(4)]
    at_once(*(lambda name=name: world.store.begin_window(world.key, name, "run") for name in names))
    assert [each.attempt for each in world.store.window_attempts(world.key)] == names
