"""Streams and hourly assets in the YAML of a `dg` project, loaded in this process."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from jsonschema import Draft202012Validator
from typing_extensions import override

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.orchestration.build import streams_in
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.components import (
    CommentedAttributes,
    HourlyAssetComponent,
    ShardStreamComponent,
)
from dagster_leasehold.reading import declared_stream
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.environment import forget_settings
from tests.unit.docs.test_docs import DOCS, fences

PAGE = DOCS / "how-to/dagster-project.md"
CHECKS = """
from dagster_leasehold import publication_check

@publication_check(on_failure="quarantine")
def paths(records):
    return None

def plain(records):
    return None
"""
TRANSFORMS = fences(PAGE, "python")[0]
STREAM, FROM_KAFKA, HOURLY = fences(PAGE, "yaml")
DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
PROJECT = '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "web_logs"\n'
Project = Callable[..., dg.Definitions]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Makes a project whose `defs` hold the files given, and loads its definitions."""
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("pyproject.toml").write_text(PROJECT)
    Path("leasehold.toml").write_text('module = "web_logs.definitions"\n')
    Path("web_logs/defs").mkdir(parents=True)
    for name in ("__init__.py", "defs/__init__.py"):
        Path("web_logs", name).touch()
    Path("web_logs/definitions.py").write_text(DEFINITIONS)
    Path("web_logs/transforms.py").write_text(TRANSFORMS)

    def load(**files: str) -> dg.Definitions:
        for name, text in files.items():
            file = Path("web_logs/defs", name, "defs.yaml")
            file.parent.mkdir()
            file.write_text(text)
        for name in [each for each in sys.modules if each.partition(".")[0] == "web_logs"]:
            monkeypatch.delitem(sys.modules, name)
        return dg.load_from_defs_folder(path_within_project=Path("web_logs"))

    return load


def stream_in_yaml(**attributes: Any) -> str:
    declared = {"type": "dagster_leasehold.ShardStreamComponent", "attributes": attributes}
    return yaml.safe_dump(declared)


def only_stream(definitions: dg.Definitions) -> ShardStream:
    (stream,) = streams_in(definitions)
    return stream


def test_a_stream_of_the_page_is_loaded_with_all_its_settings(project: Project) -> None:
    definitions = project(visits=STREAM)
    stream = only_stream(definitions)
    assert (stream.name, str(stream.key), stream.pace.commit_interval_s) == (
        "visits", "visits/default", 60,
    )  # fmt: skip
    assert isinstance(stream.transform, ArrowTransform)
    assert isinstance(stream.source, LocalLog)
    assert stream.source.root == Path(".leasehold/logs/visits").absolute()
    specs = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    assert set(specs) == {"web/visits", "web/logs/visits_log", "web/leases/visits_leases"}
    assert {tuple(spec.owners) for spec in specs.values()} == {("team:web",)}


