"""A catalog that serves reads and refuses commits: one pending request, and a flat cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, ServiceUnavailableError
from pyiceberg.types import StringType

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.group_table import build_publisher
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.conformance.world import A, World
from tests.unit.assets.output.table.test_late_commit import lake

ANSWERS = {
    "403": ForbiddenError("ForbiddenException: not yours"),
    "409": CommitFailedException("CommitFailedException: branch main has changed"),
    "503": ServiceUnavailableError("ServiceUnavailableException: later"),
    "none": TimeoutError("no answer"),
}
SHARDS = 1_000
COLUMNS = [{"name": "shard_id", "type": "string"}, {"name": "value", "type": "binary"}]


class Scene:
    """A thousand shards with a committed batch each, whose files are not read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.catalog, self.settings = folder, lake(folder), TableSettings()
        self.world = World(MemoryStore(), GroupKey.parse("default", "orders"))
        self.world.group()
        self.world.join(A)
        shards = [ShardId(f"s{number}") for number in range(SHARDS)]
        self.world.add(*shards)
        self.tenures = self.world.hold(A, *shards)
        self.world.store.agree_columns(self.world.key, COLUMNS, seen_version=0)
        for tenure in self.tenures:
            self.commit(tenure, 0)
        self.publisher = build_publisher(
            store=self.world.store,
            key=self.world.key,
            settings=self.settings,
            catalog=self.catalog,
            place=output_place(folder / "output"),
            now_ms=lambda: 1_800_000_000_000,
            new_id=uuid4,
        )

    def commit(self, tenure: Any, number: int) -> None:
        file = DataFile(f"attempts/1/{tenure.shard}.{number}", 4, 50, untimed=4)
        self.world.consume(tenure, str(number), str(number + 1), number, files=(file,))

    def publish(self) -> Any:
        name = self.settings.table_name(self.catalog.name, self.world.key)
        store, key = self.world.store, self.world.key
        lock = store.take_publish_lock(key, A, self.world.incarnations[A], name)
        assert isinstance(lock, PublishLock)
        return self.publisher.publish(lock)

    def table(self) -> Any:
        catalog: Any = load_catalog(self.catalog.name, **self.catalog.properties)
        return catalog.load_table("leasehold.orders")

    def rest(self) -> tuple[object, list[str]]:
        """Return the rest of a failed attempt: the row of the publication, and metadata files."""
        row = self.world.store.publication(self.world.key)
        assert row is not None
        values = (row.pending, row.last, row.number, row.snapshot)
        return values, sorted(path.name for path in (self.folder / "output/metadata").iterdir())


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("attempts", [20, pytest.param(10_000, marks=pytest.mark.release)])
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_refused_request_is_stored_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, answer: str, attempts: int
) -> None:
    requests = list[str]()

    def refused(_: object, table: object, requirements: Any, updates: Any) -> None:
        requests.append(repr((requirements, updates)))
        raise ANSWERS[answer]

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", refused)
        with pytest.raises(TableUnavailable):
            scene.publish()
        first = scene.rest()
        for _ in range(attempts):
            with pytest.raises(TableUnavailable):
                scene.publish()
        assert scene.rest() == first
    assert len(requests) == attempts + 1
    assert len(set(requests)) == 1, "the same request is sent again"
    scene.commit(scene.tenures[0], 1)
    while scene.publish().more:
        pass
    files = [task.file.file_path for task in scene.table().scan().plan_files()]
    assert len(files) == len(set(files)) == SHARDS + 1
    assert scene.publish().explanation == "Everything that is committed is published."


def test_each_late_publication_leaves_two_files(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: another program adds a column before each request, which requires the former ones."""
    scene.publish()
    scene.commit(scene.tenures[0], 1)
    commit, before, attempts = SqlCatalog.commit_table, scene.rest()[1], 5
    names = iter(f"theirs_{number}" for number in range(attempts))

    def too_late(catalog: Any, *arguments: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(SqlCatalog, "commit_table", commit)
            with scene.table().update_schema() as update:
                update.add_column(next(names), StringType())
        return commit(catalog, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", too_late)
        for _ in range(attempts):
            with pytest.raises(TableUnavailable, match="refused a publication"):
                scene.publish()
    new = [name for name in scene.rest()[1] if name not in before]
    ours = [name for name in new if not name.endswith(".metadata.json")]
    states = [name for name in ours if name.endswith(".shards.json.gz")]
    assert len(states) == 1, "of the one that is pending"
    ours.remove(states[0])
    assert len(ours) <= 2 * attempts + 1, "the one that is pending has its request"
    assert scene.publish().batches == 1
