"""Planning for one node by the processes that send its heartbeats: its agent and its following run.

Sensors plan for all nodes when Dagster's daemon ticks, every few seconds, and they stop with the
daemon. So the process that sends a node's heartbeats also plans for it. All planners use the same
rules, and their changes are compare-and-set: of two claims for a shard, one is refused.

After a host has died:

1. The planner of the preceding node, by name, watches the dead node's counter, which does not move
   for T.
2. That planner evicts the dead node. Its shards are unassigned, and the generation increases.
3. The planners of all nodes notice that within a second, and claim their shares.
4. The run of each node opens the gained shards. No step waits for Dagster.

If several neighbours die at once, step 1 takes T for each in turn. A sensor watches all nodes and
evicts them together.
"""

from __future__ import annotations

from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.starting_point import pending_bootstraps
from dagster_leasehold.lease_store.store import LeaseStore

CHECK_S = 1.0
NODES_PER_SECOND = 60
"""The most nodes that check the group once a second; in a larger group each checks less often.

A check reads two rows and a heartbeat three. So in a group of a thousand nodes, with 214 heartbeats
a second, checks read less than a fifth of the heartbeats' rows.
"""
PAUSE = 9.0
"""The pause after a check, in multiples of its duration: a planner is busy a tenth of the time."""


class NodePlanner:
    """Plans for one node of a group, once a second or less often in a large group.

    Args:
        node: a member whose heartbeats another object sends.
        rebalancer: the class that carries out plans.
    """

    def __init__(
        self,
        store: LeaseStore,
        key: GroupKey,
        node: NodeName,
        *,
        observer: str,
        clock: Clock,
        rebalancer: type[Rebalancer] = Rebalancer,
    ) -> None:
        self._node = node
        self._clock = clock
        self._rebalancer = rebalancer(
            store,
            key,
            serves=(node,),
            timing=Timing(),
            observer=observer,
            incarnation_of=str,
            clock=clock,
            beats=False,
            neighbour_only=True,
        )
        self._next_s = float("-inf")
        self._last_owned: set[ShardId] | None = None

    def plan(self) -> TickReport | None:
        """Check the group, and plan if it has changed; return None if no check is due."""
        began_s = self._clock()
        if began_s < self._next_s:
            return None
        try:
            report = self._rebalancer.tick()
        except BaseException:
            # The duration of a failed check does not lengthen the pause.
            self._next_s = self._clock() + CHECK_S
            raise
        ended_s = self._clock()
        pause_s = max(CHECK_S, len(report.snapshot.nodes) / NODES_PER_SECOND)
        self._next_s = max(began_s + pause_s, ended_s + (ended_s - began_s) * PAUSE)
        return report

    def gained(self, run: str) -> tuple[ShardId, ...]:
        """Plan, and return the shards that the node has gained since the last check.

        It omits shards of the first check and shards that need a run of their own: the launcher
        starts runs for them. A run that isolates a bad record gains no other shards.
        """
        report = self.plan()
        if report is None:
            return ()
        owned = set(report.owned[self._node])
        gained = set() if self._last_owned is None else owned - self._last_owned
        self._last_owned = owned
        rows = report.progress
        if not gained or any(row.blocked for row in rows.values() if row.consumer_run == run):
            return ()
        free = {row.shard for row in rows.values() if not (row.consumer_run or row.blocked)}
        gains = (gained & free) - pending_bootstraps(report.snapshot)
        return tuple(shard for shard in report.ready(self._node) if shard in gains)
