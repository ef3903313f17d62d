"""With which rows an agent registers its node: those that the streams' declarations say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.orchestration import build
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.stream_settings import StreamSettings
from dagster_leasehold.orchestration.supervision.dagster_processes import DEFINITIONS_MODULE
from dagster_leasehold.orchestration.user_modules import memberships_of

EAST = NodeName("east")
MODULE = """
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.rules.node_settings import Modulo, Pinned
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog

defs = build_definitions(
    [
        ShardStream("visits", LocalLog("visits"), assignment=AssignmentMode.MODULO,
                    nodes={"east": Modulo(2, 1), "west": Modulo(2, 0)}),
        ShardStream("orders", LocalLog("orders"), group="team", assignment=AssignmentMode.PINNED,
                    nodes={"east": Pinned({"0": 5, "1": -1})}),
        ShardStream("clicks", LocalLog("clicks")),
    ],
    Settings(agents=True),
)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module of definitions, importable for one test."""
    (tmp_path / "visits_project.py").write_text(MODULE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(build, "BUILT", [])
    monkeypatch.delitem(sys.modules, "visits_project", raising=False)
    return "visits_project"


def test_the_rows_of_a_module_say_what_its_streams_say_of_the_node(module: str) -> None:
    rows = memberships_of(EAST, module, Settings())
    assert {str(key) for key in rows} == {"visits/default", "orders/team", "clicks/default"}
    visits = rows[GroupKey.parse("default", "visits")]
    assert (visits.name, visits.source_count, visits.node_id) == (EAST, 2, 1)
    orders = rows[GroupKey.parse("team", "orders")]
    assert orders.pinned == {ShardId("0"): "5", ShardId("1"): None}
    clicks = rows[GroupKey.parse("default", "clicks")]
    assert (clicks.source_count, clicks.node_id, clicks.pinned) == (None, None, None)


def test_a_node_of_which_a_stream_says_nothing_has_a_plain_row(module: str) -> None:
    rows = memberships_of(NodeName("north"), module, Settings())
    assert {(row.source_count, row.pinned) for row in rows.values()} == {(None, None)}


def test_the_rows_of_the_packages_own_definitions_come_from_the_settings() -> None:
    stream = StreamSettings.model_validate(
        {
            "name": "visits",
            "assignment": AssignmentMode.MODULO,
            "nodes": {"east": {"source_count": 3, "node_id": 2}},
        }
    )
    settings = Settings(agents=True, streams=(stream,))
    (row,) = memberships_of(EAST, DEFINITIONS_MODULE, settings).values()
    assert (row.source_count, row.node_id) == (3, 2)


def test_a_module_that_cannot_be_imported_or_has_no_streams_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_streams.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidSetting, match="cannot be imported: ModuleNotFoundError"):
        memberships_of(EAST, "not_there_at_all", Settings())
    with pytest.raises(InvalidSetting, match="has no definitions of streams"):
        memberships_of(EAST, "no_streams", Settings())
