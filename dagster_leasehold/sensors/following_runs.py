"""Requests that following runs take another shard, or end.

The shards of a node share one run, so that each commit interval needs one Spark job and one
transaction. A shard with unread records is offered to a run of its node that has room. If no run
has room, the oldest run is requested to end once it has nothing to read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from dagster_leasehold.assets.consuming.run_requests import FINISH_TAG, STOP_TAG, offer
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.shard_rows import Progress
from dagster_leasehold.sensors.active_runs import ActiveRun
from dagster_leasehold.sensors.launch_choice import IdleShard

OFFER_S = 15.0
"""How long an offer of a shard to a run stays open, in seconds."""
START_S = 60.0
"""How long shards wait for a launched run to start before they get another run, in seconds."""
NEW_DEFINITION = "the stream's definition has changed"
BUDGET_OVER = "its time budget is over"
OTHERS_WAIT = "other shards of its node wait for a run"


@dataclass(slots=True)
class FollowingRuns:
    """The following runs of a stream, and the requests sent to them.

    Attributes:
        definition: the mark of the stream's definition. Runs of an older definition are stopped.
        budget_s: the age at which a run is replaced by a new one, in seconds.
        missed: the shards whose offer went to a run that has ended since the last tick.
    """

    definition: str
    budget_s: float
    shards_per_run: int
    clock: Clock
    new_id: Callable[[], str]
    missed: set[ShardId] = field(default_factory=set[ShardId])
    _runs: list[ActiveRun] = field(default_factory=list[ActiveRun])
    _open: Counter[str] = field(default_factory=Counter[str])
    _opened: set[str] = field(default_factory=set[str])
    _first_seen_s: dict[str, float] = field(default_factory=dict[str, float])
    _offered: dict[ShardId, tuple[str, float]] = field(
        default_factory=dict[ShardId, tuple[str, float]]
    )

    def update(self, runs: Sequence[ActiveRun], progress: Mapping[ShardId, Progress]) -> None:
        """Record the active runs, and the shards that each has open."""
        now_s, ids = self.clock(), {run.run_id for run in runs}
        # A run counts as started once it has opened all its shards, or one tick after it opened the
        # first.
        self._opened = ids & (self._opened | set(self._open))
        self._open = Counter(row.consumer_run for row in progress.values() if row.consumer_run)
        self._opened |= {
            run.run_id for run in runs if 0 < len(run.shards) <= self._open[run.run_id]
        }
        self._runs = [run for run in runs if run.follows]
        self._first_seen_s = {run: self._first_seen_s.get(run, now_s) for run in ids}
        self.missed = {shard for shard, (run, _) in self._offered.items() if run not in ids}
        self._offered = {
            shard: (run, at_s)
            for shard, (run, at_s) in self._offered.items()
            if run in ids and now_s < at_s + OFFER_S
        }

    def opening_shards(self, runs: Iterable[ActiveRun]) -> set[str]:
        """Return the shards that runs will open soon: launched runs' shards, and offered shards.

        Once a run has started, the lease store shows which shards it has open.
        """
        starting = {s for run in runs if run.run_id not in self._opened for s in run.shards}
        return starting | self._offered.keys()

    def stop(self, instance: dg.DagsterInstance) -> list[str]:
        """Request the end of outdated runs and of runs over budget; return a line for each."""
        notes: list[str] = []
        for run in self._runs:
            if run.ending or not (reason := self._reason_to_stop(run)):
                continue
            instance.add_run_tags(run.run_id, {STOP_TAG: reason})
            notes.append(f"run {run.run_id} was requested to end, because {reason}")
        return notes

    def _reason_to_stop(self, run: ActiveRun) -> str:
        if run.definition != self.definition:
            return NEW_DEFINITION
        over = self.clock() >= self._first_seen_s[run.run_id] + self.budget_s
        return BUDGET_OVER if over else ""

    def share(
        self, ready: Sequence[IdleShard], *, apart: Collection[str] = ()
    ) -> tuple[dict[str, list[ShardId]], set[ShardId]]:
        """Return the shards to offer to each run, and the shards that wait for a starting run.

        The runs in `apart` serve a blocked shard, and get no other shard.
        """
        offers: dict[str, list[ShardId]] = {}
        waiting: set[ShardId] = set()
        for idle in ready:
            for run in self._runs_with_room(idle.node, offers):
                if run.run_id in apart:
                    continue
                if run.run_id in self._opened:
                    offers.setdefault(run.run_id, []).append(idle.shard)
                else:
                    waiting.add(idle.shard)
                break
        return offers, waiting

    def offer(self, instance: dg.DagsterInstance, run_id: str, shards: Sequence[ShardId]) -> None:
        """Offer shards to a run."""
        instance.add_run_tags(run_id, offer(self.new_id(), shards))
        self._offered |= dict.fromkeys(shards, (run_id, self.clock()))

    def make_room(self, instance: dg.DagsterInstance, nodes: Collection[NodeName]) -> int:
        """Request the end of each node's oldest run once it is idle; return the number of runs."""
        requests = 0
        for node in nodes:
            runs = [run for run in self._runs if run.node == node and not run.ending]
            if not runs:
                continue
            oldest = min(runs, key=lambda run: (self._first_seen_s[run.run_id], run.run_id))
            instance.add_run_tags(oldest.run_id, {FINISH_TAG: OTHERS_WAIT})
            requests += 1
        return requests

    def _runs_with_room(
        self, node: NodeName, offers: Mapping[str, Sequence[ShardId]]
    ) -> list[ActiveRun]:
        """Return the runs of a node with room: started runs first, then by size, fullest first."""

        def size(run: ActiveRun) -> int:
            started = run.run_id in self._opened
            holds = self._open[run.run_id] if started else len(run.shards)
            pending = sum(run_id == run.run_id for run_id, _ in self._offered.values())
            return holds + pending + len(offers.get(run.run_id, ()))

        now_s = self.clock()
        runs = [
            run
            for run in self._runs
            if run.node == node
            and run.definition == self.definition
            and not run.ending
            and size(run) < self.shards_per_run
            and (run.run_id in self._opened or now_s < self._first_seen_s[run.run_id] + START_S)
        ]
        return sorted(runs, key=lambda run: (run.run_id not in self._opened, -size(run)))
