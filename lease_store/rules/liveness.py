"""Who is dead, judged by own memory and own clock.

A node lives as long as its counter moves. An observer remembers which value it saw first and
when, on its own monotonic clock; a value that has not moved for longer than the timeout means a
dead node. No time of day, of any machine, takes part.

Why a verdict can never hurt a live node:

1. The node adds 1 to its counter and trusts itself for 0.75 T from before it sent that.
2. The observer sees the new value, so not before step 1, and starts to count.
3. T later it still sees the same value: the node has distrusted itself for at least 0.25 T.
4. The eviction names the value. If the node beats between 3 and 4, the eviction fails.

Why an outage of the store evicts nobody who lives:

1. The store is away for longer than T. No node can beat, and no observer can look.
2. It comes back. The first observer to look sees counters that have not moved for longer than T.
3. Time in which the observer could not look is not the others' silence: after a long one all
   counts start anew, and each node has T from there to be heard again.
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
REMEMBERED_CHARACTERS_MAX = 1_000_000
UNCHANGED_MAX_S = 1e9
LOOK_FRACTION = 0.6
"""The part of T that one interval between two looks may count at most.

Less than two thirds: a node that beats every third of T and beat in time before its observer
stood still, or slept with the whole machine, has not lapsed at the observer's first look after it.
"""
_FORMAT = 1


def steady_clock() -> float:
    """Seconds that go on while the machine sleeps, so that a woken holder knows what it missed."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@dataclass(frozen=True, slots=True)
class _Sight:
    """A counter's value, whose it is, and when it was first seen."""

    value: int
    since: float
    incarnation: str = ""

    def begun_later(self, seconds: float, now: float) -> _Sight:
        """The same sight, as if it had begun some seconds later, but not after now."""
        return replace(self, since=min(self.since + seconds, now))


class Observations:
    """How long each node's counter, and each transfer, has stood still before this observer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._nodes: dict[NodeName, _Sight] = {}
        self._transfers: dict[ShardId, _Sight] = {}
        self._looked_at = clock()
        self._blind = False

    def lose_sight(self) -> None:
        """Take note that a look failed: the time until the next one is nobody's silence."""
        self._blind = True

    def see(self, nodes: Iterable[Node], timeout_s: float) -> None:
        """Take note of the group's nodes; those that are no members any more are forgotten.

        A first sight starts the count; a counter or an incarnation that changed restarts it.
        `timeout_s` is the group's T.
        """
        now = self._clock()
        self._leave_out(self._uncounted_s(now - self._looked_at, timeout_s), now)
        self._looked_at, self._blind = now, False
        seen: dict[NodeName, _Sight] = {}
        for node in nodes:
            if not node.member:
                continue
            before = self._nodes.get(node.name)
            same = (
                before is not None
                and before.value == node.lease_id
                and before.incarnation == node.incarnation
            )
            seen[node.name] = (
                before if before and same else _Sight(node.lease_id, now, node.incarnation)
            )
        self._nodes = seen

    def _uncounted_s(self, interval_s: float, timeout_s: float) -> float:
        """How much of the time since the last look is left out of all counts."""
        countable_s = timeout_s * LOOK_FRACTION
        if not self._blind:
            return max(interval_s - countable_s, 0.0)
        return interval_s if interval_s <= countable_s else float("inf")

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
        """Take note of the shards in transfer; those that arrived are forgotten."""
        now = self._clock()
        seen: dict[ShardId, _Sight] = {}
        for lease in shards:
            if lease.state is not ShardState.TRANSFER:
                continue
            before = self._transfers.get(lease.shard)
            same = before is not None and before.value == lease.lease_id
            seen[lease.shard] = before if before and same else _Sight(lease.lease_id, now)
        self._transfers = seen

    def unchanged_s(self, node: NodeName) -> float:
        """For how many seconds at least the node's counter stood still; 0 for one never seen."""
        sight = self._nodes.get(node)
        return self._clock() - sight.since if sight else 0.0

    def transfer_s(self, shard: ShardId) -> float:
        """For how many seconds at least the shard has been in its present transfer."""
        sight = self._transfers.get(shard)
        return self._clock() - sight.since if sight else 0.0

    def lapsed(self, timeout_s: float) -> dict[NodeName, int]:
        """The nodes whose counter stood still for longer than `timeout_s`, and at which value."""
        return {
            node: sight.value
            for node, sight in self._nodes.items()
            if self.unchanged_s(node) > timeout_s
        }

    def remember(self, **further: object) -> str:
        """What was observed, as text for `recall`: "unchanged for at least s seconds".

        Time after the last look is left out, because nothing was seen in it. `further` JSON values
        are kept beside it for the caller, who finds them again with `parse_memory`. Of many
        transfers only those that last longest are kept.
        """
        at = self._looked_at
        oldest = sorted(self._transfers.items(), key=lambda item: (item[1].since, item[0]))
        return json.dumps(
            {
                "format": _FORMAT,
                "nodes": {
                    node: [sight.value, _floor(at - sight.since), sight.incarnation]
                    for node, sight in sorted(self._nodes.items())
                },
                "transfers": {
                    shard: [sight.value, _floor(at - sight.since)]
                    for shard, sight in oldest[:REMEMBERED_TRANSFERS_MAX]
                },
                **further,
            },
            separators=(",", ":"),
        )

    @classmethod
    def recall(cls, text: str, clock: Clock) -> Self:
        """Go on from what another process remembered; from nothing, where the text is not that.

        The time between the two processes counts as no time: what is lost makes this observer
        more patient, never less.
        """
        observations = cls(clock)
        now = clock()
        for node, value, unchanged_s, incarnation in _entries(text, "nodes"):
            try:
                name = NodeName(node)
            except InvalidIdentifier:
                continue
            observations._nodes[name] = _Sight(value, now - unchanged_s, incarnation)
        for shard, value, unchanged_s, _ in _entries(text, "transfers"):
            try:
                observations._transfers[ShardId(shard)] = _Sight(value, now - unchanged_s)
            except InvalidIdentifier:
                continue
        return observations


