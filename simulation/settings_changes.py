"""Changes of what nodes say of themselves while they work: groups are resized, shards pinned.

Operators change the settings of a deployment and start its code servers again, one after the
other, in any order. Here that happens in swarms alone, to groups that assign by modulo or by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.simulation.fleet import Fleet
from dagster_leasehold.simulation.host import Host
from dagster_leasehold.simulation.schedule import Process
from dagster_leasehold.simulation.stage import Stage

RATE = 0.004
"""The probability of a change of settings, per store call."""
COUNT_MAX = 8
DELAY_TIMEOUTS_MAX = 3.0
BORDER_SHARE = 0.8


class SettingsChanges:
    """Changes the settings of nodes now and then.

    Args:
        stage: the stage.
        fleet: the nodes' hosts.
        kill: kills a process that has old settings; it is started again with the new ones.
    """

    def __init__(self, stage: Stage, fleet: Fleet, kill: Callable[[Process], None]) -> None:
        self._stage = stage
        self._fleet = fleet
        self._kill = kill
        self._happens = stage.swarm and stage.config.mode is not AssignmentMode.BALANCED

    def step(self) -> None:
        """Change something, or nothing: one more store call is about to be made."""
        stage, chance = self._stage, self._stage.chance
        if not self._happens or stage.healed or chance.random() >= RATE:
            return
        if stage.config.mode is AssignmentMode.MODULO:
            self._fleet.source_count = chance.randint(1, COUNT_MAX)
            for host in self._fleet.hosts:
                delay_s = chance.uniform(0, DELAY_TIMEOUTS_MAX) * stage.config.timeout_s
                stage.schedule.call(delay_s, lambda host=host: self._unless_healed(host))
        elif hosts := [host for host in self._fleet.hosts if host.settings]:
            host = chance.choice(hosts)
            stage.schedule.call(0.0, lambda: self._pin(host))

    def settle(self) -> None:
        """Give all nodes the settings that they are to have: everything heals.

        A cursor inside a batch is refused at every run; whoever reads that takes it back.
        """
        for host in self._fleet.hosts:
            self._resize(host)
            pinned = {name: node for name, node in host.settings.items() if node.pinned}
            self._change(host, {name: self._sound(node) for name, node in pinned.items()})

    def _sound(self, node: Node) -> Node:
        """Return a node without the cursors that no run could take."""
        stage = self._stage
        rows = {row.shard: row for row in stage.store.snapshot(stage.key).shards}
        pinned = dict(node.pinned or {})
        for shard, cursor in pinned.items():
            borders = {batch.start for batch in stage.store.batches(stage.key, shard)}
            row = rows.get(shard)
            if row is None or cursor not in {row.bootstrap, *borders}:
                pinned[shard] = None
        return replace(node, pinned=pinned)

    def _unless_healed(self, host: Host) -> None:
        if not self._stage.healed:
            self._resize(host)

    def _resize(self, host: Host) -> None:
        if self._stage.config.mode is AssignmentMode.MODULO:
            count = self._fleet.source_count
            resized = {
                name: replace(node, source_count=count) for name, node in host.settings.items()
            }
            self._change(host, resized)

    def _pin(self, host: Host) -> None:
        """Have one of a node's shards begin elsewhere: mostly at the border of a batch."""
        stage, chance = self._stage, self._stage.chance
        node = host.settings[host.name]
        if stage.healed or not node.pinned:
            return
        shard = chance.choice(list(node.pinned))
        borders = [batch.start for batch in stage.store.batches(stage.key, shard)]
        cursor = str(chance.randint(0, 40))
        if borders and chance.random() < BORDER_SHARE:
            cursor = chance.choice(borders)
        pinned: dict[ShardId, str | None] = {**node.pinned, shard: cursor}
        self._change(host, {host.name: replace(node, pinned=pinned)})

    def _change(self, host: Host, settings: dict[NodeName, Node]) -> None:
        """Take new settings; a process that was started with the old ones is started again."""
        if settings.items() <= host.settings.items():
            return
        host.settings.update(settings)
        if host.up and host.server is not None and not host.server.dead and not host.leaving:
            self._kill(host.server)
