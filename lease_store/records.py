"""The rows of the lease store as frozen values: what a snapshot, a tenure and a batch are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState

TIMEOUT_DEFAULT_S = 20.0
HANDOFF_LIMIT_DEFAULT_S = 120.0
STALL_LIMIT_DEFAULT_S = 600.0
GROUPS_PER_STREAM_MAX = 5
TRUST_FRACTION = 0.75
BEAT_FRACTION_MAX = 1 / 3


class AssignmentMode(StrEnum):
    """How a group shares its shards among its nodes."""

    BALANCED = "balanced"
    MODULO = "modulo"
    PINNED = "pinned"


class GapPolicy(StrEnum):
    """What becomes of records that retention removed before the group read them.

    `hold`: nothing moves until somebody acknowledges the loss; `begin`: go on with the first
    record that is still there; `end`: go on behind the last one. Every such range is recorded.
    """

    HOLD = "hold"
    BEGIN = "begin"
    END = "end"


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations of the protocol, in seconds; it cannot be built unsafe.

    Attributes:
        timeout_s: T, after which a node whose counter stood still is judged dead.
        beat_s: the interval between two beats; at most T/3.

    Raises:
        InvalidSetting: the durations break `0 < beat <= T/3`.
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
                f"The beat interval is {self.beat_s} s with a lease timeout of {self.timeout_s} s: "
                "use at most a third of the timeout."
            )

    @property
    def trust_s(self) -> float:
        """How long a holder trusts itself, counted from before it sent its last beat."""
        return self.timeout_s * TRUST_FRACTION


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: row of `consumer_group`.

    Attributes:
        ordered: whether a child shard waits until all its parents are finished.
        timeout_s: T, the volume lease timeout of its nodes.
        handoff_limit_s: the longest that a transfer may take, whatever its holder announces.
        initial_position: `begin`, `end` or an ISO 8601 time, used only where nothing is stored.
        node_cap: the most shards one node may hold, or None.
        weighted: balance the sum of the shards' weights instead of their number.
        paused: nothing is claimed or opened; holders stop at their next batch boundary.
        gap_policy: what becomes of records that were removed before they were read.
        generation: rises on any change of membership, shard list or ownership.
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
        lease_id: the volume lease: +1 per beat.
        incarnation: who answers to this name; empty when nobody does (it left or was evicted).
        source_count: modulo assignment: the number of members, or None.
        node_id: modulo assignment: this member's remainder, or None.
        pinned: pinned assignment: shard to bootstrap cursor, or None to continue from the store.
        accepts_runs: False while the node's code server takes no runs, or its deployment launches
            none: it gives its shards away.
    """

    name: NodeName
    lease_id: int
    incarnation: str
    address: str = ""
    source_count: int | None = None
    node_id: int | None = None
    pinned: dict[ShardId, str | None] | None = None
    accepts_runs: bool = True

    @property
    def member(self) -> bool:
        """Whether somebody answers to this name, as far as the store knows."""
        return self.incarnation != ""


