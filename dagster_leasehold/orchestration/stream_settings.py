"""The part of `leasehold.toml` that is about one stream: `[[streams]]`, and its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dagster_leasehold.assets import pace, shard_stream
from dagster_leasehold.assets.table_settings import (
    PARTITIONING_DEFAULT,
    PUBLISH_INTERVAL_DEFAULT_S,
    SNAPSHOTS_KEPT_DEFAULT,
    TableSettings,
)
from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError, shown
from dagster_leasehold.lease_store.group_rows import STALL_LIMIT_DEFAULT_S, AssignmentMode
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.pruning import HISTORY_DAYS_MAX, HISTORY_DAYS_MIN
from dagster_leasehold.lease_store.rules.isolation import OnPoison
from dagster_leasehold.lease_store.rules.node_settings import (
    Modulo,
    NodeSettings,
    Pinned,
    check_served,
    check_settings,
)
from dagster_leasehold.shard_sources.registry import LOCAL_LOG, source_options
from dagster_leasehold.shard_sources.source import Limits


class NodeTable(BaseModel):
    """One node's part of a stream's assignment: a count and an id, or shards by name.

    Attributes:
        source_count: modulo: how many nodes the group has; negative switches the rule off.
        node_id: modulo: which of them this is, from 0.
        pinned: pinned: shard to bootstrap cursor, or -1 to continue from the checkpoint.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    source_count: int | None = None
    node_id: int | None = None
    pinned: Mapping[str, Any] | None = None

    @property
    def settings(self) -> NodeSettings:
        """The table as a value that has been checked.

        Raises:
            InvalidSetting: it is empty, has settings of two modes, or an id without a count.
            ModuloSettingMissing, ModuloIdOutOfRange, InvalidIdentifier: a value is not valid.
        """
        modulo = self.source_count is not None or self.node_id is not None
        if modulo == (self.pinned is not None):
            raise InvalidSetting("Give source_count and node_id, or pinned, and not both.")
        if self.pinned is not None:
            return Pinned(dict(self.pinned))
        if self.source_count is None:
            raise InvalidSetting(
                f"A node_id of {self.node_id} is given without a source_count: give both."
            )
        return Modulo(self.source_count, self.node_id)


class StreamSettings(BaseModel):
    """A stream named in `leasehold.toml`: `[[streams]]`, and its source's `[streams.options]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str = LOCAL_LOG
    options: Mapping[str, Any] = Field(default={})
    transform: str | None = None
    group: str = "default"
    ordered: bool = True
    assignment: AssignmentMode = AssignmentMode.BALANCED
    nodes: Mapping[str, NodeTable] = Field(default={})
    batch_records_max: int = Limits().records_max
    batch_bytes_max: int = Limits().bytes_max
    shards_per_run: int = 64
    run_budget_s: float = pace.RUN_BUDGET_DEFAULT_S
    commit_interval_s: float = pace.COMMIT_INTERVAL_DEFAULT_S
    commit_bytes: int = pace.COMMIT_BYTES_DEFAULT
    idle_limit_s: float = pace.IDLE_LIMIT_DEFAULT_S
    stall_limit_s: float = STALL_LIMIT_DEFAULT_S
    on_poison: OnPoison = "hold"
    output_days: float | None = None

    compact: bool = True
    compact_target_bytes: int = shard_stream.COMPACT_TARGET_BYTES
    compact_after_s: float = shard_stream.COMPACT_AFTER_S
    vacuum_after_s: float = shard_stream.VACUUM_AFTER_S

    table: str | None = None
    partitioning: tuple[str, ...] = PARTITIONING_DEFAULT
    sort_order: tuple[str, ...] = ()
    table_properties: Mapping[str, str] = Field(default={})
    snapshots_kept: int = SNAPSHOTS_KEPT_DEFAULT
    publish_interval_s: float = PUBLISH_INTERVAL_DEFAULT_S

    # Not as constraints of the fields: in YAML a number may be a template, which has none yet.
    @field_validator(
        "batch_records_max",
        "batch_bytes_max",
        "shards_per_run",
        "run_budget_s",
        "commit_bytes",
        "idle_limit_s",
        "stall_limit_s",
        "compact_target_bytes",
        "snapshots_kept",
    )
    @classmethod
    def _positive(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("use a positive number")
        return value

    @field_validator("commit_interval_s", "compact_after_s", "publish_interval_s")
    @classmethod
    def _not_negative(cls, value: float) -> float:
        if value < 0:
            raise ValueError("use 0 or a positive number")
        return value

    @field_validator("vacuum_after_s")
    @classmethod
    def _time_for_readers(cls, value: float) -> float:
        if value < shard_stream.VACUUM_AFTER_MIN_S:
            raise ValueError(f"use at least {shard_stream.VACUUM_AFTER_MIN_S:g}")
        return value

    @field_validator("output_days")
    @classmethod
    def _days_of_history(cls, value: float | None) -> float | None:
        if value is not None and not HISTORY_DAYS_MIN <= value <= HISTORY_DAYS_MAX:
            raise ValueError(f"use {HISTORY_DAYS_MIN:g} to {HISTORY_DAYS_MAX:,g}")
        return value

    @property
    def key(self) -> GroupKey:
        """The stream's consumer group.

        Raises:
            InvalidIdentifier: the name or the group is not of the grammar.
        """
        return GroupKey.parse(self.group, self.name)

    @property
    def source_options(self) -> BaseModel:
        """The options in the form of the stream's source.

        Raises:
            UnknownSource: there is no source of this name.
            InvalidSetting: an option is missing, unknown or of the wrong form.
        """
        return source_options(self.source, self.options)

    @property
    def node_settings(self) -> dict[str, NodeSettings]:
        """The settings of each node, by its name.

        Raises:
            InvalidSetting: a node's table is not valid; the sentence names the node.
        """
        settings: dict[str, NodeSettings] = {}
        for name, table in self.nodes.items():
            try:
                settings[name] = table.settings
            except LeaseholdError as error:
                raise InvalidSetting(f"Node {shown(name)} of {shown(self.name)}: {error}") from None
        return settings

    @property
    def table_settings(self) -> TableSettings:
        """The name and layout of the published table.

        Raises:
            InvalidSetting: a value has no meaning.
        """
        return TableSettings(
            name=self.table,
            partitioning=self.partitioning,
            sort_order=self.sort_order,
            properties=dict(self.table_properties),
            snapshots_kept=self.snapshots_kept,
            publish_interval_s=self.publish_interval_s,
        )

    def check_nodes(self, served: Sequence[NodeName] | None) -> None:
        """Check that the nodes' settings fit the assignment, each other, and the served nodes.

        `served` is None if those nodes are not known beforehand.

        Raises:
            InvalidSetting: they do not; see `lease_store.rules.node_settings`.
        """
        nodes = self.node_settings
        try:
            check_settings(self.assignment, nodes)
        except LeaseholdError as error:
            raise InvalidSetting(f"Stream {shown(self.name)}: {error}") from None
        if served is not None:
            check_served(self.name, self.assignment, nodes, served)