class PlannerWatch:
    """Silence of the planner that launches a node's runs, by own memory and own monotonic clock.

    A deployment may be unable to launch anything while its nodes beat: its daemon is down. Each
    tick of its planner leaves a new mark, and what counts is how long the mark has not changed.
    Time in which nobody could look does not count, except that marks which stay out of reach
    count like a silence of their own: whoever cannot read them cannot be sent a run either.

    Args:
        clock: monotonic seconds.
        look_max_s: the most that the time between two looks counts, in seconds; whoever was
            frozen with the whole machine has not seen the planner be silent.
    """

    def __init__(self, clock: Clock, look_max_s: float) -> None:
        self._clock = clock
        self._look_max_s = look_max_s
        self._looked_at = clock()
        self._mark: str | None = None
        self._unchanged_s = 0.0
        self._unanswered_s = 0.0
        self._blind = False

    @property
    def silent_s(self) -> float:
        """For how many seconds at least the planner has been silent."""
        return max(self._unchanged_s, self._unanswered_s)

    def lose_sight(self) -> None:
        """Take note that the lease store does not answer: no planner can tick without it."""
        self._blind = True

    def see(self, mark: str | None) -> None:
        """Take note of the mark of the planner's last tick.

        Empty where it never left one, so that there is nothing to judge by; None where the mark
        could not be read.
        """
        now = self._clock()
        passed_s = min(now - self._looked_at, self._look_max_s)
        passed_s = 0.0 if self._blind else passed_s
        self._looked_at, self._blind = now, False
        if mark is None:
            self._unanswered_s += passed_s
            return
        if mark == "" or mark != self._mark:
            self._unchanged_s = 0.0
        elif self._unanswered_s == 0.0:
            self._unchanged_s += passed_s
        self._mark, self._unanswered_s = mark, 0.0


def _floor(seconds: float) -> float:
    """Rounded down to a tenth: an observer may only ever claim to have waited less."""
    return max(int(seconds * 10) / 10, 0.0)


def parse_memory(text: str) -> dict[str, Any]:
    """Remembered text as a mapping; an empty one where the text is not what was remembered."""
    if not text or len(text) > REMEMBERED_CHARACTERS_MAX:
        return {}
    try:
        memory = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(memory, dict):
        return {}
    memory = cast("dict[str, Any]", memory)
    return memory if memory.get("format") == _FORMAT else {}


def recall_incarnations(text: str, place: str) -> dict[str, str]:
    """Return the incarnations that a predecessor in the same place remembered, by node.

    In another place (after a reboot, in a new container) nobody can see what became of the runs
    that were launched under them, so that the nodes begin anew there: their former incarnations
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


def _entries(text: str, part: str) -> list[tuple[str, int, float, str]]:
    section = parse_memory(text).get(part)
    if not isinstance(section, dict):
        return []
    found: list[tuple[str, int, float, str]] = []
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
        whose = incarnation if isinstance(incarnation, str) else ""
        found.append((name, value, float(unchanged_s), whose))
    return found


def handoff_deadline_s(group: Group, lease: ShardLease) -> float:
    """How long a transfer may take: what its holder announced, at most what the group allows."""
    if lease.handoff_eta_s is None:
        return group.handoff_limit_s
    return min(lease.handoff_eta_s, group.handoff_limit_s)
