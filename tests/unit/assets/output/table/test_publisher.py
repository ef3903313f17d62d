"""Each committed record is in the table once, although publishers die, freeze and get no reply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import PublicationRefused
from dagster_leasehold.assets.output.table.publish_rounds import waits_for_publication
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.publication_rows import Publication, PublishLock
from tests.failpoints import Failpoint
from tests.table_engines import duckdb_files_read, pyiceberg_rows
from tests.unit.assets.output.table.publishing_world import NODE, OTHER, Publishing

POINTS = (
    Failpoint.AFTER_PUBLISH_LOCK,
    Failpoint.BEFORE_TABLE,
    Failpoint.AFTER_STAGE,
    Failpoint.BEFORE_PUBLISH,
    Failpoint.AFTER_PUBLISH,
)


class Killed(BaseException):
    """This process is gone: nothing of it is tidied up."""


@pytest.fixture
def publishing(tmp_path: Path) -> Publishing:
    return Publishing(tmp_path)


def die_at(point: Failpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(reached: str) -> None:
        if reached == point.label:
            raise Killed

    monkeypatch.setattr(failpoints, "reach", reach)


def look(publishing: Publishing) -> bool:
    """The sensor's check for waiting batches."""
    store, key = publishing.store, publishing.world.key
    return waits_for_publication(store, key, store.publication(key) or Publication(key))


def test_committed_batches_are_published_once(publishing: Publishing) -> None:
    publishing.world.consume()
    assert look(publishing)
    report = publishing.publish()
    assert str(report) == "Published 6 batches of 20 records."
    assert publishing.published() == publishing.committed()
    assert len(publishing.published()) == 20
    assert not look(publishing)
    assert publishing.publish().explanation == "Everything that is committed is published."


def test_an_idle_check_costs_two_statements(publishing: Publishing) -> None:
    publishing.world.consume()
    publishing.publish()
    before = publishing.store.statements.copy()
    look(publishing)
    assert (publishing.store.statements - before).total() == 2


def test_the_table_has_the_columns_and_days_of_the_stream(publishing: Publishing) -> None:
    publishing.world.consume()
    publishing.publish()
    (first, *_) = pyiceberg_rows(publishing.metadata_at())
    assert list(first) == ["shard_id", "cursor", "event_time", "key", "value", "attributes"]
    at = publishing.metadata_at()
    assert duckdb_files_read(at, "event_time < '1990-01-01T00:00:00Z'") == 0
    (snapshot,) = publishing.metadata().snapshots
    assert snapshot.summary is not None
    assert snapshot.summary["leasehold.group"] == "orders/default"
    assert snapshot.summary["leasehold.batches"] == "6"
    assert snapshot.summary["leasehold.records"] == "20"


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
def test_killed_at_any_step_each_record_is_published_once(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch, point: Failpoint
) -> None:
    publishing.world.consume()
    with monkeypatch.context() as patched:
        die_at(point, patched)
        with pytest.raises(Killed):
            publishing.publish()
    publishing.publish()
    assert publishing.published() == publishing.committed()
    for shard in publishing.world.ids:
        publishing.world.append(shard, 5)
    publishing.world.consume("run-2")
    publishing.publish()
    assert publishing.published() == publishing.committed()
    assert len(publishing.published()) == 30


