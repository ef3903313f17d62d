"""Leasehold: Dagster orchestration for sharded logs. This is its front door.

Everything that a project writes to consume a log is imported from here:

* a stream and how it is consumed: `ShardStream`, `Pace`, `Limits`, `Checks`, `Retention`,
  `WatermarkOf`, `GapPolicy`, `AssignmentMode`, `Modulo`, `Pinned`, and its published table:
  `TableSettings`, `publication_check`;
* where its records come from: `named_source`, or a `LocalLog`;
* what becomes of its records: `Decode`, `arrow_transform`, `parse_json`, `parse_csv`, and its
  hook's `CommittedBatch`;
* hours of event time: `HourlyAsset`, `LatePolicy`, `LateAction`;
* both in the YAML of a `dg` project: `ShardStreamComponent`, `HourlyAssetComponent`;
* what Dagster loads, and how it is set up: `build_definitions`, `LeaseholdResource`, `Settings`,
  `load_settings`, `production_text`; and `LeaseholdError`, the root of all errors.

Three side doors serve further needs: `dagster_leasehold.reading` for programs that read
committed output, `dagster_leasehold.clients` for consumers without Dagster, and
`dagster_leasehold.sources` for authors of sources. Everything behind these four is internal and
can change in any release.

A name is loaded when it is first used, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_leasehold.assets.arrow_transform import arrow_transform
    from dagster_leasehold.assets.commit_hook import CommittedBatch
    from dagster_leasehold.assets.decode_settings import Decode
    from dagster_leasehold.assets.node_settings import Modulo, Pinned
    from dagster_leasehold.assets.pace import Pace
    from dagster_leasehold.assets.parsing import parse_csv, parse_json
    from dagster_leasehold.assets.publication_check import publication_check
    from dagster_leasehold.assets.shard_stream import Checks, Retention, ShardStream, WatermarkOf
    from dagster_leasehold.assets.table_settings import TableSettings
    from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, LateAction, LatePolicy
    from dagster_leasehold.lease_store.errors import LeaseholdError
    from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy
    from dagster_leasehold.orchestration.build import build_definitions
    from dagster_leasehold.orchestration.components import (
        HourlyAssetComponent,
        ShardStreamComponent,
    )
    from dagster_leasehold.orchestration.declared_streams import named_source
    from dagster_leasehold.orchestration.instance import production_text
    from dagster_leasehold.orchestration.resources import LeaseholdResource
    from dagster_leasehold.orchestration.settings import Settings, load_settings
    from dagster_leasehold.shard_sources.local_log import LocalLog
    from dagster_leasehold.shard_sources.source import Limits

__all__ = [
    "AssignmentMode",
    "Checks",
    "CommittedBatch",
    "Decode",
    "GapPolicy",
    "HourlyAsset",
    "HourlyAssetComponent",
    "LateAction",
    "LatePolicy",
    "LeaseholdError",
    "LeaseholdResource",
    "Limits",
    "LocalLog",
    "Modulo",
    "Pace",
    "Pinned",
    "Retention",
    "Settings",
    "ShardStream",
    "ShardStreamComponent",
    "TableSettings",
    "WatermarkOf",
    "arrow_transform",
    "build_definitions",
    "load_settings",
    "named_source",
    "parse_csv",
    "parse_json",
    "production_text",
    "publication_check",
]

# The module that each name comes from: the same as the imports above, which no program runs.
_HOMES = {
    "AssignmentMode": "dagster_leasehold.lease_store.group_rows",
    "Checks": "dagster_leasehold.assets.shard_stream",
    "CommittedBatch": "dagster_leasehold.assets.commit_hook",
    "GapPolicy": "dagster_leasehold.lease_store.group_rows",
    "Decode": "dagster_leasehold.assets.decode_settings",
    "HourlyAsset": "dagster_leasehold.assets.windows.hourly_asset",
    "HourlyAssetComponent": "dagster_leasehold.orchestration.components",
    "LateAction": "dagster_leasehold.assets.windows.hourly_asset",
    "LatePolicy": "dagster_leasehold.assets.windows.hourly_asset",
    "LeaseholdError": "dagster_leasehold.lease_store.errors",
    "LeaseholdResource": "dagster_leasehold.orchestration.resources",
    "Limits": "dagster_leasehold.shard_sources.source",
    "LocalLog": "dagster_leasehold.shard_sources.local_log",
    "Modulo": "dagster_leasehold.assets.node_settings",
    "Pace": "dagster_leasehold.assets.pace",
    "Pinned": "dagster_leasehold.assets.node_settings",
    "Retention": "dagster_leasehold.assets.shard_stream",
    "Settings": "dagster_leasehold.orchestration.settings",
    "ShardStream": "dagster_leasehold.assets.shard_stream",
    "ShardStreamComponent": "dagster_leasehold.orchestration.components",
    "TableSettings": "dagster_leasehold.assets.table_settings",
    "WatermarkOf": "dagster_leasehold.assets.shard_stream",
    "arrow_transform": "dagster_leasehold.assets.arrow_transform",
    "build_definitions": "dagster_leasehold.orchestration.build",
    "load_settings": "dagster_leasehold.orchestration.settings",
    "named_source": "dagster_leasehold.orchestration.declared_streams",
    "parse_csv": "dagster_leasehold.assets.parsing",
    "parse_json": "dagster_leasehold.assets.parsing",
    "production_text": "dagster_leasehold.orchestration.instance",
    "publication_check": "dagster_leasehold.assets.publication_check",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
