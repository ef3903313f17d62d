"""Incidents that can and cannot happen at the same time."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.chaos.incidents import AtFailpoint, DatabaseFreezes, DatabaseStops, Processes, compatible
from tests.failpoints import Failpoint


def test_a_failpoint_serves_one_incident_at_a_time() -> None:
    """Both write the same file: one of the two would never happen."""
    freeze = AtFailpoint(Failpoint.DURING_WRITE, freeze=True)
    assert not compatible(AtFailpoint(Failpoint.DURING_WRITE), [freeze])
    assert compatible(AtFailpoint(Failpoint.AFTER_WRITE), [freeze])


def test_the_database_has_one_incident_at_a_time() -> None:
    assert not compatible(DatabaseFreezes(), [DatabaseStops(crash=True)])
    assert compatible(DatabaseFreezes(), [AtFailpoint(Failpoint.AFTER_WRITE)])


def test_an_incident_waits_until_its_run_has_started() -> None:
    """If `strike` waited for the run, other incidents of the wave would last as long."""

    class Runs:
        begun: tuple[int, ...] = ()

        def runs(self, node: str) -> tuple[int, ...]:
            assert node == "b"
            return self.begun

    world: Any = Runs()
    incident = Processes("run-b")
    incident.strike(world)
    assert not incident.over(world)
    with subprocess.Popen(["sleep", "60"]) as run:
        world.begun = (run.pid,)
        assert incident.over(world)
        assert run.wait(10) == -9
