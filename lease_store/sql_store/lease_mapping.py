"""Between columns and rows, in both directions: groups, nodes and shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy, Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.sql_store.group_statements import GROUP_PREFIX

Row = Mapping[Any, Any]


def key_values(key: GroupKey) -> dict[str, Any]:
    """The first two columns of every key."""
    return {"consume_group": key.group, "logstream_sig": key.stream}


def group_values(group: Group) -> dict[str, Any]:
    """A group's settings; its generation has a statement of its own."""
    return {
        "ordered": group.ordered,
        "timeout_s": group.timeout_s,
        "handoff_limit_s": group.handoff_limit_s,
        "assignment": group.assignment.value,
        "initial_position": group.initial_position,
        "node_cap": group.node_cap,
        "weighted": group.weighted,
        "paused": group.paused,
        "gap_policy": group.gap_policy.value,
    }


def group_from(row: Row, prefix: str = "") -> Group:
    """A group from its row, or from a joined one with prefixed names."""
    return Group(
        key=GroupKey.parse(row[prefix + "consume_group"], row[prefix + "logstream_sig"]),
        ordered=bool(row[prefix + "ordered"]),
        timeout_s=row[prefix + "timeout_s"],
        handoff_limit_s=row[prefix + "handoff_limit_s"],
        assignment=AssignmentMode(row[prefix + "assignment"]),
        initial_position=row[prefix + "initial_position"],
        node_cap=row[prefix + "node_cap"],
        weighted=bool(row[prefix + "weighted"]),
        paused=bool(row[prefix + "paused"]),
        gap_policy=GapPolicy(row[prefix + "gap_policy"]),
        generation=row[prefix + "generation"],
    )


def joined_group(row: Row) -> Group:
    """The group of a `pulse` row."""
    return group_from(row, GROUP_PREFIX)


def node_values(node: Node) -> dict[str, Any]:
    """A node's columns, its key aside."""
    return {
        "lease_id": node.lease_id,
        "incarnation": node.incarnation,
        "address": node.address,
        "source_count": node.source_count,
        "node_id": node.node_id,
        "pinned": node.pinned,
        "accepts_runs": node.accepts_runs,
    }


def node_from(row: Row) -> Node:
    """A node from its row."""
    pinned = row["pinned"]
    return Node(
        name=NodeName(row["worker_instance"]),
        lease_id=row["lease_id"],
        incarnation=row["incarnation"],
        address=row["address"],
        source_count=row["source_count"],
        node_id=row["node_id"],
        pinned=None if pinned is None else {ShardId(shard): at for shard, at in pinned.items()},
        accepts_runs=bool(row["accepts_runs"]),
    )


def shard_values(shard: ShardLease) -> dict[str, Any]:
    """A shard's columns, its key aside."""
    return {
        "lease_id": shard.lease_id,
        "lease_owner": shard.lease_owner,
        "consumer_owner": shard.consumer_owner,
        "check_point": shard.check_point,
        "state": shard.state.value,
        "consumer_epoch": shard.consumer_epoch,
        "consumer_run": shard.consumer_run,
        "handoff_eta_s": shard.handoff_eta_s,
        "parents": list(shard.parents),
        "hash_begin": shard.hash_begin,
        "hash_end": shard.hash_end,
        "read_only": shard.read_only,
        "subscribable": shard.subscribable,
        "watermark": shard.watermark,
        "bootstrap": shard.bootstrap,
        "gone_parents": list(shard.gone_parents) or None,
    }


def shard_from(row: Row) -> ShardLease:
    """A shard from its row."""
    return ShardLease(
        shard=ShardId(row["shard_id"]),
        state=ShardState(row["state"]),
        lease_id=row["lease_id"],
        lease_owner=node_name(row["lease_owner"]),
        consumer_owner=node_name(row["consumer_owner"]),
        check_point=row["check_point"],
        consumer_epoch=row["consumer_epoch"],
        consumer_run=row["consumer_run"],
        handoff_eta_s=row["handoff_eta_s"],
        parents=tuple(ShardId(parent) for parent in row["parents"]),
        hash_begin=row["hash_begin"],
        hash_end=row["hash_end"],
        read_only=bool(row["read_only"]),
        subscribable=bool(row["subscribable"]),
        watermark=row["watermark"],
        bootstrap=row["bootstrap"],
        gone_parents=tuple(ShardId(parent) for parent in row["gone_parents"] or ()),
    )


def progress_from(row: Row) -> Progress:
    """A served shard's progress from the columns of its row that it needs."""
    return Progress(
        shard=ShardId(row["shard_id"]),
        check_point=row["check_point"],
        consumer_epoch=row["consumer_epoch"],
        consumer_run=row["consumer_run"],
    )


def node_name(text: str | None) -> NodeName | None:
    """Return the name in a column that may be empty."""
    return None if text is None else NodeName(text)