def test_a_publisher_that_was_frozen_changes_nothing(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the second publisher works while the first one stands before its commit."""
    publishing.world.consume()
    frozen = publishing.publisher()
    lock = publishing.lock(NODE)
    assert isinstance(lock, PublishLock)
    woken: list[str] = []

    def reach(reached: str) -> None:
        if reached == Failpoint.BEFORE_PUBLISH.label and not woken:
            woken.append(reached)
            world = publishing.world
            node = next(each for each in publishing.nodes() if each.name == NODE)
            world.store.evict(
                world.key, NODE, node.lease_id, observer="test", reason="it is frozen"
            )
            publishing.publish(OTHER)

    monkeypatch.setattr(failpoints, "reach", reach)
    report = frozen.publish(lock)
    assert report.explanation == "Another node has taken over the publish lock."
    assert publishing.published() == publishing.committed()


def test_another_writer_can_commit_to_the_table(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a change of another engine is neither lost nor does it stop us."""
    world = publishing.world
    world.consume()
    publishing.publish()
    theirs = publishing.metadata().model_copy(update={"properties": {"owner": "them"}})
    at = publishing.metadata_at().replace("00001-", "00002-theirs-")
    Path(at.removeprefix("file://")).write_text(theirs.model_dump_json(), "utf-8")
    world.append(world.ids[0], 5)
    world.consume("run-2")

    def reach(reached: str) -> None:
        if reached == Failpoint.BEFORE_PUBLISH.label:
            pointers = world.store._pointers
            (name,) = pointers
            pointers[name] = replace(pointers[name], location=at)

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "reach", reach)
        with pytest.raises(PublicationRefused, match="Another program committed"):
            publishing.publish()
    publishing.publish()
    assert publishing.published() == publishing.committed()
    assert publishing.metadata().properties["owner"] == "them"


def test_a_forced_checkpoint_removes_published_batches_from_the_table(
    publishing: Publishing,
) -> None:
    world = publishing.world
    world.consume()
    publishing.publish()
    shard = world.ids[0]
    world.store.force_checkpoint(world.key, shard, "4", observer="test", reason="test")
    assert len(publishing.committed()) == 14
    report = publishing.publish()
    assert report.changes == 1
    assert publishing.published() == publishing.committed()
    world.sync()
    world.consume("run-2")
    publishing.publish()
    assert publishing.published() == publishing.committed()
    assert len(publishing.published()) == 20


def test_the_table_of_another_stream_is_refused(publishing: Publishing, tmp_path: Path) -> None:
    publishing.world.consume()
    publishing.publish()
    other = Publishing(tmp_path, TableSettings(name="elsewhere"), world=publishing.world)
    lock = other.lock()
    assert not isinstance(lock, PublishLock)
    assert "publishes to the table leasehold.orders of catalog leasehold" in lock.explanation


def test_metadata_stays_small_over_many_publications(publishing: Publishing) -> None:
    publishing.settings = TableSettings(snapshots_kept=3)
    world = publishing.world
    publisher = publishing.publisher()
    for number in range(40):
        world.append(world.ids[0], 1)
        world.consume(f"run-{number}")
        lock = publishing.lock()
        assert isinstance(lock, PublishLock)
        publisher.publish(lock)
    names = sorted(path.name for path in (world.output / "metadata").glob("*.metadata.json"))
    assert len(names) == 21
    assert len(publishing.metadata().snapshots) == 3
    assert publishing.published() == publishing.committed()


def test_the_metadata_never_goes_back_in_time(publishing: Publishing) -> None:
    """Goal: engines in Java refuse metadata that is older than the newest snapshot in its log.

    Method: the second publisher's clock is not after the first one's; this host's clock is behind.
    """
    for number in range(2):
        publishing.world.append(publishing.world.ids[0], 1)
        publishing.world.consume(f"run-{number}")
        publishing.publish()
    metadata = publishing.metadata()
    first, second = (entry.timestamp_ms for entry in metadata.snapshot_log)
    assert first < second <= metadata.last_updated_ms


def test_settings_are_checked() -> None:
    from dagster_leasehold.lease_store.errors import InvalidSetting

    for values, sentence in (
        ({"name": "a b"}, "table name 'a b' is not valid"),
        ({"partitioning": ("bucket(key)",)}, "is not valid: name a column"),
        ({"partitioning": ("shard_id", "shard_id")}, "names a field twice"),
        ({"sort_order": ("a b c",)}, "sort order"),
        ({"snapshots_kept": 0}, "snapshots_kept is 0"),
        ({"publish_interval_s": -1}, "publish_interval_s"),
    ):
        with pytest.raises(InvalidSetting, match=sentence):
            TableSettings(**values)  # type: ignore[arg-type]