def test_yaml_declares_a_stream_of_kafka(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA", "kafka:9092")
    definitions = project(visits=FROM_KAFKA)
    stream = only_stream(definitions)
    options = stream.source.spark_options()
    assert (options["source"], options["topic"]) == ("kafka", "visits")
    assert "kafka:9092" in options["options"]
    assert stream.transform is not None
    assert (stream.group, stream.assignment) == ("web", AssignmentMode.BALANCED)
    assert (stream.pace.commit_interval_s, stream.pace.idle_limit_s, stream.iceberg.name) == (
        5, 30, "web.visits",
    )  # fmt: skip
    spec = definitions.resolve_asset_graph().get(dg.AssetKey(["shop", "web", "visits"]))
    assert spec.group_name == "web"
    assert (spec.tags["tier"], spec.kinds) == ("gold", {"kafka", "iceberg"})


@pytest.mark.parametrize("declared", ["avro", {"format": "avro", "key": "text"}])
def test_a_format_is_a_word_or_has_settings(project: Project, declared: Any) -> None:
    stream = only_stream(project(visits=stream_in_yaml(decode=declared)))
    assert stream.decode is not None
    assert stream.decode.format == "avro"
    assert refusals(ShardStreamComponent, decode=declared) == []


def test_a_route_is_a_column_with_limits(project: Project) -> None:
    table = {"routes_max": 5, "unknown_routes": "quarantine"}
    stream = only_stream(project(visits=stream_in_yaml(route="kind", iceberg=table)))
    assert (stream.route_column, stream.iceberg.routes_max) == ("kind", 5)
    assert stream.iceberg.unknown_routes == "quarantine"
    assert refusals(ShardStreamComponent, route="kind", iceberg=table) == []
    assert refusals(ShardStreamComponent, iceberg={"unknown_routes": "no route"}) != []


def test_publication_checks_are_functions_or_predicates(project: Project) -> None:
    checks = [
        "web_logs.checks.paths",
        {"name": "statuses", "sql": "status is not null", "on_failure": "warn"},
        {"function": "web_logs.checks.plain"},
    ]
    Path("web_logs/checks.py").write_text(CHECKS)
    definitions = project(visits=stream_in_yaml(iceberg={"publication_checks": checks}))
    stream = only_stream(definitions)
    assert [(each.name, each.on_failure) for each in stream.iceberg.publication_checks] == [
        ("paths", "quarantine"), ("statuses", "warn"), ("plain", "hold"),
    ]  # fmt: skip
    assert refusals(ShardStreamComponent, iceberg={"publication_checks": checks}) == []
    graph = definitions.resolve_asset_graph()
    blocking = {key.name for key in graph.asset_check_keys if graph.get(key).blocking}
    assert blocking == {"paths", "plain"}


def test_a_number_can_be_a_template(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE", "7")
    nodes = {"local": {"source_count": 2, "node_id": 1}}
    stream = only_stream(
        project(
            visits=stream_in_yaml(
                pace={"commit_interval_s": "{{ env.PACE }}"},
                assignment="modulo",
                nodes=nodes,
                checks={"lag_max": 5},
            )
        )
    )
    assert (stream.pace.commit_interval_s, stream.checks.lag_max) == (7, 5)
    assert stream.node("local", address="").node_id == 1  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"pace": {"commit_interval_s": -1}}, "use 0 or a positive number"),
        ({"transform": "web_logs.transforms.none"}, "does not exist: module"),
        ({"transform": "web_logs.transforms.__doc__"}, "is not callable"),
        ({"source": "kafak"}, "There is no source 'kafak'"),
        ({"key_prefix": "a/b"}, "give each part by itself"),
    ],
)
def test_a_mistake_is_one_sentence_of_the_command_line(
    project: Project, capsys: pytest.CaptureFixture[str], attributes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Exception) as refused:
        project(visits=stream_in_yaml(**attributes))
    chain = f"{refused.value} {refused.value.__cause__}"
    assert re.search(sentence, chain)
    assert main(["group", "list", "visits"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert sentence in error


def test_commands_know_a_stream_of_yaml_with_all_its_settings(
    project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    project(visits=STREAM)
    (tmp_path / "records").write_text("a\nb\n")
    for command in (
        ("load", "visits", "records", "--shards", "1"),
        ("group", "create", "visits"),
        ("status", "visits"),
        ("cat", "visits"),
        ("table", "create", "visits", "--json"),
        ("verify",),
    ):
        assert main(list(command)) == 0, command
    assert '"web",\n    "visits"' in capsys.readouterr().out
    assert declared_stream("visits").iceberg.name == "web.visits"


def test_a_stream_that_two_files_declare_is_refused(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception) as refused:
        project(visits=STREAM, again=stream_in_yaml(name="visits"))
    assert "'visits' is declared twice in YAML" in str(refused.value.__cause__)
    assert main(["status"]) == 2
    error = capsys.readouterr().err
    assert "'visits' is declared twice" in error
    assert error.count("\n") == 1


def test_hours_can_use_a_stream_in_yaml(project: Project) -> None:
    definitions = project(traffic=HOURLY, visits=STREAM)
    graph = definitions.resolve_asset_graph()
    hours = graph.get(dg.AssetKey(["web", "traffic"]))
    assert hours.parent_keys == {dg.AssetKey(["web", "visits"])}
    assert isinstance(hours.partitions_def, dg.HourlyPartitionsDefinition)
    assert definitions.resolve_sensor_def("traffic_watermark") is not None
    assert [stream.name for stream in streams_in(definitions)] == ["visits"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("stream: visits", "stream: clicks"), "'clicks' is not declared in YAML"),
        (("stream: visits", "stream: web_logs.transforms.visits"), "is not a ShardStream"),
        (("2026-01-01T00:00:00Z", "yesterday"), "give the beginning of an hour"),
        (("action: rerun", "action: keep"), "action is 'keep': use 'drop' or 'rerun'"),
    ],
)
def test_hours_with_a_wrong_declaration_are_refused_with_a_reason(
    project: Project, change: tuple[str, str], sentence: str
) -> None:
    with pytest.raises(Exception) as refused:
        project(traffic=HOURLY.replace(*change), visits=STREAM)
    assert sentence in f"{refused.value} {refused.value.__cause__}"


def test_hours_can_use_a_stream_in_python(project: Project) -> None:
    Path("web_logs/streams.py").write_text(
        next(text for text in fences(PAGE, "python") if "clicks" in text)
    )
    definitions = project(
        traffic=HOURLY.replace("stream: visits", "stream: web_logs.streams.clicks")
    )
    (hours,) = definitions.assets or ()
    assert isinstance(hours, dg.AssetsDefinition)
    assert hours.key == dg.AssetKey(["web", "traffic"])
    # By this name the watermark's sensor configures the op.
    assert hours.op.name == hours.key.to_python_identifier()


class OurStreams(ShardStreamComponent):
    """A component of a project, whose assets have a description of their own."""

    @override
    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(description=f"Ours: {self.declared.name}.")

    @override
    def execute(self, context: Any, work: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        yield f"before {self.declared.name}"
        yield from work()


def test_a_subclass_of_a_component_changes_specs_and_runs(project: Project) -> None:
    text = stream_in_yaml().replace("dagster_leasehold.ShardStreamComponent", "web_logs.OurStreams")
    Path("web_logs/__init__.py").write_text(
        "from tests.unit.orchestration.test_components import OurStreams\n"
    )
    definitions = project(visits=text)
    specs = definitions.resolve_all_asset_specs()
    assert {spec.description for spec in specs} == {"Ours: visits."}
    (stream,) = streams_in(definitions)
    assert stream.execute is not None
    assert [*stream.execute(None, lambda: iter(["work"]))] == ["before visits", "work"]


COMPONENT_TYPES = (ShardStreamComponent, HourlyAssetComponent)
HOURS = {"stream": "visits", "transform": "web.traffic", "since": "2026-01-01T00:00:00Z"}


def refusals(component: type[Any], **attributes: object) -> list[str]:
    """The errors that `dg check yaml` prints: it judges by the schema alone."""
    judge = Draft202012Validator(component.get_model_cls().model_json_schema())
    return [f"{error.json_path} {error.message}" for error in judge.iter_errors(attributes)]


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("pace.commit_interval_s", -1, "-1 is less than the minimum of 0"),
        ("limits.records_max", 0, "0 is less than or equal to the minimum of 0"),
        ("limits.records_max", "many", "'many' is not of type 'integer'"),
        ("retention.output_days", 0.5, "0.5 is less than the minimum of 1.0"),
        ("retention.vacuum_after_s", 5, "5 is less than the minimum of 60.0"),
        ("assignment", "blanced", "'blanced' is not one of ['balanced', 'modulo', 'pinned']"),
        ("gap_policy", "skip", "'skip' is not one of ['hold', 'begin', 'end']"),
        ("ordered", "maybe", "'maybe' is not of type 'boolean'"),
        ("transform", "visits", "'visits' does not match"),
        ("iceberg.partitioning", ["week(event_time)"], "'week(event_time)' does not match"),
        ("initial_position", "newest", "'newest' does not match"),
        ("commit_intervall_s", 1, "('commit_intervall_s' was unexpected)"),
        ("pace.commit_intervall_s", 1, "('commit_intervall_s' was unexpected)"),
    ],
)
def test_the_schema_refuses_a_wrong_value(attribute: str, value: object, reason: str) -> None:
    def given(each: object) -> dict[str, Any]:
        part, _, name = attribute.rpartition(".")
        return {part: {name: each}} if part else {name: each}

    [refusal] = refusals(ShardStreamComponent, **given(value))
    assert reason in refusal
    template = {} if attribute.endswith("ll_s") else given("{{ env.VALUE }}")
    assert refusals(ShardStreamComponent, **template) == []


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("late.action", "keep", "'keep' is not one of ['drop', 'rerun']"),
        ("out_of_order_s", -1, "-1 is less than the minimum of 0"),
        ("since", "yesterday", "'yesterday' does not match"),
    ],
)
def test_the_schema_of_hours_refuses_a_wrong_value(
    attribute: str, value: object, reason: str
) -> None:
    part, _, name = attribute.rpartition(".")
    given = {part: {name: value}} if part else {name: value}
    [refusal] = refusals(HourlyAssetComponent, **{**HOURS, **given})
    assert reason in refusal


