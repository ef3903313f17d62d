"""Convergence: the work that is left until a group is settled, and the time that it may take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_weights import planning_snapshot
from dagster_leasehold.simulation.fleet import ARRIVAL_TICKS, Fleet
from dagster_leasehold.simulation.host import Host
from dagster_leasehold.simulation.stage import TICK_S, UNIT_TIMEOUT_S, Stage


class Convergence:
    """Compares a group with how it has to be in the end."""

    def __init__(self, stage: Stage, fleet: Fleet) -> None:
        self._stage = stage
        self._fleet = fleet

    def bound_s(self) -> float:
        """Return the longest time to converge: an eviction, a hand-over, and reading the rest."""
        stage, shards = self._stage, self._stage.log.shards
        batches = sum(math.ceil(shard.end / 20) for shard in shards.values())
        # The longest pause is three timeouts, and one more goes by until all have heard of its end.
        units = 600.0 + 4 * UNIT_TIMEOUT_S + 90.0 * min(len(shards) + batches, 60)
        units += 10.0 * len(shards)
        units += sum(not host.arrived for host in self._fleet.hosts) * ARRIVAL_TICKS * TICK_S
        return stage.config.timeout_s + units * stage.unit_s

    def unsettled(self) -> list[str]:
        """Return what keeps the group from being settled, as sentences."""
        snapshot = planning_snapshot(self._stage.store, self._stage.key)
        members = {node.name: node for node in snapshot.nodes if node.member}
        return [*self._hosts(members), *self._shards(snapshot, members)]

    def _hosts(self, members: Mapping[NodeName, Node]) -> Iterator[str]:
        hosts = {name: host for host in self._fleet.hosts if host.up for name in host.settings}
        for host in self._fleet.hosts:
            if not host.arrived:
                yield f"{host.name} has not come yet"
        for name in members:
            if name not in hosts:
                yield f"{name} is dead, but still a member"
        for host in hosts.values():
            if self._not_heard_of(host):
                yield f"{host.name} stands still, or has just gone on"
        for name, host in hosts.items():
            # Who has a number that the count leaves out stays outside for good.
            outside = host.refused and name not in members and not _fits(host.settings[name])
            if not outside and not host.joined(members):
                yield f"{name} has not joined as it is now"
        if any(host.up and host.leaving for host in self._fleet.hosts):
            yield "a node is leaving"

    def _shards(self, snapshot: Snapshot, members: Mapping[NodeName, Node]) -> Iterator[str]:
        leases = {lease.shard: lease for lease in snapshot.shards}
        for shard in self._stage.log.shards:
            if shard not in leases:
                yield f"shard {shard} is not known"
        decided = plan(snapshot, live=members)
        yield from map(str, decided.actions)
        balanced = self._stage.config.mode is AssignmentMode.BALANCED
        if balanced and decided.spread > 1 and not snapshot.group.weighted:
            yield f"the counts differ by {decided.spread}"
        unassigned = {shard.shard for shard in decided.unassigned}
        for shard, lease in leases.items():
            if lease.state.held or (balanced and lease.state is not ShardState.OVER):
                yield from self._shard(lease, assigned=shard not in unassigned)

    def _shard(self, lease: ShardLease, *, assigned: bool) -> Iterator[str]:
        shard: ShardId = lease.shard
        entry = self._stage.log.shards[shard]
        if lease.state is ShardState.TRANSFER:
            yield f"shard {shard} is in transfer"
        elif assigned and lease.state is not ShardState.ALREADY_ALLOC:
            yield f"shard {shard} is {lease.state}"
        elif int(lease.check_point or 0) < entry.end:
            yield f"shard {shard} is read up to {lease.check_point} of {entry.end}"
        elif entry.read_only:
            yield f"shard {shard} has been read, but is not over"

    def _not_heard_of(self, host: Host) -> bool:
        """Return True if others may still take the host for dead.

        1. A host stands still for almost T, goes on, and the group looks settled.
        2. Its own tick comes a moment later, and an eviction that is right comes before it.
        3. So the group is settled only T after the last of its processes went on.
        """
        since = max(self._stage.now - self._stage.config.timeout_s, 0.0)
        return any(process.paused_until > since for process in host.processes())


def _fits(node: Node) -> bool:
    """Return True if a node's number is one of its count's."""
    return node.source_count is None or (node.node_id or 0) < node.source_count
