"""Streams by name, for every place of declaration, and the rows with which nodes join their
groups.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting, SourceLibraryMissing, UnknownStream
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import DEFINITIONS_MODULE, Settings, load_settings
from dagster_leasehold.reading import declared_stream
from dagster_leasehold.shard_sources import registry
from tests.declared import declare
from tests.environment import forget_settings

EAST = NodeName("east")
IMPORTS = """
import dagster as dg
from dagster_leasehold import *
from dagster_leasehold.reading import declared_stream


def merged(builds):
    return dg.Definitions.merge(*builds)
"""
DEFINITIONS = f"""{IMPORTS}
defs = build_definitions(
    [
        ShardStream("visits", LocalLog("visits"), assignment=AssignmentMode.MODULO,
                    nodes={{"east": Modulo(2, 1), "west": Modulo(2, 0)}}),
        ShardStream("orders", LocalLog("orders"), group="team", assignment=AssignmentMode.PINNED,
                    nodes={{"east": Pinned({{"0": 5, "1": -1}})}}),
        ShardStream("clicks", LocalLog("clicks")),
    ],
)
"""
Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Writes a module of the user's, importable for one test."""
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text: str) -> str:
        (tmp_path / "visits_project.py").write_text(text, "utf-8")
        monkeypatch.delitem(sys.modules, "visits_project", raising=False)
        return "visits_project"

    return write


def streams(**settings: object) -> DeclaredStreams:
    return DeclaredStreams(Settings.model_validate(settings))


@pytest.mark.parametrize(
    "text",
    [
        "one = ShardStream('visits', LocalLog('a'))\nagain = one\n"
        "more = {1: ShardStream('clicks', LocalLog('a'))}",
        "several = [ShardStream('visits', LocalLog('a')), ShardStream('clicks', LocalLog('a'))]",
        "step = ShardStream('visits', LocalLog('z'))\n"
        "defs = merged(build_definitions([ShardStream(name, LocalLog('a'))])"
        " for name in ('visits', 'clicks'))\nsame = defs",
        "@dg.definitions\ndef defs():\n    return build_definitions([ShardStream('visits',"
        " LocalLog('a')), ShardStream('clicks', LocalLog('a'))])",
    ],
    ids=["by itself", "in a list", "in merged definitions", "in definitions made later"],
)
def test_streams_are_loaded_from_the_module_of_the_settings(module: Module, text: str) -> None:
    declared = streams(module=module(IMPORTS + text))
    assert declared.names == ("visits", "clicks")
    assert str(declared.usable("visits").source.spark_options()["root"]).endswith("/a")
    assert {stream.name for stream in declared.all()} == {"visits", "clicks"}


def test_the_module_is_loaded_with_the_home_of_its_caller(module: Module, tmp_path: Path) -> None:
    name = module(
        IMPORTS + "visits = ShardStream('visits', LocalLog(load_settings().home / 'log'))"
    )
    (stream,) = streams(module=name, home=tmp_path / "elsewhere").all()
    assert stream.source.spark_options()["root"] == str(tmp_path / "elsewhere" / "log")
    assert "LEASEHOLD_HOME" not in os.environ


def test_a_stream_is_looked_up_by_its_name(module: Module) -> None:
    module(IMPORTS + "both = [ShardStream(name, LocalLog('a')) for name in ('visits', 'clicks')]")
    Path("leasehold.toml").write_text('module = "visits_project"\n')
    assert declared_stream("visits").name == "visits"
    with pytest.raises(UnknownStream, match="The declared streams are: visits, c"):
        declared_stream()
    with pytest.raises(UnknownStream, match="Module 'visits_project' declares no stream 'x'"):
        declared_stream("x")


def test_without_a_module_no_stream_is_declared(module: Module) -> None:
    assert streams().names == ()
    with pytest.raises(UnknownStream, match=r"No stream is declared here\. .* `leasehold init`"):
        declared_stream()


