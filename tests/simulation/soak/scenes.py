"""Short scenes: one thing goes wrong in one shape, for as long as its defect needs to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.soak import script
from tests.simulation.soak.doubles import quiet, world
from tests.simulation.soak.script import DAY_S, HOUR_S, SMALL, Builder
from tests.simulation.soak.world import Incident, Pace, Shape, World

BEGIN_S = 1.5 * HOUR_S
SCENE_PACE = Pace(quiet_s=300.0, traffic_s=1_800.0, quiet_appends=0)


@dataclass(frozen=True)
class Scene:
    """A short soak.

    Attributes:
        shape: the shape of the deployment.
        until_s: its duration in virtual seconds.
        builders: its incidents, one after the other from the second hour on.
        options: the options of the world.
    """

    shape: Shape
    until_s: float
    builders: tuple[Builder, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def incidents(self) -> list[Incident]:
        """Return the steps of all incidents."""
        incidents: list[Incident] = []
        at_s = BEGIN_S
        for builder in self.builders:
            steps = builder(at_s, SMALL, 0)
            incidents += steps
            at_s = max(step.at_s for step in steps) + SMALL.spacing_s
        return incidents

    def play(self) -> list[str]:
        """Play it up to the first finding, or to its end; return the findings."""
        given: dict[str, Any] = {"pace": SCENE_PACE, "parcels": 0}
        with quiet(), world(self.shape, **(given | self.options)) as played:
            played.run(self.until_s, self.incidents(), first=True)
            return played.watch.findings


def _both_daemons(at_s: float, lengths: script.Lengths, number: int) -> list[Incident]:
    """The daemon of the deployment with agents is down for a day."""

    def down(made: World) -> None:
        made.deployments[0].daemon_up = False

    return [Incident(at_s, "the daemon with agents is down", down)]


ONE_FAILS: dict[str, Any] = {"orders": 0, "parcels": 2, "pace": Pace(300.0, 14_400.0, 0)}
MUCH_TRAFFIC: dict[str, Any] = {"orders": 6, "pace": Pace(600.0, 300.0, 0)}

SCENES: dict[str, Scene] = {
    "a shard fails for ever": Scene(Shape.EMBEDDED, 4 * DAY_S, (), ONE_FAILS),
    "hooks where nodes have agents": Scene(Shape.AGENTS, 2 * HOUR_S),
    "a shard is removed": Scene(Shape.EMBEDDED, 8 * HOUR_S, (script.shard_removed,)),
    "a run hangs": Scene(Shape.EMBEDDED, 3.5 * HOUR_S, (script.run_hangs,)),
    "a waiting run is asked": Scene(Shape.TWO, 3 * HOUR_S, (script.waiting_run_asked,)),
    "a daemon is down": Scene(Shape.TWO, 6 * HOUR_S, (_both_daemons,)),
    "hours fail": Scene(Shape.EMBEDDED, 15.5 * HOUR_S, (script.hours_fail,), MUCH_TRAFFIC),
    "the store is away": Scene(
        Shape.TWO, 3 * HOUR_S, (script.store_away,), {"orders": 0, "parcels": 4, "failing": False}
    ),
}
