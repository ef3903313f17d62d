"""The declaration of a stream: the source of its records, and what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, get_args

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.commit_hook import OnCommit
from dagster_leasehold.assets.pace import (
    COMMIT_BYTES_DEFAULT,
    COMMIT_INTERVAL_DEFAULT_S,
    IDLE_LIMIT_DEFAULT_S,
    RUN_BUDGET_DEFAULT_S,
    Pace,
)
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store import group_rows
from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.pruning import output_age
from dagster_leasehold.lease_store.rules.isolation import OnPoison
from dagster_leasehold.lease_store.rules.node_settings import (
    NodeSettings,
    check_served,
    check_settings,
    node_row,
)
from dagster_leasehold.shard_sources.source import Limits, ShardSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMPACT_TARGET_BYTES = 128 * 1024 * 1024
COMPACT_AFTER_S = 3_600.0
VACUUM_AFTER_S = 24 * 3_600.0
VACUUM_AFTER_MIN_S = 60.0
GROUP_NAME_DEFAULT = "streams"
KINDS_DEFAULT = frozenset({"pyspark", "iceberg", "parquet"})

Transform = Callable[["DataFrame"], "DataFrame"]


def prefix_parts(key_prefix: str | Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a key's prefix that is given as one part or as several."""
    return (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix)


def check_prefix(owner: str, parts: Sequence[str]) -> None:
    """Check the parts of a key's prefix.

    Raises:
        InvalidSetting: a part is empty, or holds a slash or a space.
    """
    for part in parts:
        if not re.fullmatch(r"[^/\s]+", part):
            raise InvalidSetting(
                f"{owner}: key_prefix has the part {shown(part)}: give each part by itself, "
                "without slashes and spaces."
            )


class WatermarkOf(StrEnum):
    """The event times that say how far a shard has come.

    `source`: those of the records as they were read; right where the transform leaves the column
    `event_time` alone. `output`: those that the transform wrote; for one that makes `event_time`
    out of the record itself. A batch without output then moves no watermark.
    """

    SOURCE = "source"
    OUTPUT = "output"


