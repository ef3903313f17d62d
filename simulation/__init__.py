"""Deterministic simulation: the project's own planner, protocol and consumer under virtual time.

Many hosts share one store and one sharded log. A seed decides everything: who runs next, how long
each store call takes, what gets lost, who dies, pauses, joins and leaves. After every call that
may have written, the invariants are checked; after a safety phase everything heals, and the group
has to settle within a bound and stay still. A seed that fails replays identically.
"""

from dagster_leasehold.simulation.configuration import (
    Arrival,
    Event,
    EventKind,
    Faults,
    SimulationConfig,
)
from dagster_leasehold.simulation.host import Run, WrittenRange
from dagster_leasehold.simulation.parts import Parts
from dagster_leasehold.simulation.report import SeedOutcome, run_seed, run_simulation

__all__ = [
    "Arrival",
    "Event",
    "EventKind",
    "Faults",
    "Parts",
    "Run",
    "SeedOutcome",
    "SimulationConfig",
    "WrittenRange",
    "run_seed",
    "run_simulation",
]