@pytest.mark.parametrize("component", COMPONENT_TYPES)
def test_the_schema_describes_each_attribute(component: type[Any]) -> None:
    properties = component.get_model_cls().model_json_schema()["properties"]
    assert {*properties} == {field.name for field in fields(component.declares)}
    for name, schema in properties.items():
        assert re.fullmatch(r"[A-Z].*\.", schema["description"], re.DOTALL), name


@pytest.mark.parametrize("component", COMPONENT_TYPES)
def test_a_scaffold_has_every_attribute_with_its_meaning(
    component: type[Any], tmp_path: Path
) -> None:
    request = dg.ScaffoldRequest(
        type_name=f"dagster_leasehold.{component.__name__}",
        target_path=tmp_path,
        scaffold_format="yaml",
        project_root=tmp_path,
        params=None,
    )
    CommentedAttributes().scaffold(request)
    text = (tmp_path / "defs.yaml").read_text()
    assert refusals(component, **yaml.safe_load(text)["attributes"]) == []
    uncommented = yaml.safe_load(re.sub(r"^  # (?=( {4})?\w+:)", "  ", text, flags=re.MULTILINE))
    names = {field.name for field in fields(component.declares)}
    assert {*uncommented["attributes"]} == names - {"name"}
    assert refusals(component, **uncommented["attributes"]) == []
