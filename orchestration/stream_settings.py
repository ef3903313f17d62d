"""The part of `leasehold.toml` that is about one stream: `[[streams]]`, and its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt

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

    model_config = ConfigDict(extra="forbid", frozen=True)

    source_count: StrictInt | None = None
    node_id: StrictInt | None = None
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
    group: str = "default"
    ordered: bool = True
    assignment: AssignmentMode = AssignmentMode.BALANCED
    nodes: Mapping[str, NodeTable] = Field(default={})
    batch_records_max: int = Field(default=Limits().records_max, gt=0)
    batch_bytes_max: int = Field(default=Limits().bytes_max, gt=0)
    shards_per_run: int = Field(default=64, gt=0)
    run_budget_s: float = Field(default=pace.RUN_BUDGET_DEFAULT_S, gt=0)
    commit_interval_s: float = Field(default=pace.COMMIT_INTERVAL_DEFAULT_S, ge=0)
    commit_bytes: int = Field(default=pace.COMMIT_BYTES_DEFAULT, gt=0)
    idle_limit_s: float = Field(default=pace.IDLE_LIMIT_DEFAULT_S, gt=0)
    stall_limit_s: float = Field(default=STALL_LIMIT_DEFAULT_S, gt=0)
    output_days: float | None = Field(default=None, ge=HISTORY_DAYS_MIN, le=HISTORY_DAYS_MAX)

    compact: bool = True
    compact_target_bytes: int = Field(default=shard_stream.COMPACT_TARGET_BYTES, gt=0)
    compact_after_s: float = Field(default=shard_stream.COMPACT_AFTER_S, ge=0)
    vacuum_after_s: float = Field(
        default=shard_stream.VACUUM_AFTER_S, ge=shard_stream.VACUUM_AFTER_MIN_S
    )

    table: str | None = None
    partitioning: tuple[str, ...] = PARTITIONING_DEFAULT
    sort_order: tuple[str, ...] = ()
    table_properties: Mapping[str, str] = Field(default={})
    snapshots_kept: int = Field(default=SNAPSHOTS_KEPT_DEFAULT, gt=0)
    publish_interval_s: float = Field(default=PUBLISH_INTERVAL_DEFAULT_S, ge=0)

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
