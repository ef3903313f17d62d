"""A catalog that commits by itself: a lost reply, a death, and a loser are settled by the next."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from dagster_leasehold.assets.errors import PublicationRefused, TableUnavailable
from dagster_leasehold.assets.output.table.evolution import Evolution, apply_evolution
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests import object_store
from tests.failpoints import Failpoint
from tests.hive_metastore import hive_metastore
from tests.own_environments import PackagesMissing
from tests.rest_catalog import TOKEN, Commits, give_token, rest_catalog
from tests.table_engines import duckdb_query, duckdb_rows
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_publisher import Killed, die_at

LONG = pytest.mark.long


class Scene(Publishing):
    """A publisher of a table in a catalog that is an external service, or behaves like one."""

    def metadata_at(self) -> str:
        return self.service().load_table("leasehold.orders").metadata_location

    def service(self) -> Any:
        return load_catalog(self.catalog.name, **self.catalog.properties)

    def kind(self) -> Any:
        """PyIceberg's class of the catalog."""
        return type(self.service())

    def snapshots(self) -> int:
        return len(self.service().load_table("leasehold.orders").metadata.snapshots)

    def consume(self, run: str) -> None:
        self.world.append(self.world.ids[0], 3)
        self.world.consume(run)


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    pytest.importorskip("thrift")
    try:
        with hive_metastore(tmp_path_factory.mktemp("hive")) as uri:
            yield uri
    except PackagesMissing as error:
        pytest.skip(f"There is no Hive metastore: {error}")


@pytest.fixture
def rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """A REST service, whose token is in the environment alone."""
    give_token(monkeypatch)
    with rest_catalog(tmp_path) as uri:
        yield uri


@pytest.fixture(
    params=["sql", *(pytest.param(each, marks=LONG) for each in ("rest", "glue", "hive"))]
)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Scene]:
    kind = request.param
    properties = {"type": kind}
    if kind == "sql":
        properties |= {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "none"}
    elif kind == "glue":
        object_store.serve()
        for name, value in object_store.ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        properties["glue.endpoint"] = object_store.ENVIRONMENT["AWS_ENDPOINT_URL_S3"]
    else:
        properties["uri"] = request.getfixturevalue(kind)
    if kind == "hive":
        properties["hive.hive2-compatible"] = "true"  # the server is one of Hive 2
    scene = Scene(tmp_path, catalog=CatalogSettings("lake", properties))
    scene.world.consume()
    yield scene
    if kind in ("glue", "hive"):
        scene.service().drop_table("leasehold.orders")


def once(scene: Scene, count: int) -> None:
    assert scene.published() == scene.committed()
    assert len(scene.published()) == count


def test_committed_batches_are_published(scene: Scene) -> None:
    assert str(scene.publish()) == "Published 6 batches of 20 records."
    once(scene, 20)
    row = scene.store.publication(scene.world.key)
    assert row.pending is None
    assert row.records == 20
    at = scene.metadata_at()
    assert duckdb_query(at, "count(*)", "event_time < '1990-01-01T00:00:00Z'") == [(0,)]


def test_columns_are_renamed_and_removed(scene: Scene) -> None:
    scene.publish()
    lock = scene.lock()
    assert isinstance(lock, PublishLock)
    evolution = Evolution({"value": "line"}, ["attributes"])
    assert len(apply_evolution(scene.publisher(), lock, evolution, "test").sentences) == 2
    scene.store.release_publish_lock(lock)
    scene.consume("run-2")
    scene.publish()
    rows = duckdb_rows(scene.metadata_at())
    assert sorted(row["line"] for row in rows) == scene.committed()
    assert len(rows) == 23
    assert not {"value", "attributes"} & {*rows[0]}


def test_the_next_publisher_settles_a_lost_reply(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the catalog takes the publication, and its answer does not come."""
    commit = scene.kind().commit_table

    def lost(*arguments: Any) -> None:
        commit(*arguments)
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(scene.kind(), "commit_table", lost)
        with pytest.raises(TableUnavailable, match="did not accept the request"):
            scene.publish()
    assert scene.snapshots() == 1
    report = scene.publish()
    assert report.explanation == "Everything that is committed is published."
    assert scene.snapshots() == 1
    once(scene, 20)
    scene.consume("run-2")
    scene.publish()
    once(scene, 23)


def test_a_publication_that_never_arrived_is_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise CommitFailedException("somebody was faster")

    with monkeypatch.context() as patched:
        patched.setattr(scene.kind(), "commit_table", refused)
        with pytest.raises(PublicationRefused, match="somebody was faster"):
            scene.publish()
    scene.consume("run-2")
    scene.publish()
    once(scene, 23)
    assert scene.store.publication(scene.world.key).pending is None


def test_a_slow_request_that_arrives_late_is_refused_by_the_catalog(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A request is on its way. 2. Another publication lands. 3. The request arrives."""
    commit = scene.kind().commit_table
    late: list[tuple[Any, ...]] = []

    def delayed(*arguments: Any) -> None:
        late.append(arguments)
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(scene.kind(), "commit_table", delayed)
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


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("status", [403, 409, 500, 502, 503, 504, 0])
def test_at_most_one_request_is_pending_for_any_reply_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, takes: bool
) -> None:
    """Method: the service refuses, or commits and reports a failure, or closes the connection."""
    give_token(monkeypatch)
    commits = Commits(status, takes)
    with rest_catalog(tmp_path, commits=commits) as uri:
        scene = Scene(tmp_path, catalog=CatalogSettings("lake", {"type": "rest", "uri": uri}))
        scene.world.consume()
        attempts, files = 4, set[int]()
        for _ in range(attempts):
            with suppress(TableUnavailable):
                scene.publish()
            files.add(len([*scene.world.output.glob("metadata/*-m0.avro")]))
        assert len(files) == 1, "nothing is staged anew"
        assert len(set(commits.requests)) == 1
        assert scene.snapshots() == int(takes)
        if takes:
            assert scene.store.publication(scene.world.key).pending is None
        commits.status = None
        scene.publish()
        once(scene, 20)
        assert scene.snapshots() == 1


def test_a_secret_of_the_environment_opens_the_catalog_and_is_never_shown(
    tmp_path: Path, rest: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Method: the service wants a token, and repeats that of whom it refuses."""
    caplog.set_level("DEBUG")
    scene = Scene(tmp_path, catalog=CatalogSettings("lake", {"type": "rest", "uri": rest}))
    scene.world.consume()
    scene.publish()
    once(scene, 20)
    publisher = scene.publisher()
    wrong = "wrong-4711"
    give_token(monkeypatch, wrong)
    with pytest.raises(
        TableUnavailable, match=r"^Catalog lake cannot be opened \(\w+: [^\n]+$"
    ) as no:
        scene.publisher()
    assert "nobody is" in str(no.value)
    metadata = b"".join(path.read_bytes() for path in scene.world.output.rglob("metadata/*"))
    shown = f"{no.value}{caplog.text}{publisher!r}{publisher.group.catalog!r}{scene.catalog!r}"
    for secret in (TOKEN, wrong):
        assert secret not in shown
        assert secret.encode() not in metadata
