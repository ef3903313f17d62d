"""The trace of a consumption and of a publication: a span for each step, none for each shard."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from opentelemetry.trace import StatusCode

from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.errors import TableUnavailable, TransformError
from dagster_leasehold.assets.output.table.catalogs import LeaseDatabaseCatalog
from dagster_leasehold.lease_store.errors import LeaseLost
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.tracing import span
from tests.spans import recorded_spans
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing

SWEEP = ["  sweep", "    plan", "    intents", "    spark", "    commit"]


def test_the_trace_of_a_run_shows_each_step_under_its_parent(tmp_path: Path) -> None:
    world = World(tmp_path, shards=3)
    with recorded_spans() as spans:
        with span("run", world.key):
            world.consume()
        assert spans.tree() == [
            "run",
            "  open",
            *SWEEP,
            *SWEEP,
            *SWEEP,
            "  sweep",
            "    plan",
            "      close",
        ]
        assert spans.attributes("commit") == [
            {"shards": 3, "records": 12},
            {"shards": 3, "records": 12},
            {"shards": 3, "records": 6},
        ]
        assert spans.attributes("open") == [{"shards": 3}]
        assert not [
            each
            for each in spans.exporter.get_finished_spans()
            if not each.status.is_ok and each.status.status_code is not StatusCode.UNSET
        ]


def test_a_trace_grows_with_sweeps_not_with_shards_and_records(tmp_path: Path) -> None:
    numbers = set[int]()
    for shards, records in ((1, 4), (8, 40)):
        world = World(tmp_path / str(shards), shards=shards, records=records, records_max=records)
        with recorded_spans() as spans:
            world.consume()
            numbers.add(len(spans.exporter.get_finished_spans()))
    assert len(numbers) == 1


def test_a_failing_shard_marks_its_sweep_with_its_error(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.sweeper.results[ShardId("1")] = TransformError("The transform raised ValueError.")
    with recorded_spans() as spans:
        world.consume()
        first, *others = spans.named("sweep")
        assert first.status.description == "The transform raised ValueError."
        assert all(each.status.status_code is StatusCode.UNSET for each in others)


def test_a_tenure_that_was_lost_marks_its_sweep(tmp_path: Path) -> None:
    world = World(tmp_path)
    lost = LeaseLost("Node a lost shard 0.")
    with recorded_spans() as spans, patch.object(Consumer, "_commit_of", side_effect=lost):
        world.consume()
        assert spans.named("sweep")[0].status.description == "Node a lost shard 0."


def test_a_publication_shows_its_steps_and_its_number(tmp_path: Path) -> None:
    publishing = Publishing(tmp_path)
    publishing.world.consume()
    with recorded_spans() as spans:
        report = publishing.publish()
        assert spans.tree() == ["publication", "  stage", "  catalog"]
        (attributes,) = spans.attributes("publication")
        assert attributes == {
            "stream": "orders",
            "group": "default",
            "epoch": 1,
            "batches": 6,
            "records": 20,
            "snapshot": report.snapshot,
        }


def test_an_unavailable_catalog_marks_the_publication_as_an_error(tmp_path: Path) -> None:
    publishing = Publishing(tmp_path)
    publishing.world.consume()
    away = TableUnavailable("The catalog does not answer.")
    with (
        recorded_spans() as spans,
        patch.object(LeaseDatabaseCatalog, "find", side_effect=away),
        pytest.raises(TableUnavailable),
    ):
        publishing.publish()
    assert [each.status.description for each in spans.named("publication")] == [str(away)]
