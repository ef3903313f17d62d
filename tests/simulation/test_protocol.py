"""The protocol under seeded faults: no seed breaks a promise, and every mutant is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from statistics import median

import pytest

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.liveness import Observations
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from tests.simulation.following import FOLLOWING
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.protocol import (
    Faults,
    Parts,
    SeedOutcome,
    SimulationConfig,
    run_seed,
    run_simulation,
)
from tests.simulation.protocol.configuration import Event, EventKind
from tests.simulation.protocol.consumption import consume
from tests.simulation.protocol.measures import FewestMoves

SEEDS = int(os.environ.get("LEASEHOLD_SIMULATION_SEEDS", "300"))
FEW_SEEDS = min(50, SEEDS)
STEPS = int(os.environ.get("LEASEHOLD_SIMULATION_STEPS", "2000"))
FIRST_SEED = int(os.environ.get("LEASEHOLD_SIMULATION_FIRST_SEED", "0"))
MUTANT_SEEDS_MAX = 200
CHUNK = 25


def config(seed: int, steps: int = STEPS) -> SimulationConfig:
    """One to seven nodes, none to fifty shards; now and then another mode than balanced."""
    mode = {3: AssignmentMode.MODULO, 7: AssignmentMode.PINNED}.get(seed % 10)
    return SimulationConfig(
        nodes=1 + seed % 7,
        shards=seed * 13 % 51,
        mode=mode or AssignmentMode.BALANCED,
        ordered=seed % 4 == 0,
        faults=Faults.SWARM,
        seed=seed,
        steps=steps,
    )


def run_chunk(seeds: range) -> tuple[int, list[str]]:
    """Return the calls and violations of some seeds, in a separate process."""
    calls, violations = 0, []
    for seed in seeds:
        # Every other group is followed by its changes, as one of more than a thousand shards is.
        parts = FOLLOWING if seed % 2 else Parts(consume)
        outcome = run_seed(config(seed), seed, parts)
        calls += outcome.calls
        violations += [f"seed {seed}: {violation}" for violation in outcome.violations]
    return calls, violations


@pytest.mark.timeout(0 if SEEDS > 300 else 900)
@pytest.mark.parametrize(
    ("first", "end"), [(0, FEW_SEEDS), pytest.param(FEW_SEEDS, SEEDS, marks=pytest.mark.release)]
)
def test_no_seed_breaks_a_promise(first: int, end: int) -> None:
    """A phase with faults, then recovery and convergence, for each seed.

    A failing seed is reported with its violation; `config(seed)` and `run_seed` replay it.
    """
    began = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn")) as pool:
        seeds = range(FIRST_SEED + first, FIRST_SEED + end)
        chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
        results = list(pool.map(run_chunk, chunks))
    calls = sum(result[0] for result in results)
    seconds = time.perf_counter() - began
    rate = f"{calls / seconds:.0f} calls a second"
    sys.stdout.write(f"{len(seeds)} seeds, {calls} calls in {seconds:.1f} s: {rate}\n")
    assert [violation for result in results for violation in result[1]] == []
    assert calls >= len(seeds) * min(STEPS, 2000) * 0.9


def kill(mutant: Mutant) -> SeedOutcome | None:
    """The first seed that finds a mutant, or None."""
    for seed in range(MUTANT_SEEDS_MAX):
        config_ = SimulationConfig(nodes=5, faults=Faults.SWARM, seed=seed)
        outcome = run_seed(config_, seed, mutant.parts)
        if outcome.violations:
            return outcome
    return None


_KILLED_AT: dict[str, int] = {}


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_every_mutant_is_found(mutant: Mutant) -> None:
    """Each breaks one rule; the project's own parts survive the very seed that finds it."""
    outcome = kill(mutant)
    assert outcome is not None, f"no seed up to {MUTANT_SEEDS_MAX} finds it ({mutant.history})"
    # An error that the mutant's own code raises would prove nothing about the invariants.
    assert not outcome.violations[0].startswith("error:"), outcome.violations[0]
    config_ = SimulationConfig(nodes=5, faults=Faults.SWARM, seed=outcome.seed)
    assert run_seed(config_, outcome.seed, mutant.sound).violations == ()
    _KILLED_AT[mutant.name] = outcome.seed + 1


@pytest.mark.long
def test_mutants_are_found_within_fifty_seeds_as_a_rule() -> None:
    if len(_KILLED_AT) < len(MUTANTS):
        pytest.skip("asks what the tests of all mutants found in this process")
    assert median(_KILLED_AT.values()) <= 50


