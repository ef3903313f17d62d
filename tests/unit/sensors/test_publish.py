"""The step publishes at most once an interval, explains itself, and fails alone."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.errors import PublicationRefused, TableUnavailable
from dagster_leasehold.assets.output.table import group_table
from dagster_leasehold.assets.output.table.catalogs import LeaseDatabaseCatalog
from dagster_leasehold.assets.output.table.comparison import Comparison, TableComparison
from dagster_leasehold.assets.output.table.publish_rounds import (
    CHECK_AGAIN_EVERY_S,
    HELD_MAX_S,
    PublishingRun,
    PublishRounds,
    waits_for_publication,
)
from dagster_leasehold.assets.output.table.publisher import Publisher
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.publication_check import publication_check
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.sensors.publish import TICK_EARLY_S, TableWatch
from tests.table_engines import duckdb_query
from tests.unit.assets.consumption_world import NODE, OTHER
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.spark_doubles import until


@dataclass
class Scene:
    """The sensors of two deployments on one store, with nodes a and b."""

    publishing: Publishing
    checks: tuple[Any, ...] = ()
    now_s: float = 0.0
    rounds: dict[NodeName, PublishRounds] = field(default_factory=dict)
    watches: dict[NodeName, TableWatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = self.publishing.world
        settings = TableSettings(publish_interval_s=5.0, publication_checks=self.checks)
        stream = replace(world.stream, iceberg=settings)
        for node in (NODE, OTHER):
            deployment = Deployment(
                lambda: world.store, (node,), Timing(), lambda _: output_place(world.output)
            )
            self.rounds[node] = PublishRounds(
                stream,
                deployment,
                lambda node=node: {
                    row.name: row.incarnation
                    for row in world.store.pulse(world.key).nodes
                    if row.name == node and row.member
                },
                lambda: self.now_s,
                early_s=TICK_EARLY_S,
                jitter=lambda: 0.0,
            )
            self.watches[node] = TableWatch(self.rounds[node])

    def tick(self, node: NodeName = NODE) -> str:
        self.now_s += 1.0
        line, _ = self.rounds[node].tick()
        return line

    def consume(self, records: int = 1) -> None:
        world = self.publishing.world
        world.append(world.ids[0], records)
        world.consume(f"run-{self.now_s}")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(Publishing(tmp_path))


def test_waiting_batches_are_published_once_an_interval(scene: Scene) -> None:
    assert scene.tick() == "Everything that is committed is published."
    scene.consume()
    assert scene.tick().startswith("Published 6 batches of 21 records.")
    scene.consume()
    assert scene.tick() == "The next publication is due in 3 s."
    scene.now_s += 2.0
    assert scene.tick().startswith("Published 1 batches of 1 records.")
    assert scene.publishing.published() == scene.publishing.committed()


def test_ticks_as_far_apart_as_the_interval_publish_each_time(scene: Scene) -> None:
    """Goal: neither the time of a publication nor a tick that comes early doubles the interval."""
    for late_s in (0.0, 0.3, -0.4, 0.2, -0.5):
        scene.consume()
        scene.now_s += 4.0 + late_s
        assert scene.tick().startswith("Published")


def test_a_late_tick_does_not_delay_the_next_publication(scene: Scene) -> None:
    """Goal: commits are in the table an interval later, for any times of the ticks."""
    for gap_s in (5.0, 6.4, 3.6, 8.0, 2.0):
        scene.consume()
        scene.now_s += gap_s - 1.0
        assert scene.tick().startswith("Published")


def test_the_interval_is_kept_on_the_average(scene: Scene) -> None:
    rounds = scene.rounds[NODE]
    rounds.stream = replace(rounds.stream, iceberg=TableSettings(publish_interval_s=7.0))
    published = 0
    for _ in range(14):
        scene.consume()
        scene.now_s += 4.0
        published += scene.tick().startswith("Published")
    assert 9 <= published <= 70 / 7 + 1


def test_a_tick_names_the_table_and_its_snapshot(scene: Scene) -> None:
    scene.consume()
    line = scene.tick()
    snapshot = scene.publishing.metadata().current_snapshot_id
    place = f" Snapshot {snapshot} of leasehold.leasehold.orders."
    assert line.endswith(place)
    scene.now_s += 5.0
    assert scene.tick() == f"Everything that is committed is published.{place}"


def test_a_changing_table_is_observed_regularly(scene: Scene) -> None:
    """Goal: an observation has the figures of the table; many snapshots make few observations."""
    shown = list[dg.AssetObservation]()
    with dg.DagsterInstance.ephemeral() as instance:

        def observe() -> list[dg.AssetObservation]:
            observed = scene.watches[NODE].observed(instance)
            for each in observed:
                instance.report_runless_asset_event(each)
            return observed

        for _ in range(140):
            scene.consume()
            scene.now_s += 4.0
            scene.tick()
            shown += observe()
        assert len(shown) == 3, "within 700 s"
        metadata = shown[-1].metadata
        rows = duckdb_query(scene.publishing.metadata_at(), "count(*)")
        assert rows == [(160,)]
        assert 100 < metadata["dagster/row_count"].value <= 160
        assert metadata["unpublished_batches"].value == 0
        assert metadata["dagster/column_schema"].schema.columns[0].name == "shard_id"
        scene.now_s += 300.0
        (last,) = observe()
        assert last.metadata["dagster/row_count"].value == 160
        scene.now_s += 300.0
        assert observe() == []
        # After a restart, Dagster knows the last reported snapshot.
        scene.watches[NODE]._observed = None
        scene.now_s += 300.0
        assert observe() == []


def checked(scene: Scene, instance: dg.DagsterInstance) -> list[str | None]:
    """Return the check that the sensor stores an hour after the last one."""
    scene.now_s += 3_600.0
    evaluations = scene.watches[NODE].checked(instance)
    for each in evaluations:
        instance.report_runless_asset_event(each)
    return [each.description for each in evaluations]


def test_the_outcome_of_the_check_is_stored_when_it_changes_and_once_a_day(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree = ["Table and ledger agree, file by file."]
    with dg.DagsterInstance.ephemeral() as instance:
        assert checked(scene, instance) == [], "before there is a table"
        scene.consume()
        scene.tick()
        assert checked(scene, instance) == agree
        assert checked(scene, instance) == []
        differences = Comparison(5, ("The file a of 3 records is missing in the table.",))
        with monkeypatch.context() as patched:
            patched.setattr(TableComparison, "compare", lambda _: differences)
            assert scene.watches[NODE].checked(instance) == [], "within the hour it is not made"
            (shown,) = checked(scene, instance)
            assert shown is not None
            assert shown.endswith("1. The file a of 3 records is missing in the table.")
            assert checked(scene, instance) == []
        assert checked(scene, instance) == agree
        assert checked(scene, instance) == []
        scene.watches[NODE].now = lambda: datetime.now(UTC) + timedelta(days=1)
        assert checked(scene, instance) == agree


def test_a_failed_comparison_is_repeated_and_fails_no_other_step(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.consume()
    scene.tick()
    with dg.DagsterInstance.ephemeral() as instance:
        with monkeypatch.context() as patched:

            def away(_: object) -> None:
                raise OSError("the catalog is away")

            patched.setattr(TableComparison, "compare", away)
            assert scene.watches[NODE].checked(instance) == []
        assert scene.watches[NODE].checked(instance) == [], "it waits"
        scene.consume()
        scene.now_s += 5.0
        assert scene.tick().startswith("Published")
        assert len(scene.watches[NODE].checked(instance)) == 1


def test_two_deployments_publish_one_snapshot_per_interval(scene: Scene) -> None:
    """Method: both tick each second; each knows of the other only through the store."""
    published = 0
    for _ in range(60):
        scene.consume()
        for node in (NODE, OTHER):
            line, trouble = scene.rounds[node].tick()
            published += line.startswith("Published")
            assert not trouble
        scene.now_s += 1.0
    assert 10 <= published <= 60 / 5 + 2
    scene.rounds[OTHER].nodes = dict
    scene.now_s += 10.0
    assert scene.tick().startswith("Published"), "whoever is left continues"
    assert scene.publishing.published() == scene.publishing.committed()


class Runs:
    """Two runs of one node that publish, and what they know of each other's end."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.over = scene, set[str]()
        world, sensor = scene.publishing.world, scene.rounds[NODE]
        self.store, self.key = world.store, world.key
        stream = replace(world.stream, iceberg=TableSettings(publish_interval_s=0.0))
        self.first, self.second = (
            PublishRounds(
                stream,
                sensor.deployment,
                sensor.nodes,
                lambda: scene.now_s,
                run=run,
                ended=self.over.__contains__,
            )
            for run in ("first", "second")
        )

    def all_is_published(self) -> bool:
        publication = self.store.publication(self.key)
        return publication is not None and not waits_for_publication(
            self.store, self.key, publication
        )

    def leave_turn(self) -> None:
        """The first run takes the lock and is killed."""
        with pytest.MonkeyPatch.context() as patch:

            def killed(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(Publisher, "publish", killed)
            patch.setattr(self.store, "release_publish_lock", lambda lock: None)
            with pytest.raises(KeyboardInterrupt):
                self.first.tick()


def test_a_run_leaves_the_lock_to_another_run_of_its_node(scene: Scene) -> None:
    runs = Runs(scene)
    scene.consume()
    runs.leave_turn()
    assert runs.second.tick()[0].startswith("Node a publishes; 6 committed batches")
    assert scene.tick().startswith("Node a publishes; "), "so does the sensor"
    runs.over.add("first")
    assert runs.second.tick()[0].startswith("Published 6 batches")
    assert runs.first.tick()[0].startswith("Everything that is committed is published.")


def test_the_lock_of_an_unknown_run_is_taken_over_after_a_time(scene: Scene) -> None:
    runs = Runs(scene)
    scene.consume()
    runs.leave_turn()
    runs.second.tick()
    scene.now_s += HELD_MAX_S - 1.0
    assert runs.second.tick()[0].startswith("Node a publishes; ")
    scene.now_s += 1.0
    assert runs.second.tick()[0].startswith("Published 6 batches")


def test_a_run_that_cannot_open_the_catalog_holds_no_lock(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host has no way to the catalog; the deployment's own has one."""
    runs = Runs(scene)
    scene.consume()
    with monkeypatch.context() as patched:

        def away(**_: object) -> None:
            raise TableUnavailable("Catalog lake cannot be reached.")

        patched.setattr(group_table, "build_publisher", away)
        line, trouble = runs.first.tick()
        assert trouble
        assert line.startswith("publishing failed (Catalog lake cannot be reached.)")
    assert scene.tick().startswith("Published 6 batches")


def test_a_run_publishes_its_commits_while_it_consumes(scene: Scene) -> None:
    runs = Runs(scene)
    with PublishingRun(runs.first) as publishing:
        for _ in range(3):
            scene.consume()
            publishing.committed()
            assert until(runs.all_is_published)
        scene.consume()
        publishing.committed()
    assert scene.publishing.published() == scene.publishing.committed(), "its last batch as well"
    publication = runs.store.publication(runs.key)
    assert publication is not None
    assert publication.node is None


def test_a_run_continues_during_an_outage_of_the_catalog(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(scene)
    refused = Event()

    def away(*_: object) -> None:
        refused.set()
        raise OSError("the disk is away")

    with PublishingRun(runs.first) as publishing:
        with monkeypatch.context() as patched:
            patched.setattr(LeaseDatabaseCatalog, "publish", away)
            scene.consume()
            publishing.committed()
            assert refused.wait(30)
        scene.now_s += 600.0
        assert until(runs.all_is_published)


def test_an_idle_tick_costs_two_statements(scene: Scene) -> None:
    scene.consume()
    scene.tick()
    scene.now_s += 5.0
    before = scene.publishing.store.statements.copy()
    scene.tick()
    assert (scene.publishing.store.statements - before).total() == 2
    scene.tick()


def test_a_failed_publication_is_repeated_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.consume()
    with monkeypatch.context() as patched:

        def away(*_: object) -> None:
            raise OSError("the disk is away")

        patched.setattr(LeaseDatabaseCatalog, "publish", away)
        line, trouble = scene.rounds[NODE].tick()
        assert trouble
        assert "the disk is away" in line
        assert "; 6 committed batches with 21 records wait since " in line
    scene.now_s += 3.0
    line = scene.tick()
    assert line.startswith("publishing is tried again in 1 s (OSError: the disk is away); 6 commi")
    scene.now_s += 600.0
    assert scene.tick().startswith("Published")
    assert scene.publishing.published() == scene.publishing.committed()


def test_a_refused_publication_is_repeated_after_a_wait_and_shown_in_status(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an hour of refusals is a few attempts, further apart each time, and with jitter."""
    attempts, rounds = list[float](), scene.rounds[NODE]
    parts = iter([0.9, 0.1] * 100)
    rounds.steps.jitter = lambda: next(parts)

    def refused(*_: object) -> None:
        attempts.append(scene.now_s)
        raise PublicationRefused("Catalog lake refused a publication.")

    scene.consume()
    with monkeypatch.context() as patched:
        patched.setattr(LeaseDatabaseCatalog, "publish", refused)
        first, trouble = rounds.tick()
        assert trouble
        assert "publishing failed (Catalog lake refused a publication.)" in first
        for _ in range(3_600):
            line = scene.tick()
            assert "refused a publication" in line or "tried again in" in line
    assert 12 <= len(attempts) <= 30
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert waits[0] < waits[3] < max(waits) <= 301
    assert len(set(waits)) > 5
    scene.now_s += 300
    assert scene.tick().startswith("Published")


def test_without_a_live_node_nothing_is_published(scene: Scene) -> None:
    scene.consume()
    scene.rounds[NODE].nodes = dict
    line, _ = scene.rounds[NODE].tick()
    assert line.startswith(
        "No node of this deployment is alive in the group; 6 committed batches with 21 "
        "records wait since "
    )


def test_the_step_loads_pyiceberg_only_if_batches_wait() -> None:
    code = (
        "import sys; from dagster_leasehold.sensors.publish import publish_step; "
        "import dagster_leasehold.orchestration.build; "
        "sys.exit('pyiceberg' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_held_publication_is_red_and_green_again_without_help(tmp_path: Path) -> None:
    """Goal: the check of Dagster follows the holds, and held batches are checked again."""
    answers = ["the partner's list is empty"]
    check = publication_check(lambda _: answers[0] if answers else None, name="partner")
    scene = Scene(Publishing(tmp_path), (check,))
    scene.consume()
    watch = scene.watches[NODE]
    with dg.DagsterInstance.ephemeral() as instance:

        def outcomes() -> list[tuple[str, bool, str]]:
            new = watch.checked_contents(instance)
            for event in new:
                instance.report_runless_asset_event(event)
            return [(each.check_name, each.passed, each.severity.value) for each in new]

        assert outcomes() == [("partner", True, "WARN")]
        line, problem = scene.rounds[NODE].tick()
        assert problem
        assert "failed the publication check partner: 4 of 4 records fail" in line
        assert outcomes() == [("partner", False, "ERROR")]
        scene.now_s += 5.0
        # Held output is no reason to publish, and no new outcome.
        assert scene.tick().startswith("Everything that is committed is published.")
        assert outcomes() == []
        answers.clear()
        scene.now_s += CHECK_AGAIN_EVERY_S
        assert scene.tick().startswith("Published 6 batches of 21 records.")
        assert outcomes() == [("partner", True, "WARN")]
        assert scene.publishing.published() == scene.publishing.committed()
