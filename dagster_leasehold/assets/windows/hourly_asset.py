"""A downstream asset with a partition per hour of event time, made once the hour is complete."""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import dagster as dg

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.table.columns import columns_of, stored_schema, type_text
from dagster_leasehold.assets.partitions import asset_key, spark_key
from dagster_leasehold.assets.places.address import location_of
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.run_process import run_ended
from dagster_leasehold.assets.shard_stream import ShardStream, Transform, check_prefix, prefix_parts
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.windows.event_frontier import HOUR, hour_of
from dagster_leasehold.assets.windows.window_run import WindowMade, make_window
from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError, shown
from dagster_leasehold.lease_store.times import time_text

KEY_FORMAT = "%Y-%m-%d-%H:%M"
HOURLY_KINDS = frozenset({"pyspark", "parquet"})
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,199}")


class LateAction(StrEnum):
    """Treatment of records whose hour was made before they were committed.

    `drop`: they are counted, and the hour stays as it is. `rerun`: they are counted, and the hour
    is made again, with them.
    """

    DROP = "drop"
    RERUN = "rerun"


@dataclass(frozen=True, slots=True)
class LatePolicy:
    """Treatment of late records: those whose hour was made before they were committed.

    Attributes:
        action: drop them, or make their hour again.
        within_s: the distance behind the newest complete hour within which they are looked for, in
            seconds.
        wait_s: the shortest time between two runs of one hour for late records, in seconds.
    """

    action: LateAction = LateAction.DROP
    within_s: float = 7 * 86_400.0
    wait_s: float = 60.0


@dataclass(frozen=True)
class HourlyAsset:
    """The declaration of a downstream asset by hours of event time; `hourly_asset` makes it.

    Raises:
        InvalidSetting: the name is not of letters, digits and underscores, `since` is not the
            beginning of an hour or has no time zone, or a number is negative.
    """

    stream: ShardStream
    name: str
    transform: Transform
    since: datetime
    late: LatePolicy = LatePolicy()
    out_of_order_s: float = 0.0
    idle_after_s: float | None = None
    key_prefix: str | Sequence[str] | None = None
    group_name: str | None = None
    owners: Sequence[str] | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    kinds: AbstractSet[str] = HOURLY_KINDS

    def __post_init__(self) -> None:
        where = f"Hourly asset {shown(self.name)}"
        if not NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"{where}: use a name of letters, digits and underscores that begins with a letter."
            )
        check_prefix(where, prefix_parts(self.key_prefix or ()))
        if isinstance(self.transform, ArrowTransform):
            raise InvalidSetting(
                f"{where}: its transform takes Arrow tables, and an hour of all shards is a "
                "DataFrame: leave the decorator away."
            )
        if self.since.tzinfo is None or hour_of(self.since) != self.since:
            raise InvalidSetting(
                f"{where}: since is {time_text(self.since)}: give the beginning of an hour with "
                "its time zone."
            )
        if self.since.utcoffset() != timedelta(0):
            raise InvalidSetting(f"{where}: since is {time_text(self.since)}: give it in UTC.")
        numbers = {
            "out_of_order_s": self.out_of_order_s,
            "idle_after_s": self.idle_after_s or 0.0,
            "late.within_s": self.late.within_s,
            "late.wait_s": self.late.wait_s,
        }
        for setting, value in numbers.items():
            if value < 0:
                raise InvalidSetting(f"{where}: {setting} is {value}: use 0 or more.")

    @property
    def key(self) -> dg.AssetKey:
        """The asset's key."""
        prefix = self.stream.prefix if self.key_prefix is None else prefix_parts(self.key_prefix)
        return dg.AssetKey([*prefix, self.name])

    @property
    def partitions(self) -> dg.HourlyPartitionsDefinition:
        """One partition per hour of event time, in UTC."""
        return dg.HourlyPartitionsDefinition(start_date=self.since, timezone="UTC", fmt=KEY_FORMAT)


