"""Components for `dg`, which declare streams and hourly assets in YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import dagster as dg
from pydantic import BaseModel, RootModel, TypeAdapter
from typing_extensions import override

from dagster_leasehold.assets.shard_stream import ShardStream, SpecChange
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset
from dagster_leasehold.lease_store.errors import InvalidSetting, UnknownStream, listed, shown
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.declared_streams import named_source
from dagster_leasehold.orchestration.scaffolding import YAML, written_settings
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.user_modules import declared_twice, function_at, object_at
from dagster_leasehold.shard_sources.registry import LOCAL_LOG
from dagster_leasehold.shard_sources.source import ShardSource

T = TypeVar("T", ShardStream, HourlyAsset)

TEMPLATE = {"type": "string", "pattern": r"\{\{.*\}\}"}
"""The schema of a template such as `{{ env.KAFKA }}`, which Dagster fills in."""


class CommentedAttributes(dg.Scaffolder):
    """Writes a component's YAML, with a comment above each attribute."""

    @override
    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        dg.scaffold_component(request, {})
        file = request.target_path / "defs.yaml"
        if not file.exists():
            return
        component = COMPONENTS[request.type_name.rpartition(".")[2]]
        lines = written_settings(component.declares, component.defaults, YAML, omitted=("name",))
        text = "".join(f"  {line}\n" for line in lines)
        file.write_text(f"type: {request.type_name}\n\nattributes:\n{text}", encoding="utf-8")


class DeclaringComponent(dg.Component, Generic[T]):
    """A component with the attributes of a declared class.

    Dagster fills in templates. Then pydantic validates the attributes, and `NamesInYaml` resolves
    the names of sources, functions and streams.

    Attributes:
        declares: the class.
        defaults: the values of required attributes that YAML can omit.
    """

    declares: ClassVar[type[Any]]
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, declared: T) -> None:
        self.declared = declared

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return an asset's spec; a subclass can override this to change the spec."""
        return spec

    @override
    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return a model that accepts any attributes, with the schema of the class.

        `dg check yaml` uses the schema, because templates have no values then.
        """
        own = TypeAdapter(cls.declares).json_schema()
        definitions = own.pop("$defs", {})
        schema = _with_templates(_inlined(own, definitions))
        schema["required"] = [
            name for name in own["required"] if name not in ("name", *cls.defaults)
        ]

        class Attributes(RootModel[dict[str, Any]]):
            @override
            @classmethod
            def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
                return schema

        return Attributes

    def _with_specs(self) -> T:
        first: SpecChange | None = self.declared.asset_spec

        def change(spec: dg.AssetSpec) -> dg.AssetSpec:
            return self.get_asset_spec(spec if first is None else first(spec))

        return replace(self.declared, asset_spec=change)

    @override
    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component; the default of `name` is the name of its folder."""
        templates = attributes.root if isinstance(attributes, RootModel) else {}
        values = context.resolution_context.at_path("attributes").resolve_value(templates)
        values = {"name": context.path.name, **cls.defaults, **values}
        names = NamesInYaml(context, load_settings())
        declared: Any = TypeAdapter(cls.declares).validate_python(values, context=names)
        return cls(declared)


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Replace the references in a JSON schema by their definitions."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _inlined(value, definitions) for key, value in schema.items() if key != "$ref"}
    if "$ref" in schema:
        result = _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions) | result
    return result


def _with_templates(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also accepts a template for each attribute."""
    properties: dict[str, Any] = {}
    for name, each in schema["properties"].items():
        notes = {key: each.pop(key) for key in ("description", "default") if key in each}
        own = _with_templates(each) if "properties" in each else each
        properties[name] = {"if": TEMPLATE, "else": own} | notes
    return schema | {"properties": properties}


class NamesInYaml:
    """Resolves the names of sources, functions and streams in a YAML declaration."""

    def __init__(self, context: dg.ComponentLoadContext, settings: Settings) -> None:
        self._context = context
        self._settings = settings

    def source(self, stream: str, reference: str | Mapping[str, Any]) -> ShardSource:
        """Return a stream's source, given as its kind, or as `{kind: options}`."""
        kinds = {reference: {}} if isinstance(reference, str) else reference
        if len(kinds) != 1:
            raise InvalidSetting("source is not valid: give one kind, with its options below it.")
        [(kind, options)] = kinds.items()
        return named_source(kind, stream, settings=self._settings, **(options or {}))

    def function(self, role: str, path: str) -> Callable[..., Any]:
        """Return the function at `module.function`; an error message begins with `role`."""
        return function_at(role, path, self._settings.home)

    def stream(self, reference: str) -> ShardStream:
        """Return the stream with this name in YAML, or the stream at `module.name` in Python."""
        components = self._context.component_tree.get_all_components(of_type=ShardStreamComponent)
        streams = {each.declared.name: each.declared for each in components}
        if reference in streams:
            return streams[reference]
        if "." not in reference:
            raise UnknownStream(
                f"The stream {shown(reference)} is not declared in YAML. YAML declares these "
                f"streams: {listed(streams)}. Give a stream of a Python module as module.name."
            )
        stream = object_at("The stream", reference, self._settings.home)
        if isinstance(stream, ShardStream):
            return stream
        raise InvalidSetting(f"The stream, {shown(reference)}, is not a ShardStream: use one.")


@dg.scaffold_with(CommentedAttributes)
class ShardStreamComponent(DeclaringComponent[ShardStream]):
    """A stream that is consumed exactly once into a table, with a partition per shard.

    It has the attributes of `ShardStream`; the default of `name` is the name of its folder.
    """

    declares = ShardStream
    defaults: ClassVar[Mapping[str, Any]] = {"source": LOCAL_LOG}

    def execute(
        self,
        context: dg.OpExecutionContext | dg.AssetExecutionContext,
        work: Callable[[], Iterator[Any]],
    ) -> Iterator[Any]:
        """Run `work()`, and yield its events; a subclass can override this to add steps.

        Args:
            context: Dagster's context of the asset or of the consuming job.
            work: consumes the shards of the run.
        """
        return self.declared.carry_out(context, work)

    @override
    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        others = context.component_tree.get_all_components(of_type=ShardStreamComponent)
        name = self.declared.name
        if [each.declared.name for each in others].count(name) > 1:
            raise declared_twice(name, "in YAML")
        return build_definitions([replace(self._with_specs(), execute=self.execute)])


@dg.scaffold_with(CommentedAttributes)
class HourlyAssetComponent(DeclaringComponent[HourlyAsset]):
    """An asset with one partition per hour of event time, made from the output of a stream.

    It has the attributes of `HourlyAsset`; the default of `name` is the name of its folder.
    """

    declares = HourlyAsset

    @override
    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return build_definitions([], hourly=[self._with_specs()])


COMPONENTS: dict[str, type[DeclaringComponent[Any]]] = {
    each.__name__: each for each in (ShardStreamComponent, HourlyAssetComponent)
}
