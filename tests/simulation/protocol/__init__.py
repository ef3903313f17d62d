"""Deterministic simulation: the project's own planner, protocol and consumer under virtual time.

Many hosts share one store and one sharded log. A seed decides everything: which process runs next,
how long each store call takes, and which messages are lost, which hosts die, pause, join and leave.
After every call that could have written, the invariants are checked. After a phase of faults they
stop, and the group has to settle within a bound. A seed that fails replays identically.

    stage       a seed's time, log and store; below it schedule, configuration
    parts       the code under simulation, or a mutant in its place; seam is its way to the store
    host        one host, with its host_runs; agent_host and client_host are other kinds of it;
                waiting_runs follow their shards, and react to requests
    fleet       all hosts; ports lists what they can ask of the world, and the world of them
    incidents   planned events, random faults and changes of settings; host_failures
    watch       the invariants of each call; shard_watch
    measures    rounds, moves and take-overs, and the fewest possible moves
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