def hourly_asset(
    stream: ShardStream,
    name: str,
    transform: Transform,
    *,
    since: datetime,
    late: LatePolicy = LatePolicy(),
    out_of_order_s: float = 0.0,
    idle_after_s: float | None = None,
    key_prefix: str | Sequence[str] | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    kinds: AbstractSet[str] = HOURLY_KINDS,
) -> HourlyAsset:
    """Declare an asset with one partition per hour of event time, made from a stream's output.

    Its sensor asks for an hour once every shard of the stream has passed it. Hand the declaration
    to `build_definitions(…, hourly=[…])`.

    Args:
        stream: the stream whose committed output it is made from.
        name: the last part of the asset's key, of letters, digits and underscores.
        transform: applied by Spark to the records of one hour, of all shards.
        since: the first hour, in UTC; earlier records belong to no partition.
        late: the treatment of records that come after their hour was made.
        out_of_order_s: the most by which a record may be older than its shard's newest without
            being late, in seconds.
        idle_after_s: the time without news, in seconds, after which a shard that is caught up no
            longer holds hours back; None means that it always does.
        key_prefix: the parts before the name in the asset's key, or the only one; None takes the
            stream's.
        group_name: the asset's group in Dagster; None takes the stream's.
        owners: of the asset: mail addresses, or teams as `team:web`; None takes the stream's.
        tags: of the asset.
        kinds: of the asset.

    Raises:
        InvalidSetting: an argument is not valid.
    """
    return HourlyAsset(
        stream,
        name,
        transform,
        since,
        late,
        out_of_order_s,
        idle_after_s,
        key_prefix,
        group_name,
        owners,
        tags or {},
        kinds,
    )


def hour_key(start: datetime) -> str:
    """Return the partition of an hour."""
    import pendulum

    return pendulum.instance(start).in_timezone("UTC").strftime(KEY_FORMAT)


class WindowConfig(dg.Config):
    """The launchpad's config of an hour.

    Attributes:
        even_if_incomplete: make the hour although a shard may still deliver records of it.
    """

    even_if_incomplete: bool = False


def build_hourly_asset(hourly: HourlyAsset, deployment: Deployment) -> dg.AssetsDefinition:
    """Return the asset; materializing a partition makes that hour anew, in the old one's place."""

    @dg.asset(
        key=hourly.key,
        description=f"Hours of event time of {hourly.stream.name}; each is made when every shard "
        "has passed it.",
        kinds=set(hourly.kinds),
        group_name=hourly.group_name or hourly.stream.group_name,
        owners=hourly.stream.owners if hourly.owners is None else hourly.owners,
        tags=hourly.tags,
        partitions_def=hourly.partitions,
        deps=[dg.AssetDep(asset_key(hourly.stream), partition_mapping=dg.AllPartitionMapping())],
        required_resource_keys={spark_key(hourly.stream)},
    )
    def hour(context: dg.AssetExecutionContext, config: WindowConfig) -> dg.MaterializeResult[Any]:
        start = context.partition_time_window.start
        spark: SparkResource = getattr(context.resources, spark_key(hourly.stream))
        try:
            made = make_window(
                deployment,
                hourly.stream,
                asset=hourly.name,
                transform=hourly.transform,
                start=start,
                end=start + HOUR,
                run=context.run.run_id,
                spark=spark,
                out_of_order=timedelta(seconds=hourly.out_of_order_s),
                even_if_incomplete=config.even_if_incomplete,
                ended=lambda other: run_ended(context.instance, other),
                tell=context.log.warning,
            )
        except LeaseholdError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        root = deployment.output_folder(hourly.stream.key)
        return dg.MaterializeResult(metadata=window_metadata(made, root))

    return hour


def window_metadata(made: WindowMade, root: OutputPlace) -> dict[str, Any]:
    """Return metadata of an hour's materialization; numbers stay numbers, so that they plot.

    Args:
        made: the hour.
        root: the place that its files are named from.
    """
    window = made.window
    named: dict[str, Any] = {}
    if window.files:
        path = window.files[0].path
        named["dagster/uri"] = location_of(root / path.rpartition("/")[0])
        # What is only for people to look at fails no hour that is made.
        with suppress(OSError, LeaseholdError):
            columns = columns_of(stored_schema((root / path).schema()))
            named["dagster/column_schema"] = dg.TableSchema(
                [dg.TableColumn(each["name"], type_text(each["type"])) for each in columns]
            )
    return {
        **named,
        "dagster/partition_row_count": window.records,
        "records": window.records,
        "bytes": sum(file.bytes for file in window.files),
        "files": len(window.files),
        "late_records": window.late,
        "generation": window.generation,
        "source_files": made.source_files,
        "start": dg.MetadataValue.timestamp(window.start),
        "end": dg.MetadataValue.timestamp(window.end),
    }
