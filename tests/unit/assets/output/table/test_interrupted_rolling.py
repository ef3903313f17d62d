"""Rolling a ledger forward to its table is killed, or an earlier request arrives meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from dagster_leasehold.assets.errors import PublicationRefused, TableUnavailable
from dagster_leasehold.lease_store.publication_rows import PublishLock, ShardAhead
from tests.unit.assets.output.table.restored_scene import (
    KINDS,
    SHARDS,
    Restored,
    grown,
    restored_scene,
)
from tests.unit.assets.output.table.test_late_commit import send_unanswered


class Killed(Exception):
    """The process is gone."""


@pytest.fixture(params=KINDS)
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Restored:
    return restored_scene(tmp_path, request.param)


def test_a_roll_forward_killed_between_two_shards_is_completed_by_repeating_it(
    scene: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch is published meanwhile."""
    scene.restore(grown(scene))
    kind = type(scene.home.store)
    forward = kind.roll_forward

    def roll_forward(store: object, lock: PublishLock, ahead: ShardAhead) -> object:
        if ahead.shard == SHARDS[1]:
            raise Killed
        return forward(store, lock, ahead)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "roll_forward", roll_forward)
    with pytest.raises(Killed):
        scene.publish("adopt")
    monkeypatch.undo()
    scene.home.append(4)
    with pytest.raises(TableUnavailable, match="table create --adopt"):
        scene.publish()
    scene.publish("adopt")
    scene.check(16)
    scene.consume()
    scene.publish()
    scene.check(20)


def test_a_roll_forward_killed_before_the_adoption_is_completed_by_repeating_it(
    scene: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shards are rolled forward; the pointer of the default catalog is still the old one."""
    scene.restore(grown(scene))
    kind = type(scene.home.store)
    for verb in ("commit_publication", "record_publication"):
        monkeypatch.setattr(kind, verb, _killed)
    with pytest.raises(Killed):
        scene.publish("adopt")
    monkeypatch.undo()
    scene.consume(4)
    with pytest.raises(TableUnavailable, match="table create --adopt"):
        scene.publish()
    scene.publish("adopt")
    scene.publish()
    scene.check(20)


def _killed(*_: object) -> None:
    raise Killed


def test_batches_of_a_publisher_killed_before_its_commit_stay_committed(
    scene: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state of the table is the newest, and counts in the default catalog."""
    dump = grown(scene)
    scene.consume(4)
    kind = type(scene.home.store)
    for verb in ("commit_publication", "record_publication"):
        monkeypatch.setattr(kind, verb, _killed)
    with pytest.raises(Killed):
        scene.publish()
    monkeypatch.undo()
    scene.restore(dump)
    scene.publish("adopt")
    if not scene.catalog.properties:
        scene.check(20)
    else:
        scene.check(16)
        scene.consume()
    scene.publish()
    scene.check(20)


def test_a_killed_publisher_rolls_nothing_forward(
    scene: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was not restored."""
    scene.consume(8)
    scene.publish()
    scene.consume(8)
    kind = type(scene.home.store)
    for verb in ("commit_publication", "record_publication"):
        monkeypatch.setattr(kind, verb, _killed)
    with pytest.raises(Killed):
        scene.publish()
    monkeypatch.undo()
    sentences: list[str] = []
    scene.publish("adopt", sentences.append)
    scene.publish()
    scene.check(16)
    assert sentences == []


def test_a_late_request_is_rolled_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. It is sent before the restoration. 2. The ledger forgets it. 3. The catalog takes it."""
    scene = restored_scene(tmp_path, "lake")
    dump = grown(scene)
    scene.consume(4)
    late = send_unanswered(scene, monkeypatch)
    scene.trim()
    scene.restore(dump)
    late()
    scene.publish("adopt")
    scene.check(20)


def test_a_request_that_arrives_after_the_adoption_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adoption is a snapshot, which the request does not follow."""
    scene = restored_scene(tmp_path, "lake")
    dump = grown(scene)
    scene.consume(4)
    late = send_unanswered(scene, monkeypatch)
    scene.restore(dump)
    scene.publish("adopt")
    with pytest.raises(CommitFailedException):
        late()
    scene.consume()
    scene.publish()
    scene.check(20)


def test_a_request_that_arrives_during_the_adoption_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is rolled forward once more, to the files of the request."""
    scene = restored_scene(tmp_path, "lake")
    dump = grown(scene)
    scene.consume(4)
    late = send_unanswered(scene, monkeypatch)
    scene.trim()
    scene.restore(dump)
    kind = type(scene.home.store)
    record = kind.record_publication

    def record_publication(*arguments: Any) -> Any:
        late()
        monkeypatch.undo()
        return record(*arguments)

    monkeypatch.setattr(kind, "record_publication", record_publication)
    with pytest.raises(PublicationRefused):
        scene.publish("adopt")
    scene.publish("adopt")
    scene.check(20)
