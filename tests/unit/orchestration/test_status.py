"""Sentences of `leasehold status` about a group, beside its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_leasehold.lease_store.group_rows import Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands.status import mixed_releases
from tests.environment import forget_settings
from tests.unit.orchestration.consumed_home import ConsumedHome


@pytest.mark.parametrize(
    ("releases", "sentences"),
    [
        (["0.2.0", "0.2.0"], []),
        (
            ["0.2.0", "0.3.0", "", "0.2.0"],
            ["The nodes run several releases: 0.2.0 on a, d; 0.3.0 on b; an older release on c."],
        ),
    ],
    ids=["one release", "in the middle of an upgrade"],
)
def test_different_releases_of_nodes_are_shown(releases: list[str], sentences: list[str]) -> None:
    nodes = [
        Node(NodeName(name), 1, f"{name}-1", release_version=release)
        for name, release in zip("abcd", releases, strict=False)
    ]
    left = Node(NodeName("z"), 9, "", release_version="0.0.9")
    group = Group(GroupKey.parse("group", "stream"))
    assert mixed_releases(Snapshot(group, (*nodes, left), ())) == sentences


def test_a_child_whose_parents_were_never_listed_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    home = ConsumedHome(tmp_path / "home")
    orphan = ShardListing(ShardId("9"), parents=(ShardId("8"),))
    home.store.sync_shards(home.key, [*home.log.list_shards(), orphan], observer="test")
    home.store.close()
    for command in ("status", "plan --explain"):
        assert main([*command.split(), "--home", str(tmp_path / "home")]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert (
            "no new node for shard 9: it waits for parents that its source names and has never"
            in shown
        )
        assert "`gone_parents`" in shown
