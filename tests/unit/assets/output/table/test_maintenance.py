"""Files of metadata that are removed: never one that the table names, now or later."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER
from dagster_leasehold.assets.places.local_place import LocalPlace
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.outcomes import Settled
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.table_engines import pyiceberg_rows
from tests.unit.assets.output.table.publishing_world import NODE, OTHER, Publishing
from tests.unit.assets.output.table.test_late_commit import Scene, lake, send_unanswered

HOUR = timedelta(hours=1)


def age(scene: Publishing) -> None:
    """Let two hours pass over all metadata."""
    for path in (scene.world.output / METADATA_FOLDER).iterdir():
        seconds = path.stat().st_mtime - 7200
        os.utime(path, (seconds, seconds))


def take_lock(scene: Publishing, node: NodeName) -> PublishLock:
    lock = scene.lock(node)
    assert isinstance(lock, PublishLock)
    return lock


def evict_other(scene: Publishing) -> None:
    node = next(each for each in scene.nodes() if each.name == OTHER)
    key, reason = scene.world.key, "it is frozen"
    scene.world.store.evict(key, OTHER, node.lease_id, observer="test", reason=reason)


def consume_and_publish(scene: Publishing, run: str) -> None:
    scene.world.append(scene.world.ids[0], 2)
    scene.world.consume(run)
    scene.publish(NODE)


@pytest.mark.parametrize("moment", ["now_ns", "entries", "find", "publication"])
def test_a_frozen_cleanup_keeps_metadata_published_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """1. It reads the table. 2. Another node publishes. 3. An hour later it continues."""
    scene = Publishing(tmp_path, TableSettings(snapshots_kept=2))
    for number in range(3):
        consume_and_publish(scene, f"run-{number}")
    age(scene)
    lock, remover = take_lock(scene, OTHER), scene.publisher()
    owner: Any = {"find": remover.group.catalog, "publication": scene.store}.get(moment, LocalPlace)
    verb: Callable[..., Any] = getattr(owner, moment)

    def freezing(*arguments: Any, **options: Any) -> Any:
        result = verb(*arguments, **options)
        monkeypatch.setattr(owner, moment, verb)
        evict_other(scene)
        consume_and_publish(scene, "run-3")
        consume_and_publish(scene, "run-4")
        age(scene)
        return result

    monkeypatch.setattr(owner, moment, freezing)
    remover.remove_orphans(lock, older_than=HOUR)
    assert scene.published() == scene.committed()


def test_metadata_of_a_pending_request_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A request is sent, and its reply is lost. 2. Orphans are removed. 3. It arrives."""
    scene = Scene(tmp_path, catalog=lake(tmp_path))
    scene.world.consume()
    scene.publish()
    scene.world.append(scene.world.ids[0], 2)
    scene.world.consume("run-2")
    arrive = send_unanswered(scene, monkeypatch)
    age(scene)
    scene.publisher().remove_orphans(take_lock(scene, NODE), older_than=HOUR)
    arrive()
    assert scene.published() == scene.committed()


def test_a_publisher_with_a_lost_reply_removes_no_metadata_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. It commits, the reply is lost, and it is frozen. 2. Others publish until its publication
    is no longer among the newest. 3. It checks the outcome, and finds that its lock was lost.
    """
    scene = Publishing(tmp_path)
    scene.world.consume()
    frozen, lock, commit = (
        scene.publisher(),
        take_lock(scene, OTHER),
        scene.store.commit_publication,
    )

    def losing(*arguments: Any) -> Any:
        assert isinstance(commit(*arguments), Settled)
        monkeypatch.setattr(scene.store, "commit_publication", commit)
        evict_other(scene)
        for number in range(2):
            consume_and_publish(scene, f"run-{number}")
        return commit(*arguments)

    monkeypatch.setattr(scene.store, "commit_publication", losing)
    assert frozen.publish(lock).explanation == "Another node has taken over the publish lock."
    # Not by DuckDB, which ends the process where a file is missing.
    values = sorted(row["value"] for row in pyiceberg_rows(scene.metadata_at()))
    assert values == scene.committed()


def test_unreferenced_metadata_is_removed(tmp_path: Path) -> None:
    scene = Publishing(tmp_path, TableSettings(snapshots_kept=2))
    for number in range(4):
        consume_and_publish(scene, f"run-{number}")
    lock, remover = take_lock(scene, OTHER), scene.publisher()
    assert remover.remove_orphans(lock, older_than=HOUR) == 0, "they are young"
    age(scene)
    assert remover.remove_orphans(lock, older_than=HOUR) > 0
    assert remover.remove_orphans(lock, older_than=HOUR) == 0
    assert scene.published() == scene.committed()
