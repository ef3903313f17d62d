"""Deterministic simulation: the project's own planner, protocol and consumer under virtual time.

Many hosts share one store and one sharded log. A seed decides everything: who runs next, how long
each store call takes, what gets lost, who dies, pauses, joins and leaves. After every call that
may have written, the invariants are checked; after a safety phase everything heals, and the group
has to settle within a bound and stay still. A seed that fails replays identically.

    stage       a seed's time, log and store; below it schedule, configuration
    parts       the code under simulation, or a mutant in its place; seam is its way to the store
    host        one host, with its host_runs; agent_host and client_host are other kinds of it;
                waiting_runs follow their shards, and answer what others wish meanwhile
    fleet       all hosts; ports names what they may ask of the world, and the world of them
    incidents   planned events, random faults and changes of settings; host_failures
    watch       the invariants of each call; shard_watch
    measures    rounds, moves and take-overs, and the fewest moves that there could be
    world       all of one seed from start to end, until no work is left; report is all seeds

    consumption the project's own consumer, as one of the parts

Tests import the names of this page.
"""

from tests.simulation.protocol.configuration import (
    Arrival,
    Event,
    EventKind,
    Faults,
    SimulationConfig,
)
from tests.simulation.protocol.parts import Parts, Run, WrittenRange
from tests.simulation.protocol.report import SeedOutcome, run_seed, run_simulation

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
