"""Components for `dg`: streams, and hours of their event time, declared in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Self, TypeVar

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field
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
from dagster_leasehold.lease_store.times import parse_time
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.declared_streams import stream_of
from dagster_leasehold.orchestration.presentation import listed
from dagster_leasehold.orchestration.scaffolding import written_settings
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.stream_settings import (
    NOT_NEGATIVE,
    PATH_OF_FUNCTION,
    StreamSettings,
)
from dagster_leasehold.orchestration.user_modules import declared_twice, object_at, transform_of
from dagster_leasehold.shard_sources.registry import LOCAL_LOG

Loaded = TypeVar("Loaded", bound=BaseModel)


TEMPLATE = {"type": "string", "pattern": r"\{\{.*\}\}"}
"""The schema of a value that Dagster fills in, as `{{ env.KAFKA }}`."""
FIRST_HOUR = Field(
    examples=["2026-01-01T00:00:00Z"],
    json_schema_extra={"pattern": r"^\d{4}-\d\d-\d\dT\d\d(:00(:00)?)?(Z|\+00:00)$"},
)
POSITION = Field(json_schema_extra={"pattern": r"^(begin|end|\d{4}-\d\d-\d\d.*)$"})
PREFIX = Field(examples=["web"])
TEAMS = Field(examples=[["team:web"]])
SECONDS = Field(examples=[300], json_schema_extra={"minimum": 0})


class CommentedAttributes(dg.Scaffolder):
    """Writes a component with all of its attributes, and what they mean."""

    @override
    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        dg.scaffold_component(request, {})
        file = request.target_path / "defs.yaml"
        if not file.exists():
            return
        component = COMPONENTS[request.type_name.rpartition(".")[2]]
        given = {"source": LOCAL_LOG} if component is ShardStreamComponent else {}
        lines = written_settings(component, given, separator=": ", left_out=("name",))
        text = "".join(f"  {line}\n" for line in lines)
        file.write_text(f"type: {request.type_name}\n\nattributes:\n{text}", encoding="utf-8")


class CheckedAttributes(dg.Resolvable):
    """A component whose schema says what its attributes take, so that `dg check yaml` refuses."""

    @override
    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the attributes as they are in YAML: each has its own schema, or is a template."""
        derived = super().model()
        extra = derived.model_config.get("json_schema_extra")
        if isinstance(extra, dict):
            derived.model_config["json_schema_extra"] = partial(cls._state, extra)
        return derived

    @classmethod
    def _state(cls, extra: dict[str, Any], schema: dict[str, Any]) -> None:
        assert issubclass(cls, BaseModel)
        own = cls.model_json_schema()
        schema |= extra
        for name, each in _inlined(own["properties"], own.get("$defs", {})).items():
            notes = {key: each.pop(key) for key in ("description", "default") if key in each}
            schema["properties"][name] = {"if": TEMPLATE, "else": each} | notes


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a JSON schema with its definitions in the place of references to them."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    named = {key: _inlined(value, definitions) for key, value in schema.items() if key != "$ref"}
    if "$ref" in schema:
        named = _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions) | named
    return named


def _named(component: Loaded, context: dg.ComponentLoadContext) -> Loaded:
    """Return a component with a name, which is that of its folder if it has none of its own."""
    if getattr(component, "name", ""):
        return component
    return component.model_copy(update={"name": context.path.name})