def test_a_module_can_be_beside_the_settings_of_the_home(module: Module, tmp_path: Path) -> None:
    home = tmp_path / "elsewhere"
    declare(home, "visits")
    assert declared_stream(settings=load_settings(home=home)).source.spark_options() == {
        "source": "local_log",
        "root": str(home / "logs/visits"),
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nothing_of_this_name", "cannot be imported .ModuleNotFoundError: No module named"),
        (
            "ShardStream('visits', LocalLog('a'), retention=Retention(output_days=0))",
            "imported .*days",
        ),
        ("@dg.definitions\ndef defs():\n    1 / 0", "cannot be loaded .ZeroDivisionError"),
        (
            "@dg.definitions\ndef defs():\n    return build_definitions([declared_stream('a')])",
            "looks up a declared stream while it is being loaded",
        ),
        ("a, b = [ShardStream('visits', LocalLog(log)) for log in 'ab']", "twice in the module"),
        (
            "defs = merged(build_definitions([ShardStream('visits', LocalLog(a))]) for a in 'ab')",
            "'visits' is declared twice in the module 'visits_project'",
        ),
    ],
)
def test_a_module_that_cannot_be_used_is_one_sentence(
    module: Module, text: str, sentence: str
) -> None:
    Path("leasehold.toml").write_text('module = "visits_project"\n')
    module(IMPORTS + text)
    with pytest.raises(InvalidSetting, match=sentence) as refused:
        declared_stream("visits")
    assert "\n" not in str(refused.value)
    assert os.environ.get("LEASEHOLD_HOME") is None


def test_a_missing_client_library_is_named_by_the_commands_that_need_it(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    source = "named_source('kafka', 'visits', bootstrap_servers='h:1')"
    declared = streams(module=module(f"{IMPORTS}visits = ShardStream('visits', {source})"))
    stream = declared.find("visits")
    assert stream.key == GroupKey.parse("default", "visits")
    for use in (
        lambda: stream.source.bounds([]),
        lambda: declared.usable("visits"),
        lambda: build_definitions([stream]),
    ):
        with pytest.raises(SourceLibraryMissing, match="confluent_kafka"):
            use()


def test_dagster_loads_the_modules_definitions_or_the_packages_own(module: Module) -> None:
    assert streams().definitions_module == DEFINITIONS_MODULE
    bare = module(IMPORTS + "visits = ShardStream('visits', LocalLog('a'))")
    assert streams(module=bare).definitions_module == DEFINITIONS_MODULE
    own = module(IMPORTS + "defs = dg.Definitions()")
    assert streams(module=own).definitions_module == "visits_project"
    assert DeclaredStreams(Settings(), "another").definitions_module == "another"


def test_the_definitions_of_the_package_contain_streams_without_definitions(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(IMPORTS + "both = [ShardStream(name, LocalLog('a')) for name in ('visits', 'clicks')]")
    Path("leasehold.toml").write_text('module = "visits_project"\n')
    monkeypatch.delitem(sys.modules, DEFINITIONS_MODULE, raising=False)
    from dagster_leasehold.orchestration.definitions import defs

    monkeypatch.delitem(sys.modules, DEFINITIONS_MODULE, raising=False)
    assert {dg.AssetKey("visits"), dg.AssetKey("clicks")} <= {*defs.resolve_all_asset_keys()}


def test_rows_of_a_node_have_the_settings_of_the_streams(module: Module) -> None:
    """An agent serves nodes that the settings do not name."""
    declared = DeclaredStreams(Settings(agents=True), module(DEFINITIONS))
    rows = declared.memberships_of(EAST)
    assert {str(key) for key in rows} == {"visits/default", "orders/team", "clicks/default"}
    visits = rows[GroupKey.parse("default", "visits")]
    assert (visits.name, visits.source_count, visits.node_id) == (EAST, 2, 1)
    orders = rows[GroupKey.parse("team", "orders")]
    assert orders.pinned == {ShardId("0"): "5", ShardId("1"): None}
    clicks = rows[GroupKey.parse("default", "clicks")]
    assert (clicks.source_count, clicks.node_id, clicks.pinned) == (None, None, None)
    others = declared.memberships_of(NodeName("north")).values()
    assert {(row.source_count, row.pinned) for row in others} == {(None, None)}


def test_a_module_without_streams_has_no_rows(module: Module) -> None:
    with pytest.raises(UnknownStream, match="declares no streams"):
        DeclaredStreams(Settings(), module("")).memberships_of(EAST)
