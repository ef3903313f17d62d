"""Components for `dg`: streams, and hours of their event time, declared in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self, TypeVar

import dagster as dg
from pydantic import BaseModel, Field
from typing_extensions import override

from dagster_leasehold.assets.shard_stream import (
    GROUP_NAME_DEFAULT,
    KINDS_DEFAULT,
    ShardStream,
    WatermarkOf,
)
from dagster_leasehold.assets.windows.hourly_asset import (
    HOURLY_KINDS,
    LateAction,
    LatePolicy,
    hourly_asset,
)
from dagster_leasehold.lease_store.errors import InvalidSetting, UnknownStream, shown
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.declared_streams import stream_of
from dagster_leasehold.orchestration.presentation import listed
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.stream_settings import StreamSettings
from dagster_leasehold.orchestration.user_modules import declared_twice, object_at, transform_of

Loaded = TypeVar("Loaded", bound=BaseModel)


def _named(component: Loaded, context: dg.ComponentLoadContext) -> Loaded:
    """Return a component with a name, which is that of its folder if it has none of its own."""
    if getattr(component, "name", ""):
        return component
    return component.model_copy(update={"name": context.path.name})


class ShardStreamComponent(StreamSettings, dg.Component, dg.Resolvable):
    """A stream whose records are consumed exactly once into a table: a partition for each shard.

    Its attributes are the settings of a stream, and some more of `ShardStream`; its name is by
    default that of its folder.
    """

    name: str = ""
    gap_policy: GapPolicy = GapPolicy.HOLD
    initial_position: str = "begin"
    watermark_of: WatermarkOf = WatermarkOf.SOURCE
    quarantined_max: int = 1_000
    lag_max: int = 1_000_000
    lag_max_s: float | None = None
    key_prefix: str | list[str] = Field(default=[])
    group_name: str = GROUP_NAME_DEFAULT
    owners: list[str] = Field(default=[])
    tags: Mapping[str, str] = Field(default={})
    kinds: list[str] = Field(default=sorted(KINDS_DEFAULT))

    @override
    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        return _named(super().load(attributes, context), context)

    @override
    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        others = context.component_tree.get_all_components(of_type=ShardStreamComponent)
        if [each.name for each in others].count(self.name) > 1:
            raise declared_twice(self.name, "in YAML")
        settings = load_settings()
        if self.name in {each.name for each in settings.streams}:
            raise declared_twice(self.name, "in YAML and in leasehold.toml")
        return build_definitions([stream_of(self, settings)], settings)


class HourlyAssetComponent(dg.Component, dg.Model, dg.Resolvable):
    """An asset with one partition per hour of event time, made from the output of a stream.

    Its attributes are the arguments of `hourly_asset`; its name is by default that of its folder.

    Attributes:
        stream: the name of a stream that YAML or `leasehold.toml` declares, or `module.name` of
            one that Python does.
        transform: `module.function`.
        since: the first hour, as an ISO 8601 time in UTC.
        late: `drop` or `rerun`.
    """

    name: str = ""
    stream: str
    transform: str
    since: str
    late: LateAction = LatePolicy().action
    late_within_s: float = LatePolicy().within_s
    late_wait_s: float = LatePolicy().wait_s
    out_of_order_s: float = 0.0
    idle_after_s: float | None = None
    key_prefix: str | list[str] | None = None
    group_name: str | None = None
    owners: list[str] | None = None
    tags: Mapping[str, str] = Field(default={})
    kinds: list[str] = Field(default=sorted(HOURLY_KINDS))

    @override
    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        return _named(super().load(attributes, context), context)

    @override
    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        settings = load_settings()
        hourly = hourly_asset(
            self._stream(context, settings),
            self.name,
            transform_of(self.name, self.transform),
            since=self._first_hour(),
            late=LatePolicy(self.late, self.late_within_s, self.late_wait_s),
            out_of_order_s=self.out_of_order_s,
            idle_after_s=self.idle_after_s,
            key_prefix=self.key_prefix,
            group_name=self.group_name,
            owners=self.owners,
            tags=self.tags,
            kinds=frozenset(self.kinds),
        )
        return build_definitions([], settings, hourly=[hourly])

    def _stream(self, context: dg.ComponentLoadContext, settings: Settings) -> ShardStream:
        components = context.component_tree.get_all_components(of_type=ShardStreamComponent)
        declared = {each.name: each for each in (*settings.streams, *components)}
        if self.stream in declared:
            return stream_of(declared[self.stream], settings)
        what = f"The stream of hourly asset {shown(self.name)}"
        if "." not in self.stream:
            raise UnknownStream(
                f"{what} is {shown(self.stream)}, which neither YAML nor leasehold.toml declares; "
                f"those that they declare are: {listed(declared)}. Name one of Python as "
                "module.name."
            )
        stream: Any = object_at(what, self.stream)
        if isinstance(stream, ShardStream):
            return stream
        raise InvalidSetting(f"{what}, {shown(self.stream)}, is no ShardStream: name one.")

    def _first_hour(self) -> datetime:
        try:
            return datetime.fromisoformat(self.since)
        except ValueError:
            raise InvalidSetting(
                f"Hourly asset {shown(self.name)}: since is {shown(self.since)}: give the "
                "beginning of an hour, like 2026-01-31T12:00:00Z."
            ) from None
