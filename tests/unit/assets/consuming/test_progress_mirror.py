"""Checkpoints told to a source's service, after their commit, and never in the way of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dagster_leasehold.assets.consuming.progress_mirror import mirror_progress
from dagster_leasehold.assets.shard_run import ShardRun
from dagster_leasehold.lease_store.identifiers import ShardId
from tests.unit.assets.test_shard_run import ONE, RUN, ZERO, RecordingContext, Scene
from tests.unit.sensors.streams import MirroringSource


def mirrored_scene() -> tuple[Scene, MirroringSource]:
    scene, source = Scene(RecordingContext()), MirroringSource()
    scene.stream = replace(scene.stream, source=source)
    scene.run = ShardRun(scene.stream, scene.store, RUN)
    return scene, source


def test_what_a_run_reports_is_told_before_it_is_flagged() -> None:
    scene, source = mirrored_scene()
    scene.commit(ZERO)
    scene.commit(ZERO)
    assert scene.run.deliver(scene.context) == 1
    assert source.told == [{ZERO: "20"}]
    assert scene.run.deliver(scene.context) == 0
    assert source.told == [{ZERO: "20"}], "nothing new, nobody told"


def test_the_stored_checkpoint_is_told_and_not_that_of_an_old_commit() -> None:
    scene, source = mirrored_scene()
    scene.commit(ZERO)
    scene.commit(ZERO)
    assert mirror_progress(scene.store, scene.stream, [ZERO, ONE]) == ""
    assert source.told == [{ZERO: "20"}], "shard 1 has no checkpoint yet"


def test_who_was_overtaken_while_it_told_tells_again() -> None:
    """Method: another process commits between the look at the store and the last word."""
    scene, source = mirrored_scene()
    scene.commit(ZERO)
    tell = source.mirror

    def slowly(checkpoints: Mapping[ShardId, str]) -> None:
        source.mirror = tell
        scene.commit(ZERO)
        tell(checkpoints)

    source.mirror = slowly
    assert mirror_progress(scene.store, scene.stream, [ZERO]) == ""
    assert source.told == [{ZERO: "10"}, {ZERO: "20"}]


def test_a_failure_is_shown_and_stops_nothing() -> None:
    scene, source = mirrored_scene()
    source.refuses = "Kafka does not answer."
    scene.commit(ZERO)
    scene.run.undelivered()
    assert mirror_progress(scene.store, scene.stream, [ZERO]) == "Kafka does not answer."
    assert scene.run.deliver(scene.context) == 1
    assert scene.run.undelivered() == []


def test_a_source_that_mirrors_nothing_is_not_asked() -> None:
    scene, source = mirrored_scene()
    source.mirrors = False
    scene.commit(ZERO)
    assert mirror_progress(scene.store, scene.stream, [ZERO]) == ""
    assert mirror_progress(scene.store, Scene(RecordingContext()).stream, [ZERO]) == ""
    assert source.told == []
