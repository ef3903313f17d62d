"""Dagster's definitions of declared streams: assets, checks, jobs, sensors and schedules."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg

from dagster_leasehold.assets.compact_job import build_compact_job
from dagster_leasehold.assets.consume_job import build_consume_job
from dagster_leasehold.assets.content_checks import build_table_checks
from dagster_leasehold.assets.dagster_internals import ObjectMetadataValue
from dagster_leasehold.assets.deployment import LEASEHOLD
from dagster_leasehold.assets.lease_asset import build_lease_asset
from dagster_leasehold.assets.log_asset import build_log_asset
from dagster_leasehold.assets.output.committed_input import committed_input
from dagster_leasehold.assets.partitions import (
    compact_job_name,
    consume_job_name,
    definition_name,
    output_key,
)
from dagster_leasehold.assets.progress_check import build_progress_check
from dagster_leasehold.assets.shard_asset import build_shard_asset
from dagster_leasehold.assets.shard_stream import ShardStream, SpecChange
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, build_hourly_asset
from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.orchestration.resources import DEFAULT, LeaseholdResource, deployment_of
from dagster_leasehold.orchestration.schedules import build_schedule
from dagster_leasehold.sensors.stream_sensors import (
    build_housekeeping_sensor,
    build_launching_sensor,
)
from dagster_leasehold.sensors.watermark import build_watermark_sensor
from dagster_leasehold.shard_sources.registry import check_library

Asset = dg.AssetsDefinition | dg.AssetSpec
BUILT: list[ShardStream] = []
"""The streams whose definitions this process has built."""


def streams_in(definitions: dg.Definitions) -> list[ShardStream]:
    """Return the streams of definitions, which can be merged."""
    values = (getattr(value, "instance", None) for value in definitions.metadata.values())
    return [stream for stream in values if isinstance(stream, ShardStream)]


def build_definitions(
    streams: Sequence[ShardStream],
    leasehold: LeaseholdResource = DEFAULT,
    *,
    hourly: Sequence[HourlyAsset] = (),
) -> dg.Definitions:
    """Return the Dagster definitions of these streams, to merge with your own.

    Args:
        streams: the streams to consume.
        leasehold: the resource `leasehold` of runs and sensors, one per code location; by default,
            the deployment that the settings describe.
        hourly: assets with a partition per hour, of these streams, or of any if there are none.

    Raises:
        InvalidSetting: two streams have the same name in Dagster; a stream has settings for a node
            that the deployment does not serve; an hourly asset's name is in use, or its stream is
            not in `streams`; a setting is not valid.
        ModuloSettingMissing: a stream assigns by modulo, and a served node has no settings.
        SourceLibraryMissing: the client library of a stream's source is not installed.

    Examples:
        >>> defs = build_definitions([ShardStream("visits", LocalLog("visits-log"))])
        >>> sorted(sensor.name for sensor in defs.sensors)
        ['visits_housekeeping', 'visits_rebalance']
    """
    _check_names(streams)
    _check_hourly(streams, hourly)
    leasehold.refuse_secrets()
    settings = leasehold.settings()
    for stream in streams:
        check_library(stream.source)
        if settings.expected_nodes is not None:
            stream.check_nodes(settings.node_names)
    deployment = deployment_of(settings)
    assets: list[Asset] = []
    jobs: list[dg.JobDefinition] = []
    sensors: list[dg.SensorDefinition] = []
    schedules: list[dg.ScheduleDefinition] = []
    checks: list[dg.AssetChecksDefinition] = []
    resources: dict[str, Any] = {LEASEHOLD: leasehold}
    # While loading, Dagster copies sensors, and warns about a parameter that it sets itself.
    warnings.filterwarnings("ignore", message=".*`owners`", category=dg.BetaWarning)
    for stream in streams:
        stream_assets = (
            build_log_asset(stream),
            build_shard_asset(stream, deployment),
            build_lease_asset(stream),
        )
        assets += _with_specs(stream_assets, stream.asset_spec)
        job = build_consume_job(stream)
        jobs += [job, build_compact_job(stream)]
        schedules.append(build_schedule(stream, job))
        resources[output_key(stream)] = committed_input(stream)
        checks += [build_progress_check(stream), *build_table_checks(stream)]
    if streams:
        sensors.append(build_launching_sensor(streams, deployment, jobs))
        sensors.append(build_housekeeping_sensor(streams))
    for window in hourly:
        assets += _with_specs([build_hourly_asset(window)], window.asset_spec)
        sensors.append(build_watermark_sensor(window))
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=jobs,
        sensors=sensors,
        schedules=schedules,
        resources=resources,
        metadata=_stream_metadata(streams),
    )


def _with_specs(assets: Iterable[Asset], change: SpecChange | None) -> Iterable[Asset]:
    """Apply the user's function to the specs of assets; keys cannot change."""
    if change is None:
        return assets

    def new_spec(spec: dg.AssetSpec) -> dg.AssetSpec:
        return change(spec).replace_attributes(key=spec.key)

    return dg.map_asset_specs(new_spec, assets)


def _stream_metadata(streams: Sequence[ShardStream]) -> dict[str, ObjectMetadataValue]:
    """Return metadata with the streams, each under a new key.

    Merged definitions keep only the last value of a key, which would hide a second stream of one
    name.
    """
    builds = len(BUILT)
    BUILT.extend(streams)
    return {
        f"leasehold/stream/{number}": ObjectMetadataValue(stream)
        for number, stream in enumerate(streams, builds)
    }


def _check_hourly(streams: Sequence[ShardStream], hourly: Sequence[HourlyAsset]) -> None:
    """Refuse hourly assets whose definitions would collide, or whose stream is missing."""
    names = {definition_name(stream) for stream in streams}
    names |= {consume_job_name(stream) for stream in streams}
    names |= {compact_job_name(stream) for stream in streams}
    for window in hourly:
        if streams and window.stream not in streams:
            raise InvalidSetting(
                f"Hourly asset {shown(window.name)} is made from stream "
                f"{shown(window.stream.name)}, which is not in `streams`: add it."
            )
        if window.name in names:
            raise InvalidSetting(
                f"Hourly asset {shown(window.name)} has the same name as a stream, a job or "
                "another hourly asset: rename it."
            )
        names.add(window.name)


def _check_names(streams: Sequence[ShardStream]) -> None:
    """Refuse streams whose definitions would collide."""
    stream_names: dict[str, str] = {}
    for stream in streams:
        name = definition_name(stream)
        if name in stream_names:
            raise InvalidSetting(
                f"Streams {stream_names[name]!r} and {stream.name!r} have the same name in "
                "Dagster, where names have only letters, digits and underscores: rename one."
            )
        stream_names[name] = stream.name