@dataclass(frozen=True, slots=True)
class ShardLease:
    """A shard within a group: row of `loghub_client_shard_lease`.

    Attributes:
        lease_id: +1 at every change of ownership; the test-and-set of every claim.
        lease_owner: who has claimed it; None when nobody has.
        consumer_owner: who may consume and persist now; differs from `lease_owner` in a transfer.
        check_point: the cursor up to which output is committed; None where nothing is stored.
        consumer_epoch: the fencing number of the newest tenure; never decreases.
        consumer_run: the run that has the shard open; empty when none has.
        handoff_eta_s: how long the holder expects to need until its next batch boundary.
        watermark: event time up to which committed output is complete, or None.
        bootstrap: the bootstrap cursor that a pinned node last started the shard at, or None.
        gone_parents: those of its parents that the source has removed for good.
    """

    shard: ShardId
    state: ShardState
    lease_id: int = 0
    lease_owner: NodeName | None = None
    consumer_owner: NodeName | None = None
    check_point: str | None = None
    consumer_epoch: int = 0
    consumer_run: str = ""
    handoff_eta_s: float | None = None
    parents: tuple[ShardId, ...] = ()
    hash_begin: str = ""
    hash_end: str = ""
    read_only: bool = False
    subscribable: bool = True
    watermark: datetime | None = None
    bootstrap: str | None = None
    gone_parents: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent picture of a group: what planning sees.

    Attributes:
        weights: records per second of the shards where they are known; none where the group
            balances by count.
    """

    group: Group
    nodes: tuple[Node, ...]
    shards: tuple[ShardLease, ...]
    weights: Mapping[ShardId, float] = field(default_factory=dict[ShardId, float])


@dataclass(frozen=True, slots=True)
class Pulse:
    """What an idle tick reads: the group's row and its nodes' counters, in one statement."""

    group: Group
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where one served shard stands: the part of its row that changes without a new generation."""

    shard: ShardId
    check_point: str | None
    consumer_epoch: int
    consumer_run: str


@dataclass(frozen=True, slots=True)
class ShardListing:
    """One shard as its source lists it.

    Attributes:
        parents: the shards that it came from. An ordered group waits for all of them, for those
            that it has not been told of yet, too.
        gone_parents: those of them that the source has removed for good and will not list again:
            nobody can finish one that the group never had, so that it is not waited for.
    """

    shard: ShardId
    parents: tuple[ShardId, ...] = ()
    hash_begin: str = ""
    hash_end: str = ""
    read_only: bool = False
    subscribable: bool = True
    gone_parents: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Tenure:
    """One uninterrupted holding of one shard by one run: the fencing token, held since opening.

    Nothing re-reads it just before a write: a write names the tenure as it was opened, and fails
    when the store has moved on.
    """

    key: GroupKey
    shard: ShardId
    holder: NodeName
    epoch: int
    run: str


class BatchState(StrEnum):
    """Whether a batch is only intended or committed, or was given up.

    `abandoned` was intended only; `withdrawn` was committed until a forced checkpoint went back
    before it: its range is read again, and its files are no committed output any more.
    """

    INTENT = "intent"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of committed output: path relative to the stream's output folder, size in bytes.

    `batches` is the number of consecutive batches of the shard whose records it holds: those of
    the batch that lists it, and of the following ones, which then list no file of this kind. A row
    that others were folded into counts as all of its batches.
    `first_event_time` and `last_event_time` bound the column `event_time` of its records, as the
    transform left it; None where they are not known.
    """

    path: str
    records: int
    bytes: int
    quarantine: bool = False
    batches: int = 1
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """What was seen while a batch was read and written; it never decides a cursor.

    Attributes:
        records: records read; None when the reader was stopped early by the transform.
        bytes: bytes of keys and values read.
        written: records written to committed output.
        quarantined: records that could not be parsed.
        first_event_time: the smallest event time read, or None.
        last_event_time: the largest event time read, or None.
    """

    records: int | None = 0
    bytes: int | None = 0
    written: int = 0
    quarantined: int = 0
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A row of the ledger: the range `[start, end)` of one shard, intended or committed.

    `batch_id` is `<shard>.<sequence>`, the same for every attempt at the range.

    An old row may stand for several `batches`, which were folded into the first of them: it has
    their whole range and all their statistics, and names the last one's number and epoch.
    """

    shard: ShardId
    sequence: int
    start: str
    end: str
    state: BatchState
    epoch: int
    run: str
    holder: NodeName
    attempt: str = ""
    generation: int = 0
    files: tuple[DataFile, ...] = ()
    statistics: BatchStatistics = field(default_factory=BatchStatistics)
    finished: bool = False
    committed_at: datetime | None = None
    last_sequence: int | None = None
    last_epoch: int | None = None
    batches: int = 1

    @property
    def last(self) -> int:
        """The number of the last batch that the row stands for."""
        return self.sequence if self.last_sequence is None else self.last_sequence

    @property
    def batch_id(self) -> str:
        """The batch's stable id: an idempotency key within its stream and group."""
        return batch_id(self.shard, self.sequence)


