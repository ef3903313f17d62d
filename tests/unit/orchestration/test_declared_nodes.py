"""The answers of `status`, `plan` and `group update` if a group and its declaration disagree."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.node_settings import Modulo, NodeSettings, Pinned, node_row
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.settings import Settings
from tests.declared import declare, stream_text
from tests.environment import forget_settings

KEY = GroupKey.parse("default", "demo")
DECLARED = stream_text(
    "demo", assignment='"modulo"', nodes="{'east': Modulo(3, 0), 'west': Modulo(3, 1)}"
)
OutputOf = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LeaseStore:
    """A store with the declared group and two shards; no node has joined."""
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("LEASEHOLD_HOME", str(home))
    declare(Path(), DECLARED, settings='nodes = ["east", "west"]\n')
    home.mkdir()
    store = open_store(Settings(home=home).store_url)
    store.create_group(Group(KEY, assignment=AssignmentMode.MODULO))
    store.sync_shards(KEY, [ShardListing(ShardId("0")), ShardListing(ShardId("1"))], observer="t")
    return store


@pytest.fixture
def output_of(capsys: pytest.CaptureFixture[str]) -> OutputOf:
    def command(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    return command


def join(store: LeaseStore, name: str, settings: NodeSettings | None) -> None:
    row = replace(node_row(NodeName(name), settings), incarnation=f"{name}-1")
    store.register(KEY, row, observer="test")


def test_a_declared_node_that_the_group_refuses_is_named_with_the_reason(
    store: LeaseStore, output_of: OutputOf
) -> None:
    join(store, "north", Modulo(2, 1))
    why = "has source_count 3, but 'north' has 2: all nodes of a group must agree."
    for words in (("status",), ("plan", "--explain")):
        output = output_of(*words)
        assert f"east is refused: Node 'east' {why}" in output, words
        assert f"west is refused: Node 'west' {why}" in output, words
    state: Any = json.loads(output_of("status", "--json"))
    assert [each["node"] for each in state["refusals"]] == ["east", "west"]
    assert why in state["refusals"][0]["error"]
    planned: Any = json.loads(output_of("plan", "--json"))
    assert [each["node"] for each in planned["plan"]["refusals"]] == ["east", "west"]


def test_nodes_that_can_join_or_have_joined_are_not_mentioned(
    store: LeaseStore, output_of: OutputOf
) -> None:
    join(store, "east", Modulo(3, 0))
    for words in (("status",), ("plan", "--explain")):
        output = output_of(*words)
        assert "refused" not in output, words
        assert "declaration" not in output, words


def test_a_number_that_is_taken_is_refused(store: LeaseStore, output_of: OutputOf) -> None:
    join(store, "north", Modulo(3, 1))
    assert "west is refused: Node 'west' has node_id 1, which 'north' already has" in output_of(
        "status"
    )
    assert "east is refused" not in output_of("status")


def test_members_with_conflicting_settings_are_named(
    store: LeaseStore, output_of: OutputOf
) -> None:
    group = store.pulse(KEY).group
    store.update_group(replace(group, assignment=AssignmentMode.PINNED), observer="test")
    join(store, "east", Pinned({"0": -1, "7": -1}))
    for words in (("status",), ("plan", "--explain")):
        assert "east is refused: Node 'east' requests shard '7'" in output_of(*words), words


def test_a_group_with_another_mode_than_declared_is_named(
    store: LeaseStore, output_of: OutputOf
) -> None:
    updated = output_of("group", "update", "demo", "--assignment", "balanced")
    assert "It now assigns shards by balanced, but the stream's declaration says modulo" in updated
    for words in (("status",), ("plan", "--explain")):
        output = output_of(*words)
        assert (
            "demo/default assigns shards by balanced, but the stream's declaration says modulo"
            in output
        ), words
        assert "leasehold group update demo --assignment modulo" in output, words
    assert "by balanced" in json.loads(output_of("status", "--json"))["note"]
    back = output_of("group", "update", "demo", "--assignment", "modulo")
    assert "declaration" not in back
    assert json.loads(output_of("status", "--json"))["note"] is None


def test_another_group_of_the_stream_has_no_declaration(
    store: LeaseStore, output_of: OutputOf
) -> None:
    store.create_group(Group(GroupKey.parse("other", "demo")))
    output = output_of("status", "--group", "other")
    assert "refused" not in output
    assert "declaration" not in output
