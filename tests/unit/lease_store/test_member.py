"""The same rules for joining, beating and the contest for a name, for sensors, agents and runs."""

from __future__ import annotations

from collections import Counter

import pytest

from dagster_leasehold.lease_store.errors import ModuloIdTaken, NodeNameTaken
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.liveness import Observations

KEY = GroupKey.parse("default", "orders")
A, B = NodeName("a"), NodeName("b")
TIMEOUT_S = 20.0


class Scene:
    """A group, and members that one clock observes."""

    def __init__(self, assignment: AssignmentMode = AssignmentMode.BALANCED) -> None:
        self.now_s = 100.0
        self.statements = Counter[str]()
        self.store = MemoryStore()
        self.store.create_group(Group(KEY, timeout_s=TIMEOUT_S, assignment=assignment))
        self.observations = Observations(lambda: self.now_s)

    def member(self, incarnation: str, node: NodeName = A, **settings: int) -> Member:
        return Member(
            self.store,
            KEY,
            Node(node, 0, incarnation, **settings),
            clock=lambda: self.now_s,
            count=lambda verb: self.statements.update([verb]),
        )

    def join(self, member: Member) -> str:
        pulse = self.store.pulse(KEY)
        self.observations.record_nodes(pulse.nodes, TIMEOUT_S)
        return member.join(pulse, self.observations)


def test_a_member_beats_only_under_its_own_incarnation() -> None:
    scene = Scene()
    member = scene.member("first")
    assert not member.beat(), "it has not joined"
    assert member.beaten_at is None
    assert scene.join(member) == "joined"
    scene.now_s += 5
    assert member.beat()
    assert member.beaten_at == scene.now_s
    assert not scene.member("second").beat()
    assert isinstance(member.leave(), Changed)
    assert not member.beat()
    assert scene.statements == Counter(beat=4, register=1, leave=1)


def test_a_name_is_taken_over_only_after_its_counter_was_unchanged_for_the_timeout() -> None:
    scene = Scene()
    first, second = scene.member("first"), scene.member("second")
    assert scene.join(first) == "joined"
    with pytest.raises(NodeNameTaken, match="after 20 s the name is taken over"):
        scene.join(second)
    rival = second.rival(scene.store.pulse(KEY).nodes)
    assert rival is not None
    assert rival.incarnation == "first"
    for _ in range(2):
        scene.now_s += TIMEOUT_S / 2
        with pytest.raises(NodeNameTaken):
            scene.join(second)
    scene.now_s += TIMEOUT_S / 2
    assert scene.join(second) == "took its name back from a process that stopped"
    assert not first.beat()
    assert second.rival(scene.store.pulse(KEY).nodes) is None


def test_settings_that_contradict_another_member_cost_no_write() -> None:
    scene = Scene(AssignmentMode.MODULO)
    scene.join(scene.member("first", source_count=2, node_id=0))
    with pytest.raises(ModuloIdTaken):
        scene.join(scene.member("other", B, source_count=2, node_id=0))
    assert scene.statements["register"] == 1
