"""Many seeds, one report: rounds and moves, durations, and violations."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from tests.simulation.protocol.configuration import SimulationConfig
from tests.simulation.protocol.parts import Parts
from tests.simulation.protocol.schedule import Crashed
from tests.simulation.protocol.watch import Watch
from tests.simulation.protocol.world import World

VIOLATIONS_SHOWN_MAX = 100
LOGGED = ("dagster_leasehold.lease_store", "dagster_leasehold.assets")
"""The packages whose code a simulation runs."""


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """The outcome of one seed.

    Attributes:
        calls: store calls made.
        virtual_s: virtual seconds that passed.
        rounds: planning rounds needed after the last change.
        moves: changes of owner, first claims included.
        moves_minimum: the sum of the proven minimum at each change.
        counts: shards per node at the end, largest first.
        takeovers: virtual seconds from a node's failure until each of its shards had a new owner.
        statements: store calls by verb.
        waits: how often runs that follow waited for records, and what they met meanwhile.
        violations: broken invariants; empty if none.
    """

    seed: int
    calls: int
    virtual_s: float
    rounds: int
    moves: int
    moves_minimum: int
    counts: tuple[int, ...]
    takeovers: tuple[float, ...]
    statements: Counter[str]
    waits: Counter[str]
    violations: tuple[str, ...]


def run_seed(config: SimulationConfig, seed: int, parts: Parts) -> SeedOutcome:
    """Simulate one seed; the same configuration and seed always have the same outcome."""
    world = World(config, seed, parts)
    stage, measures = world.stage, world.measures
    with _listening(world.watch):
        try:
            world.run()
        except (Exception, Crashed) as error:
            # An error that nothing foresees is a finding like any other, and as replayable.
            stage.violated(f"error: {type(error).__name__}: {error}")
            stage.schedule.unwind()
    snapshot = stage.store.snapshot(stage.key)
    held = Counter(lease.lease_owner for lease in snapshot.shards if lease.state.held)
    members = [node.name for node in snapshot.nodes if node.member]
    return SeedOutcome(
        seed=seed,
        calls=stage.calls,
        virtual_s=stage.now,
        rounds=measures.rounds,
        moves=measures.moves,
        moves_minimum=measures.fewest.total,
        counts=tuple(sorted((held[name] for name in members), reverse=True)),
        takeovers=tuple(measures.takeovers),
        statements=stage.statements,
        waits=stage.waits,
        violations=tuple(stage.violations),
    )


def run_simulation(
    config: SimulationConfig, parts: Parts, *, progress: Callable[[SeedOutcome], None] | None = None
) -> dict[str, Any]:
    """Simulate all seeds of a configuration; the report is plain JSON, the same on every run."""
    outcomes: list[SeedOutcome] = []
    for seed in range(config.seed, config.seed + config.seeds):
        outcomes.append(run_seed(config, seed, parts))
        if progress is not None:
            progress(outcomes[-1])
    return summary(config, outcomes)


def summary(config: SimulationConfig, outcomes: Sequence[SeedOutcome]) -> dict[str, Any]:
    """Return the report: of several seeds the worst rounds and spread, and sums of all counts."""
    statements: Counter[str] = Counter()
    for outcome in outcomes:
        statements.update(outcome.statements)
    takeovers = sorted(seconds for outcome in outcomes for seconds in outcome.takeovers)
    widest = max(outcomes, key=lambda outcome: _spread(outcome.counts))
    violations = [
        f"seed {outcome.seed}: {violation}"
        for outcome in outcomes
        for violation in outcome.violations
    ]
    return {
        "seed": config.seed,
        "seeds": len(outcomes),
        "steps": sum(outcome.calls for outcome in outcomes),
        "virtual_s": round(sum(outcome.virtual_s for outcome in outcomes), 3),
        "rounds": max(outcome.rounds for outcome in outcomes),
        "moves": sum(outcome.moves for outcome in outcomes),
        "moves_minimum": sum(outcome.moves_minimum for outcome in outcomes),
        "spread": _spread(widest.counts),
        "counts": list(widest.counts),
        "takeover_s": {
            "p50": _percentile(takeovers, 0.50),
            "p99": _percentile(takeovers, 0.99),
            "max": _percentile(takeovers, 1.00),
        },
        "statements": dict(sorted(statements.items())),
        "violations": violations[:VIOLATIONS_SHOWN_MAX],
    }


def _spread(counts: Sequence[int]) -> int:
    return counts[0] - counts[-1] if counts else 0


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` of all values do not exceed; None without values."""
    if not ordered:
        return None
    return round(ordered[max(math.ceil(share * len(ordered)) - 1, 0)], 3)


class _Listener(logging.Handler):
    """Reads every line that the simulated processes log."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._watch.hear(self.format(record))


@contextmanager
def _listening(watch: Watch) -> Generator[None]:
    """Keep simulated failures out of the real log, and search them for secrets."""
    listener = _Listener(watch)
    loggers = [logging.getLogger(name) for name in LOGGED]
    former = [(logger, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(listener)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in former:
            logger.removeHandler(listener)
            logger.propagate = propagate
