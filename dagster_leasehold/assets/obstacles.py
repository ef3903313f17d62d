"""The obstacle that keeps a shard from making progress, in one sentence.

The asset check, `leasehold status`, `leasehold top` and the report use this pure rule. The shard's
row has the last error since the last commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.rules.isolation import KILLED, sentence
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease


class ObstacleKind(StrEnum):
    """The kind of an obstacle.

    `node`: no live node holds the shard. `record`: a record stops every run. `source`: the source
    does not answer. `run`: the last run failed with the shard: its transform raised, its source
    refused, it waits at a gap, or it was killed.
    """

    NODE = "node"
    RECORD = "record"
    SOURCE = "source"
    RUN = "run"

    @property
    def transient(self) -> bool:
        """True if such an obstacle often ends without help."""
        return self in (ObstacleKind.NODE, ObstacleKind.SOURCE)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a shard makes no progress."""

    kind: ObstacleKind
    sentence: str


def live_nodes(snapshot: Snapshot, beat_ages: Mapping[NodeName, float]) -> dict[NodeName, bool]:
    """Return the nodes whose last heartbeat is no older than T, each with True if it takes runs.

    `beat_ages` has the seconds since each member's last heartbeat; a missing node has just joined.
    """
    timeout_s = snapshot.group.timeout_s
    return {
        node.name: node.accepts_runs
        for node in snapshot.nodes
        if node.member and beat_ages.get(node.name, 0.0) <= timeout_s
    }


def obstacle(
    key: GroupKey,
    row: ShardLease,
    *,
    nodes: Mapping[NodeName, bool],
    unread: bool = True,
    source_error: str = "",
) -> Obstacle | None:
    """Return the obstacle of a shard, or None.

    Args:
        row: the shard's row.
        nodes: the live nodes of the group, each with True if it takes runs.
        unread: False if the shard was read to its end.
        source_error: the error of a source that does not answer, otherwise empty.
    """
    shard, suspicion = row.shard, row.suspicion
    if row.state in (ShardState.OVER, ShardState.WAIT):
        return None
    if row.consumer_owner is None or not nodes.get(row.consumer_owner, False):
        return Obstacle(ObstacleKind.NODE, _without_node(key, row, nodes))
    sentences = {ObstacleKind.RECORD: sentence(key, shard, row.check_point, suspicion)}
    if unread and source_error:
        sentences[ObstacleKind.SOURCE] = (
            f"Shard {shard} of {key} cannot be read, because its source does not answer: "
            f"{source_error}"
        )
    if unread and (error := last_error(row)):
        sentences[ObstacleKind.RUN] = (
            f"The last run of shard {shard} of {key} failed, and the next one retries: {error}"
        )
    return next((Obstacle(kind, text) for kind, text in sentences.items() if text), None)


def last_error(row: ShardLease) -> str:
    """Return the last error since the shard's last commit, or empty."""
    if row.suspicion is not None and row.suspicion.error:
        return row.suspicion.error
    # The open tenure counts as an attempt.
    failed = row.tries - bool(row.consumer_run)
    return f"{KILLED[0].upper()}{KILLED[1:]}." if failed > 0 else ""


def _without_node(key: GroupKey, row: ShardLease, nodes: Mapping[NodeName, bool]) -> str:
    if not any(nodes.values()):
        cause = "no node of the group is alive" if not nodes else "no live node takes runs"
        return (
            f"Shard {row.shard} of {key} is not read, because {cause}. Start `leasehold dev` or "
            "`leasehold node`."
        )
    if row.consumer_owner in nodes:
        cause = f"its node {row.consumer_owner} takes no runs"
    elif row.consumer_owner is not None:
        cause = f"its node {row.consumer_owner} is not alive"
    else:
        cause = "no node holds it"
    return (
        f"Shard {row.shard} of {key} is not read, because {cause}. See `leasehold plan --explain`."
    )
