"""Verdicts of death and silence, from the observer's own memory and its own monotonic clock.

A node lives as long as its counter moves. An observer remembers which value it saw first and
when, on its own monotonic clock; a value that has not moved for longer than the timeout means a
dead node. No time of day, of any machine, takes part.

Why a verdict can never hurt a live node:

1. The node adds 1 to its counter and trusts itself for 0.75 T from before it sent that.
2. The observer sees the new value, so not before step 1, and starts to count.
3. T later it still sees the same value: the node has distrusted itself for at least 0.25 T.
4. The eviction names the value. If the node beats between 3 and 4, the eviction fails.

Why an outage of the store evicts no live node:

1. The store is away for longer than T. No node can beat, and no observer can look.
2. It comes back. The first observer to look sees counters that have not moved for longer than T.
3. Time when the observer could not look is not the others' silence: after a long one all
   counts start over, and each node has T from there to be heard again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from dagster_leasehold.lease_store.errors import InvalidIdentifier
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import IDENTIFIER_LENGTH_MAX, NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

Clock = Callable[[], float]
"""Seconds since some moment of the past; it never steps back."""
REMEMBERED_TRANSFERS_MAX = 256
LOOK_FRACTION = 0.6
"""The part of T that one interval between two looks can count at most.

Less than two thirds: a node that beats every third of T and beat in time before its observer
stalled, or slept with the whole machine, has not lapsed at the observer's first look after it.
"""

REMEMBERED_CHARACTERS_MAX = 1_000_000
UNCHANGED_MAX_S = 1e9
FORMAT = 1


def floor_to_tenth(seconds: float) -> float:
    """Round down to a tenth: an observer may only ever claim to have waited less."""
    return max(int(seconds * 10) / 10, 0.0)


def parse_memory(text: str) -> dict[str, Any]:
    """Parse the remembered text; return an empty mapping if it is not valid."""
    if not text or len(text) > REMEMBERED_CHARACTERS_MAX:
        return {}
    try:
        memory = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(memory, dict):
        return {}
    memory = cast("dict[str, Any]", memory)
    return memory if memory.get("format") == FORMAT else {}


def recall_incarnations(text: str, place: str) -> dict[str, str]:
    """Return the incarnations that a predecessor in the same place remembered, by node.

    In another place (after a reboot, in a new container) no process can see what became of the runs
    that were launched under them, so that the nodes start over there: their former incarnations
    fall silent, and what dead runs had open is freed.
    """
    memory = parse_memory(text)
    section = memory.get("incarnations")
    if memory.get("place", "") != place or not isinstance(section, dict):
        return {}
    return {
        name: incarnation
        for name, incarnation in cast("dict[str, Any]", section).items()
        if isinstance(incarnation, str) and 0 < len(incarnation) <= IDENTIFIER_LENGTH_MAX
    }


def entries(text: str, part: str) -> list[tuple[str, int, float, str]]:
    """Return one part of remembered text as name, value, seconds unchanged, and incarnation.

    All else is left out.
    """
    section = parse_memory(text).get(part)
    if not isinstance(section, dict):
        return []
    valid: list[tuple[str, int, float, str]] = []
    for name, entry in cast("dict[str, Any]", section).items():
        if not isinstance(entry, list):
            continue
        entry = cast("list[Any]", entry)
        value, unchanged_s, incarnation = [*entry, None, None, None][:3]
        # A bool is an int to Python, and NaN compares as false with everything.
        if type(value) is not int or isinstance(unchanged_s, bool):
            continue
        if not isinstance(unchanged_s, int | float) or not 0 <= unchanged_s < UNCHANGED_MAX_S:
            continue
        owner = incarnation if isinstance(incarnation, str) else ""
        valid.append((name, value, float(unchanged_s), owner))
    return valid


def steady_clock() -> float:
    """Return seconds of a clock that counts while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Looks:
    """The looks of one observer, and how much of the time between two of them counts as silence.

    Time when the observer could not look is not the others' silence. After a look that failed
    nothing counts until the next one; of any other interval at most a given part counts, since an
    observer that was frozen, perhaps with the whole machine, has seen no beat.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._blind = False
        self.last = clock()

    def lose_sight(self) -> None:
        """Take note that a look failed."""
        self._blind = True

    def look(self, countable_s: float) -> tuple[float, float]:
        """Take note of a look now; return the seconds since the last that count, and the others.

        `countable_s` is the most that can count. The others are infinite after failed looks that
        lasted longer than that: all time counted before then is void.
        """
        now = self._clock()
        interval_s = now - self.last
        left_out_s = self._left_out_s(interval_s, countable_s)
        self.last, self._blind = now, False
        return max(interval_s - left_out_s, 0.0), left_out_s

    def _left_out_s(self, interval_s: float, countable_s: float) -> float:
        if not self._blind:
            return max(interval_s - countable_s, 0.0)
        return interval_s if interval_s <= countable_s else float("inf")


@dataclass(frozen=True, slots=True)
class _Sight:
    """The value of a counter, its incarnation, and the time when it was first seen."""

    value: int
    since: float
    incarnation: str = ""

    def begun_later(self, seconds: float, now: float) -> _Sight:
        """Return the same sight, as if it had begun some seconds later, but not after now."""
        return replace(self, since=min(self.since + seconds, now))

    def or_earlier(self, before: _Sight | None) -> _Sight:
        """Return the sight from before, if it was of the same value and incarnation."""
        if before is None or before.value != self.value or before.incarnation != self.incarnation:
            return self
        return before


class Observations:
    """How long each node's counter and each transfer has not moved, for one observer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._nodes: dict[NodeName, _Sight] = {}
        self._transfers: dict[ShardId, _Sight] = {}
        self._looks = Looks(clock)

    def lose_sight(self) -> None:
        """Record that a look failed: the time until the next one does not count."""
        self._looks.lose_sight()

    def see(self, nodes: Iterable[Node], timeout_s: float) -> None:
        """Take note of the group's nodes; former members are forgotten.

        A first sight starts the count; a counter or an incarnation that changed restarts it.
        `timeout_s` is the group's T.
        """
        _, left_out_s = self._looks.look(timeout_s * LOOK_FRACTION)
        now = self._looks.last
        self._leave_out(left_out_s, now)
        self._nodes = {
            node.name: _Sight(node.lease_id, now, node.incarnation).or_earlier(
                self._nodes.get(node.name)
            )
            for node in nodes
            if node.member
        }

    def _leave_out(self, seconds: float, now: float) -> None:
        """Begin all counts later by some seconds, at most now."""
        if seconds > 0:
            self._nodes = {
                name: sight.begun_later(seconds, now) for name, sight in self._nodes.items()
            }
            self._transfers = {
                name: sight.begun_later(seconds, now) for name, sight in self._transfers.items()
            }

    def see_transfers(self, shards: Iterable[ShardLease]) -> None:
        """Record the shards in transfer; arrived ones are forgotten."""
        now = self._clock()
        self._transfers = {
            lease.shard: _Sight(lease.lease_id, now).or_earlier(self._transfers.get(lease.shard))
            for lease in shards
            if lease.state is ShardState.TRANSFER
        }

    def unchanged_s(self, node: NodeName) -> float:
        """Return the least seconds that a node's counter has not moved; 0 if never seen."""
        sight = self._nodes.get(node)
        return self._clock() - sight.since if sight else 0.0

    def transfer_s(self, shard: ShardId) -> float:
        """Return the least number of seconds that the shard has been in its present transfer."""
        sight = self._transfers.get(shard)
        return self._clock() - sight.since if sight else 0.0

    def lapsed(self, timeout_s: float) -> dict[NodeName, int]:
        """Return the nodes whose counter did not move for over `timeout_s`, each with its value."""
        now = self._clock()
        return {
            node: sight.value
            for node, sight in self._nodes.items()
            if now - sight.since > timeout_s
        }

    def remember(self, **further: object) -> str:
        """Return the observations as text for `recall`: "unchanged for at least s seconds".

        Time after the last look is left out, because nothing was seen in it. `further` JSON values
        are kept beside it for the caller, who gets them back from `parse_memory`. Of many
        transfers only the longest are kept.
        """
        at = self._looks.last
        oldest = sorted(self._transfers.items(), key=lambda item: (item[1].since, item[0]))
        return json.dumps(
            {
                "format": FORMAT,
                "nodes": {
                    node: [sight.value, floor_to_tenth(at - sight.since), sight.incarnation]
                    for node, sight in sorted(self._nodes.items())
                },
                "transfers": {
                    shard: [sight.value, floor_to_tenth(at - sight.since)]
                    for shard, sight in oldest[:REMEMBERED_TRANSFERS_MAX]
                },
                **further,
            },
            separators=(",", ":"),
        )

    @classmethod
    def recall(cls, text: str, clock: Clock) -> Self:
        """Continue from the observations of another process; from nothing if the text is no memory.

        The time between the two processes counts as no time: what is lost makes this observer
        more patient, never less.
        """
        observations = cls(clock)
        now = clock()
        for node, value, unchanged_s, incarnation in entries(text, "nodes"):
            try:
                name = NodeName(node)
            except InvalidIdentifier:
                continue
            observations._nodes[name] = _Sight(value, now - unchanged_s, incarnation)
        for shard, value, unchanged_s, _ in entries(text, "transfers"):
            try:
                observations._transfers[ShardId(shard)] = _Sight(value, now - unchanged_s)
            except InvalidIdentifier:
                continue
        return observations


