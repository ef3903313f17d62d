"""The declaration of a stream: its source, its transform and all its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.commit_hook import OnCommit
from dagster_leasehold.assets.declared import NOT_NEGATIVE, POSITIVE, Declared, Validator, declared
from dagster_leasehold.assets.decode_settings import Decode, Format, decode_settings
from dagster_leasehold.assets.node_settings import (
    NodeSettings,
    check_served,
    check_settings,
    node_row,
    node_settings,
)
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.routes import ROUTE_COLUMN, RouteFunction
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store import group_rows
from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError, shown
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchStatistics, DataFile
from dagster_leasehold.lease_store.pruning import HISTORY_DAYS_MAX, HISTORY_DAYS_MIN, output_age
from dagster_leasehold.lease_store.rules.isolation import OnPoison
from dagster_leasehold.shard_sources.source import Limits, ShardSource

if TYPE_CHECKING:
    from dagster import AssetSpec
    from pyspark.sql import DataFrame
else:
    # pydantic evaluates the annotations at import, and these types are slow to import.
    AssetSpec = DataFrame = Any

VACUUM_AFTER_MIN_S = 60.0
# These constraints are only in the JSON schema: our own code checks them, with better messages.
TIME_FOR_READERS = Field(json_schema_extra={"minimum": VACUUM_AFTER_MIN_S})
DAYS_OF_HISTORY = Field(
    examples=[365], json_schema_extra={"minimum": HISTORY_DAYS_MIN, "maximum": HISTORY_DAYS_MAX}
)
POSITION = Field(json_schema_extra={"pattern": r"^(begin|end|\d{4}-\d\d-\d\d.*)$"})
_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}
NODES = WithJsonSchema(
    {
        "type": "object",
        "additionalProperties": _OBJECT
        | {
            "properties": {
                "source_count": {"type": "integer"},
                "node_id": {"type": "integer"},
                "pinned": {"type": "object"},
            }
        },
    }
)
LIMITS = WithJsonSchema(
    _OBJECT
    | {
        "properties": {
            name: {"type": "integer", "exclusiveMinimum": 0}
            for name in ("records_max", "bytes_max")
        }
    }
)

Transform = Callable[[DataFrame], DataFrame]
SpecChange = Callable[[AssetSpec], AssetSpec]
Execute = Callable[[Any, Callable[[], Iterator[Any]]], Iterator[Any]]
"""A function that wraps a run; it receives Dagster's context and the run's work."""


def prefix_parts(key_prefix: str | Sequence[str]) -> tuple[str, ...]:
    """Return a key's prefix as a tuple; a string is a prefix of one part."""
    return (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix)


def check_prefix(parts: Sequence[str]) -> None:
    """Check the parts of a key's prefix.

    Raises:
        InvalidSetting: a part is empty, or contains a slash or white space.
    """
    for part in parts:
        if not re.fullmatch(r"[^/\s]+", part):
            raise InvalidSetting(
                f"key_prefix has the part {shown(part)}: give each part by itself, without slashes "
                "and spaces."
            )


class WatermarkOf(StrEnum):
    """The event times that determine a shard's watermark.

    `source` uses the event times of the records as they were read; choose it if the transform does
    not change `event_time`. `output` uses the event times that the transform returns; choose it if
    the transform computes `event_time` from the record. A batch without output then does not
    advance the watermark.

    Examples:
        >>> stream = ShardStream("visits", LocalLog("log"), watermark_of=WatermarkOf.OUTPUT)
        >>> stream.watermark_of.value
        'output'
    """

    SOURCE = "source"
    OUTPUT = "output"


@declared
class Checks(Declared):
    """Limits that a stream's batches and shards must meet.

    Examples:
        >>> Checks(quarantined_max=100).lag_max
        1000000
    """

    quarantined_max: Annotated[int, NOT_NEGATIVE] = 1_000
    """The most records of one batch that can go to quarantine."""
    lag_max: Annotated[int, NOT_NEGATIVE] = 1_000_000
    """The most unread records that the lag check of a shard accepts."""
    lag_max_s: Annotated[float | None, NOT_NEGATIVE, Field(examples=[300])] = None
    """The longest time that a record can be unread for the check to pass, in seconds. Set it if the
    service does not count records."""


@declared
class Retention(Declared):
    """How long a stream's output stays, and when its files are merged and removed.

    Examples:
        >>> Retention(output_days=365).compact
        True
    """

    output_days: Annotated[float | None, DAYS_OF_HISTORY] = None
    """The number of days after which committed output expires, from 1 to 36,500; without it, output
    is kept forever."""
    compact: bool = True
    """A sensor merges small files of committed output."""
    compact_target_bytes: Annotated[int, POSITIVE] = 128 * 1024 * 1024
    """The size of a merged file, in bytes."""
    compact_after_s: Annotated[float, NOT_NEGATIVE] = 3_600.0
    """The age from which a batch can be merged, in seconds. A replay or a forced checkpoint then
    affects all batches of the merged file."""
    vacuum_after_s: Annotated[float, TIME_FOR_READERS] = 24 * 3_600.0
    """The age at which unreferenced files are removed, in seconds: at least 60, and more than the
    age of any backup that you would restore."""

    def __post_init__(self) -> None:
        output_age(self.output_days)
        if self.vacuum_after_s < VACUUM_AFTER_MIN_S:
            raise InvalidSetting(
                f"vacuum_after_s is {self.vacuum_after_s}: use at least {VACUUM_AFTER_MIN_S:g}, "
                "because readers need time to read the files that they have listed."
            )

    @property
    def output_age(self) -> timedelta | None:
        """The age at which committed output expires; None keeps it forever."""
        return output_age(self.output_days)


