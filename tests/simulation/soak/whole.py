"""A soak from its calendar to its figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime

from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.store import LeaseStore
from tests.simulation.soak.doubles import quiet, world
from tests.simulation.soak.script import Lengths, calendar
from tests.simulation.soak.world import Pace, Shape, World


@dataclass(frozen=True)
class Outcome:
    """The outcome of a soak.

    Attributes:
        days: virtual days.
        steps: moves of the clock; each is one tick of every daemon.
        seconds: real ones.
        findings: sentences; none where everything held.
    """

    shape: str
    days: float
    steps: int
    ticks: int
    runs: int
    commits: int
    commits_while_following: int
    gaps: int
    hook_calls: int
    hours: int
    late_records: int
    calls_and_rows_per_tick_at_first: tuple[float, float]
    calls_and_rows_per_tick_at_last: tuple[float, float]
    rows_of_an_idle_tick_max: int
    calls_of_an_idle_tick_max: int
    entries_kept_max: int
    incidents: int
    seconds: float
    findings: tuple[str, ...]

    def line(self) -> str:
        """Return the outcome as JSON, on one line."""
        return json.dumps(asdict(self))


def soak(
    shape: Shape,
    days: float,
    lengths: Lengths,
    pace: Pace,
    *,
    seed: int = 0,
    new_store: Callable[[Callable[[], datetime]], LeaseStore] = MemoryStore,
    say: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """Play a calendar of incidents in one shape, and check everything once more at the end."""
    began = time.monotonic()
    until_s = days * 86_400.0
    with quiet(), world(shape, pace=pace, seed=seed, new_store=new_store) as played:
        played.say = lambda text: say(f"{text}, {time.monotonic() - began:,.0f} s")
        played.run(until_s, calendar(until_s, lengths))
        played.watch.growth.look_at_sizes()
        return _outcome(played, time.monotonic() - began)


def _outcome(played: World, seconds: float) -> Outcome:
    figures = played.watch.figures
    return Outcome(
        shape=played.shape.value,
        days=round(played.time.now_s / 86_400, 1),
        steps=played.steps,
        ticks=figures.ticks,
        runs=sum(deployment.launched for deployment in played.deployments),
        commits=figures.commits,
        commits_while_following=figures.followed,
        gaps=figures.gaps,
        hook_calls=figures.hooked,
        hours=figures.hours,
        late_records=figures.late,
        calls_and_rows_per_tick_at_first=figures.per_tick(0),
        calls_and_rows_per_tick_at_last=figures.per_tick(-2),
        rows_of_an_idle_tick_max=max(figures.rows_max.values(), default=0),
        calls_of_an_idle_tick_max=max(figures.calls_max.values(), default=0),
        entries_kept_max=figures.entries_max,
        incidents=len(played.incidents),
        seconds=round(seconds, 1),
        findings=tuple(played.watch.findings),
    )