class PlannerWatch:
    """Silence of the planner that launches a node's runs, by own memory and own monotonic clock.

    A deployment can be unable to launch anything while its nodes beat: its daemon is down. Each
    tick of its planner leaves a new mark, and what counts is how long the mark has not changed.
    Time when no observer could look does not count, except that marks which stay out of reach
    count like a silence of their own: a node that cannot read them cannot be sent a run either.

    Args:
        clock: monotonic seconds.
        look_max_s: the most that the time between two looks counts, in seconds; an
            observer that was frozen with the whole machine has not seen the planner be silent.
    """

    def __init__(self, clock: Clock, look_max_s: float) -> None:
        self._look_max_s = look_max_s
        self._looks = Looks(clock)
        self._mark: str | None = None
        self._unchanged_s = 0.0
        self._unanswered_s = 0.0

    @property
    def silent_s(self) -> float:
        """The number of seconds that, at least, the planner has been silent."""
        return max(self._unchanged_s, self._unanswered_s)

    def lose_sight(self) -> None:
        """Take note that the lease store does not answer: no planner can tick without it."""
        self._looks.lose_sight()

    def see(self, mark: str | None) -> None:
        """Take note of the mark of the planner's last tick.

        It is empty if the planner never left one, so that there is nothing to judge by, and None
        if it could not be read.
        """
        passed_s, _ = self._looks.look(self._look_max_s)
        if mark is None:
            self._unanswered_s += passed_s
            return
        if mark == "" or mark != self._mark:
            self._unchanged_s = 0.0
        elif self._unanswered_s == 0.0:
            self._unchanged_s += passed_s
        self._mark, self._unanswered_s = mark, 0.0


def handoff_deadline_s(group: Group, lease: ShardLease) -> float:
    """Return the seconds that a transfer can take: as announced, up to the group's limit."""
    if lease.handoff_eta_s is None:
        return group.handoff_limit_s
    return min(lease.handoff_eta_s, group.handoff_limit_s)
