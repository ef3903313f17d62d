"""News of committed batches: for Dagster, and for the dashboards of a source's service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from dagster_leasehold.assets.checks import LAG, NO_GAP, QUARANTINE_RATE, check_shard, joint_results
from dagster_leasehold.assets.materialization import (
    committed_ranges,
    materialization_of,
    mirror_progress,
    range_metadata,
)
from dagster_leasehold.assets.shard_run import ShardRun
from dagster_leasehold.assets.shard_stream import Checks
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, OutboxEvent
from tests.unit.assets.test_shard_run import ONE, RUN, ZERO, RecordingContext, Scene
from tests.unit.sensors.streams import MirroringSource, scripted_stream

EARLY = "2026-01-02T03:00:00+00:00"
LATE = "2026-01-02T04:00:00+00:00"


def event(sequence: int, shard: str, start: int, end: int, *, run: str = "r", **payload: object):
    statistics: dict[str, object] = {
        "start": str(start),
        "end": str(end),
        "records": end - start,
        "bytes": 10 * (end - start),
        "written": end - start,
        "quarantined": 0,
        "first_event_time": EARLY,
        "last_event_time": LATE,
        "holder": "a",
        "epoch": 3,
    }
    name = ShardId(shard)
    return OutboxEvent(
        sequence, "materialization", name, f"{shard}.{sequence}", statistics | payload, run
    )


def test_rows_are_grouped_by_run_and_shard_in_order_of_commit():
    rows = [
        event(4, "0", 5, 9),
        event(1, "0", 0, 5),
        event(2, "1", 0, 2),
        event(3, "0", 0, 1, run="s"),
    ]
    committed = committed_ranges(rows)
    assert [(row.run, row.shard, row.start, row.end) for row in committed] == [
        ("r", "0", "0", "9"),
        ("r", "1", "0", "2"),
        ("s", "0", "0", "1"),
    ]
    assert all(row.contiguous for row in committed)


def test_metadata_are_sums_bounds_and_plain_numbers():
    late = "2026-01-02T05:00:00+00:00"
    (committed,) = committed_ranges(
        [event(1, "0", 0, 5, quarantined=2), event(2, "0", 5, 9, last_event_time=late, mistimed=3)]
    )
    metadata = range_metadata(committed)
    assert metadata["records"] == 9
    assert metadata["bytes"] == 90
    assert metadata["batches"] == 2
    assert (metadata["quarantined"], metadata["mistimed"]) == (2, 3)
    assert metadata["start_cursor"] == "0"
    assert metadata["end_cursor"] == "9"
    assert (metadata["first_batch"], metadata["last_batch"]) == ("0.1", "0.2")
    assert metadata["last_event_time"].value == datetime(2026, 1, 2, 5, tzinfo=UTC).timestamp()


def test_statistics_that_a_batch_does_not_have_count_nothing():
    (committed,) = committed_ranges(
        [event(1, "0", 0, 5, records=None, bytes=None, first_event_time=None, last_event_time=None)]
    )
    metadata = range_metadata(committed)
    assert metadata["records"] == 0
    assert "first_event_time" not in metadata


def test_a_delivered_event_names_the_run_that_committed():
    stream, _ = scripted_stream()
    (committed,) = committed_ranges([event(1, "0", 0, 5, run="dead-run")])
    materialization = materialization_of(stream, committed)
    assert materialization.partition == "0"
    assert materialization.metadata["consumed_by"].value == "dead-run"


def test_checks_pass_for_a_contiguous_read_up_to_date_shard():
    stream, _ = scripted_stream()
    (committed,) = committed_ranges([event(1, "0", 0, 5), event(2, "0", 5, 9)])
    checks = {check.name: check for check in check_shard(stream, committed, gaps=[], lag=0)}
    assert checks.keys() == {NO_GAP, LAG, QUARANTINE_RATE}
    assert all(check.passed for check in checks.values())


def test_each_check_fails_for_its_own_reason():
    stream, _ = scripted_stream()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    (jump,) = committed_ranges([event(1, "0", 0, 5), event(2, "0", 6, 9)])
    (dirty,) = committed_ranges([event(1, "0", 0, 10, quarantined=1)])
    gap = Gap(ShardId("0"), "5", "6", "expired", now)

    def failed(committed, gaps=(), lag: int | None = 0) -> set[str]:
        checks = check_shard(stream, committed, gaps=list(gaps), lag=lag)
        return {check.name for check in checks if not check.passed}

    assert failed(jump) == {NO_GAP}
    assert failed(None, [gap]) == {NO_GAP}
    assert failed(None, lag=stream.checks.lag_max + 1) == {LAG}
    assert failed(None, lag=None) == {LAG}, "nobody looked, so nobody may rely on it"
    timed = replace(stream, checks=Checks(lag_max_s=60.0))
    for lag, seconds, passed in [
        (0, 0.0, True),
        (5, 60.0, True),
        (5, 61.0, False),
        (None, 60.0, True),
        (None, 61.0, False),
        (5, None, False),
        (None, None, False),
        (stream.checks.lag_max + 1, 1.0, False),
    ]:
        checks = check_shard(timed, None, gaps=[], lag=lag, lag_seconds=seconds)
        outcome = next(check for check in checks if check.name == LAG)
        assert outcome.passed == passed, (lag, seconds, outcome.description)
        assert outcome.metadata.get("lag_seconds") == seconds
    assert failed(dirty) == {QUARANTINE_RATE}


def test_a_check_of_several_shards_passes_only_if_all_do():
    stream, _ = scripted_stream()
    checks = [
        *check_shard(stream, None, gaps=[], lag=0),
        *check_shard(stream, None, gaps=[], lag=stream.checks.lag_max + 1),
    ]
    assert {result.check_name: result.passed for result in joint_results(checks)} == {
        NO_GAP: True,
        LAG: False,
        QUARANTINE_RATE: True,
    }


def mirrored_scene() -> tuple[Scene, MirroringSource]:
    scene, source = Scene(RecordingContext()), MirroringSource()
    scene.stream = replace(scene.stream, source=source)
    scene.run = ShardRun(scene.stream, scene.store, RUN)
    return scene, source


def test_a_run_reports_batches_before_it_flags_them() -> None:
    scene, source = mirrored_scene()
    scene.commit(ZERO)
    scene.commit(ZERO)
    assert scene.run.deliver(scene.context) == 1
    assert source.mirrored == [{ZERO: "20"}]
    assert scene.run.deliver(scene.context) == 0
    assert source.mirrored == [{ZERO: "20"}], "nothing new, nobody told"


def test_the_stored_checkpoint_is_reported_and_not_an_older_one() -> None:
    scene, source = mirrored_scene()
    scene.commit(ZERO)
    scene.commit(ZERO)
    assert mirror_progress(scene.store, scene.stream, [ZERO, ONE]) == ""
    assert source.mirrored == [{ZERO: "20"}], "shard 1 has no checkpoint yet"


def test_a_report_that_was_overtaken_is_repeated() -> None:
    """Method: another process commits between the check of the store and the last write."""
    scene, source = mirrored_scene()
    scene.commit(ZERO)
    tell = source.mirror

    def slowly(checkpoints: Mapping[ShardId, str]) -> None:
        source.mirror = tell
        scene.commit(ZERO)
        tell(checkpoints)

    source.mirror = slowly
    assert mirror_progress(scene.store, scene.stream, [ZERO]) == ""
    assert source.mirrored == [{ZERO: "10"}, {ZERO: "20"}]


def test_a_failure_is_shown_and_stops_nothing() -> None:
    scene, source = mirrored_scene()
    source.refuses = "Kafka does not answer."
    scene.commit(ZERO)
    scene.run.undelivered()
    assert mirror_progress(scene.store, scene.stream, [ZERO]) == "Kafka does not answer."
    assert scene.run.deliver(scene.context) == 1
    assert scene.run.undelivered() == []


def test_a_source_without_a_mirror_is_not_called() -> None:
    scene, source = mirrored_scene()
    source.mirrors = False
    scene.commit(ZERO)
    assert mirror_progress(scene.store, scene.stream, [ZERO]) == ""
    assert mirror_progress(scene.store, Scene(RecordingContext()).stream, [ZERO]) == ""
    assert source.mirrored == []
