"""The rows of consumer groups and their nodes as frozen values, and snapshots of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.release import RELEASE
from dagster_leasehold.lease_store.shard_rows import ShardLease

TIMEOUT_DEFAULT_S = 20.0
HANDOFF_LIMIT_DEFAULT_S = 120.0
STALL_LIMIT_DEFAULT_S = 600.0
TRUST_FRACTION = 0.75
BEAT_FRACTION_MAX = 1 / 3
GROUPS_PER_STREAM_MAX = 5


class AssignmentMode(StrEnum):
    """The rule by which a group shares its shards among its nodes.

    Examples:
        >>> AssignmentMode("modulo") is AssignmentMode.MODULO
        True
    """

    BALANCED = "balanced"
    MODULO = "modulo"
    PINNED = "pinned"


class GapPolicy(StrEnum):
    """The handling of records that retention removed before the group read them.

    `hold` waits until an operator accepts the loss, `begin` continues with the oldest remaining
    record, `end` continues after the newest one. Each such range is recorded as a gap.

    Examples:
        >>> ShardStream("visits", LocalLog("log"), gap_policy=GapPolicy.BEGIN).gap_policy.value
        'begin'
    """

    HOLD = "hold"
    BEGIN = "begin"
    END = "end"


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations of the protocol, in seconds.

    Attributes:
        timeout_s: T; a node whose counter has not moved for longer counts as dead.
        beat_s: the interval between two heartbeats; at most T/3.

    Raises:
        InvalidSetting: the durations violate `0 < beat <= T/3`.
    """

    timeout_s: float = TIMEOUT_DEFAULT_S
    beat_s: float = TIMEOUT_DEFAULT_S / 3

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= 86_400:
            raise InvalidSetting(
                f"The lease timeout is {self.timeout_s} s: use more than 0 and at most 86400 s."
            )
        if not 0 < self.beat_s <= self.timeout_s * BEAT_FRACTION_MAX * (1 + 1e-9):
            raise InvalidSetting(
                f"The heartbeat interval is {self.beat_s} s with a lease timeout of "
                f"{self.timeout_s} s: use at most a third of the timeout."
            )

    @property
    def trust_s(self) -> float:
        """The time for which a holder trusts its leases, from just before a heartbeat was sent."""
        return self.timeout_s * TRUST_FRACTION


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: row of `consumer_group`.

    Attributes:
        ordered: True if a child shard waits until all its parents are finished.
        timeout_s: T, the volume lease timeout of its nodes.
        handoff_limit_s: the longest time of a transfer; a holder's longer estimate is ignored.
        initial_position: `begin`, `end` or an ISO 8601 time, for shards without a checkpoint.
        node_cap: the most shards that one node can hold, or None.
        weighted: True to balance the sum of the shards' weights instead of their number.
        paused: True if no shard is claimed or opened; holders stop at their next batch boundary.
        gap_policy: the handling of records that were removed before they were read.
        generation: incremented by every change of membership, shard list or ownership.

    Examples:
        >>> Group(GroupKey.parse("counting", "visits"), timeout_s=10).ordered
        True
    """

    key: GroupKey
    ordered: bool = True
    timeout_s: float = TIMEOUT_DEFAULT_S
    handoff_limit_s: float = HANDOFF_LIMIT_DEFAULT_S
    assignment: AssignmentMode = AssignmentMode.BALANCED
    initial_position: str = "begin"
    node_cap: int | None = None
    weighted: bool = False
    paused: bool = False
    gap_policy: GapPolicy = GapPolicy.HOLD
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a group: row of `loghub_client_worker_instance`.

    Attributes:
        lease_id: the volume lease: +1 per heartbeat.
        incarnation: the process that has this name; empty if it left or was evicted.
        source_count: modulo assignment: the number of members, or None.
        node_id: modulo assignment: this member's remainder, or None.
        pinned: pinned assignment: shard to bootstrap cursor, or None to continue from the store.
        accepts_runs: False while the node's code server accepts no runs, its Spark is
            starting again, or its deployment launches no runs; its shards are then transferred.
        release_version: the release of the process that has this name.
    """

    name: NodeName
    lease_id: int
    incarnation: str
    address: str = ""
    source_count: int | None = None
    node_id: int | None = None
    pinned: dict[ShardId, str | None] | None = None
    accepts_runs: bool = True
    release_version: str = RELEASE

    @property
    def member(self) -> bool:
        """True if a process has this name."""
        return self.incarnation != ""


def rival_of(name: NodeName, incarnation: str, nodes: Iterable[Node]) -> Node | None:
    """Return the row of another incarnation that has a name, or None."""
    row = next((node for node in nodes if node.name == name), None)
    return row if row is not None and row.member and row.incarnation != incarnation else None


@dataclass(frozen=True, slots=True)
class Pulse:
    """The group's row and its nodes' counters, read in one statement."""

    group: Group
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent read of a group: the input of planning; `weights` are records per second."""

    group: Group
    nodes: tuple[Node, ...]
    shards: tuple[ShardLease, ...]
    weights: Mapping[ShardId, float] = field(default_factory=dict[ShardId, float])
