"""The step that launches compactions, which merge small files while consumption continues.

Pure functions choose the shards by their numbers of batches. Safety does not depend on this choice,
since a compaction claims a shard's output before it rewrites it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

import dagster as dg

from dagster_leasehold.assets import partitions
from dagster_leasehold.assets.compact_job import CompactConfig
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.rewriting.continued_compaction import old_until
from dagster_leasehold.assets.rewriting.yielding import (
    RUN_BUDGET_S,
    behind,
    compacting_nodes,
    finished,
)
from dagster_leasehold.assets.run_process import process_ended, recorded_process, run_ended
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Compacted, LedgerHead
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.unchanged import Unchanged
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.sensors.active_runs import ACTIVE
from dagster_leasehold.sensors.launch_choice import RUNS_PER_NODE_MAX, Launch
from dagster_leasehold.sensors.launch_round import tags_of
from dagster_leasehold.sensors.run_cleaning import PROCESS_ENDED
from dagster_leasehold.sensors.steps import Outcome, Step, Tick

INTERVAL_S = 60
CLEAN = "clean"
"""A cursor with this mark has no replaced files left to remove."""
RUNS_READ_MAX = 20
"""The most unfinished runs to read per node; a node with more has no free slot."""
STARTED = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
BATCHES_MIN = 64
"""The fewest new batches of a shard that are worth a run."""
BATCHES_MIN_FINISHED = 2
"""The same for a finished shard: it gets no new batches."""
BATCHES_MIN_QUIET = 8
"""The same for a shard whose batches are all old: it gets few new ones."""
MANY_BATCHES = 2_048
"""If a shard has this many new batches, the pause of its node is `PAUSE_OF_MANY_S`."""
SHARDS_PER_RUN = 64
PAUSE_S, PAUSE_OF_MANY_S = 1_800.0, 300.0
"""The shortest time between two compactions of a node, in seconds."""
PATIENCE_S = 3_600.0
"""The longest time that a compaction waits for a free slot of its node, in seconds."""
NO_SHARDS: Mapping[ShardId, int] = MappingProxyType({})
VACUUM_EVERY_RUNS = 24
VACUUM_MARGIN_S = 3_600.0
"""The assumed longest time from a launch to the end of its compaction, in seconds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shard with enough batches since its last compaction, if they are old enough.

    Attributes:
        waiting: the number of batches since that compaction.
        decisive: the number of the batch that must be old; None if all batches are old.
    """

    shard: ShardId
    node: NodeName
    waiting: int
    decisive: int | None


def worthwhile(
    keepers: Mapping[ShardId, NodeName],
    heads: Mapping[ShardId, LedgerHead],
    compacted: Mapping[ShardId, Compacted],
    pauses: Mapping[NodeName, float],
    all_old: Mapping[ShardId, int] = NO_SHARDS,
) -> list[Candidate]:
    """Return the shards worth compacting, by node; shards with the most new batches are first.

    Args:
        keepers: the node that compacts each shard.
        heads: the ends of the shards' ledgers.
        compacted: how far each shard is compacted.
        pauses: the seconds since the last compaction of each node; other nodes are ignored.
        all_old: for shards whose batches are all old, the fewest new batches that are worth a run.
    """
    by_node: dict[NodeName, list[Candidate]] = {}
    for shard, node in keepers.items():
        if shard not in heads or node not in pauses:
            continue
        examined_until = compacted.get(shard, Compacted()).examined_until
        waiting = heads[shard].next_number - examined_until
        pause_s = PAUSE_OF_MANY_S if waiting >= MANY_BATCHES else PAUSE_S
        if waiting >= all_old.get(shard, BATCHES_MIN) and pauses[node] >= pause_s:
            decisive = None if shard in all_old else examined_until + BATCHES_MIN - 1
            by_node.setdefault(node, []).append(Candidate(shard, node, waiting, decisive))
    return [
        candidate
        for node in sorted(by_node)
        for candidate in sorted(by_node[node], key=lambda each: (-each.waiting, each.shard))[
            :SHARDS_PER_RUN
        ]
    ]


def launches_of(candidates: Iterable[Candidate]) -> list[Launch]:
    """Return one run for each node with candidates."""
    by_node: dict[NodeName, list[ShardId]] = {}
    for candidate in candidates:
        by_node.setdefault(candidate.node, []).append(candidate.shard)
    return [Launch(node, tuple(shards)) for node, shards in by_node.items()]


@dataclass(slots=True)
class CompactionPace:
    """The last compaction of each node, and how long each node has waited for a free slot.

    If this state is lost, the next compaction starts earlier, and the last vacuum starts later.

    Attributes:
        began_s: when this state was created, in monotonic seconds.
    """

    began_s: float = float("-inf")

    _launched_s: dict[NodeName, float] = field(default_factory=dict[NodeName, float])
    _waiting_s: dict[NodeName, float] = field(default_factory=dict[NodeName, float])

    def pauses(self, nodes: Collection[NodeName], now_s: float) -> dict[NodeName, float]:
        """Return the seconds since the last compaction of each node; infinity without one."""
        return {node: now_s - self._launched_s.get(node, float("-inf")) for node in sorted(nodes)}

    def can_launch(self, node: NodeName, runs: int, now_s: float, *, queued: bool) -> bool:
        """Return True if a node has a free slot, or a compaction has waited too long for one.

        Args:
            runs: the number of its unfinished runs of any kind.
            queued: True if one of these runs has not started.
        """
        if runs < RUNS_PER_NODE_MAX and not queued:
            return True
        return now_s - self._waiting_s.setdefault(node, now_s) >= PATIENCE_S

    def vacuum_due(self, age_s: float, now_s: float) -> bool:
        """Return True if all replaced files have reached this age.

        Compactions launched before `began_s` are even older.
        """
        last_s = max(self._launched_s.values(), default=self.began_s)
        return now_s - last_s >= age_s + VACUUM_MARGIN_S

    def note(self, node: NodeName, now_s: float) -> None:
        """Record a launch."""
        self._launched_s[node] = now_s
        self._waiting_s.pop(node, None)


@dataclass(frozen=True, slots=True)
class Compaction:
    """A run to launch.

    Attributes:
        launch: its node and shards; without shards, the run only removes replaced files.
        old_until: for shards with an unchanged ledger, its end: all batches below it are old.
    """

    launch: Launch
    old_until: Mapping[ShardId, int] = field(default_factory=dict[ShardId, int])


@dataclass(slots=True)
class CompactionRounds:
    """The rounds that choose compactions, and the state that they share."""

    stream: ShardStream
    deployment: Deployment
    clock: Clock
    _pace: CompactionPace = field(init=False)
    _unchanged: Unchanged[ShardId] = field(default_factory=Unchanged[ShardId])

    def __post_init__(self) -> None:
        self._pace = CompactionPace(began_s=self.clock())

    def launches(
        self, instance: dg.DagsterInstance, *, replaced: bool = False
    ) -> tuple[list[Compaction], str]:
        """Return the runs to launch, and a sentence about them, or about why there are none.

        `replaced` is True if files that earlier compactions replaced can remain. Once all of them
        are old, a run removes them even if there is nothing to merge.
        """
        store, key = self.deployment.store(), self.stream.key
        snapshot = store.snapshot(key)
        nodes = self.deployment.own(snapshot.nodes, instance_address(instance))
        free = self._free(instance, [node.name for node in nodes if node.accepts_runs])
        if not free:
            return [], "No node of this deployment has a free slot for a compaction."
        own_nodes, now_s = {node.name for node in nodes}, self.clock()
        owners = {
            shard: node for shard, node in compacting_nodes(snapshot).items() if node in own_nodes
        }
        heads, progress = store.heads(key, list(owners)), store.compacted(key)
        # Busy nodes' shards are included; otherwise they would count as changed afterwards.
        ends = {shard: head.next_number for shard, head in heads.items()}
        quiet_s = self._unchanged.update(ends, now_s)
        age_s = self.stream.retention.compact_after_s
        unchanged = {shard: end for shard, end in ends.items() if quiet_s[shard] >= age_s}
        pauses = self._pace.pauses(free, now_s)
        all_old = dict.fromkeys(unchanged, BATCHES_MIN_QUIET)
        all_old |= dict.fromkeys(finished(snapshot), BATCHES_MIN_FINISHED)
        candidates = worthwhile(owners, heads, progress, pauses, all_old)
        candidates = [
            each
            for each in self._unclaimed(store, instance, candidates)
            if each.decisive is None or self._is_old(store, each.shard, each.decisive)
        ]
        if not candidates:
            if replaced and self._pace.vacuum_due(self.stream.retention.vacuum_after_s, now_s):
                return [Compaction(Launch(min(free), ()))], "Removing the last replaced files."
            return [], "No shard has enough small files that are old enough."
        lagging = behind(
            self.stream,
            [row for row in snapshot.shards if row.shard in {each.shard for each in candidates}],
        )
        launches = launches_of(each for each in candidates if not lagging.get(each.shard, False))
        if not launches:
            return [], "The shards with enough small files lag, so they are not compacted now."
        for launch in launches:
            self._pace.note(launch.node, self.clock())
        lines = (f"{len(launch.shards)} shards of {launch.node}" for launch in launches)
        compactions = [
            Compaction(
                launch, {shard: unchanged[shard] for shard in launch.shards if shard in unchanged}
            )
            for launch in launches
        ]
        return compactions, f"Compacting {', '.join(lines)}."

    def _free(self, instance: dg.DagsterInstance, nodes: Collection[NodeName]) -> list[NodeName]:
        """Return the nodes without a compaction of the stream that have a free slot."""
        busy = self._compacting(instance)
        free: list[NodeName] = []
        for node in nodes:
            of_node = dg.RunsFilter(tags={partitions.NODE_TAG: node}, statuses=ACTIVE)
            runs = instance.get_runs(of_node, limit=RUNS_READ_MAX)
            queued = any(run.status not in STARTED for run in runs)
            fits = self._pace.can_launch(node, len(runs), self.clock(), queued=queued)
            if node not in busy and fits:
                free.append(node)
        return free

    def _compacting(self, instance: dg.DagsterInstance) -> set[str | None]:
        """Return the nodes with a compaction of the stream; mark dead compactions as failed.

        Without an agent, only this step cleans up dead compactions, which would otherwise block
        their nodes forever. The janitor cleans up runs that consume.
        """
        compacting = dg.RunsFilter(
            job_name=partitions.compact_job_name(self.stream), statuses=ACTIVE
        )
        nodes: set[str | None] = set()
        for run in instance.get_runs(compacting, limit=RUNS_READ_MAX):
            if process_ended(recorded_process(run)):
                instance.report_run_failed(run, PROCESS_ENDED)
            else:
                nodes.add(run.tags.get(partitions.NODE_TAG))
        return nodes

    def _unclaimed(
        self, store: LeaseStore, instance: dg.DagsterInstance, candidates: Iterable[Candidate]
    ) -> list[Candidate]:
        """Return the candidates whose output no other run is rewriting."""
        claims = {claim.shard: claim.run for claim in store.rewrites(self.stream.key)}
        return [
            candidate
            for candidate in candidates
            if candidate.shard not in claims or run_ended(instance, claims[candidate.shard])
        ]

    def _is_old(self, store: LeaseStore, shard: ShardId, number: int) -> bool:
        """Return True if the batch with this number, or the next one, is old enough."""
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
    """Return the step `compaction`; `clock` returns monotonic seconds.

    The cursor counts the launched runs. Every `VACUUM_EVERY_RUNS`-th run also removes replaced
    files. After a long time without a launch, one run removes the remaining files, and the cursor
    gets the mark `CLEAN`.
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
            vacuum = last or before % VACUUM_EVERY_RUNS == 0
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
