"""The shares of a range: runs on other nodes' hosts, each for partitions that its node holds.

Dagster makes one run of a range of partitions, which begins on the host of the first one's node.
For those of other nodes whose agents answer, this run asks for runs there: its shares. Each names
its partitions itself, since Dagster's tags name one or an unbroken range. The run stays responsible
for the whole range: what a share leaves, for whatever reason, it makes itself; Dagster charges it
alone with what is not materialized at the end.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, cast, runtime_checkable

import dagster as dg
from dagster import DagsterEvent, DagsterEventType, DagsterRun, DagsterRunStatus

from dagster_leasehold.assets.backfill_siblings import BACKFILL_TAG
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.partitions import (
    NODE_TAG,
    PARTITION_TAG,
    RANGE_START_TAG,
    SHARDS_TAG,
    SHARE_TAG,
    asset_key,
    partitions_of,
)
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId

START_MAX_S = 60.0
"""The longest time for which a share may wait in Dagster's queue while nothing else is to do."""
LOOK_AGAIN_S = 2.0
CHARACTERS_MAX = 20_000
"""Of the names in one share: Dagster's column for a run holds 64 KB in MySQL."""
_CARRIED_TAGS = {
    BACKFILL_TAG,
    "dagster/parent_backfill_id",
    "dagster/root_backfill_id",
    "dagster/priority",
    "dagster/code_location",
}
_NOT_BEGUN = (DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED)
_UNFINISHED = [
    *_NOT_BEGUN,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
_SEPARATOR = ", "


@runtime_checkable
class NodeLauncher(Protocol):
    """A run launcher that sends a run to the node of its tag."""

    def answering(self, nodes: Collection[str]) -> list[str]:
        """Return those of some nodes whose agents take runs now."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions of a range that a run on the host of `node` is asked for."""

    node: str
    shards: tuple[ShardId, ...]


def shares_of(
    holders: Mapping[ShardId, str], able: Collection[str], characters_max: int = CHARACTERS_MAX
) -> list[Share]:
    """Return one share for each able node that holds some shards, or a few if they are very many.

    Args:
        holders: the node of each shard of the range; empty for one that nobody holds.
        able: the nodes that can be asked, the asker's own not among them.
        characters_max: the most characters of names in one share.
    """
    portions: dict[str, list[list[ShardId]]] = {}
    room: dict[str, int] = {}
    for shard, node in holders.items():
        if node not in able:
            continue
        cost = len(shard) + len(_SEPARATOR)
        if room.get(node, 0) < cost:
            portions.setdefault(node, []).append([])
            room[node] = characters_max
        portions[node][-1].append(shard)
        room[node] -= cost
    return [Share(node, tuple(some)) for node in sorted(portions) for some in portions[node]]


class Fate(Enum):
    """The answer to a look at a share's run."""

    WAIT = "wait"
    ENDED = "ended"
    TAKE_BACK = "take back"
    GIVE_UP = "give up"


def fate_of(status: DagsterRunStatus | None, *, member: bool, waited_s: float) -> Fate:
    """Return what to do about a share.

    1. All places of Dagster's queue are taken by runs that wait for their shares.
    2. None of the shares would ever begin: so one that does not is taken back after a while.

    Args:
        status: of its run; None if somebody has deleted it.
        member: True while its node is a member of the group, so that somebody beats for it.
        waited_s: the time for which it was waited for and nothing else was to do.
    """
    if status is None or status not in _UNFINISHED:
        return Fate.ENDED
    if status in _NOT_BEGUN:
        return Fate.TAKE_BACK if not member or waited_s >= START_MAX_S else Fate.WAIT
    return Fate.WAIT if member else Fate.GIVE_UP


def asked_shards(run: DagsterRun) -> list[ShardId]:
    """Return the partitions of a share, the one of its tag first; none for any other run."""
    if SHARE_TAG not in run.tags:
        return []
    return [ShardId(key) for key in partitions_of(run.tags, list)]


def check_asker(instance: dg.DagsterInstance, run: DagsterRun) -> None:
    """Refuse to begin a share whose asker has ended: nobody waits for it any more.

    Raises:
        Failure: the asker has ended; one sentence says what to do.
    """
    asker_id = run.tags.get(SHARE_TAG)
    if asker_id is None:
        return
    asker = instance.get_run_by_id(asker_id)
    if asker is None or asker.is_finished:
        raise dg.Failure(
            f"Run {asker_id}, which asked for this one, has ended: materialize the partitions that "
            "it left, if there are any.",
            allow_retries=False,
        )


@dataclass(slots=True)
class RangeShares:
    """The shares of one run of a range.

    Attributes:
        instance: knows the runs.
        run: the one that asks.
        stream: the stream of its partitions.
        deployment: of the nodes.
        log: takes a line for whoever looks at the run.
        delivered: the partitions that shares have materialized.
    """

    instance: dg.DagsterInstance
    run: DagsterRun
    stream: ShardStream
    deployment: Deployment
    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    delivered: set[ShardId] = field(default_factory=set[ShardId])
    _open: dict[str, Share] = field(default_factory=dict[str, Share])
    _adopted: bool = False

    def rounds(self, rounds: Iterable[Sequence[ShardId]]) -> Iterator[Sequence[ShardId]]:
        """Yield what the run makes itself: first its own part, then what its shares have left."""
        for shards in rounds:
            if own := self._ask(shards):
                yield own
            if rest := self._collect():
                self.log(f"Shares have left {len(rest)} partitions: this run makes them.")
                yield rest

    @contextmanager
    def ending_with_run(self) -> Generator[None]:
        """End the shares that have not begun if the block fails, and all if it is interrupted."""
        try:
            yield
        except BaseException as error:
            for run_id in self._open:
                run = self.instance.get_run_by_id(run_id)
                begun = run is not None and run.status not in _NOT_BEGUN
                if run is not None and not (begun and isinstance(error, Exception)):
                    with suppress(Exception):  # of whatever kind: the run ends with its own error
                        self.instance.run_coordinator.cancel_run(run_id)
            raise

    def _ask(self, shards: Sequence[ShardId]) -> list[ShardId]:
        """Ask for shares of some partitions; return those that nobody was asked for."""
        launcher = self.instance.run_launcher
        if not self._may_ask() or not isinstance(launcher, NodeLauncher):
            return list(shards)
        taken = self._adopt(shards[0])
        snapshot = self.deployment.store().snapshot(self.stream.key)
        nodes = {row.shard: row.consumer_owner or "" for row in snapshot.shards}
        own = nodes.get(ShardId(self.run.tags[RANGE_START_TAG]), "")
        holders = {shard: nodes.get(shard, "") for shard in shards if shard not in taken}
        others = set(holders.values()) - {own, ""}
        for share in shares_of(holders, launcher.answering(sorted(others))):
            self._open[self._launch(share)] = share
            taken |= set(share.shards)
            self.log(f"Asked node {share.node} for {len(share.shards)} partitions.")
        return [shard for shard in shards if shard not in taken]

    def _may_ask(self) -> bool:
        """Return True for a run of a range of the stream alone, that a queue can share out."""
        from dagster import QueuedRunCoordinator

        return (
            RANGE_START_TAG in self.run.tags
            and self.run.asset_selection == {asset_key(self.stream)}
            and self.run.remote_job_origin is not None
            and isinstance(self.instance.run_coordinator, QueuedRunCoordinator)
        )

    def _adopt(self, own: ShardId) -> set[ShardId]:
        """Take over, once, the shares of a run that died and that this one repeats.

        They go on; asked for a second time, their partitions would be refused. One that holds this
        run's first partition is left alone, since a run has to make something itself.
        """
        backfill, adopted = self.run.tags.get(BACKFILL_TAG), set[ShardId]()
        if self._adopted or self.run.parent_run_id is None or backfill is None:
            return adopted
        self._adopted = True
        wanted = dg.RunsFilter(statuses=_UNFINISHED, tags={BACKFILL_TAG: backfill})
        for run in self.instance.get_runs(filters=wanted):
            shards = asked_shards(run)
            alike = run.asset_selection == self.run.asset_selection
            if not shards or own in shards or not alike or run.run_config != self.run.run_config:
                continue
            asker = self.instance.get_run_by_id(run.tags[SHARE_TAG])
            if asker is not None and not asker.is_finished:
                continue
            self.instance.add_run_tags(run.run_id, {SHARE_TAG: self.run.run_id})
            self._open[run.run_id] = Share(run.tags[NODE_TAG], tuple(shards))
            adopted |= set(shards)
            self.log(f"Waiting for run {run.run_id}, which a run before this one asked for.")
        return adopted

    def _launch(self, share: Share) -> str:
        """Put a share's run into Dagster's queue; return its id."""
        from dagster_shared.record import copy

        tags = {
            **{name: text for name, text in self.run.tags.items() if _carried(name)},
            PARTITION_TAG: share.shards[0],
            NODE_TAG: share.node,
            SHARE_TAG: self.run.run_id,
            SHARDS_TAG: _SEPARATOR.join(share.shards),
            # What it leaves, its asker makes.
            "dagster/max_retries": "0",
        }
        run = copy(
            self.run,
            run_id=str(uuid.uuid4()),
            status=DagsterRunStatus.QUEUED,
            tags=tags,
            root_run_id=None,
            parent_run_id=None,
            partitions_subset=None,
        )
        # Dagster looks for the event if a launch fails. The event comes first: after the run, it
        # could put one that has begun back into the queue; without the run, it is nothing.
        self.instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run.run_id)
        self.instance.add_run(run)
        return run.run_id

    def _collect(self) -> list[ShardId]:
        """Wait for the shares to end; return their partitions that are not materialized."""
        left: list[ShardId] = []
        since_s = self.clock()
        while self._open:
            wanted = dg.RunsFilter(run_ids=list(self._open))
            runs = {run.run_id: run for run in self.instance.get_runs(filters=wanted)}
            members = self._members()
            for run_id, share in list(self._open.items()):
                run = runs.get(run_id)
                fate = fate_of(
                    run.status if run else None,
                    member=members is None or share.node in members,
                    waited_s=self.clock() - since_s,
                )
                if fate is Fate.TAKE_BACK:
                    self._take_back(run_id)
                elif fate is Fate.GIVE_UP:
                    self._give_up(cast("DagsterRun", run), share.node)
                elif fate is Fate.ENDED:
                    left += self._left_by(run_id, share)
                    del self._open[run_id]
            if self._open:
                self.sleep(LOOK_AGAIN_S)
        return left

    def _members(self) -> set[str] | None:
        """Return the nodes that are in the group; None while the lease store does not answer.

        A wait of hours must not end with the store's first silence.
        """
        try:
            nodes = self.deployment.store().pulse(self.stream.key).nodes
        except StoreUnavailable:
            return None
        return {node.name for node in nodes if node.member}

    def _left_by(self, run_id: str, share: Share) -> list[ShardId]:
        key = asset_key(self.stream)
        entries = self.instance.all_logs(run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
        events = (entry.asset_materialization for entry in entries)
        made = {event.partition for event in events if event and event.asset_key == key}
        self.delivered |= {shard for shard in share.shards if shard in made}
        return [shard for shard in share.shards if shard not in made]

    def _take_back(self, run_id: str) -> None:
        """Cancel a share that never began, and delete it, as there is nothing to see in it.

        Should the queue launch it in this moment, its process finds it canceled and ends; it is
        waited for like any other, and deleted by nobody.
        """
        self.log(f"Run {run_id} did not begin: this run makes its partitions.")
        self.instance.run_coordinator.cancel_run(run_id)
        (record,) = self.instance.get_run_records(dg.RunsFilter(run_ids=[run_id])) or (None,)
        if record and record.dagster_run.is_finished and record.start_time is None:
            self.instance.delete_run(run_id)

    def _give_up(self, run: DagsterRun, node: str) -> None:
        """End a share whose node is gone: its leases are others' by now, and nothing is heard.

        One that was terminated at an earlier look, and has not ended since, is failed.
        """
        if run.status is not DagsterRunStatus.CANCELING:
            with suppress(Exception):  # of whatever kind: nobody answers for the run
                if self.instance.run_launcher.terminate(run.run_id):
                    return
        self.instance.report_run_failed(
            run, f"Node {node} of this run is gone. Run {self.run.run_id} makes what it left."
        )


def _carried(tag: str) -> bool:
    """Return True for a tag of the user, or one by which Dagster finds the runs of a backfill."""
    return tag in _CARRIED_TAGS or not tag.startswith(("dagster/", ".dagster/", "leasehold/"))
