"""The shares of a range: each partition is made once, and nothing that a share leaves is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.definitions.partitions.partition_key_range import PartitionKeyRange
from dagster._core.definitions.partitions.snap import PartitionsSnap
from dagster._core.definitions.partitions.subset.key_ranges import KeyRangesPartitionsSubset
from dagster_shared.record import copy

from dagster_leasehold.assets import shard_asset
from dagster_leasehold.assets.backfill_siblings import BACKFILL_TAG
from dagster_leasehold.assets.partitions import (
    NODE_TAG,
    PARTITION_TAG,
    RANGE_START_TAG,
    SHARDS_TAG,
    SHARE_TAG,
    asset_key,
    asset_op_name,
    node_of_launcher,
)
from dagster_leasehold.assets.range_shares import (
    START_MAX_S,
    Fate,
    RangeShares,
    Share,
    fate_of,
    shares_of,
)
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from tests.unit.assets.test_shard_asset import ALL, BACKFILL, ORIGIN, QUEUED, Scene, sentence

HOLDERS = {ShardId(str(number)): "abc"[number % 3] for number in range(9)}


def test_each_able_node_has_one_share_of_what_it_holds() -> None:
    """The first node is the asker's own, and shards that nobody holds are left to the asker."""
    free = {ShardId("free"): ""}
    assert shares_of(HOLDERS | free, ["b", "c"]) == [
        Share("b", (ShardId("1"), ShardId("4"), ShardId("7"))),
        Share("c", (ShardId("2"), ShardId("5"), ShardId("8"))),
    ]
    assert shares_of(HOLDERS, []) == []


def test_very_many_shards_are_several_shares_and_each_is_in_one() -> None:
    holders = {ShardId(f"{number:060}"): "b" for number in range(1_000)}
    shares = shares_of(holders, ["b"])
    assert [shard for share in shares for shard in share.shards] == list(holders)
    assert len(shares) == 4
    assert all(len(", ".join(share.shards)) <= 20_000 for share in shares)


@pytest.mark.parametrize(
    ("status", "member", "waited_s", "fate"),
    [
        (None, True, 0.0, Fate.ENDED),
        (DagsterRunStatus.SUCCESS, True, 0.0, Fate.ENDED),
        (DagsterRunStatus.FAILURE, False, 0.0, Fate.ENDED),
        (DagsterRunStatus.CANCELED, True, 0.0, Fate.ENDED),
        (DagsterRunStatus.QUEUED, True, START_MAX_S - 1, Fate.WAIT),
        (DagsterRunStatus.QUEUED, True, START_MAX_S, Fate.TAKE_BACK),
        (DagsterRunStatus.QUEUED, False, 0.0, Fate.TAKE_BACK),
        (DagsterRunStatus.STARTED, True, 9 * START_MAX_S, Fate.WAIT),
        (DagsterRunStatus.STARTED, False, 0.0, Fate.GIVE_UP),
        (DagsterRunStatus.CANCELING, True, 9 * START_MAX_S, Fate.WAIT),
    ],
)
def test_what_becomes_of_a_share(
    status: DagsterRunStatus | None, member: bool, waited_s: float, fate: Fate
) -> None:
    assert fate_of(status, member=member, waited_s=waited_s) is fate


def test_dagster_reads_no_partitions_with_holes_from_a_run() -> None:
    """A run may carry such a subset; what is planned and charged comes from its tags alone."""
    shards = dg.DynamicPartitionsDefinition(name="orders")
    ranges = [PartitionKeyRange("0", "0"), PartitionKeyRange("2", "2")]
    subset = KeyRangesPartitionsSubset(
        key_ranges=ranges, partitions_snap=PartitionsSnap.from_def(shards)
    )
    run = dg.DagsterRun(job_name="__ASSET_JOB", partitions_subset=subset)
    assert run.partitions_subset == subset
    assert run.get_resolved_partitions_subset_for_events(shards) is None


