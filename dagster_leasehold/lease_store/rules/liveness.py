"""Decides if a node is dead or a planner silent, from one observer's memory and monotonic clock.

A node is alive while its counter moves. An observer stores when it first read the present value of
each counter, on its own monotonic clock. A node whose counter has not moved for longer than the
timeout T is dead. No wall clock matters.

A node is evicted only after it has stopped trusting its leases:

1. The node sends a heartbeat, which adds 1 to its counter. It trusts its leases for 0.75 T from
   before that.
2. The observer reads the new value, after step 1, and starts to count.
3. T later it still reads the same value. The node's trust ended at least 0.25 T ago.
4. The eviction names the value. If the node beats between steps 3 and 4, the eviction fails.

An outage of the store evicts no live node:

1. The store is unavailable for longer than T. No node can beat, and no observer can read.
2. It is available again. The first observer reads counters that have not moved for longer than T.
3. Time without a successful read does not count as silence. After a long outage all counts restart,
   and each node has the time T to beat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

import msgspec

from dagster_leasehold.lease_store.errors import InvalidIdentifier
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

Clock = Callable[[], float]
"""Seconds since some time in the past; it never steps back."""
REMEMBERED_TRANSFERS_MAX = 256
COUNTABLE_FRACTION = 0.6
"""The most of an interval between two reads that counts as silence, as a part of T.

It is less than two thirds. So if an observer stalls or its machine sleeps, a node that beats every
third of T has not lapsed at the observer's next read.
"""

REMEMBERED_CHARACTERS_MAX = 1_000_000
UNCHANGED_MAX_S = 1e9


def floor_to_tenth(seconds: float) -> float:
    """Round down to a tenth, so that an observer never counts too much time."""
    return max(int(seconds * 10) / 10, 0.0)


Seconds = Annotated[float, msgspec.Meta(ge=0, lt=UNCHANGED_MAX_S)]


@dataclass(frozen=True, slots=True)
class Memory:
    """The observations of a process, for the next one.

    Attributes:
        nodes: by node, the counter's value, the seconds for which it has not moved, and its
            incarnation.
        transfers: by shard, its `lease_id` and the seconds for which it is in transfer.
        incarnations: the incarnation of each node that the process served.
        place: where the process ran (`process_identity`).
    """

    format: Literal[1] = 1
    nodes: dict[str, tuple[int, Seconds, str]] = field(
        default_factory=dict[str, tuple[int, Seconds, str]]
    )
    transfers: dict[str, tuple[int, Seconds]] = field(
        default_factory=dict[str, tuple[int, Seconds]]
    )
    incarnations: dict[str, Annotated[str, msgspec.Meta(min_length=1)]] = field(
        default_factory=dict[str, str]
    )
    place: str = ""


def parse_memory(text: str) -> Memory:
    """Parse text from `Observations.remember`; return an empty memory if it is invalid."""
    if text and len(text) <= REMEMBERED_CHARACTERS_MAX:
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            return msgspec.json.decode(text, type=Memory)
    return Memory()


def recall_incarnations(text: str, place: str) -> dict[str, str]:
    """Return the incarnations by node that an earlier process stored in the same place.

    In another place (after a reboot, in a new container) no process can check if the runs under
    these incarnations are alive. So the nodes get new incarnations there, the counters of the old
    ones stop, and the shards of dead runs become free.
    """
    memory = parse_memory(text)
    return memory.incarnations if memory.place == place else {}


def steady_clock() -> float:
    """Return the seconds of a clock that continues while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class ObservedTime:
    """The time between an observer's reads, as far as it counts as silence.

    After a failed read, the time until the next read does not count. Any other interval counts up
    to a limit, because a frozen observer (alone or with its machine) reads no counters.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_failed = False
        self.last = clock()

    def record_failed_read(self) -> None:
        """Record a failed read."""
        self._read_failed = True

    def record_read(self, countable_s: float) -> tuple[float, float]:
        """Record a read; return the counted and the excluded seconds since the last read.

        At most `countable_s` seconds count. After failed reads for longer than that, the second
        number is infinite, which voids all time counted before.
        """
        now = self._clock()
        interval_s = now - self.last
        excluded_s = self._excluded_s(interval_s, countable_s)
        self.last, self._read_failed = now, False
        return max(interval_s - excluded_s, 0.0), excluded_s

    def _excluded_s(self, interval_s: float, countable_s: float) -> float:
        if not self._read_failed:
            return max(interval_s - countable_s, 0.0)
        return interval_s if interval_s <= countable_s else float("inf")


@dataclass(frozen=True, slots=True)
class _Observation:
    """The value of a counter, its incarnation, and the time of its first read."""

    value: int
    since: float
    incarnation: str = ""

    def with_later_start(self, seconds: float, now: float) -> _Observation:
        """Return it with a start some seconds later, at most `now`."""
        return replace(self, since=min(self.since + seconds, now))

    def or_earlier(self, before: _Observation | None) -> _Observation:
        """Return `before` if it has the same value and incarnation, otherwise this one."""
        if before is None or before.value != self.value or before.incarnation != self.incarnation:
            return self
        return before


class Observations:
    """One observer's record of the time for which each counter and transfer is unchanged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._nodes: dict[NodeName, _Observation] = {}
        self._transfers: dict[ShardId, _Observation] = {}
        self._observed_time = ObservedTime(clock)

    def record_failed_read(self) -> None:
        """Record a failed read, so that the time until the next read does not count."""
        self._observed_time.record_failed_read()

    def record_nodes(self, nodes: Iterable[Node], timeout_s: float) -> None:
        """Record the group's nodes as just read; drop former members; `timeout_s` is T.

        A new node, counter value or incarnation starts its count at 0.
        """
        _, excluded_s = self._observed_time.record_read(timeout_s * COUNTABLE_FRACTION)
        now = self._observed_time.last
        self._shorten_counts(excluded_s, now)
        self._nodes = {
            node.name: _Observation(node.lease_id, now, node.incarnation).or_earlier(
                self._nodes.get(node.name)
            )
            for node in nodes
            if node.member
        }

    def _shorten_counts(self, seconds: float, now: float) -> None:
        """Shorten all counts by some seconds, at most to 0."""
        if seconds > 0:
            self._nodes = {
                name: sight.with_later_start(seconds, now) for name, sight in self._nodes.items()
            }
            self._transfers = {
                name: sight.with_later_start(seconds, now)
                for name, sight in self._transfers.items()
            }

    def record_transfers(self, shards: Iterable[ShardLease]) -> None:
        """Record the shards in transfer; drop the others."""
        now = self._clock()
        self._transfers = {
            lease.shard: _Observation(lease.lease_id, now).or_earlier(
                self._transfers.get(lease.shard)
            )
            for lease in shards
            if lease.state is ShardState.TRANSFER
        }

    def unchanged_s(self, node: NodeName) -> float:
        """Return the seconds for which a node's counter has not moved, at least; 0 if unknown."""
        sight = self._nodes.get(node)
        return self._clock() - sight.since if sight else 0.0

    def transfer_s(self, shard: ShardId) -> float:
        """Return the seconds for which a shard is in transfer, at least; 0 if it is not."""
        sight = self._transfers.get(shard)
        return self._clock() - sight.since if sight else 0.0

    def lapsed(self, timeout_s: float) -> dict[NodeName, int]:
        """Return the nodes whose counter has not moved for over `timeout_s`, with its value."""
        now = self._clock()
        return {
            node: sight.value
            for node, sight in self._nodes.items()
            if now - sight.since > timeout_s
        }

    def remember(self, incarnations: Mapping[NodeName, str] | None = None, place: str = "") -> str:
        """Return the observations as text for `recall`, without the time since the last read.

        Of many transfers, it has only the longest. The other arguments are fields of `Memory`.
        """
        at = self._observed_time.last
        oldest = sorted(self._transfers.items(), key=lambda item: (item[1].since, item[0]))
        memory = Memory(
            nodes={
                node: (sight.value, floor_to_tenth(at - sight.since), sight.incarnation)
                for node, sight in sorted(self._nodes.items())
            },
            transfers={
                shard: (sight.value, floor_to_tenth(at - sight.since))
                for shard, sight in oldest[:REMEMBERED_TRANSFERS_MAX]
            },
            incarnations={str(node): each for node, each in (incarnations or {}).items()},
            place=place,
        )
        return msgspec.json.encode(memory, enc_hook=str).decode()

    @classmethod
    def recall(cls, text: str, clock: Clock) -> Self:
        """Continue from the observations of an earlier process, or from none if `text` is invalid.

        The time between the two processes does not count.
        """
        observations, memory, now = cls(clock), parse_memory(text), clock()
        with suppress(InvalidIdentifier):
            observations._nodes = {
                NodeName(node): _Observation(value, now - unchanged_s, incarnation)
                for node, (value, unchanged_s, incarnation) in memory.nodes.items()
            }
            observations._transfers = {
                ShardId(shard): _Observation(value, now - unchanged_s)
                for shard, (value, unchanged_s) in memory.transfers.items()
            }
        return observations


