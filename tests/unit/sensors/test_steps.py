"""The steps of a sensor: each stream is served for itself, in real threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.sensors import steps
from dagster_leasehold.sensors.steps import (
    EXPLANATION_MAX,
    Outcome,
    Step,
    StepFailed,
    StreamSteps,
    Tick,
    opened_instance,
)
from tests.manual_clock import ManualClock
from tests.unit.sensors.streams import scripted_stream

ORDERS, CLICKS = (scripted_stream(1, name)[0] for name in ("orders", "clicks"))
REQUEST = dg.RunRequest(job_name="consume_orders")


@pytest.fixture
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "TICK_S", 0.2)
    monkeypatch.setattr(steps, "LAST_CALL_S", 0.1)


class Sensor:
    """A sensor of some steps, and the cursor that the daemon keeps for it."""

    def __init__(self, instance: dg.DagsterInstance, *steps: Step) -> None:
        self.instance, self.clock = instance, ManualClock()
        self.steps = StreamSteps(steps, self.clock)
        self.cursor: str | None = None

    def tick(self) -> dg.SensorResult:
        result = self.steps.tick(self.instance, self.cursor)
        self.cursor = result.cursor
        return result

    def lines(self) -> list[str]:
        reason = self.tick().skip_reason
        assert reason is not None
        return (reason.skip_message or "").splitlines()


def step(
    stream: ShardStream, work: Callable[[Tick], Outcome], name: str = "work", every_s: float = 0.0
) -> Step:
    return Step(stream, name, work, every_s)


def counting(tick: Tick) -> Outcome:
    """Count the calls in the cursor."""
    count = int(tick.cursor or 0) + 1
    return Outcome(f"called {count} times", cursor=str(count))


def test_each_step_has_its_own_line_and_cursor(instance: dg.DagsterInstance) -> None:
    sensor = Sensor(
        instance, step(ORDERS, counting), step(CLICKS, counting), step(CLICKS, counting, "more")
    )
    sensor.tick()
    assert sensor.lines() == [
        "orders work: called 2 times",
        "clicks work: called 2 times",
        "clicks more: called 2 times",
    ]
    assert json.loads(sensor.cursor or "") == {
        "orders work": "2",
        "clicks work": "2",
        "clicks more": "2",
    }


def test_a_restarted_server_continues_with_the_cursors_of_its_streams(
    instance: dg.DagsterInstance,
) -> None:
    before = Sensor(instance, step(ORDERS, counting), step(CLICKS, counting))
    before.tick()
    after = Sensor(instance, step(CLICKS, counting))
    after.cursor = before.cursor
    assert after.lines() == ["clicks work: called 2 times"]
    assert json.loads(after.cursor or "") == {"clicks work": "2"}, "nothing is kept of a stream"


@pytest.mark.parametrize("cursor", ["", "{", "7", "[4]", '{"orders work": 4}'])
def test_an_unreadable_cursor_is_ignored(instance: dg.DagsterInstance, cursor: str) -> None:
    sensor = Sensor(instance, step(ORDERS, counting))
    sensor.cursor = cursor
    assert sensor.lines() == ["orders work: called 1 times"]


def test_a_step_is_called_once_an_interval(instance: dg.DagsterInstance) -> None:
    sensor = Sensor(instance, step(ORDERS, counting, "often"), step(ORDERS, counting, "seldom", 11))
    sensor.tick()
    for _ in range(2):
        sensor.clock.now_s += 5.0
        sensor.tick()
    sensor.clock.now_s += 5.0
    assert sensor.lines() == ["orders often: called 4 times", "orders seldom: called 2 times"]


def test_a_hanging_step_delays_no_other_and_reports_later(
    instance: dg.DagsterInstance, short_ticks: None
) -> None:
    go_on, calls = Event(), list[int]()

    def hang(_: Tick) -> Outcome:
        calls.append(1)
        assert go_on.wait(30)
        return Outcome("done", [REQUEST], "late")

    sensor = Sensor(instance, step(ORDERS, hang), step(CLICKS, counting))
    try:
        assert sensor.lines() == [
            "orders work: still running after 0 s: its lease store or source has not answered",
            "clicks work: called 1 times",
        ]
        sensor.clock.now_s += 12.0
        assert sensor.lines()[0].startswith("orders work: still running after 12 s")
        assert "clicks work" in (sensor.cursor or "")
    finally:
        go_on.set()
    late = sensor.tick()
    assert late.run_requests == [REQUEST]
    assert json.loads(sensor.cursor or "") == {"orders work": "late", "clicks work": "3"}
    assert calls == [1], "the tick that brings an outcome does not start the step anew"


def test_runs_to_launch_end_the_tick_of_those_that_watch(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "TICK_S", 60.0)

    def watch(tick: Tick) -> Outcome:
        return Outcome("told" if tick.over.wait(30) else "not told")

    def launch(_: Tick) -> Outcome:
        return Outcome("launched", [REQUEST])

    sensor = Sensor(instance, step(CLICKS, watch), step(ORDERS, launch))
    assert sensor.tick().run_requests == [REQUEST]


def test_a_failing_step_does_not_stop_cursors_and_runs_of_others(
    instance: dg.DagsterInstance,
) -> None:
    def away(_: Tick) -> Outcome:
        raise StoreUnavailable("The lease store does not answer.")

    sensor = Sensor(instance, step(CLICKS, counting), step(ORDERS, away))
    assert sensor.lines() == [
        "orders work: The lease store does not answer.",
        "clicks work: called 1 times",
    ]


def test_an_unexpected_error_fails_the_tick_unless_runs_would_be_lost(
    instance: dg.DagsterInstance,
) -> None:
    def broken(_: Tick) -> Outcome:
        raise ZeroDivisionError("unforeseen")

    beside = Sensor(instance, step(CLICKS, counting), step(ORDERS, broken))
    assert beside.lines()[0] == "orders work: failed (ZeroDivisionError: unforeseen)"
    quiet = Sensor(instance, step(CLICKS, lambda _: Outcome("idle")), step(ORDERS, broken))
    with pytest.raises(StepFailed, match="orders work: failed"):
        quiet.tick()


def test_a_tick_message_is_bounded_and_starts_with_errors(instance: dg.DagsterInstance) -> None:
    quiet = [step(CLICKS, lambda _: Outcome("x" * 500), str(n)) for n in range(40)]
    sensor = Sensor(instance, *quiet, step(ORDERS, lambda _: Outcome("wrong", trouble=True)))
    lines = sensor.lines()
    assert lines[0] == "orders work: wrong"
    assert sum(len(line) + 1 for line in lines) < EXPLANATION_MAX + 10


def test_all_ticks_of_a_process_share_one_instance(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as instance:
        ref = instance.get_ref()

        def opened() -> dg.DagsterInstance:
            with dg.build_sensor_context(instance_ref=ref) as context:
                return opened_instance(context)

        first = opened()
        assert first is opened()
        assert first.root_directory == instance.root_directory
        first.dispose()
        steps._OPENED.clear()


def test_no_tick_after_the_first_opens_an_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a code server gives a sensor the instance's reference, and its resources."""
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    definitions = build_definitions([CLICKS])
    location = definitions.get_repository_def()
    opened: list[object] = []
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        ref = instance.get_ref()
        from_ref = dg.DagsterInstance.from_ref

        def open_anew(ref: Any) -> dg.DagsterInstance:
            opened.append(ref)
            return from_ref(ref)

        monkeypatch.setattr(dg.DagsterInstance, "from_ref", open_anew)
        for _ in range(3):
            for sensor in location.sensor_defs:
                with dg.build_sensor_context(
                    instance_ref=ref, repository_def=location, sensor_name=sensor.name
                ) as context:
                    sensor.evaluate_tick(context)
        assert len(opened) == 1
        steps._OPENED[0][1].dispose()
        steps._OPENED.clear()
