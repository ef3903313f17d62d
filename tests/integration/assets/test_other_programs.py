"""Other programs at the table: they rewrite, append, delete, roll back and expire, at any step.

They act at each step at which a publisher can die, or its request can be lost or late. Afterwards
the table has each committed record once, or publication has stopped with a sentence, and an
adoption repairs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from dagster_leasehold.assets.errors import PublicationRefused, TableUnavailable
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.ledger_rows import BatchRewrite, RewriteKind
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.conformance.test_expired_output import FAR
from tests.failpoints import Failpoint
from tests.integration.assets.test_other_catalog import Scene as CatalogScene
from tests.table_engines import pyiceberg_rows
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_late_commit import lake, send_unanswered
from tests.unit.assets.output.table.test_publisher import Killed, die_at

_COMMIT = SqlCatalog.commit_table


class Scene(CatalogScene):
    """A table in a catalog of its own, to which other programs have access."""

    def __init__(self, folder: Path) -> None:
        # PyIceberg writes into partitions of days with an extension only, which is not at hand.
        settings = TableSettings(snapshots_kept=20, partitioning=())
        super().__init__(folder, settings, catalog=lake(folder))

    def table(self) -> Any:
        return self.service().load_table("leasehold.orders")

    def values(self) -> list[bytes]:
        return sorted(row["value"] for row in pyiceberg_rows(self.metadata_at()))

    def more(self, run: str) -> None:
        """Three records more are committed."""
        self.consume(run)

    def adopt(self) -> Any:
        lock = self.lock()
        assert isinstance(lock, PublishLock)
        return self.publisher().adopt(lock)

    def publish_all(self) -> None:
        while self.publish().more:
            pass

    # -- other programs -----------------------------------------------------------------------

    def rewritten(self) -> None:
        """All records go into one file of another program, in one snapshot."""
        table = self.table()
        rows: pa.Table = table.scan().to_arrow()
        if rows.num_rows:
            table.overwrite(rows)

    def appended(self) -> None:
        table = self.table()
        table.append(table.scan(limit=1).to_arrow().cast(table.schema().as_arrow()))

    def deleted(self) -> None:
        self.table().delete(f"shard_id = '{self.world.ids[0]}'")

    def rolled_back(self) -> None:
        table = self.table()
        parent = table.metadata.current_snapshot().parent_snapshot_id
        table.manage_snapshots().rollback_to_snapshot(parent).commit()

    def expired(self) -> None:
        """Expire all snapshots but the newest."""
        table = self.table()
        newest = table.metadata.current_snapshot_id
        old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != newest]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def rolled_back_and_expired(self) -> None:
        self.rolled_back()
        self.expired()

    def rewritten_and_expired(self) -> None:
        self.rewritten()
        self.expired()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Two publications, one after the other, and more that waits."""
    scene = Scene(tmp_path)
    scene.world.consume()
    scene.publish()
    scene.more("run-2")
    scene.publish()
    scene.more("run-3")
    return scene


HARMLESS = ("rewritten", "expired", "rewritten_and_expired")
HARMFUL = ("appended", "deleted", "rolled_back", "rolled_back_and_expired")
CHANGES = (*HARMLESS, *HARMFUL)


def nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """No publication is under way."""
    return lambda: None