def test_a_repeated_run_of_a_range_is_bound_to_no_node() -> None:
    tags = {RANGE_START_TAG: "0", NODE_TAG: "b"}
    assert node_of_launcher(dg.DagsterRun(job_name="j", tags=tags)) == "b"
    repeated = dg.DagsterRun(job_name="j", tags=tags, root_run_id="r", parent_run_id="r")
    assert node_of_launcher(repeated) is None
    consuming = dg.DagsterRun(
        job_name="consume", tags={NODE_TAG: "b"}, root_run_id="r", parent_run_id="r"
    )
    assert node_of_launcher(consuming) == "b"


class Launcher:
    """A launcher that sends runs to the nodes a and b; what it terminates is canceled."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.terminated: list[str] = []
        self.manner = "answers"

    def answering(self, nodes: list[str]) -> list[str]:
        return list(nodes)

    def terminate(self, run_id: str) -> bool:
        self.terminated.append(run_id)
        run = self.instance.get_run_by_id(run_id)
        if self.manner == "silent" or run is None:
            return False
        self.instance.report_run_canceling(run)
        if self.manner == "answers":
            self.instance.report_run_canceled(run)
        return True


class SharedScene(Scene):
    """Eight shards of two nodes with agents; what waits in the queue runs when the asker waits.

    `daemon` stands for the queue: it gets a share's run each time that the asker looks.
    """

    def __init__(self, instance: dg.DagsterInstance, patch: pytest.MonkeyPatch) -> None:
        super().__init__(instance, patch)
        assert self.run("0", "7").success, "from now on each node holds four shards"
        self.first = set(self.materializations())
        self.consumed.clear()
        self.daemon: Callable[[dg.DagsterRun], object] = self.carry_out
        self.outcomes: list[dg.ExecuteInProcessResult] = []
        self.now_s = 0.0
        self.repeats: str | None = None
        self.launcher = Launcher(instance)
        patch.setattr(dg.DagsterInstance, "run_launcher", self.launcher)
        patch.setattr(shard_asset, "RangeShares", self._shares)

    def _shares(self, instance: Any, run: dg.DagsterRun, *rest: Any) -> RangeShares:
        repeated = {"parent_run_id": self.repeats, "root_run_id": self.repeats}
        run = copy(run, remote_job_origin=ORIGIN, **(repeated if self.repeats else {}))
        return RangeShares(instance, run, *rest, clock=lambda: self.now_s, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for run in self.shares():
            if run.status is DagsterRunStatus.QUEUED:
                self.daemon(run)

    def shares(self) -> list[dg.DagsterRun]:
        return [run for run in self.instance.get_runs() if SHARE_TAG in run.tags]

    def carry_out(self, run: dg.DagsterRun) -> None:
        """Do what the queue and a host's code server do with a share's run."""
        self.instance.delete_run(run.run_id)
        self.outcomes.append(
            self.job().execute_in_process(
                instance=self.instance,
                run_id=run.run_id,
                asset_selection=self.selection,
                tags=dict(run.tags),
                run_config=run.run_config,
                raise_on_error=False,
            )
        )

    def materializations(self) -> list[tuple[int, str, str]]:
        """Return the storage id, the run and the partition of each materialization."""
        records = self.instance.fetch_materializations(asset_key(self.stream), limit=100).records
        return [(each.storage_id, each.run_id, str(each.partition_key)) for each in records]

    def made(self) -> dict[str, list[str]]:
        """Return the partitions that each run has materialized since the scene began."""
        made: dict[str, list[str]] = {}
        for each in self.materializations():
            if each not in self.first:
                made.setdefault(each[1], []).append(each[2])
        return {run: sorted(partitions) for run, partitions in made.items()}

    def holdings(self) -> dict[str, list[str]]:
        return {node: self.held(node) for node in "ab"}

    def held(self, node: str) -> list[str]:
        rows = self.store.snapshot(self.stream.key).shards
        return sorted(row.shard for row in rows if row.consumer_owner == node)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedScene]:
    with dg.instance_for_test(overrides=QUEUED) as instance:
        yield SharedScene(instance, monkeypatch)


def of_other(scene: SharedScene) -> tuple[str, list[str], list[str]]:
    """The node of which a share is asked, its shards, and those of the asker's."""
    (own,) = [node for node in "ab" if "0" in scene.held(node)]
    (other,) = {"a", "b"} - {own}
    return other, scene.held(other), scene.held(own)


