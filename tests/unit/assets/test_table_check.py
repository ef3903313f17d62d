"""The table check names differences and where it looked, and fails no materialization."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.catalog import load_catalog

from dagster_leasehold.assets import table_check
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.output.table.other_catalog import OtherCatalog
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.table_check import build_table_check, check_table
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.group_rows import Timing
from tests.unit.assets.output.table.publishing_world import NODE, Publishing


@pytest.fixture
def lake(tmp_path: Path) -> Publishing:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
    return Publishing(tmp_path, catalog=CatalogSettings("lake", properties))


def deployment(lake: Publishing) -> Deployment:
    world = lake.world
    return Deployment(
        lambda: world.store, (NODE,), Timing(), lambda _: world.place, catalog=lake.catalog
    )


def checked(lake: Publishing) -> table_check.ShardCheck:
    return check_table(lake.world.stream, deployment(lake))


def on_demand(lake: Publishing) -> dg.AssetCheckEvaluation:
    """The check as Dagster executes it beside a partition of the asset."""
    stream = lake.world.stream
    result = dg.Definitions(
        assets=[dg.AssetSpec(asset_key(stream))],
        asset_checks=[build_table_check(stream)],
        resources={LEASEHOLD: deployment(lake)},
    ).resolve_implicit_global_asset_job_def()
    (evaluation,) = result.execute_in_process().get_asset_check_evaluations()
    return evaluation


def delete_from(lake: Publishing, rows: str) -> None:
    """Let another engine delete rows of the table."""
    catalog: Any = load_catalog(lake.catalog.name, **lake.catalog.properties)
    catalog.load_table("leasehold.orders").delete(rows)


def test_the_table_check_passes_before_and_after_a_publication(lake: Publishing) -> None:
    assert checked(lake).description == "Nothing has been published yet."
    lake.world.consume()
    lake.publish()
    outcome = checked(lake)
    assert outcome.passed
    assert outcome.description == "Table and ledger agree, file by file."
    assert (outcome.metadata["files"], outcome.metadata["differences"]) == (6, 0)


def test_a_file_that_is_missing_is_named(lake: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.world.consume()
    lake.publish()
    first = lake.world.ids[0]
    missing = [f for b in lake.world.store.batches(lake.world.key, first) for f in b.files]
    delete_from(lake, f"shard_id = '{first}'")
    monkeypatch.setattr(table_check, "DIFFERENCES_SHOWN_MAX", 2)
    outcome = checked(lake)
    assert not outcome.passed
    assert outcome.severity is dg.AssetCheckSeverity.ERROR
    path, records = min((file.path, file.records) for file in missing)
    assert outcome.description is not None
    number = len(missing) + 1
    assert outcome.description.startswith(f"Differences between table and ledger: {number}. ")
    assert outcome.description.endswith(
        f"The file {path} of {records} records is missing in the table."
    )
    evaluation = on_demand(lake)
    assert (evaluation.passed, evaluation.description) == (False, outcome.description)


@pytest.mark.parametrize(("files_max", "passed"), [(5, False), (6, True)])
def test_a_large_table_is_left_to_verify(
    lake: Publishing, monkeypatch: pytest.MonkeyPatch, files_max: int, passed: bool
) -> None:
    lake.world.consume()
    lake.publish()
    monkeypatch.setattr(table_check, "FILES_MAX", files_max)
    outcome = checked(lake)
    assert outcome.passed is passed
    assert ("run `leasehold verify`" in outcome.description) is not passed
    assert passed or outcome.severity is dg.AssetCheckSeverity.WARN


def test_an_unavailable_catalog_does_not_fail_a_materialization(
    lake: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.world.consume()
    lake.publish()

    def away(*_: object) -> None:
        raise OSError("the catalog is away")

    monkeypatch.setattr(OtherCatalog, "find", away)
    evaluation = on_demand(lake)
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    assert evaluation.description == (
        "Table and ledger could not be compared: OSError: the catalog is away"
    )


def test_a_run_of_partitions_repeats_the_last_outcome_of_a_day(
    lake: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: materializing a shard reads no catalog; the check alone always compares."""
    lake.world.consume()
    lake.publish()
    stream, now = lake.world.stream, [datetime(2026, 1, 1, tzinfo=UTC)]
    monkeypatch.setattr(table_check, "utc_now", lambda: now[0])
    compared: list[datetime] = []

    def compare(*_: object) -> table_check.ShardCheck:
        compared.append(now[0])
        return check_table(*_)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(table_check, "check_table", compare)

    @dg.asset(key=asset_key(stream))
    def partitions() -> None: ...

    defs = dg.Definitions(
        assets=[partitions],
        asset_checks=[build_table_check(stream)],
        resources={LEASEHOLD: deployment(lake)},
    )

    def run(instance: dg.DagsterInstance, *, alone: bool = False) -> float:
        job = defs.resolve_implicit_global_asset_job_def()
        chosen = None if alone else [asset_key(stream)]
        result = job.execute_in_process(instance=instance, asset_selection=chosen)
        (evaluation,) = result.get_asset_check_evaluations()
        assert evaluation.passed
        return float(str(evaluation.metadata[table_check.COMPARED].value))

    with dg.DagsterInstance.ephemeral() as instance:
        first = run(instance)
        now[0] += timedelta(hours=23)
        assert run(instance) == first
        now[0] += timedelta(hours=2)
        assert run(instance) > first, "a repeated outcome is no newer than the comparison"
        run(instance, alone=True)
    assert len(compared) == 3