def dies(point: Failpoint) -> Callable[[Scene, pytest.MonkeyPatch], Callable[[], object]]:
    """A publisher dies at a step."""

    def at(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
        with monkeypatch.context() as patched:
            die_at(point, patched)
            with pytest.raises(Killed):
                scene.publish()
        return lambda: None

    return at


def lost_reply(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """The catalog takes a request, and its answer is lost."""

    def lost(*arguments: Any) -> None:
        _COMMIT(*arguments)
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lost)
        with pytest.raises(TableUnavailable):
            scene.publish()
    return lambda: None


def late_request(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """A request is under way, and arrives at the end."""
    return send_unanswered(scene, monkeypatch)


def refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """The catalog has refused a request."""

    def refuses(*_: Any) -> None:
        raise CommitFailedException("somebody was faster")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", refuses)
        with pytest.raises(PublicationRefused):
            scene.publish()
    return lambda: None


INCIDENTS = {
    "nothing is under way": nothing,
    "dies after staging": dies(Failpoint.AFTER_STAGE),
    "dies after recording": dies(Failpoint.BEFORE_PUBLISH),
    "dies before it settles": dies(Failpoint.AFTER_PUBLISH),
    "the reply is lost": lost_reply,
    "the request is late": late_request,
    "the request was refused": refused,
}


NOW = "before the next lock"
LATER = ("the request is late", "after the next lock")


def arrives(late: Callable[[], object]) -> None:
    """A late request reaches the catalog, which refuses it if it does not fit."""
    try:
        late()
    except (CommitFailedException, ValueError):
        return


def fixed(scene: Scene) -> None:
    """Publish; where that stops with a sentence, adopt the table first."""
    try:
        scene.publish_all()
    except PublicationRefused:
        scene.publish_all()
    except TableUnavailable:
        scene.adopt()
        scene.publish_all()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("incident", "arrival"), [*((each, NOW) for each in INCIDENTS), LATER])
def test_another_program_can_change_the_table_at_each_step(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, incident: str, change: str, arrival: str
) -> None:
    """Goal: each committed record is in the table once, for every program and step."""
    late = INCIDENTS[incident](scene, monkeypatch)
    getattr(scene, change)()
    if arrival == NOW:
        arrives(late)
    if change in HARMLESS:
        # No operator is needed. A request that no longer fits may be refused once.
        try:
            scene.publish_all()
        except PublicationRefused:
            scene.publish_all()
    else:
        fixed(scene)
    if arrival != NOW:
        arrives(late)
    scene.more("run-4")
    fixed(scene)
    assert scene.values() == scene.committed()
    assert len(scene.committed()) == 29
    outcome = scene.publisher().comparison.compare()
    assert outcome.differences == ()


@pytest.mark.parametrize("change", HARMFUL)
def test_publication_stops_if_another_program_changed_the_records(
    scene: Scene, change: str
) -> None:
    getattr(scene, change)()
    before = scene.values()
    for _ in range(2):
        with pytest.raises(TableUnavailable, match=r"Another program has .* the table .*--adopt"):
            scene.publish()
    assert scene.values() == before, "as it was"
    assert scene.publisher().comparison.compare().differences[0].startswith("Another program")
    scene.adopt()
    scene.publish_all()
    assert scene.values() == scene.committed()


def compact(scene: Publishing) -> None:
    """The files of each shard are merged in the ledger."""
    compactor = Compactor(
        store=scene.world.store,
        key=scene.world.key,
        output_root=output_place(scene.world.output),
        run="merging",
    )
    compactor.compact(scene.world.ids)


@pytest.mark.parametrize("change", ["rewritten", "rewritten_and_expired"])
def test_a_replacement_of_rewritten_files_is_rejected(scene: Scene, change: str) -> None:
    """1. Another program rewrites the table. 2. The ledger merges its files."""
    scene.publish()
    getattr(scene, change)()
    compact(scene)
    scene.more("run-4")
    report = scene.publish()
    assert report.batches == 1
    assert all("A replacement was rejected" in each for each in report.rejected)
    assert len(report.rejected) == 2
    assert scene.values() == scene.committed()
    outcome = scene.publisher().comparison.compare()
    assert outcome.differences == ()
    assert "Only their number of records was compared" in outcome.notes[0]


def replay(scene: Scene, number: int) -> None:
    """One batch of the first shard gets other files in the ledger, with the same records."""
    store, key, shard = scene.store, scene.world.key, scene.world.ids[0]
    batch = store.batches(key, shard)[number]
    (file,) = batch.files
    again = replace(file, path=file.path.replace(".parquet", "-again.parquet"))
    copyfile(scene.world.output / file.path, scene.world.output / again.path)
    rewrite = BatchRewrite(batch.sequence, batch.generation, (again,), batch.statistics)
    assert store.claim_rewrite(key, shard, "replay", RewriteKind.REPLAY) == Changed((shard,))
    outcome = store.rewrite_batches(key, shard, "replay", [rewrite], reason="test")
    assert outcome == Changed((shard,))
    store.release_rewrite(key, shard, "replay")


def test_a_replay_of_rewritten_files_is_rejected_and_a_later_one_succeeds(scene: Scene) -> None:
    scene.publish()
    replay(scene, 0)
    scene.rewritten()
    scene.more("run-4")
    report = scene.publish()
    (sentence,) = report.rejected
    assert "the replay of shard 0 from batch 0 on removes attempts/" in sentence
    assert scene.values() == scene.committed()
    replay(scene, -1)
    report = scene.publish()
    assert (report.changes, report.rejected) == (1, ())
    assert scene.values() == scene.committed()


def test_expired_records_stay_in_files_that_another_program_rewrote(scene: Scene) -> None:
    """Method: the files of three batches expire; the table has one of them under its name."""
    store, key, shard = scene.store, scene.world.key, scene.world.ids[0]
    scene.publish()
    scene.rewritten()
    scene.more("run-4")
    scene.publish()
    batches = store.batches(key, shard)
    for kind in EventKind:
        events = store.pending_events(key, kind=kind)
        store.mark_delivered(key, [event.sequence for event in events])
    store.expire_batches(key, shard, before=FAR, through=batches[-1].sequence)
    gone = {file.path for each in batches for file in each.files}
    gone -= {file.path for each in store.batches(key, shard) for file in each.files}
    before = scene.values()
    scene.more("run-5")
    report = scene.publish()
    assert report.batches == 1
    assert "Expired records can stay in the table, because the expiry of shard 0" in str(report)
    files = [each.file.file_path for each in scene.table().scan().plan_files()]
    assert not any(path in location for path in gone for location in files)
    values = scene.values()
    assert len(set(values)) == len(values)
    assert len(values) <= len(before) + 3


def test_a_forced_checkpoint_of_rewritten_files_stops_publication(scene: Scene) -> None:
    """Goal: records that are read again are not in the table twice."""
    scene.publish()
    scene.rewritten()
    store, shard = scene.world.store, scene.world.ids[0]
    store.force_checkpoint(scene.world.key, shard, "4", observer="test", reason="test")
    scene.world.sync()
    scene.world.consume("run-5")
    before = scene.values()
    with pytest.raises(TableUnavailable, match="would be in the table twice"):
        scene.publish()
    assert scene.values() == before
    scene.adopt()
    scene.publish_all()
    assert scene.values() == scene.committed()


def test_an_adoption_names_no_file_that_does_not_exist(scene: Scene) -> None:
    """1. Another program rewrites and expires; 2. it deletes our files, and some records."""
    scene.publish()
    ours = [
        file.path for batch in scene.world.store.batches(scene.world.key) for file in batch.files
    ]
    scene.rewritten_and_expired()
    for path in ours[:2]:
        (scene.world.output / path).unlink()
    scene.appended()
    before = scene.values()
    with pytest.raises(TableUnavailable, match=r"2 files of the ledger do not exist \(attempts/"):
        scene.adopt()
    assert scene.values() == before, "it can be read still"


def test_a_file_of_the_table_that_does_not_exist_is_a_difference(scene: Scene) -> None:
    scene.publish()
    files = [file for batch in scene.world.store.batches(scene.world.key) for file in batch.files]
    (scene.world.output / files[0].path).unlink()
    assert scene.publisher().comparison.compare().differences == (
        f"The file {files[0].path}, which the table names, does not exist.",
    )


def test_an_adoption_replaces_a_request_that_the_catalog_always_refuses(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(scene, monkeypatch)
    assert scene.store.publication(scene.world.key).pending is not None
    scene.adopt()
    scene.publish_all()
    assert scene.values() == scene.committed()
    assert scene.store.publication(scene.world.key).pending is None
