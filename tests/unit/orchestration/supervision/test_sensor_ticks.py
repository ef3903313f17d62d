from __future__ import annotations

import pytest

from dagster_leasehold.orchestration.supervision.sensor_ticks import UNDER_WAY_S, SensorTicks

LOOK_S = 5.0


class Clocks:
    """Both clocks of a host, and the times of which Dagster was made to forget what is later."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1_000_000.0, 50.0
        self.forgotten_s: list[float] = []
        self.failures: list[Exception] = []
        self.ticks = SensorTicks(lambda: self.wall_s, lambda: self.steady_s, self._forget)

    def _forget(self, now_s: float) -> None:
        if self.failures:
            raise self.failures.pop()
        self.forgotten_s.append(now_s)

    def look(self, *, set_by_s: float = 0.0) -> None:
        self.wall_s += LOOK_S + set_by_s
        self.steady_s += LOOK_S
        self.ticks.look()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_nothing_is_asked_of_dagster_while_the_clock_goes_on(clocks):
    for set_by_s in (0.0, 3_600.0, -0.4, -0.4, 0.0):
        clocks.look(set_by_s=set_by_s)
    assert clocks.forgotten_s == []


def test_ticks_are_forgotten_until_those_under_way_have_ended_too(clocks):
    clocks.look(set_by_s=-5_400.0)
    assert clocks.forgotten_s == [clocks.wall_s]
    for _ in range(1_000):
        clocks.look()
    assert len(clocks.forgotten_s) == 1 + UNDER_WAY_S / LOOK_S


def test_a_storage_that_does_not_answer_is_asked_again(clocks, capsys):
    clocks.failures = [ConnectionError("no answer")] * 100
    clocks.look(set_by_s=-60.0)
    for _ in range(100):
        clocks.look()
    assert clocks.forgotten_s == [clocks.wall_s]
    assert "could not be forgotten: no answer" in "".join(capsys.readouterr())
