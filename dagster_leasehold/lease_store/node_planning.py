"""Planning for one node by the processes that beat for it: its agent, and its run that follows.

The sensors plan for all nodes of their deployment whenever Dagster's daemon ticks, which takes
seconds, and which stops where the daemon stops. So the process that beats for a node plans for it
as well. All plan by the same rules, and their changes are compare-and-set: of two that claim a
shard for the node, one is too late.

What happens after a host has died, with a timeout T:

1. The node before it, in the order of the names, has watched its beats, and sees none for T.
2. That node's planner evicts it: its shards are free, and the group's `generation` has risen.
3. The planners of all nodes see that within a second, and claim what falls to their nodes.
4. The run of each node opens the shards that its node has gained. None of this has waited for
   Dagster.

Where several neighbours die at once, step 1 takes T for each of them in turn; a sensor, which
watches all nodes, evicts them together.
"""

from __future__ import annotations

from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.starting_point import pending_bootstraps
from dagster_leasehold.lease_store.store import LeaseStore

LOOK_S = 1.0
NODES_PER_SECOND = 60
"""The looks per second in a group of more nodes than this: each node looks less often.

A look reads two rows and a beat three, so that the looks of a thousand nodes, which beat 214 times
a second, read less than a fifth of what their beats read.
"""
PAUSE = 9.0
"""The pause after a look, in multiples of its own time: a planner works a tenth of the time."""


class NodePlanner:
    """Plans for one node of a group, once a second or as seldom as the size of the group asks.

    Args:
        node: the node, which others keep a member.
        observer: named in the journal.
        clock: monotonic seconds.
        rebalancer: the class of what carries plans out.
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
        self._held: set[ShardId] | None = None

    def plan(self) -> TickReport | None:
        """Look at the group, and plan where it has changed; None if it is too early to look.

        Raises:
            StoreError: the store does not answer.
            UnknownGroup: there is no such group.
        """
        began_s = self._clock()
        if began_s < self._next_s:
            return None
        try:
            report = self._rebalancer.tick()
        except BaseException:
            # A store that takes long to say that it is away is asked again as soon as any other.
            self._next_s = self._clock() + LOOK_S
            raise
        ended_s = self._clock()
        pause_s = max(LOOK_S, len(report.snapshot.nodes) / NODES_PER_SECOND)
        self._next_s = max(began_s + pause_s, ended_s + (ended_s - began_s) * PAUSE)
        return report

    def gained(self, run: str) -> tuple[ShardId, ...]:
        """Plan, and return the shards that the node has gained since the last look.

        The launcher starts runs for the shards that the node had at the first look, and for shards
        that need a run of their own. A run that searches a shard for a bad record takes no others.

        It raises as `plan` does.
        """
        report = self.plan()
        if report is None:
            return ()
        owned = set(report.owned[self._node])
        gained = set() if self._held is None else owned - self._held
        self._held = owned
        rows = report.progress
        if not gained or any(row.blocked for row in rows.values() if row.consumer_run == run):
            return ()
        free = {row.shard for row in rows.values() if not (row.consumer_run or row.blocked)}
        gains = (gained & free) - pending_bootstraps(report.snapshot)
        return tuple(shard for shard in report.ready(self._node) if shard in gains)