def test_a_range_is_one_run_on_each_node_and_each_partition_is_reported_once(
    scene: SharedScene,
) -> None:
    other, theirs, ours = of_other(scene)
    result = scene.run("0", "7")
    assert result.success
    (share,) = scene.shares()
    assert scene.made() == {result.run_id: ours, share.run_id: theirs}
    assert share.status is DagsterRunStatus.SUCCESS
    assert share.tags[BACKFILL_TAG] == BACKFILL, "Dagster finds its events by this tag"
    assert share.tags[SHARE_TAG] == result.run_id
    assert share.tags[NODE_TAG] == other
    assert share.tags[PARTITION_TAG] == theirs[0]
    assert share.tags[SHARDS_TAG].split(", ") == theirs
    assert RANGE_START_TAG not in share.tags
    assert {node: sorted(shards) for node, shards in scene.consumed} == scene.holdings()
    (outcome,) = scene.outcomes
    checked = {check.partition for check in outcome.get_asset_check_evaluations()} - {None}
    assert checked == set(theirs)


def test_a_replay_has_its_config_in_each_run(scene: SharedScene) -> None:
    _, theirs, ours = of_other(scene)
    result = scene.run("0", "7", **{"from": "begin"})
    assert result.success
    (share,) = scene.shares()
    config = {"ops": {asset_op_name(scene.stream): {"config": {"from": "begin"}}}}
    assert share.run_config == config
    assert scene.replayed == [*ours, *theirs], "each once"
    assert scene.made() == {result.run_id: ours, share.run_id: theirs}


def test_the_asker_makes_what_a_killed_share_leaves(scene: SharedScene) -> None:
    scene.daemon = lambda run: scene.instance.report_run_failed(run, "its process was killed")
    result = scene.run("0", "7")
    assert result.success
    assert scene.made() == {result.run_id: ALL}


def test_a_shard_that_fails_in_a_share_fails_its_asker_which_names_it(scene: SharedScene) -> None:
    _, theirs, ours = of_other(scene)
    scene.failing = {theirs[0], theirs[2]}
    result = scene.run("0", "7")
    assert not result.success
    assert f"Shards {theirs[0]}, {theirs[2]}: an unexpected unit." in sentence(result)
    (share,) = scene.shares()
    assert share.status is DagsterRunStatus.FAILURE
    assert scene.made() == {result.run_id: ours, share.run_id: [theirs[1], theirs[3]]}


def test_a_share_that_never_begins_is_taken_back(scene: SharedScene) -> None:
    """As when all places of the queue are taken by runs that wait for their shares."""
    scene.daemon = lambda run: None
    result = scene.run("0", "7")
    assert result.success
    assert scene.now_s >= START_MAX_S
    assert scene.shares() == [], "what never began is no run of the backfill"
    assert scene.made() == {result.run_id: ALL}


def start(scene: SharedScene, run: dg.DagsterRun) -> None:
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name)
    scene.instance.report_dagster_event(event, run_id=run.run_id)


@pytest.mark.parametrize("manner", ["answers", "silent", "hangs"])
def test_a_share_of_a_node_that_died_is_given_up(scene: SharedScene, manner: str) -> None:
    other, _, _ = of_other(scene)
    scene.launcher.manner = manner

    def die(run: dg.DagsterRun) -> None:
        start(scene, run)
        rows = {node.name: node for node in scene.store.snapshot(scene.stream.key).nodes}
        dead = rows[NodeName(other)]
        scene.store.evict(
            scene.stream.key, dead.name, dead.lease_id, observer="test", reason="died"
        )

    scene.daemon = die
    result = scene.run("0", "7")
    assert result.success
    assert scene.made() == {result.run_id: ALL}
    (share,) = scene.shares()
    assert scene.launcher.terminated == [share.run_id]
    ended = DagsterRunStatus.CANCELED if manner == "answers" else DagsterRunStatus.FAILURE
    assert share.status is ended, "or the backfill would wait for it"


