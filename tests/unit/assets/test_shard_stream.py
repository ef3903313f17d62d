"""The declaration of a stream: its parts, as objects or from YAML, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from dagster_leasehold.assets.node_settings import Modulo
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import Retention, ShardStream
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.errors import LeaseholdError, UserMistake
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits

LOG = LocalLog(Path("log"))


def declared(**settings: Any) -> ShardStream:
    return ShardStream(**{"name": "visits", "source": LOG, **settings})


def unchanged(records: object) -> object:
    return records


class Names:
    """Resolves the names of a declaration."""

    def source(self, stream: str, named: object) -> object:
        return (stream, named)

    def function(self, what: str, path: str) -> Callable[..., Any]:
        assert what in ("The transform of 'visits'", "The on commit of 'visits'")
        assert path == "visits.unchanged"
        return unchanged


def test_parts_can_be_objects_or_mappings() -> None:
    given = declared(
        pace={"commit_interval_s": 3},
        limits={"records_max": 5},
        iceberg={"name": "web.visits", "sort_order": ["path desc"]},
        retention={"compact": False},
    )
    assert given == declared(
        pace=Pace(commit_interval_s=3),
        limits=Limits(5),
        iceberg=TableSettings("web.visits", sort_order=("path desc",)),
        retention=Retention(compact=False),
    )
    assert given.pace.idle_limit_s == Pace().idle_limit_s


def test_a_declaration_by_names_has_the_named_values() -> None:
    values = {
        "name": "visits",
        "source": {"kafka": {"topic": "t"}},
        "transform": "visits.unchanged",
        "on_commit": "visits.unchanged",
    }
    stream = TypeAdapter(ShardStream).validate_python(values, context=Names())
    assert cast(object, stream.source) == ("visits", {"kafka": {"topic": "t"}})
    assert stream.transform is unchanged
    assert cast(object, stream.on_commit) is unchanged


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"pace": {"commit_interval_s": -1}}, "commit_interval_s is -1: use 0 or a positive num"),
        ({"pace": {"shards_per_run": 0}}, "shards_per_run is 0: use a positive number."),
        ({"pace": {"shards_per_run": "many"}}, "shards_per_run is not valid: Input should be a v"),
        ({"pace": {"commit_intervall_s": 1}}, "is not a setting: did you mean commit_interval_s?"),
        ({"limits": Limits(bytes_max=0)}, "limits.bytes_max is 0: use a positive number."),
        ({"iceberg": {"snapshots_kept": 0}}, "snapshots_kept is 0: use a positive number."),
        ({"retention": {"vacuum_after_s": 3}}, "vacuum_after_s is 3.0: use at least 60, because"),
        ({"retention": {"output_days": 0}}, "cannot expire after 0 days: use 1 to 36500 days"),
        ({"checks": {"lag_max": -1}}, "lag_max is -1: use 0 or a positive number."),
        ({"on_poison": "drop"}, "on_poison is 'drop': use 'hold' or 'quarantine'."),
        ({"key_prefix": ["a/b"]}, "key_prefix has the part 'a/b': give each part by itself"),
        ({"source": "kafka"}, "give the source itself; named_source creates one by name"),
        ({"transform": "visits.f"}, "transform is not valid: give the function itself."),
        ({"tabel": {}}, "'tabel' is not a setting: use one of asset_spec, assignment"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_the_stream(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserMistake) as refused:
        declared(**settings)
    text = str(refused.value)
    assert text.startswith("Stream 'visits': ")
    assert sentence in text
    assert "\n" not in text


def test_a_wrong_part_is_refused_without_a_stream() -> None:
    with pytest.raises(UserMistake, match=r"^idle_limit_s is 0: use a positive number\.$"):
        Pace(idle_limit_s=0)


def test_settings_of_nodes_can_be_mappings() -> None:
    nodes = {"east": {"source_count": 2, "node_id": 0}, "west": Modulo(2, 1)}
    stream = declared(assignment="modulo", nodes=nodes)
    assert stream.assignment is AssignmentMode.MODULO
    assert stream.nodes == {"east": Modulo(2, 0), "west": Modulo(2, 1)}
    stream = declared(assignment="pinned", nodes={"west": {"pinned": {0: -1, "1": "17"}}})
    row = stream.node(NodeName("west"), address="here")
    assert row.pinned == {"0": None, "1": "17"}
    assert stream.node(NodeName("east"), address="here").pinned is None


@pytest.mark.parametrize(
    ("assignment", "nodes", "sentence"),
    [
        ("modul", {}, "use 'balanced', 'modulo' or 'pinned'"),
        ("modulo", {}, "no source_count and node_id of node 'east'"),
        ("modulo", {"eest": {"source_count": 1, "node_id": 0}}, "'eest', which"),
        ("balanced", {"east": {"source_count": 1, "node_id": 0}}, "the assignment is balanced"),
        ("modulo", {"east": {"source_count": 2}}, "without a node_id"),
        ("modulo", {"east": {"node_id": 2}}, "without a source_count"),
        ("modulo", {"east": {"source_cont": 2}}, "did you mean source_count?"),
        ("modulo", {"east": {"node_id": True}}, "node_id is 'True': use a whole number"),
        ("modulo", {"east": {"source_count": 2, "node_id": 2}}, "from 0 to 1"),
        (
            "modulo",
            {name: {"source_count": 2, "node_id": 1} for name in ("east", "west")},
            "which 'east' already has",
        ),
        ("pinned", {"east": {}}, "and not both"),
        ("pinned", {"east": {"pinned": {"0": -1}, "node_id": 1}}, "and not both"),
        ("pinned", {"east": {"pinned": {"a/b": -1}}}, "not a valid shard name"),
        ("pinned", {"east": {"pinned": {"0": -7}}}, "is negative"),
        ("pinned", {name: {"pinned": {"0": 1}} for name in ("east", "west")}, "both name shard '0"),
    ],
)
def test_wrong_settings_of_nodes_are_one_sentence(
    assignment: str, nodes: dict[str, Any], sentence: str
) -> None:
    served = [NodeName("east"), NodeName("west")]
    with pytest.raises(LeaseholdError, match=r"^[^\n]+$") as refused:
        declared(assignment=assignment, nodes=nodes).check_nodes(served)
    assert sentence in str(refused.value)
