"""A catalog that commits by itself: a lost reply, a death, and a loser are settled by the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.failpoints import Failpoint
from tests.table_engines import duckdb_query
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_publisher import Killed, die_at


class Scene(Publishing):
    """A publisher of a table in a SQL catalog of its own, as if it were somebody's service."""

    def metadata_at(self) -> str:
        return self.service().load_table("leasehold.orders").metadata_location

    def service(self) -> Any:
        return load_catalog(self.catalog.name, **self.catalog.properties)

    def snapshots(self) -> int:
        return len(self.service().load_table("leasehold.orders").metadata.snapshots)

    def consume(self, run: str) -> None:
        self.world.append(self.world.ids[0], 3)
        self.world.consume(run)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "none"}
    scene = Scene(tmp_path, catalog=CatalogSettings("lake", properties))
    scene.world.consume()
    return scene


def once(scene: Scene, count: int) -> None:
    assert scene.published() == scene.committed()
    assert len(scene.published()) == count


def test_committed_batches_are_published(scene: Scene) -> None:
    assert str(scene.publish()) == "Published 6 batches of 20 records."
    once(scene, 20)
    row = scene.store.publication(scene.world.key)
    assert row.recorded == ()
    at = scene.metadata_at()
    assert duckdb_query(at, "count(*)", "event_time < '1990-01-01T00:00:00Z'") == [(0,)]


def test_a_reply_that_was_lost_is_settled_by_the_next_turn(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the catalog takes the publication, and its answer does not come."""
    commit = SqlCatalog.commit_table

    def lost(*arguments: Any) -> None:
        commit(*arguments)
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lost)
        with pytest.raises(TableUnavailable, match="did not take the request"):
            scene.publish()
    assert scene.snapshots() == 1
    report = scene.publish()
    assert report.explanation == "Everything that is committed is published."
    assert scene.snapshots() == 1
    once(scene, 20)
    scene.consume("run-2")
    scene.publish()
    once(scene, 23)


def test_a_publication_that_never_arrived_is_made_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise CommitFailedException("somebody was faster")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", refused)
        assert "Somebody else has committed" in scene.publish().explanation
    scene.consume("run-2")
    scene.publish()
    once(scene, 23)
    assert scene.store.publication(scene.world.key).recorded == ()


def test_a_slow_request_that_arrives_late_is_refused_by_the_catalog(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A request is on its way. 2. Another publication lands. 3. The request arrives."""
    commit = SqlCatalog.commit_table
    late: list[tuple[Any, ...]] = []

    def delayed(*arguments: Any) -> None:
        late.append(arguments)
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", delayed)
        with pytest.raises(TableUnavailable):
            scene.publish()
    scene.publish()
    with pytest.raises(CommitFailedException):
        commit(*late[0])
    once(scene, 20)


@pytest.mark.parametrize(
    "point", [Failpoint.AFTER_STAGE, Failpoint.BEFORE_PUBLISH, Failpoint.AFTER_PUBLISH]
)
def test_killed_at_any_step_each_record_is_published_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: Failpoint
) -> None:
    with monkeypatch.context() as patched:
        die_at(point, patched)
        with pytest.raises(Killed):
            scene.publish()
    scene.publish()
    once(scene, 20)
    scene.consume("run-2")
    scene.publish()
    once(scene, 23)
