"""Planning for one node by the processes that beat for it: its agent, and its run that follows.

The sensors plan for all nodes of their deployment whenever Dagster's daemon ticks, which takes
seconds, and which stops where the daemon stops. So whoever beats for a node plans for it as well.
All plan by the same rules, and what they carry out is compare-and-set: of two that claim a shard
for the node, one is too late.

What happens after a host has died, with a timeout T:

1. The node before it, in the order of the names, has watched its beats, and sees none for T.
2. That node's planner evicts it: its shards are free, and the group's `generation` has risen.
3. The planners of all nodes see that within a second, and claim what falls to their nodes.
4. The run of each node opens what its node has gained. Nobody has waited for Dagster.

Where several neighbours die at once, step 1 takes T for each of them in turn; a sensor, which
watches all nodes, evicts them together.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.starting_point import pending_bootstraps
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.lease_store.store import LeaseStore

LOOK_S = 1.0
NODES_PER_SECOND = 100
"""The most nodes of a group that look within one second."""
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
        # Where the store does not answer, it is asked again a second after that was known.
        took_s = 0.0
        pause_s = LOOK_S
        try:
            report = self._rebalancer.tick()
            took_s = self._clock() - began_s
            pause_s = max(pause_s, len(report.snapshot.nodes) / NODES_PER_SECOND) - took_s
        finally:
            self._next_s = self._clock() + max(pause_s, took_s * PAUSE)
        return report

    def gained(self, run: str) -> tuple[ShardId, ...]:
        """Plan, and return the shards that the node has gained since the last look, to be opened.

        Those that it had at the first look are the launcher's, and so are shards that need a run
        of their own. A run that searches one of its own for a record takes no others.

        It raises as `plan` does.
        """
        report = self.plan()
        if report is None:
            return ()
        held = set(report.owned[self._node])
        gained = set() if self._held is None else held - self._held
        self._held = held
        if not gained or _searches(report.progress, run):
            return ()
        apart = pending_bootstraps(report.snapshot)
        rows = (report.progress.get(shard) for shard in report.ready(self._node))
        shards = (
            row.shard
            for row in rows
            if row is not None
            and row.shard in gained - apart
            and not (row.consumer_run or row.blocked)
        )
        return tuple(sorted(shards, key=rank_key))


def _searches(progress: Mapping[ShardId, Progress], run: str) -> bool:
    return any(row.blocked for row in progress.values() if row.consumer_run == run)
