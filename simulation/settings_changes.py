"""What nodes say of themselves changes while they work: modulo groups are resized, shards pinned.

Whoever runs a deployment changes its settings and starts its code servers again, one after the
other, in any order. Only in groups that assign by modulo or by name; in those, of a swarm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.simulation.configuration import Faults

if TYPE_CHECKING:
    from dagster_leasehold.simulation.host import Host
    from dagster_leasehold.simulation.world import World

RATE = 0.004
"""How probable a change of settings is, per store call."""
COUNT_MAX = 8
DELAY_TIMEOUTS_MAX = 3.0
BORDER_SHARE = 0.8


class SettingsChanges:
    """Changes the settings of a world's nodes now and then; `step` is called with each call.

    Attributes:
        source_count: the count that nodes of a modulo group shall have now.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        mode, swarm = world.config.mode, world.config.faults is Faults.SWARM
        self._happens = swarm and mode is not AssignmentMode.BALANCED
        self.source_count = world.config.nodes

    def step(self) -> None:
        """One more store call is about to be made."""
        world = self._world
        if not self._happens or world.healed or world.schedule.chance.random() >= RATE:
            return
        if world.config.mode is AssignmentMode.MODULO:
            self.source_count = world.schedule.chance.randint(1, COUNT_MAX)
            for host in world.hosts:
                seconds = world.schedule.chance.uniform(0, DELAY_TIMEOUTS_MAX)
                world.schedule.call(
                    seconds * world.config.timeout_s, lambda host=host: self._unless_healed(host)
                )
        elif hosts := [host for host in world.hosts if host.settings]:
            host = world.schedule.chance.choice(hosts)
            world.schedule.call(0.0, lambda: self._pin(host))

    def settle(self) -> None:
        """Everything heals: all nodes have the settings that they shall have.

        A cursor inside a batch is refused at every run; whoever reads that takes it back.
        """
        for host in self._world.hosts:
            self._resize(host)
            pinned = {name: node for name, node in host.settings.items() if node.pinned}
            self._change(host, {name: self._sound(node) for name, node in pinned.items()})

    def _sound(self, node: Node) -> Node:
        """A node without the cursors that no run could take."""
        world = self._world
        rows = {row.shard: row for row in world.store.snapshot(world.key).shards}
        pinned = dict(node.pinned or {})
        for shard, cursor in pinned.items():
            borders = {batch.start for batch in world.store.batches(world.key, shard)}
            row = rows.get(shard)
            if row is None or cursor not in {row.bootstrap, *borders}:
                pinned[shard] = None
        return replace(node, pinned=pinned)

    def _unless_healed(self, host: Host) -> None:
        if not self._world.healed:
            self._resize(host)

    def _resize(self, host: Host) -> None:
        if self._world.config.mode is AssignmentMode.MODULO:
            self._change(
                host,
                {
                    name: replace(node, source_count=self.source_count)
                    for name, node in host.settings.items()
                },
            )

    def _pin(self, host: Host) -> None:
        """One of a node's shards shall begin elsewhere: mostly at the border of a batch."""
        world, chance = self._world, self._world.schedule.chance
        node = host.settings[host.name]
        if world.healed or not node.pinned:
            return
        shard = chance.choice(list(node.pinned))
        borders = [batch.start for batch in world.store.batches(world.key, shard)]
        cursor = str(chance.randint(0, 40))
        if borders and chance.random() < BORDER_SHARE:
            cursor = chance.choice(borders)
        pinned: dict[ShardId, str | None] = {**node.pinned, shard: cursor}
        self._change(host, {host.name: replace(node, pinned=pinned)})

    def _change(self, host: Host, settings: dict[NodeName, Node]) -> None:
        """New settings; a process that was started with the old ones is started again."""
        if settings.items() <= host.settings.items():
            return
        host.settings.update(settings)
        if host.up and host.server is not None and not host.server.dead and not host.leaving:
            self._world.incidents.kill(host.server)
