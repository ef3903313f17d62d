"""Sentences of `leasehold status` about a group, beside its rows."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.group_rows import Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.orchestration.commands.status import mixed_releases


@pytest.mark.parametrize(
    ("releases", "sentences"),
    [
        (["0.2.0", "0.2.0"], []),
        (
            ["0.2.0", "0.3.0", "", "0.2.0"],
            ["Nodes run several releases: 0.2.0 on a, d; 0.3.0 on b; an older one on c."],
        ),
    ],
    ids=["one release", "in the middle of an upgrade"],
)
def test_the_releases_of_nodes_are_named_while_there_are_several(
    releases: list[str], sentences: list[str]
) -> None:
    nodes = [
        Node(NodeName(name), 1, f"{name}-1", release_version=release)
        for name, release in zip("abcd", releases, strict=False)
    ]
    left = Node(NodeName("z"), 9, "", release_version="0.0.9")
    group = Group(GroupKey.parse("group", "stream"))
    assert mixed_releases(Snapshot(group, (*nodes, left), ())) == sentences
