"""Output at the location that a catalog assigns, with credentials that it vends for seconds.

The catalog follows the REST specification, and the store refuses credentials that have expired or
belong to another prefix. Runs die by an error that nothing may catch.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.table import table_access
from dagster_leasehold.assets.output.table.assigned_location import (
    assigned_place,
    create_assigned_table,
)
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from tests import object_store
from tests.failpoints import Failpoint
from tests.integration.assets.runs import WAYS
from tests.integration.assets.sweeping import Sweeping
from tests.rest_catalog import TOKEN, Assigning, give_token, rest_catalog
from tests.session_store import Sessions, session_store
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing

LIFE_S = 2.0
LONG_S = 3600.0
BOTH = (ShardId("0"), ShardId("1"))


class Killed(BaseException):
    """The end of a process."""


@dataclass
class Scene:
    """A stream whose output is where the catalog assigns it, and the publisher of its table."""

    folder: Path
    catalog: CatalogSettings
    service: Assigning
    sessions: Sessions

    def __post_init__(self) -> None:
        self.world = World(self.folder)
        self.publishing = Publishing(self.folder, catalog=self.catalog, world=self.world)

    def begin(self) -> OutputPlace:
        """Begin a process: it has the place, and forgets what others knew of the catalog."""
        table_access._credentials_of.cache_clear()
        create_assigned_table(
            self.world.store, self.world.key, self.publishing.settings, self.catalog
        )
        place = assigned_place(self.world.store, self.world.key, self.catalog)
        self.world.place = self.world.sweeper.output_root = owned(self.world.store, place)
        return place

    def consume(self, run: str) -> set[str]:
        """Run once, and return the errors."""
        return {report.error for report in self.world.consume(run).values()}

    def append(self, records: int = 2) -> None:
        for shard in self.world.ids:
            self.world.append(shard, records)

    def read(self) -> list[bytes]:
        """The values that a reader of ours gets."""
        world = self.world
        output = CommittedOutput(
            world.store, world.key, world.place, self.publishing.settings, self.catalog
        )
        return output.dataset(wait=True).to_table().column("value").to_pylist()

    def expected(self, count: int) -> list[bytes]:
        return [*self.world.expected("0", count), *self.world.expected("1", count)]

    def table(self) -> Any:
        """The table as PyIceberg opens it, with credentials of its own."""
        return load_catalog("lake", **self.catalog.properties).load_table("leasehold.orders")

    def let_expire(self) -> None:
        time.sleep(self.sessions.lifetime_s + 0.1)


@contextmanager
def killed_at(point: Failpoint) -> Generator[None]:
    def reach(reached: str) -> None:
        if reached == point.label:
            raise Killed

    with mock.patch.object(failpoints, "reach", reach), pytest.raises(Killed):
        yield


@pytest.fixture
def scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Generator[Scene]:
    """A catalog; no process has keys of the store's in its environment."""
    give_token(monkeypatch)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    sessions = Sessions(**getattr(request, "param", {"lifetime_s": LIFE_S}))
    with session_store(sessions) as bucket:
        service = Assigning(f"s3://{bucket}/lake", sessions)
        own = object_store.PYICEBERG
        with rest_catalog(tmp_path, properties=own, assigning=service) as uri:
            settings = CatalogSettings("lake", {"type": "rest", "uri": uri}, assigns=True)
            yield Scene(tmp_path, settings, service, sessions)


long_lived = pytest.mark.parametrize("scene", [{"lifetime_s": LONG_S}], indirect=True)


@long_lived
def test_the_table_is_made_first_and_output_is_at_its_location(scene: Scene) -> None:
    place = scene.begin()
    at = str(place)
    assert at.startswith(scene.service.warehouse)
    assert scene.table().metadata.location == at
    assert not scene.table().metadata.snapshots
    scene.world.consume()
    scene.publishing.publish()
    assert scene.read() == scene.expected(10)
    assert sorted(scene.table().scan().to_arrow().column("value").to_pylist()) == sorted(
        scene.expected(10)
    )
    assert scene.table().metadata.location == at
    assert not scene.sessions.refused
    assert not scene.world.output.exists()


