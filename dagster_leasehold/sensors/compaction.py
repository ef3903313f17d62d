"""The step that has small files of committed output merged, beside live consumption."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import dagster as dg

from dagster_leasehold.assets import partitions
from dagster_leasehold.assets.compact_job import CompactConfig
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.rewriting.continued_compaction import old_until
from dagster_leasehold.assets.rewriting.yielding import RUN_BUDGET_S, behind, finished, keepers
from dagster_leasehold.assets.run_process import noted_process, process_gone, run_ended
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.sensors import compaction_choice
from dagster_leasehold.sensors.active_runs import ACTIVE
from dagster_leasehold.sensors.launch_choice import Launch
from dagster_leasehold.sensors.launch_round import tags_of
from dagster_leasehold.sensors.run_cleaning import PROCESS_ENDED
from dagster_leasehold.sensors.steps import Outcome, Step, Tick

INTERVAL_S = 60
CLEAN = "clean"
"""The mark of a cursor: every file that a compaction replaced was removed."""
RUNS_READ_MAX = 20
"""A node has few runs that have not ended; with more it is busy enough."""
STARTED = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


@dataclass(frozen=True, slots=True)
class Compaction:
    """A run to launch.

    Attributes:
        launch: its node and shards; without shards it only removes files.
        old_until: for shards that have gone quiet, the number below which all batches are old.
    """

    launch: Launch
    old_until: Mapping[ShardId, int] = field(default_factory=dict[ShardId, int])


@dataclass(slots=True)
class CompactionRounds:
    """The rounds of choosing, with a memory of the nodes' last compactions.

    Attributes:
        stream: whose output is compacted.
        deployment: of the nodes.
        clock: monotonic seconds.
    """

    stream: ShardStream
    deployment: Deployment
    clock: Clock
    _pace: compaction_choice.CompactionPace = field(init=False)
    _still: compaction_choice.StillShards = field(default_factory=compaction_choice.StillShards)

    def __post_init__(self) -> None:
        self._pace = compaction_choice.CompactionPace(began_s=self.clock())

    def launches(
        self, instance: dg.DagsterInstance, *, replaced: bool = False
    ) -> tuple[list[Compaction], str]:
        """Return the runs to launch, and one sentence about them or about why there are none.

        With `replaced`, unneeded files of earlier compactions can be left: once
        all of them are old, a run removes them though there is nothing to merge.

        Raises:
            StoreError: the lease store does not answer.
        """
        store, key = self.deployment.store(), self.stream.key
        snapshot = store.snapshot(key)
        nodes = self.deployment.own(snapshot.nodes, instance_address(instance))
        free = self._free(instance, [node.name for node in nodes if node.accepts_runs])
        if not free:
            return [], "No node of this deployment has a free slot for a compaction."
        ours, now_s = {node.name for node in nodes}, self.clock()
        owners = {shard: node for shard, node in keepers(snapshot).items() if node in ours}
        heads, progress = store.heads(key, list(owners)), store.compacted(key)
        # Shards of busy nodes as well: they would count as moved when their nodes are free again.
        self._still.see(heads, now_s)
        still = self._still.ends(self.stream.retention.compact_after_s, now_s)
        pauses = self._pace.pauses(free, now_s)
        all_old = dict.fromkeys(still, compaction_choice.BATCHES_MIN_STILL)
        all_old |= dict.fromkeys(finished(snapshot), compaction_choice.BATCHES_MIN_FINISHED)
        candidates = compaction_choice.candidates(owners, heads, progress, pauses, all_old)
        candidates = [
            each
            for each in self._unclaimed(store, instance, candidates)
            if each.decisive is None or self._is_old(store, each.shard, each.decisive)
        ]
        if not candidates:
            if replaced and self._pace.vacuum_due(self.stream.retention.vacuum_after_s, now_s):
                return [Compaction(Launch(min(free), ()))], "Removing the last replaced files."
            return [], "No shard has enough small files that are old enough."
        late = behind(
            self.stream,
            [row for row in snapshot.shards if row.shard in {each.shard for each in candidates}],
        )
        launches = compaction_choice.due(
            each for each in candidates if not late.get(each.shard, False)
        )
        if not launches:
            return [], "The shards with enough small files lag: their consumption comes first."
        for launch in launches:
            self._pace.note(launch.node, self.clock())
        lines = (f"{len(launch.shards)} shards of {launch.node}" for launch in launches)
        compactions = [
            Compaction(launch, {shard: still[shard] for shard in launch.shards if shard in still})
            for launch in launches
        ]
        return compactions, f"Compacting {', '.join(lines)}."

    def _free(self, instance: dg.DagsterInstance, nodes: Collection[NodeName]) -> list[NodeName]:
        """Return the nodes that compact nothing of the stream now and have a slot for a run."""
        busy = self._compacting(instance)
        free: list[NodeName] = []
        for node in nodes:
            of_node = dg.RunsFilter(tags={partitions.NODE_TAG: node}, statuses=ACTIVE)
            runs = instance.get_runs(of_node, limit=RUNS_READ_MAX)
            queued = any(run.status not in STARTED for run in runs)
            fits = self._pace.may_launch(node, len(runs), self.clock(), queued=queued)
            if node not in busy and fits:
                free.append(node)
        return free

    def _compacting(self, instance: dg.DagsterInstance) -> set[str | None]:
        """Return the nodes with a compaction of the stream; fail the runs whose process is gone.

        The janitor looks after runs that consume, and an agent after all runs of its node: where
        there is none, such a run would keep its node from being chosen for ever.
        """
        compacting = dg.RunsFilter(
            job_name=partitions.compact_job_name(self.stream), statuses=ACTIVE
        )
        nodes: set[str | None] = set()
        for run in instance.get_runs(compacting, limit=RUNS_READ_MAX):
            if process_gone(noted_process(run)):
                instance.report_run_failed(run, PROCESS_ENDED)
            else:
                nodes.add(run.tags.get(partitions.NODE_TAG))
        return nodes

    def _unclaimed(
        self,
        store: LeaseStore,
        instance: dg.DagsterInstance,
        candidates: Iterable[compaction_choice.Candidate],
    ) -> list[compaction_choice.Candidate]:
        """Return the shards whose output is not being replaced."""
        claims = {claim.shard: claim.run for claim in store.rewrites(self.stream.key)}
        return [
            candidate
            for candidate in candidates
            if candidate.shard not in claims or run_ended(instance, claims[candidate.shard])
        ]

    def _is_old(self, store: LeaseStore, shard: ShardId, number: int) -> bool:
        """Return True if the first batch of a number, or behind it, is old enough."""
        key, age = self.stream.key, self.stream.retention.compact_after_s
        row = next(store.each_batch(key, shard, numbers=range(number, NUMBERS_END)), None)
        newest = next(store.each_batch(key, shard, newest_first=True), None)
        until = old_until(newest, timedelta(seconds=age))
        if row is None or row.committed_at is None or until is None:
            return False
        return row.committed_at <= until


def compaction_step(
    stream: ShardStream, deployment: Deployment, clock: Clock = steady_clock
) -> Step:
    """Return the step `compaction`; `clock` gives monotonic seconds.

    The cursor counts the runs that it launched: every so many of them, one removes the files that
    were replaced. Once there was nothing to launch for long, a last one does, and a mark behind the
    number says so.
    """
    rounds = CompactionRounds(stream, deployment, clock)

    def work(tick: Tick) -> Outcome:
        count, _, mark = tick.cursor.partition(" ")
        before = int(count) if count.isdecimal() else 0
        launches, sentence = rounds.launches(tick.instance, replaced=before > 0 and mark != CLEAN)
        requests: list[dg.RunRequest] = []
        for launch in launches:
            last = not launch.launch.shards
            if not last:
                before, mark = before + 1, ""
            vacuum = last or before % compaction_choice.VACUUM_EVERY_RUNS == 0
            requests.append(compaction_request(stream, launch, vacuum=vacuum))
            mark = CLEAN if last else mark
        return Outcome(sentence, requests, f"{before} {mark}".rstrip())

    return Step(stream, "compaction", work, INTERVAL_S)


def compaction_request(
    stream: ShardStream, compaction: Compaction, *, vacuum: bool
) -> dg.RunRequest:
    """Return the request for a run of `compact_<stream>` on a node."""
    launch = compaction.launch
    config = CompactConfig(
        node=launch.node,
        shards=list(launch.shards),
        old_until={str(shard): number for shard, number in compaction.old_until.items()},
        vacuum=vacuum,
    )
    return dg.RunRequest(
        job_name=partitions.compact_job_name(stream),
        run_config=dg.RunConfig(ops={partitions.compact_op_name(stream): config}),
        tags=tags_of(stream, launch, work_max_s=RUN_BUDGET_S),
    )