class NameResolver(Protocol):
    """The validation context that resolves the names in a YAML declaration to objects."""

    def source(self, stream: str, reference: str | Mapping[str, Any]) -> ShardSource:
        """Return the source of a stream from its kind, or from a mapping of kind to options."""
        ...

    def stream(self, reference: str) -> ShardStream:
        """Return the stream with this name."""
        ...

    def function(self, role: str, path: str) -> Callable[..., Any]:
        """Return the function at `module.function`.

        If there is no such function, the error message begins with `role`.
        """
        ...


def _source(value: Any, info: ValidationInfo) -> Any:
    """Return a source from its kind in YAML, or the given object in Python."""
    if not isinstance(value, str | Mapping):
        return value
    names: NameResolver | None = info.context
    if names is None:
        raise ValueError("give the source itself; named_source creates one by name")
    return names.source(info.data.get("name", ""), value)


def _function(value: Any, info: ValidationInfo) -> Any:
    """Return a function from its name `module.function` in YAML, or the given object in Python."""
    names: NameResolver | None = info.context
    if names is not None and isinstance(value, str):
        subject = str(info.field_name).replace("_", " ")
        return names.function(f"The {subject} of {shown(info.data.get('name', ''))}", value)
    if value is not None and not callable(value) and not isinstance(value, ArrowTransform):
        raise ValueError("give the function itself")
    return value


def _route(value: Any, info: ValidationInfo) -> Any:
    """Return the name of a column, or a function as `_function` does."""
    if isinstance(value, str) and "." not in value:
        return value
    return _function(value, info)


NAMED_SOURCE = {"type": ["string", "object"], "minProperties": 1, "maxProperties": 1}
FUNCTION = Validator(_function, {"type": ["string", "null"], "pattern": r"^\w+(\.\w+)+$"})
ROUTE = Validator(_route, {"type": ["string", "null"], "pattern": r"^\w+(\.\w+)*$"})


def _limits(limits: Limits) -> Limits:
    for setting in ("records_max", "bytes_max"):
        if (limit := getattr(limits, setting)) <= 0:
            raise InvalidSetting(f"limits.{setting} is {limit}: use a positive number.")
    return limits


def _nodes(value: Any) -> Any:
    """Parse the settings of nodes; pydantic refuses a value that is not a mapping."""
    if not isinstance(value, Mapping):
        return value
    settings_by_node: dict[str, NodeSettings] = {}
    for name, settings in value.items():
        try:
            settings_by_node[name] = node_settings(settings)
        except LeaseholdError as error:
            raise InvalidSetting(f"Node {shown(name)}: {error}") from None
    return settings_by_node