@pytest.mark.parametrize("separately", [True, False])
def test_a_run_outlives_its_credentials_many_times(scene: Scene, separately: bool) -> None:
    scene.service.separately = separately
    scene.begin()
    began_s, count = time.monotonic(), 10
    while time.monotonic() - began_s < 4 * LIFE_S:
        scene.append()
        count += 2
        assert scene.consume("run-1") == {""}
        scene.publishing.publish()
        time.sleep(0.2)
    assert scene.read() == scene.expected(count)
    assert not scene.sessions.refused, "they are renewed in time"
    assert bool(scene.service.credentials) == separately


def test_a_catalog_that_is_away_holds_commits_and_loses_nothing(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.begin()
    assert scene.consume("run-1") == {""}
    time.sleep(LIFE_S / 2)
    scene.service.away = True
    scene.append()
    assert scene.consume("run-2") == {""}, "what it has is still valid"
    assert "The last credentials are still valid." in caplog.text
    scene.let_expire()
    scene.append()
    with pytest.raises(OSError, match=r"^Catalog lake does not give access .*: check that it runs"):
        scene.consume("run-3")
    with pytest.raises(TableUnavailable, match=r"^Catalog lake"):
        scene.begin()
    scene.service.away = False
    scene.begin()
    assert scene.consume("run-4") == {""}
    scene.publishing.publish()
    assert scene.read() == scene.expected(14)


POINTS = (Failpoint.AFTER_TABLE, Failpoint.AFTER_INTENT, Failpoint.BEFORE_COMMIT)


@long_lived
@pytest.mark.parametrize("point", POINTS)
def test_killed_between_the_table_and_the_first_commit(scene: Scene, point: Failpoint) -> None:
    with killed_at(point):
        scene.begin()
        scene.world.consume()
    at = scene.table().metadata.location
    assert str(scene.begin()) == at, "the table is created once"
    assert scene.consume("run-2") == {""}
    scene.publishing.publish()
    assert scene.read() == scene.expected(10)


@pytest.mark.parametrize("point", [Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT])
def test_killed_when_its_credentials_expire(scene: Scene, point: Failpoint) -> None:
    scene.begin()
    with killed_at(point):
        scene.world.consume()
    scene.let_expire()
    scene.begin()
    assert scene.consume("run-2") == {""}
    for kill in (Failpoint.AFTER_STAGE, Failpoint.BEFORE_PUBLISH, Failpoint.AFTER_PUBLISH):
        with killed_at(kill):
            scene.publishing.publish()
        scene.let_expire()
        scene.append()
        scene.consume(f"run-{kill.label}")
    scene.publishing.publish()
    assert scene.read() == scene.expected(16)


def test_output_is_rewritten_and_cleaned_across_expiries(scene: Scene) -> None:
    """Method: consume, replay, compact and vacuum, and each begins with expired credentials."""
    world = scene.world
    scene.begin()
    world.consume()
    steps: list[Callable[[], Any]] = [
        lambda: Replayer(
            stream=world.stream,
            store=world.store,
            output_root=world.place,
            sweeper=world.sweeper,
            run="replay-1",
            ended=lambda _: False,
        ).replay(BOTH, ReplaySpan.parse(None, None)),
        lambda: Compactor(
            store=world.store,
            key=world.key,
            output_root=world.place,
            run="compact-1",
            ended=lambda _: False,
        ).compact(BOTH),
    ]
    for step in steps:
        scene.let_expire()
        assert {report.error for report in step().values()} == {""}
        scene.publishing.publish()
        assert scene.read() == scene.expected(10)
    scene.let_expire()
    orphan = world.place / "attempts/dead-0/0.parquet"
    orphan.put(b"x")
    time.sleep(2.2)  # the store dates objects to the second
    report = vacuum(
        world.store, world.key, world.place, older_than=timedelta(seconds=1), catalog=scene.catalog
    )
    assert "attempts/dead-0/0.parquet" in report.removed
    assert scene.read() == scene.expected(10)


@long_lived
def test_a_table_that_was_created_again_elsewhere_is_refused(scene: Scene) -> None:
    scene.begin()
    scene.world.consume()
    table = load_catalog("lake", **scene.catalog.properties)
    service = scene.service
    name = ("leasehold", "orders")
    schema = scene.table().schema()
    drop(scene)
    with pytest.raises(TableUnavailable, match=r"is not there, and committed output is at its"):
        scene.begin()
    table.create_table(name, schema)
    with pytest.raises(TableUnavailable, match=rf"is at {service.warehouse}.* now, and its files"):
        scene.begin()


def drop(scene: Scene) -> None:
    """Drop the table, as an administrator does."""
    state = f"sqlite:///{scene.folder}/service/catalog.db"
    SqlCatalog("service", uri=state, warehouse="none").drop_table("leasehold.orders")


@long_lived
def test_remote_signing_is_refused_in_a_sentence(scene: Scene) -> None:
    scene.service.signs = True
    with pytest.raises(
        TableUnavailable, match=r"^Catalog lake signs each request .*: configure the catalog"
    ):
        scene.begin()


@long_lived
def test_another_group_cannot_have_the_location(scene: Scene) -> None:
    scene.begin()
    other = GroupKey.parse("other", "orders")
    scene.world.store.create_group(replace(scene.world.stream, group="other").new_group(20.0))
    settings = TableSettings(name="leasehold.orders")
    with pytest.raises(TableUnavailable, match=r"publishes to the table leasehold\.orders"):
        create_assigned_table(scene.world.store, other, settings, scene.catalog)


@long_lived
def test_without_a_table_the_place_is_unknown(scene: Scene) -> None:
    with pytest.raises(TableUnavailable, match=r"has no table yet in catalog lake"):
        assigned_place(scene.world.store, scene.world.key, scene.catalog)


def test_credentials_are_shown_nowhere(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Method: everything that a process logs, sends, says or writes, also as it fails."""
    caplog.set_level("DEBUG")
    place = scene.begin()
    scene.world.consume()
    scene.publishing.publish()
    assert scene.read() == scene.expected(10)
    sent = [
        pickle.dumps(place),
        repr(place).encode(),
        repr(table_access._credentials_of.__dict__).encode(),
    ]
    held = table_access._credentials_of(place.access)  # pyright: ignore[reportAttributeAccessIssue]
    sent += [repr(held).encode(), repr(held.newest()).encode()]
    messages: list[str] = []
    scene.service.given = [{"prefix": 7, "config": scene.sessions.issue("s3://x/y")}]
    for _ in range(2):
        scene.let_expire()
        with pytest.raises(OSError, match="its reply is not valid") as failed:
            place.content()
        with pytest.raises(TableUnavailable) as refused:
            scene.begin()
        messages += [f"{error.value!r} {error.getrepr()}" for error in (failed, refused)]
        scene.service.given = [{"prefix": "s3://", "config": "secret"}]
    files = [
        path.read_bytes()
        for path in scene.folder.rglob("*")
        if path.is_file() and "log" not in path.parts
    ]
    scene.service.given, shown = (
        None,
        b"".join((*sent, *files, *(each.encode() for each in messages))),
    )
    shown += caplog.text.encode() + repr(vars(scene.world.store)).encode()
    place = scene.begin()
    shown += b"".join((place / path).content() or b"" for path in place.names("metadata"))
    assert len(scene.sessions.secrets) > 9
    for secret in (TOKEN, *scene.sessions.secrets):
        assert secret.encode() not in shown


@pytest.mark.spark
@long_lived
@pytest.mark.parametrize(
    "case", ["check_records_come_out_as_they_went_in", "check_a_shuffle_keeps_shards_apart"]
)
def test_spark_workers_get_credentials_themselves(
    scene: Scene, case: str, connect_session: Any, tmp_path: Path
) -> None:
    place = scene.begin()
    issued = len(scene.sessions.ends)
    getattr(Sweeping(connect_session, tmp_path / "sweep", place=place), case)()
    assert len(scene.sessions.ends) > issued
    assert not scene.sessions.refused


@pytest.mark.spark
def test_a_catalog_that_is_away_fails_shards_in_one_sentence(
    scene: Scene, connect_session: Any, tmp_path: Path
) -> None:
    place = scene.begin()
    scene.service.away = True
    scene.let_expire()
    results = Sweeping(connect_session, tmp_path / "sweep", place=place).run(WAYS["arrow"])
    for error in results.values():
        assert isinstance(error, LeaseholdError)
        assert "Catalog lake" in str(error)
        assert "\n" not in str(error)
        assert not any(secret in str(error) for secret in scene.sessions.secrets)