def test_the_simulation_finds_an_observer_that_counts_its_own_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an outage of the store, the first node to check would evict all the others."""
    config_ = SimulationConfig(nodes=5, shards=50, events=(Event(EventKind.OUTAGE, 60, 800),))
    # In two seeds of three it does no harm: the first node back must not be the last that beat.
    seeds = range(6)
    for seed in seeds:
        sound = run_seed(config_, seed, Parts(consume))
        assert sound.moves == sound.moves_minimum == 50
    monkeypatch.setattr(Observations, "_shorten_counts", lambda *_: None)
    blind = [run_seed(config_, seed, Parts(consume)) for seed in seeds]
    hurt = [outcome for outcome in blind if outcome.statements["evict"]]
    assert hurt
    assert all(outcome.moves > 50 for outcome in hurt)


@pytest.mark.parametrize("seed", [910056, 900001])
def test_seeds_that_once_raised_a_false_alarm(seed: int) -> None:
    """A stalled process continued just before the group was taken for settled; and more moves were
    called the fewest possible than were made."""
    if seed == 910056:
        config_ = SimulationConfig(
            nodes=5, shards=8, ordered=True, faults=Faults.SWARM, seed=seed, steps=1_200
        )
    else:
        config_ = SimulationConfig(faults=Faults.SWARM, seed=seed)
    outcome = run_seed(config_, seed, Parts(consume))
    assert outcome.violations == ()
    assert outcome.moves >= outcome.moves_minimum


def test_the_simulation_finds_impossible_counts_of_moves() -> None:
    """The check of the minimum can fail: it receives a count with one move too few."""
    rows = tuple(ShardLease(ShardId(str(n)), ShardState.NOT_ALLOC) for n in range(4))
    group = Group(GroupKey.parse("orders", "default"))
    a, b = NodeName("a"), NodeName("b")
    members = (Node(a, 1, "first"), Node(b, 1, "first"))
    fewest = FewestMoves()
    assert fewest.settled(Snapshot(group, members[:1], held(rows, a, a, a, a)), {a}, 4) == ""
    settled = Snapshot(group, members, held(rows, a, a, b, b))
    assert fewest.settled(settled, {a, b}, 5) == (
        "a change of members or shards took 1 moves, and needs at least 2"
    )
    assert fewest.total == 6


def held(rows: tuple[ShardLease, ...], *owners: NodeName) -> tuple[ShardLease, ...]:
    return tuple(
        replace(row, state=ShardState.ALREADY_ALLOC, lease_owner=owner, consumer_owner=owner)
        for row, owner in zip(rows, owners, strict=True)
    )


def canary(run: object) -> None:
    """A consumer that, in one simulation of a hundred, reports a batch that it never committed."""
    consume(run)
    if run.name == "run-1" and run.heartbeat.incarnation and run.log.canary:
        from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics
        from dagster_leasehold.lease_store.shard_rows import Tenure

        tenure = Tenure(run.key, run.shards[0], run.node, 10**6, run.name)
        run.acknowledge([BatchCommit(tenure, 10**6, "0", "1", "", (), BatchStatistics())])


def test_a_leak_in_one_seed_of_a_hundred_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm rings where it should, and only there."""
    from tests.simulation.protocol import world

    class CanaryWorld(world.World):
        def __init__(self, config: SimulationConfig, seed: int, parts: Parts) -> None:
            super().__init__(config, seed, parts)
            self.stage.log.__class__.canary = seed % 100 == 42

    monkeypatch.setattr("tests.simulation.protocol.report.World", CanaryWorld)
    rings = [
        seed
        for seed in range(0, 100, 7)
        if run_seed(SimulationConfig(seed=seed, steps=200), seed, Parts(canary)).violations
    ]
    assert rings == [42]


def test_a_seed_replays_identically_in_another_process() -> None:
    """Not even the interpreter's own randomness takes part."""
    script = (
        "import json, sys\n"
        "from tests.simulation.test_protocol import config\n"
        "from tests.simulation.protocol import Parts, run_simulation\n"
        "from tests.simulation.protocol.consumption import consume\n"
        "for seed in (1, 3, 7, 12):\n"
        "    print(json.dumps(run_simulation(config(seed), Parts(consume))))\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 4


def test_a_violation_names_its_seed_and_is_reported() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "blind retry")
    report = run_simulation(SimulationConfig(faults=Faults.SWARM, seeds=3, nodes=5), mutant.parts)
    assert any(violation.startswith("seed ") for violation in report["violations"])
    assert json.loads(json.dumps(report)) == report