@dataclass(frozen=True)
class ShardStream:
    """A stream to consume: one Dagster asset with one partition per shard.

    Attributes:
        name: the stream's name, also the last part of the asset's key.
        source: where its shards and records come from.
        transform: applied by Spark to the records of a batch, as a DataFrame of the columns
            `shard_id`, `cursor`, `event_time`, `key`, `value` and `attributes`, or made by
            `arrow_transform`, which is faster: applied to Arrow tables of these columns. It keeps
            the column `shard_id`. Rows whose column `quarantine_error` is not null go to quarantine
            instead of the output.
        group: the consumer group.
        ordered: True if the children of a split or merge wait for their parents.
        assignment: the rule by which shards are shared among the nodes.
        nodes: node name to the settings of that node: a `Modulo` for the assignment `modulo`, a
            `Pinned` for `pinned`.
        gap_policy: the rule for records that were removed before they were read.
        initial_position: `begin`, `end` or an ISO 8601 time, where nothing is stored.
        watermark_of: the event times that say how far a shard has come.
        commit_interval_s: the longest time that a record waits at the head of the log before it is
            committed, in seconds; 0 for no wait.
        commit_bytes: unread bytes of one shard that make a batch sooner.
        idle_limit_s: the time without records after which a run that follows its shards ends, in
            seconds.
        limits: the most that one batch of one shard may hold; the first one of a run is smaller.
        shards_per_run: the most shards that one sensor or schedule run serves.
        run_budget_s: the time after which a run leaves the rest to the next, in seconds.
        stall_limit_s: the longest time without progress, in seconds, after which a run gives up
            what it holds and fails. Progress is a source or Dagster that answers, or records that
            move in Spark.
        handoff_limit_s: the longest that a hand-over may wait for a holder, in seconds.
        quarantined_max: the most records of one batch that may be quarantined.
        on_poison: what becomes of a record at which every run hangs or crashes, once it was found:
            it goes to quarantine, or its shard is held there.
        lag_max: the most unread records a shard may have for its lag check to pass.
        lag_max_s: the longest time, in seconds, that a record may be unread for the check to pass;
            None judges by their number alone. Give it where the service does not count records.
        output_days: how old committed output may become before it expires, in days; None keeps it
            for good.
        compact: True to have a sensor merge small files of committed output by itself.
        compact_target_bytes: the size of a merged file, in bytes.
        compact_after_s: how much older than the newest batch of its shard a batch must be to be
            merged, in seconds. A replay or a forced checkpoint takes merged batches as a whole.
        vacuum_after_s: how long the sensor's compactions leave a file that nothing names any more,
            in seconds. It is longer than any reader takes, and than a backup of the lease store
            may be old that is restored.
        table: the name and layout of the published table, and how often it is published to.
        on_commit: called with each committed batch, at least once, in the order of the commits of
            its shard. It runs in the code server, not in Spark.
        key_prefix: the parts before the name in the keys of the stream's assets, or the only one.
        group_name: the group of these assets in Dagster; `group` is the consumer group.
        owners: of these assets: mail addresses, or teams as `team:web`.
        tags: of these assets.
        kinds: of the stream's own asset; Dagster shows three at most.

    Raises:
        InvalidIdentifier: the name, the group or a node is not of the grammar.
        InvalidSetting: a number is not positive, or nodes have settings of another assignment.
        AssignmentConflict, ShardOccupied: the settings of two nodes contradict each other.
    """

    name: str
    source: ShardSource
    transform: Transform | ArrowTransform | None = None
    group: str = "default"
    ordered: bool = True
    assignment: group_rows.AssignmentMode = group_rows.AssignmentMode.BALANCED
    nodes: Mapping[str, NodeSettings] = field(default_factory=dict[str, NodeSettings], hash=False)
    gap_policy: group_rows.GapPolicy = group_rows.GapPolicy.HOLD
    initial_position: str = "begin"
    watermark_of: WatermarkOf = WatermarkOf.SOURCE
    commit_interval_s: float = COMMIT_INTERVAL_DEFAULT_S
    commit_bytes: int = COMMIT_BYTES_DEFAULT
    idle_limit_s: float = IDLE_LIMIT_DEFAULT_S
    limits: Limits = field(default_factory=Limits)
    shards_per_run: int = 64
    run_budget_s: float = RUN_BUDGET_DEFAULT_S
    stall_limit_s: float = group_rows.STALL_LIMIT_DEFAULT_S
    handoff_limit_s: float = group_rows.HANDOFF_LIMIT_DEFAULT_S
    quarantined_max: int = 1_000
    on_poison: OnPoison = "hold"
    lag_max: int = 1_000_000
    lag_max_s: float | None = None
    output_days: float | None = None
    compact: bool = True
    compact_target_bytes: int = COMPACT_TARGET_BYTES
    compact_after_s: float = COMPACT_AFTER_S
    vacuum_after_s: float = VACUUM_AFTER_S
    table: TableSettings = field(default_factory=TableSettings)
    on_commit: OnCommit | None = None
    key_prefix: str | Sequence[str] = ()
    group_name: str = GROUP_NAME_DEFAULT
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    kinds: AbstractSet[str] = KINDS_DEFAULT

    def __post_init__(self) -> None:
        GroupKey.parse(self.group, self.name)
        check_prefix(f"Stream {shown(self.name)}", self.prefix)
        check_settings(self.assignment, self.nodes)
        positive = {
            "shards_per_run": self.shards_per_run,
            "run_budget_s": self.run_budget_s,
            "commit_bytes": self.commit_bytes,
            "idle_limit_s": self.idle_limit_s,
            "stall_limit_s": self.stall_limit_s,
            "handoff_limit_s": self.handoff_limit_s,
            "compact_target_bytes": self.compact_target_bytes,
            "limits.records_max": self.limits.records_max,
            "limits.bytes_max": self.limits.bytes_max,
        }
        for setting, value in positive.items():
            if value <= 0:
                raise InvalidSetting(
                    f"Stream {self.name!r}: {setting} is {value}: use a positive number."
                )
        not_negative = {
            "commit_interval_s": self.commit_interval_s,
            "compact_after_s": self.compact_after_s,
        }
        for setting, value in not_negative.items():
            if value < 0:
                raise InvalidSetting(
                    f"Stream {self.name!r}: {setting} is {value}: use 0 or a positive number."
                )
        if self.vacuum_after_s < VACUUM_AFTER_MIN_S:
            raise InvalidSetting(
                f"Stream {self.name!r}: vacuum_after_s is {self.vacuum_after_s}: use at least "
                f"{VACUUM_AFTER_MIN_S:g}, since readers that have listed files need time to read "
                "them."
            )
        if self.on_poison not in get_args(OnPoison):
            raise InvalidSetting(
                f"Stream {self.name!r}: on_poison is {shown(self.on_poison)}: use 'hold' or "
                "'quarantine'."
            )
        output_age(self.output_days)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The parts before the name in the keys of the stream's assets."""
        return prefix_parts(self.key_prefix)

    @property
    def pace(self) -> Pace:
        """The pace of runs that follow their shards."""
        return Pace(self.commit_interval_s, self.commit_bytes, self.idle_limit_s)

    @property
    def key(self) -> GroupKey:
        """The consumer group within the stream."""
        return GroupKey.parse(self.group, self.name)

    @property
    def output_age(self) -> timedelta | None:
        """The age from which on committed output expires; None keeps it for good."""
        return output_age(self.output_days)

    def check_nodes(self, served: Sequence[NodeName]) -> None:
        """Check that the settings of nodes are those of the nodes that a deployment serves.

        Raises:
            InvalidSetting: settings of a node that it does not serve.
            ModuloSettingMissing: a node without any, where the assignment is modulo.
        """
        check_served(self.name, self.assignment, self.nodes, served)

    def node(self, name: NodeName, *, address: str) -> group_rows.Node:
        """Return the row that a served node registers with in the stream's group."""
        return node_row(name, self.nodes.get(name), address=address)

    def new_group(self, timeout_s: float) -> group_rows.Group:
        """Return the consumer group of this declaration, with lease timeout T in seconds."""
        return group_rows.Group(
            key=self.key,
            ordered=self.ordered,
            timeout_s=timeout_s,
            handoff_limit_s=self.handoff_limit_s,
            assignment=self.assignment,
            gap_policy=self.gap_policy,
            initial_position=self.initial_position,
        )
