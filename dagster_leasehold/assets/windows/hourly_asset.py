"""A downstream asset with a partition per hour of event time, built once the hour is complete."""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar

import dagster as dg
from pydantic import Field, ValidationInfo

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.declared import NOT_NEGATIVE, Declared, Validator, declared
from dagster_leasehold.assets.deployment import LEASEHOLD, deployment_in
from dagster_leasehold.assets.output.table.columns import columns_of, stored_schema, type_text
from dagster_leasehold.assets.partitions import GROUP_NAME, asset_key
from dagster_leasehold.assets.places.address import location_of
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.run_process import run_ended
from dagster_leasehold.assets.shard_stream import (
    FUNCTION,
    NameResolver,
    ShardStream,
    SpecChange,
    Transform,
    check_prefix,
    prefix_parts,
)
from dagster_leasehold.assets.spark.spark_resource import spark_of_run
from dagster_leasehold.assets.windows.window_run import WindowResult, build_window
from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError, shown
from dagster_leasehold.lease_store.rules.event_frontier import HOUR, hour_of
from dagster_leasehold.lease_store.times import parse_time, time_text

KEY_FORMAT = "%Y-%m-%d-%H:%M"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,199}")


class LateAction(StrEnum):
    """The treatment of late records, which are committed after their hour was built.

    `drop` counts them and keeps the hour unchanged. `rerun` counts them and builds the hour again.

    Examples:
        >>> LatePolicy(LateAction.RERUN).action.value
        'rerun'
    """

    DROP = "drop"
    RERUN = "rerun"


@declared
class LatePolicy(Declared):
    """The settings for late records, which are committed after their hour was built.

    Examples:
        >>> LatePolicy(LateAction.RERUN, wait_s=300).wait_s
        300.0
    """

    action: LateAction = LateAction.DROP
    """The treatment of records that are committed after their hour was built: `drop` them, or
    `rerun` the hour."""
    within_s: Annotated[float, NOT_NEGATIVE] = 7 * 86_400.0
    """The age, relative to the newest complete hour, up to which hours are checked for late
    records, in seconds."""
    wait_s: Annotated[float, NOT_NEGATIVE] = 60.0
    """The shortest time between two runs of one hour for late records, in seconds."""


def _stream(value: Any, info: ValidationInfo) -> Any:
    """Return a stream from its name in YAML, or the given object in Python."""
    names: NameResolver | None = info.context
    if names is not None and isinstance(value, str):
        return names.stream(value)
    if not isinstance(value, ShardStream):
        raise ValueError("give a ShardStream")
    return value


def _since(value: Any, _: ValidationInfo) -> Any:
    """Return the first hour from its text in YAML, or the given time in Python."""
    if isinstance(value, str) and (parsed := parse_time(value)) is not None:
        return parsed
    if not isinstance(value, datetime):
        raise InvalidSetting(
            f"since is {shown(value)}: give the beginning of an hour, such as 2026-01-31T12:00:00Z."
        )
    return value