def test_a_wait_outlasts_a_silence_of_the_lease_store(
    scene: SharedScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, theirs, ours = of_other(scene)
    pulse, looks = scene.store.pulse, list[str]()

    def silent_at_first(key: GroupKey) -> Pulse:
        looks.append("look")
        if len(looks) == 1:
            raise StoreUnavailable("the lease store does not answer.")
        return pulse(key)

    monkeypatch.setattr(scene.store, "pulse", silent_at_first)
    result = scene.run("0", "7")
    assert result.success
    assert len(looks) > 1
    (share,) = scene.shares()
    assert scene.made() == {result.run_id: ours, share.run_id: theirs}


def test_a_share_whose_asker_has_ended_makes_nothing(scene: SharedScene) -> None:
    """Goal: what a killed run had asked for does not begin after it."""
    _, theirs, ours = of_other(scene)
    waiting: list[dg.DagsterRun] = []
    scene.daemon = waiting.append
    result = scene.run("0", "7")
    scene.consumed.clear()
    scene.instance.add_run(copy(waiting[0], status=DagsterRunStatus.QUEUED))
    scene.carry_out(waiting[0])
    (outcome,) = scene.outcomes
    assert f"Run {result.run_id}, which asked" in sentence(outcome)
    assert "has ended: materialize the partitions that it left" in sentence(outcome)
    assert scene.consumed == []
    assert scene.made() == {result.run_id: sorted([*theirs, *ours])}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_shares_end_with_their_asker(scene: SharedScene, error: type[BaseException]) -> None:
    """A share at work goes on if its asker fails, and ends with one that is terminated."""
    run = copy(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            asset_selection=frozenset(scene.selection),
            tags={RANGE_START_TAG: "0", "dagster/asset_partition_range_end": "7"},
        ),
        remote_job_origin=ORIGIN,
    )
    for begun in (False, True):
        shares = RangeShares(scene.instance, run, scene.stream, scene.deployment, lambda _: None)

        def work(shares: RangeShares = shares, begun: bool = begun) -> None:
            with shares.ending_with_run():
                next(iter(shares.rounds([[ShardId(shard) for shard in ALL]])))
                (share,) = scene.shares()
                if begun:
                    start(scene, share)
                raise error

        with pytest.raises(error):
            work()
        (share,) = scene.shares()
        works_on = begun and error is RuntimeError
        status = DagsterRunStatus.STARTED if works_on else DagsterRunStatus.CANCELED
        assert share.status is status
        scene.instance.delete_run(share.run_id)


def test_a_repeated_run_waits_for_the_shares_of_the_run_that_died(scene: SharedScene) -> None:
    _, theirs, ours = of_other(scene)
    orphans: list[dg.DagsterRun] = []
    scene.daemon = orphans.append
    died = scene.run("0", "7")
    scene.first = set(scene.materializations())
    orphan = orphans[0]
    scene.instance.add_run(copy(orphan, status=DagsterRunStatus.QUEUED))
    start(scene, orphan)

    def end(_: float) -> None:
        running = scene.instance.get_run_by_id(orphan.run_id)
        assert running is not None
        assert running.tags[SHARE_TAG] != died.run_id, "whoever waits for it is its asker"
        scene.carry_out(running)

    scene._sleep = end
    scene.repeats = died.run_id
    scene.consumed.clear()
    result = scene.run("0", "7")
    assert result.success
    assert [run.run_id for run in scene.shares()] == [orphan.run_id]
    assert scene.made() == {result.run_id: ours, orphan.run_id: theirs}