@dg.scaffold_with(CommentedAttributes)
class ShardStreamComponent(StreamSettings, dg.Component, CheckedAttributes):
    """A stream whose records are consumed exactly once into a table: a partition for each shard.

    Its attributes are the settings of a stream, and some more of `ShardStream`; its name is by
    default that of its folder.
    """

    name: str = ""
    """The name of the stream; by default that of its folder."""
    gap_policy: GapPolicy = GapPolicy.HOLD
    """The treatment of records that were removed before they were read: `hold`, or go on at the
    `begin` or `end` of what is left."""
    initial_position: Annotated[str, POSITION] = "begin"
    """The position where a new shard begins: `begin`, `end`, or an ISO 8601 time."""
    watermark_of: WatermarkOf = WatermarkOf.SOURCE
    """The event times that tell how far a shard has come: those of the `source`, or of the
    transform's `output`."""
    quarantined_max: Annotated[int, NOT_NEGATIVE] = 1_000
    """The most records of one batch that may go to quarantine."""
    lag_max: Annotated[int, NOT_NEGATIVE] = 1_000_000
    """The most unread records of a shard for which its lag check passes."""
    lag_max_s: Annotated[float | None, SECONDS] = None
    """The longest time that a record may be unread for the check to pass, in seconds; without it,
    the number of records alone counts."""
    key_prefix: Annotated[str | list[str], PREFIX] = Field(default=[])
    """The parts before the name in the keys of the stream's assets."""
    group_name: str = GROUP_NAME_DEFAULT
    """The group of these assets in Dagster; `group` is the consumer group."""
    owners: Annotated[list[str], TEAMS] = Field(default=[])
    """The owners of these assets: mail addresses, or teams as `team:web`."""
    tags: Mapping[str, str] = Field(default={})
    """The tags of these assets."""
    kinds: list[str] = Field(default=sorted(KINDS_DEFAULT))
    """The kinds of the stream's own asset; Dagster shows three at most."""

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


@dg.scaffold_with(CommentedAttributes)
class HourlyAssetComponent(dg.Component, dg.Model, CheckedAttributes):
    """An asset with one partition per hour of event time, made from the output of a stream.

    Its attributes are the arguments of `hourly_asset`; its name is by default that of its folder.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str = ""
    """The name of the asset; by default that of its folder."""
    stream: Annotated[str, Field(examples=["visits"])]
    """The name of a stream that YAML or `leasehold.toml` declares, or `module.name` of one in
    Python."""
    transform: Annotated[str, PATH_OF_FUNCTION]
    """The transform of an hour, as `module.function`."""
    since: Annotated[str, FIRST_HOUR]
    """The first hour, as an ISO 8601 time in UTC."""
    late: LateAction = LatePolicy().action
    """The treatment of records that come after their hour was made: `drop` them, or `rerun` the
    hour."""
    late_within_s: Annotated[float, NOT_NEGATIVE] = LatePolicy().within_s
    """The age of an hour up to which it is made again, in seconds."""
    late_wait_s: Annotated[float, NOT_NEGATIVE] = LatePolicy().wait_s
    """The time to wait for more late records before an hour is made again, in seconds."""
    out_of_order_s: Annotated[float, NOT_NEGATIVE] = 0.0
    """The time by which records of a shard may be out of order, in seconds."""
    idle_after_s: Annotated[float | None, SECONDS] = None
    """The time without records after which a shard no longer holds hours back, in seconds; without
    it, every shard does."""
    key_prefix: Annotated[str | list[str] | None, PREFIX] = None
    """The parts before the name in the asset's key; by default those of the stream."""
    group_name: Annotated[str | None, Field(examples=["web"])] = None
    """The group of the asset in Dagster; by default that of the stream."""
    owners: Annotated[list[str] | None, TEAMS] = None
    """The owners of the asset; by default those of the stream."""
    tags: Mapping[str, str] = Field(default={})
    """The tags of the asset."""
    kinds: list[str] = Field(default=sorted(HOURLY_KINDS))
    """The kinds of the asset; Dagster shows three at most."""

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
        since = parse_time(self.since)
        if since is None:
            raise InvalidSetting(
                f"Hourly asset {shown(self.name)}: since is {shown(self.since)}: give the "
                "beginning of an hour, like 2026-01-31T12:00:00Z."
            )
        return since


COMPONENTS: dict[str, type[BaseModel]] = {
    each.__name__: each for each in (ShardStreamComponent, HourlyAssetComponent)
}