@dataclass(frozen=True, slots=True)
class Throughput:
    """What the newest committed batches of a shard amount to.

    Attributes:
        batches: how many they are.
        records: how many records they read, or wrote where the reading was stopped early.
        first_at: when the oldest of them was committed.
        last_at: when the newest of them was committed.
    """

    shard: ShardId
    batches: int
    records: int
    first_at: datetime
    last_at: datetime


def batch_id(shard: ShardId, sequence: int) -> str:
    """The id of a batch: `<shard>.<sequence>`."""
    return f"{shard}.{sequence}"


@dataclass(frozen=True, slots=True)
class Intent:
    """A range about to be consumed under a tenure."""

    tenure: Tenure
    sequence: int
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """All that one shard's commit makes visible at once.

    Attributes:
        attempt: the folder of the attempt, relative to the stream's output folder.
        finished: a read-only shard's checkpoint reached its end with this batch.
        watermark: the shard's new watermark, or None to leave it.
        hooked: the stream's own hook is to be told of it too.
    """

    tenure: Tenure
    sequence: int
    start: str
    end: str
    attempt: str
    files: tuple[DataFile, ...]
    statistics: BatchStatistics
    finished: bool = False
    watermark: datetime | None = None
    hooked: bool = False


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A row of the journal: one change of membership, ownership, tenure or checkpoint.

    `kind` is one of `edge, open, close, force, join, leave, evict, resume, group, gap, ack,
    rewrite, accept`. For `edge` the number of the edge of `lease_store.rules.states` is in `edge`;
    `resume` is a member that registered again with other settings; `group` is a change of the
    group's settings; `gap` is a range that was found missing or was skipped, and `ack` one that
    somebody accepted; `rewrite` is committed output that was replaced; `accept` is a shard that
    goes on although somebody reopened its parent.
    """

    sequence: int
    kind: str
    reason: str
    observer: str
    at: datetime
    shard: ShardId | None = None
    edge: int | None = None
    from_state: ShardState | None = None
    to_state: ShardState | None = None
    from_owner: NodeName | None = None
    to_owner: NodeName | None = None
    epoch: int = 0
    run: str = ""
    check_point: str | None = None


class EventKind(StrEnum):
    """Whom an event of the outbox is for: Dagster, or the hook of the stream's declaration."""

    MATERIALIZATION = "materialization"
    HOOK = "hook"


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """A row of the outbox: delivered at least once, with `batch_id` as its idempotency key.

    Attributes:
        attempts: how often its delivery has failed.
        error: how it failed last, in one line; empty where it did not.
    """

    sequence: int
    kind: str
    shard: ShardId
    batch_id: str
    payload: dict[str, Any]
    run: str
    attempts: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that were never consumed: `[start, end)` of a shard, and why.

    Attributes:
        acknowledged: somebody has accepted the loss.
        skipped: the checkpoint has moved past it; otherwise the shard holds at `start`.
    """

    shard: ShardId
    start: str
    end: str
    reason: str
    at: datetime
    acknowledged: bool = False
    skipped: bool = True


class RewriteKind(StrEnum):
    """Why committed output is replaced by other files with the same meaning to the ledger."""

    REPLAY = "replay"
    COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class RewriteClaim:
    """Who may replace the committed output of a shard; consuming it goes on beside.

    Attributes:
        run: unique to one rewrite, so that it fences all earlier ones.
        at: when it began; for people only.
    """

    shard: ShardId
    run: str
    kind: RewriteKind
    at: datetime


@dataclass(frozen=True, slots=True)
class BatchRewrite:
    """Other output for a committed batch; its range, number and tenure stay.

    Attributes:
        generation: of the output that it was made from; it takes effect only in its place.
    """

    sequence: int
    generation: int
    files: tuple[DataFile, ...]
    statistics: BatchStatistics
