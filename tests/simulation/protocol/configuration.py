"""Settings of a simulation: sizes, arrivals, planned events, and rates of random faults."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self

from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.group_rows import TIMEOUT_DEFAULT_S, AssignmentMode

NODES_MAX = 1_000
SHARDS_MAX = 100_000


class Arrival(StrEnum):
    """The ways in which the first nodes join."""

    TOGETHER = "together"
    ONE_BY_ONE = "one-by-one"


class Faults(StrEnum):
    """Random faults besides the planned events: none, or a swarm of them."""

    NONE = "none"
    SWARM = "swarm"


class EventKind(StrEnum):
    """The kinds of planned events."""

    JOIN = "join"
    LEAVE = "leave"
    CRASH = "crash"
    PAUSE = "pause"
    SPLIT = "split"
    MERGE = "merge"
    OUTAGE = "outage"


_EVENT = re.compile(r"(?P<kind>[a-z]+)(:(?P<count>[1-9]\d{0,4}))?@(?P<step>\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Event:
    """An event that `count` nodes or shards meet at store call number `step`.

    An `outage` takes the store away for `count` seconds.
    """

    kind: EventKind
    count: int
    step: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an event from `KIND[:COUNT]@STEP`.

        Raises:
            InvalidSetting: the text has another form, or the kind is unknown.
        """
        match = _EVENT.fullmatch(text)
        if match is None or match["kind"] not in set(EventKind):
            raise InvalidSetting(
                f"{shown(text)} is not an event: use KIND[:COUNT]@STEP with one of the kinds "
                f"{', '.join(EventKind)}, for example crash:2@500."
            )
        return cls(EventKind(match["kind"]), int(match["count"] or 1), int(match["step"]))


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """All that a simulation depends on, besides the code.

    Attributes:
        nodes: how many nodes there are at first.
        shards: how many shards the log has at first.
        mode: how the group assigns shards; modulo and pinned settings follow from the number.
        ordered: True if children wait for their parents.
        arrive: the first nodes come together, or one by one.
        events: planned events.
        faults: random faults that happen as well.
        timeout_s: T.
        seed: the first seed.
        seeds: how many seeds, from `seed` on.
        steps: store calls per seed before everything heals and has to converge.

    Raises:
        InvalidSetting: a number is out of range.
    """

    nodes: int = 3
    shards: int = 8
    mode: AssignmentMode = AssignmentMode.BALANCED
    ordered: bool = False
    arrive: Arrival = Arrival.TOGETHER
    events: tuple[Event, ...] = ()
    faults: Faults = Faults.NONE
    timeout_s: float = TIMEOUT_DEFAULT_S
    seed: int = 0
    seeds: int = 1
    steps: int = 2_000

    def __post_init__(self) -> None:
        limits = {
            "number of nodes": (self.nodes, 1, NODES_MAX),
            "number of shards": (self.shards, 0, SHARDS_MAX),
            "timeout in seconds": (self.timeout_s, 1, 86_400),
            "first seed": (self.seed, 0, 2**63),
            "number of seeds": (self.seeds, 1, 10_000_000),
            "number of steps": (self.steps, 1, 1_000_000_000),
        }
        for name, (value, least, most) in limits.items():
            if not least <= value <= most:
                raise InvalidSetting(
                    f"The simulation's {name} is {value}: use a number from {least} to {most}."
                )


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The probability of each fault, per store call unless it says otherwise; 0 is never.

    A swarm draws a new set for each seed and leaves out about half of the kinds, so that each
    seed stresses a few of them hard.
    """

    lost_before: float = 0.0
    lost_after: float = 0.0
    stalled_reply: float = 0.0
    crash_before_reply: float = 0.0
    slow_call: float = 0.0
    instant_call: float = 0.0
    store_down: float = 0.0
    time_travel: float = 0.0
    wall_clock_step: float = 0.0
    crash_host: float = 0.0
    crash_server: float = 0.0
    crash_run: float = 0.0
    pause_host: float = 0.0
    pause_run: float = 0.0
    join: float = 0.0
    leave: float = 0.0
    split: float = 0.0
    merge: float = 0.0
    force_checkpoint: float = 0.0
    pause_group: float = 0.0
    change_order: float = 0.0
    doubled_tick: float = 0.0
    manual_run: float = 0.0
    unready: float = 0.0
    # Per occasion instead of per call:
    skipped_tick: float = 0.0
    wrong_verdict: float = 0.0
    slow_batch: float = 0.0
    forgotten_cursor: float = 0.0
    clock_rate_error: float = 0.0
    uneven_ticks: float = 0.0

    @classmethod
    def swarm(cls, chance: random.Random) -> Self:
        """Draw a set of rates for one seed."""
        rates: dict[str, float] = {}
        for rate in fields(cls):
            used, power = chance.random() < 0.5, chance.random()
            if used:
                decades = 0.3 if rate.name in _MILD else 1.5
                rates[rate.name] = _LARGEST.get(rate.name, 0.01) * 10 ** (-decades * power)
        return cls(**rates)


_LARGEST = {
    "lost_before": 0.1,
    "lost_after": 0.1,
    "slow_call": 0.2,
    "instant_call": 1.0,
    "stalled_reply": 0.03,
    "store_down": 0.004,
    "time_travel": 0.003,
    "skipped_tick": 0.3,
    "doubled_tick": 0.03,
    "wrong_verdict": 0.5,
    "slow_batch": 0.5,
    "forgotten_cursor": 1.0,
    # 0.75 T on a clock that is slow by a tenth still ends before T on one that is as fast.
    "clock_rate_error": 0.1,
    "uneven_ticks": 1.0,
    "force_checkpoint": 0.003,
    "pause_group": 0.003,
    "change_order": 0.003,
}
"""The largest rate of each kind where it is not 1 in 100."""

_MILD = frozenset({"clock_rate_error", "uneven_ticks", "instant_call"})
"""Conditions rather than faults: where one of them is drawn, it is drawn near its largest."""


FOLLOWING_SHARE = 0.5
"""The share of a swarm's groups whose runs follow their shards."""
INTERVALS_S = (0.0, 2.0, 10.0, 30.0)
IDLE_LIMITS_S = (5.0, 30.0, 120.0)
BUDGETS_S = (60.0, 100_000.0)
"""The second one outlives every simulation: no shard may need the end of a run to get on."""


@dataclass(frozen=True, slots=True)
class FollowingPace:
    """The pace of a group whose runs follow their shards, in seconds."""

    commit_interval_s: float
    idle_limit_s: float
    budget_s: float

    @classmethod
    def of_seed(cls, seed: int) -> Self | None:
        """Return a seed's pace; None where its runs end once all is read."""
        # Chance of its own, so that seeds whose runs do not follow play as they always did.
        chance = random.Random(f"the pace of {seed}")
        if chance.random() >= FOLLOWING_SHARE:
            return None
        return cls(
            chance.choice(INTERVALS_S), chance.choice(IDLE_LIMITS_S), chance.choice(BUDGETS_S)
        )
