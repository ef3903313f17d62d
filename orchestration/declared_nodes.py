"""Where a stored group and its declaration do not agree, and which nodes cannot follow theirs."""

from __future__ import annotations

from dagster_leasehold.lease_store.errors import AssignmentConflict
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rules.assignment_modes import check_member
from dagster_leasehold.lease_store.rules.assignment_plan import Refusal, rank_key
from dagster_leasehold.lease_store.rules.node_settings import node_row
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.stream_settings import StreamSettings


def not_joined(snapshot: Snapshot, declared: StreamSettings, settings: Settings) -> list[Refusal]:
    """The declared nodes that are no members and that the group would refuse, by name.

    The group's other nodes may be another deployment's, whose settings are not known here: what
    counts is what its members say of themselves.
    """
    if declared.key != snapshot.group.key:
        return []
    of_nodes = {NodeName(name): each for name, each in declared.node_settings.items()}
    members = {node.name: node for node in snapshot.nodes if node.member}
    names = of_nodes.keys() | set(settings.expected_nodes or ())
    refused: list[Refusal] = []
    for name in sorted(names - members.keys(), key=rank_key):
        try:
            check_member(snapshot.group, members.values(), node_row(name, of_nodes.get(name)))
        except AssignmentConflict as error:
            refused.append(Refusal(name, error))
    return refused


def refused_members(snapshot: Snapshot) -> tuple[Refusal, ...]:
    """The members whose settings cannot be followed, as a plan finds them."""
    live = [node.name for node in snapshot.nodes if node.member]
    balanced = snapshot.group.assignment is AssignmentMode.BALANCED
    return () if balanced else plan(snapshot, live=live).refusals


def mode_note(snapshot: Snapshot, declared: StreamSettings) -> str | None:
    """What to know where the stored group assigns by another mode than its declaration says."""
    group = snapshot.group
    if declared.key != group.key or declared.assignment is group.assignment:
        return None
    return (
        f"Group {group.key} assigns by {group.assignment}, but its declaration says "
        f"{declared.assignment}: its nodes take the settings of their declaration. Change that, or "
        f"`leasehold group update {group.key.group} --assignment {declared.assignment}`."
    )