NAMED_STREAM = Validator(_stream, {"type": "string"})
FIRST_HOUR = Validator(
    _since, {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d(:00(:00)?)?(Z|\+00:00)$"}
)


@declared
class HourlyAsset(Declared):
    """A downstream asset with one partition per hour of event time, built from a stream's output.

    Its sensor requests an hour once every shard of the stream has passed it. Pass it to
    `build_definitions(…, hourly=[…])`.

    Raises:
        InvalidSetting: a value has the wrong form, the name has characters other than letters,
            digits and underscores, or `since` is not the beginning of an hour or has no time zone.

    Examples:
        >>> since = datetime(2026, 3, 1, tzinfo=timezone.utc)
        >>> visits = ShardStream("visits", LocalLog("log"))
        >>> HourlyAsset("visits_per_hour", visits, lambda hour: hour, since=since).name
        'visits_per_hour'
    """

    kind: ClassVar[str] = "Hourly asset"

    name: str
    """The name of the asset, the last part of its key: letters, digits and underscores."""
    stream: Annotated[ShardStream, NAMED_STREAM, Field(examples=["visits"])]
    """The stream of its records; in YAML, the name of a stream in YAML, or `module.name` of a
    stream in Python."""
    transform: Annotated[Transform, FUNCTION, Field(examples=["transforms.visits"])]
    """The transform, applied by Spark to the records of one hour, of all shards."""
    since: Annotated[datetime, FIRST_HOUR, Field(examples=["2026-01-01T00:00:00Z"])]
    """The first hour, in UTC; earlier records are in no partition."""
    late: LatePolicy = LatePolicy()
    """The treatment of records that are committed after their hour was built."""
    out_of_order_s: Annotated[float, NOT_NEGATIVE] = 0.0
    """The most by which a record can be older than the newest record of its shard without being
    late, in seconds."""
    idle_after_s: Annotated[float | None, NOT_NEGATIVE, Field(examples=[300])] = None
    """The time without new records after which a shard that is caught up no longer holds back
    hours, in seconds; without it, every shard holds back hours."""
    key_prefix: Annotated[str | Sequence[str] | None, Field(examples=["web"])] = None
    """The parts before the name in the asset's key; a single part can be a string. The default is
    the stream's prefix."""
    asset_spec: Annotated[SpecChange | None, FUNCTION, Field(examples=["specs.hours"])] = None
    """The function that changes the spec of the asset, except its key."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidSetting(
                "use a name of letters, digits and underscores that begins with a letter."
            )
        check_prefix(prefix_parts(self.key_prefix or ()))
        if isinstance(self.transform, ArrowTransform):
            raise InvalidSetting(
                "its transform takes Arrow tables, and an hour of all shards is a DataFrame: "
                "remove the decorator."
            )
        if self.since.tzinfo is None or hour_of(self.since) != self.since:
            raise InvalidSetting(
                f"since is {time_text(self.since)}: give the beginning of an hour with its time "
                "zone."
            )
        if self.since.utcoffset() != timedelta(0):
            raise InvalidSetting(f"since is {time_text(self.since)}: give it in UTC.")

    @property
    def key(self) -> dg.AssetKey:
        """The asset's key."""
        prefix = self.stream.prefix if self.key_prefix is None else prefix_parts(self.key_prefix)
        return dg.AssetKey([*prefix, self.name])

    @property
    def partitions(self) -> dg.HourlyPartitionsDefinition:
        """One partition per hour of event time, in UTC."""
        return dg.HourlyPartitionsDefinition(start_date=self.since, timezone="UTC", fmt=KEY_FORMAT)


def hour_key(start: datetime) -> str:
    """Return the partition of an hour."""
    import pendulum

    return pendulum.instance(start).in_timezone("UTC").strftime(KEY_FORMAT)


class WindowConfig(dg.Config):
    """The launchpad's config of an hour.

    Attributes:
        even_if_incomplete: build the hour although a shard can still deliver records of it.
    """

    even_if_incomplete: bool = False


def build_hourly_asset(hourly: HourlyAsset) -> dg.AssetsDefinition:
    """Return the asset; materializing a partition builds that hour again and replaces it."""

    @dg.asset(
        key=hourly.key,
        description=f"Hours of event time of {hourly.stream.name}, each built when every shard has "
        "passed it.",
        kinds={"pyspark", "parquet"},
        group_name=GROUP_NAME,
        partitions_def=hourly.partitions,
        deps=[dg.AssetDep(asset_key(hourly.stream), partition_mapping=dg.AllPartitionMapping())],
        required_resource_keys={LEASEHOLD},
    )
    def hour(context: dg.AssetExecutionContext, config: WindowConfig) -> dg.MaterializeResult[Any]:
        start = context.partition_time_window.start
        deployment = deployment_in(context.resources)
        try:
            result = build_window(
                deployment,
                hourly.stream,
                asset=hourly.name,
                transform=hourly.transform,
                start=start,
                end=start + HOUR,
                run=context.run.run_id,
                spark=spark_of_run(deployment.spark),
                out_of_order=timedelta(seconds=hourly.out_of_order_s),
                even_if_incomplete=config.even_if_incomplete,
                ended=lambda other: run_ended(context.instance, other),
                warn=context.log.warning,
            )
        except LeaseholdError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        root = deployment.output_folder(hourly.stream.key)
        return dg.MaterializeResult(metadata=window_metadata(result, root))

    return hour


def window_metadata(result: WindowResult, root: OutputPlace) -> dict[str, Any]:
    """Return the metadata of an hour's materialization; Dagster plots its numbers.

    The paths of the hour's files are relative to the output folder `root`.
    """
    window = result.window
    metadata: dict[str, Any] = {}
    if window.files:
        path = window.files[0].path
        metadata["dagster/uri"] = location_of(root / path.rpartition("/")[0])
        # If its columns cannot be shown, the hour does not fail.
        with suppress(OSError, LeaseholdError):
            columns = columns_of(stored_schema((root / path).schema()))
            metadata["dagster/column_schema"] = dg.TableSchema(
                [dg.TableColumn(each["name"], type_text(each["type"])) for each in columns]
            )
    return {
        **metadata,
        "dagster/partition_row_count": window.records,
        "records": window.records,
        "bytes": sum(file.bytes for file in window.files),
        "files": len(window.files),
        "late_records": window.late,
        "generation": window.generation,
        "source_files": result.source_files,
        "start": dg.MetadataValue.timestamp(window.start),
        "end": dg.MetadataValue.timestamp(window.end),
    }