@declared
class ShardStream(Declared):
    """A stream to consume: one Dagster asset with one partition per shard.

    The name is also the last part of the asset's key. In YAML, give a source by its kind, such as
    `kafka`, or with its options, such as `{kafka: {topic: visits}}`. Give a function as
    `module.function`.

    Raises:
        InvalidIdentifier: the name, the group or a node's name is not valid.
        InvalidSetting: a value is not valid, or nodes have settings for another assignment.
        AssignmentConflict, ShardOccupied: the settings of two nodes contradict each other.

    Examples:
        >>> stream = ShardStream("visits", LocalLog("visits-log"), pace=Pace(commit_interval_s=60))
        >>> str(stream.key)
        'visits/default'
    """

    kind: ClassVar[str] = "Stream"

    name: str
    """The name of the stream, and of its asset."""
    source: Annotated[ShardSource, Validator(_source, NAMED_SOURCE)]
    """The source of its shards and records: `local_log`, `kafka`, `kinesis`, `loghub`, or your
    own."""
    transform: Annotated[
        Transform | ArrowTransform | None, FUNCTION, Field(examples=["transforms.visits"])
    ] = None
    """The transform of each batch: made by `arrow_transform`, or a function of DataFrames."""
    decode: Annotated[
        Decode | None,
        BeforeValidator(decode_settings, json_schema_input_type=Format | Decode | None),
        Field(examples=["avro"]),
    ] = None
    """How binary records become columns: a format, or `Decode` with its settings."""
    route: Annotated[str | RouteFunction | None, ROUTE, Field(examples=["kind"])] = None
    """The column with the name of each record's route, or a function that returns the names for
    an Arrow table."""
    on_commit: Annotated[OnCommit | None, FUNCTION, Field(examples=["hooks.on_visits"])] = None
    """The hook, called with each committed batch at least once."""
    group: str = "default"
    """The consumer group."""
    ordered: bool = True
    """The children of a split or merge wait until their parents are consumed."""
    assignment: group_rows.AssignmentMode = group_rows.AssignmentMode.BALANCED
    """How nodes share the shards: `balanced`, `modulo` or `pinned`."""
    nodes: Annotated[Mapping[str, NodeSettings], BeforeValidator(_nodes), NODES] = field(
        default_factory=dict[str, NodeSettings], hash=False
    )
    """The settings of each node, for `modulo` and `pinned`."""
    gap_policy: group_rows.GapPolicy = group_rows.GapPolicy.HOLD
    """The handling of records that were removed before they were read: `hold` the shard, or
    continue at the `begin` or `end` of the remaining records."""
    initial_position: Annotated[str, POSITION] = "begin"
    """The position where a new shard begins: `begin`, `end`, or an ISO 8601 time."""
    watermark_of: WatermarkOf = WatermarkOf.SOURCE
    """The records whose event times determine a shard's watermark: from the `source`, or from
    the transform's `output`."""
    on_poison: OnPoison = "hold"
    """The handling of a record that makes every run hang or crash: `hold` the shard there, or
    `quarantine` the record."""
    pace: Pace = Pace()
    """The pace of its runs."""
    limits: Annotated[Limits, AfterValidator(_limits), LIMITS] = Limits()
    """The largest size of one batch of one shard."""
    iceberg: TableSettings = TableSettings()
    """The published table."""
    checks: Checks = Checks()
    """Limits that its batches and shards must meet."""
    retention: Retention = Retention()
    """How long its output stays, and when files are merged and removed."""
    key_prefix: Annotated[str | Sequence[str], Field(examples=["web"])] = ()
    """The parts before the name in the keys of the stream's assets; a single part can be a
    string."""
    asset_spec: Annotated[SpecChange | None, FUNCTION, Field(examples=["specs.visits"])] = None
    """The function that changes the spec of each asset, except its key."""
    execute: Annotated[Execute | None, FUNCTION, Field(examples=["runs.timed"])] = None
    """The function that wraps each run: it receives Dagster's context and the function `work`, and
    yields from `work()`."""

    def __post_init__(self) -> None:
        GroupKey.parse(self.group, self.name)
        check_prefix(self.prefix)
        check_settings(self.assignment, self.nodes)
        if callable(self.route) and not isinstance(self.transform, ArrowTransform | None):
            raise InvalidSetting(
                "A function as route works with transforms of Arrow tables: return the route as a "
                "column of the transform, and name this column."
            )
        if self.decode is not None and not isinstance(self.transform, ArrowTransform | None):
            raise InvalidSetting(
                "decode works with transforms of Arrow tables: decorate the transform with "
                "arrow_transform, or remove decode."
            )

    @property
    def keeps_records(self) -> bool:
        """True if the output has the records unchanged."""
        added = callable(self.route)
        return self.transform is None and self.decode is None and not added

    @property
    def route_column(self) -> str:
        """The column with the routes of records; empty without routes."""
        return ROUTE_COLUMN if callable(self.route) else self.route or ""

    def carry_out(self, context: Any, work: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Yield the events of a run's work, wrapped by `execute` if the stream has one."""
        return work() if self.execute is None else self.execute(context, work)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The parts before the name in the keys of the stream's assets."""
        return prefix_parts(self.key_prefix)

    @property
    def key(self) -> GroupKey:
        """The consumer group within the stream."""
        return GroupKey.parse(self.group, self.name)

    def watermark_of_batch(self, batch: Batch) -> datetime | None:
        """Return the largest event time of a batch by `watermark_of`; None if it has none."""
        return self.watermark(batch.statistics, batch.files)

    def watermark(self, statistics: BatchStatistics, files: Iterable[DataFile]) -> datetime | None:
        """Return the largest event time of these statistics or files; None if they have none."""
        if self.watermark_of is WatermarkOf.SOURCE:
            return statistics.last_event_time
        times = [file.last_event_time for file in files if not file.quarantine]
        return max((time for time in times if time is not None), default=None)

    def check_nodes(self, served: Sequence[NodeName]) -> None:
        """Check that `nodes` agrees with the nodes that a deployment serves.

        Raises:
            InvalidSetting: a node has settings but is not served.
            ModuloSettingMissing: the assignment is modulo and a served node has no settings.
        """
        check_served(self.name, self.assignment, self.nodes, served)

    def node(self, name: NodeName, *, address: str) -> group_rows.Node:
        """Return the row with which a served node registers in the stream's group."""
        return node_row(name, self.nodes.get(name), address=address)

    def new_group(self, timeout_s: float) -> group_rows.Group:
        """Return the consumer group to create, with lease timeout T in seconds."""
        return group_rows.Group(
            key=self.key,
            ordered=self.ordered,
            timeout_s=timeout_s,
            handoff_limit_s=self.pace.handoff_limit_s,
            assignment=self.assignment,
            gap_policy=self.gap_policy,
            initial_position=self.initial_position,
        )
