"""The part of `leasehold.toml` that is about one stream: `[[streams]]`, and its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

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

# In the form of a JSON schema, and not as constraints of the fields: in YAML a number may be a
# template, which no constraint fits.
POSITIVE = Field(json_schema_extra={"exclusiveMinimum": 0})
NOT_NEGATIVE = Field(json_schema_extra={"minimum": 0})
TIME_FOR_READERS = Field(json_schema_extra={"minimum": shard_stream.VACUUM_AFTER_MIN_S})
DAYS_OF_HISTORY = Field(
    examples=[365], json_schema_extra={"minimum": HISTORY_DAYS_MIN, "maximum": HISTORY_DAYS_MAX}
)
PATH_OF_FUNCTION = Field(
    examples=["transforms.visits"], json_schema_extra={"pattern": r"^\w+(\.\w+)+$"}
)
PARTITION_FIELD = Field(
    json_schema_extra={"pattern": r"^(shard_id|(year|month|day|hour)\(event_time\))$"}
)


def check_limits(value: float, limits: Mapping[str, Any]) -> None:
    """Refuse a number that the limits of a JSON schema do not allow.

    Raises:
        ValueError: with the sentence that a setting's error ends in.
    """
    above, low, high = (limits.get(each) for each in ("exclusiveMinimum", "minimum", "maximum"))
    if above is not None and value <= above:
        raise ValueError("use a positive number")
    if low is None or low <= value <= (high or value):
        return
    if high is not None:
        raise ValueError(f"use {low:g} to {high:,g}")
    raise ValueError(f"use at least {low:g}" if low else "use 0 or a positive number")


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

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str
    """The name of the stream, of its asset, and of the folder of its local log."""
    source: str = LOCAL_LOG
    """The place that records come from: `local_log`, `kafka`, `kinesis`, `loghub`, or your own."""
    options: Mapping[str, Any] = Field(default={})
    """The options of that source."""
    transform: Annotated[str | None, PATH_OF_FUNCTION] = None
    """The transform, as `module.function`."""
    group: str = "default"
    """The consumer group."""
    ordered: bool = True
    """The children of a split or merge wait until their parents are consumed."""
    assignment: AssignmentMode = AssignmentMode.BALANCED
    """The rule by which nodes share the shards: `balanced`, `modulo` or `pinned`."""
    nodes: Mapping[str, NodeTable] = Field(default={})
    """The part of each node, for `modulo` and `pinned`."""
    batch_records_max: Annotated[int, POSITIVE] = Limits().records_max
    """The most records of one shard in one batch."""
    batch_bytes_max: Annotated[int, POSITIVE] = Limits().bytes_max
    """The most bytes of keys and values of one shard in one batch."""
    shards_per_run: Annotated[int, POSITIVE] = 64
    """The most shards that one run of a sensor serves."""
    run_budget_s: Annotated[float, POSITIVE] = pace.RUN_BUDGET_DEFAULT_S
    """The time after which a run leaves the rest to the next one, in seconds."""
    commit_interval_s: Annotated[float, NOT_NEGATIVE] = pace.COMMIT_INTERVAL_DEFAULT_S
    """The longest time that a record waits before it is committed, in seconds; `0` commits at
    once."""
    commit_bytes: Annotated[int, POSITIVE] = pace.COMMIT_BYTES_DEFAULT
    """The unread bytes of one shard that are committed sooner."""
    idle_limit_s: Annotated[float, POSITIVE] = pace.IDLE_LIMIT_DEFAULT_S
    """The time without records after which a run ends, in seconds."""
    stall_limit_s: Annotated[float, POSITIVE] = STALL_LIMIT_DEFAULT_S
    """The time without progress after which a run gives up its shards and fails, in seconds."""
    on_poison: OnPoison = "hold"
    """The treatment of a record at which every run hangs or crashes: `hold` the shard there, or
    `quarantine` the record."""
    output_days: Annotated[float | None, DAYS_OF_HISTORY] = None
    """The age in days at which committed output expires, from 1 to 36,500; without it, output is
    kept for good."""
    compact: bool = True
    """A sensor merges small files of committed output."""
    compact_target_bytes: Annotated[int, POSITIVE] = shard_stream.COMPACT_TARGET_BYTES
    """The size of a merged file, in bytes."""
    compact_after_s: Annotated[float, NOT_NEGATIVE] = shard_stream.COMPACT_AFTER_S
    """A batch is merged once it is this much older than the newest batch of its shard, in
    seconds."""
    vacuum_after_s: Annotated[float, TIME_FOR_READERS] = shard_stream.VACUUM_AFTER_S
    """The age at which files that nothing names any more are removed, in seconds: at least 60, and
    more than that of a backup that may be restored."""
    table: Annotated[str | None, Field(examples=["web.visits"])] = None
    """The name of the published table, as `NAME` or `NAMESPACE.NAME`; by default the name of the
    stream, in the namespace `leasehold`."""
    partitioning: tuple[Annotated[str, PARTITION_FIELD], ...] = PARTITIONING_DEFAULT
    """The fields of the table's partitions: `shard_id`, and `year`, `month`, `day` or `hour` of
    `event_time`; a change takes effect with the next publication."""
    sort_order: tuple[str, ...] = ()
    """The columns by which engines that rewrite the table sort it, each with ` asc` or ` desc` if
    need be; it counts when the table is made."""
    table_properties: Mapping[str, str] = Field(default={})
    """Iceberg's table properties."""
    snapshots_kept: Annotated[int, POSITIVE] = SNAPSHOTS_KEPT_DEFAULT
    """The number of newest snapshots that stay readable."""
    publish_interval_s: Annotated[float, NOT_NEGATIVE] = PUBLISH_INTERVAL_DEFAULT_S
    """The shortest average time between publications, in seconds."""

    @field_validator("*")
    @classmethod
    def _within_limits(cls, value: Any, info: ValidationInfo) -> Any:
        limits = cls.model_fields[str(info.field_name)].json_schema_extra
        if isinstance(limits, dict) and isinstance(value, int | float):
            check_limits(value, limits)
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