class PlannerWatch:
    """Measures the silence of the planner that launches a node's runs, for the node's agent.

    While a deployment's daemon is down, its nodes beat, but no run can be launched. Each tick of
    the planner writes a new mark. The silence is the time for which the mark has not changed. Time
    in which the mark cannot be read counts separately, because such a node gets no runs either.

    Args:
        interval_max_s: the most of the time between two reads that counts, in seconds, because an
            agent that was frozen with its machine could not read new marks.
    """

    def __init__(self, clock: Clock, interval_max_s: float) -> None:
        self._interval_max_s = interval_max_s
        self._observed_time = ObservedTime(clock)
        self._mark: str | None = None
        self._unchanged_s = 0.0
        self._unanswered_s = 0.0

    @property
    def silent_s(self) -> float:
        """The planner's silence, at least, in seconds."""
        return max(self._unchanged_s, self._unanswered_s)

    def record_failed_read(self) -> None:
        """Record that the lease store does not answer: without it, no planner can tick."""
        self._observed_time.record_failed_read()

    def record_mark(self, mark: str | None) -> None:
        """Record the mark of the planner's last tick.

        It is empty before the planner's first tick, which does not count as silence, and None if it
        could not be read.
        """
        passed_s, _ = self._observed_time.record_read(self._interval_max_s)
        if mark is None:
            self._unanswered_s += passed_s
            return
        if mark == "" or mark != self._mark:
            self._unchanged_s = 0.0
        elif self._unanswered_s == 0.0:
            self._unchanged_s += passed_s
        self._mark, self._unanswered_s = mark, 0.0


def handoff_deadline_s(group: Group, lease: ShardLease) -> float:
    """Return the deadline of a transfer in seconds: the estimate, up to the group's limit."""
    if lease.handoff_eta_s is None:
        return group.handoff_limit_s
    return min(lease.handoff_eta_s, group.handoff_limit_s)
