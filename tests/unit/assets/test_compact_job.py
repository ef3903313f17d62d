"""The job `compact_<stream>`, in Dagster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.compact_job import build_compact_job
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.partitions import compact_op_name
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.ledger_rows import RewriteKind
from tests.unit.assets.rewriting.test_compaction import ONE, ZERO, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def run(scene: Scene, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    deployment = Deployment(lambda: scene.store, (), Timing(), lambda _: scene.place)
    return build_compact_job(scene.stream).execute_in_process(
        resources={LEASEHOLD: deployment},
        instance=instance,
        run_config={"ops": {compact_op_name(scene.stream): {"config": config}}},
        raise_on_error=False,
    )


def sentence(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    error: Any = failure.step_failure_data.error
    return error.message


def test_a_compaction_covers_all_or_the_named_shards(
    scene: Scene, instance: dg.DagsterInstance
) -> None:
    assert run(scene, instance, shards=["1"]).success
    assert (scene.files(ZERO), scene.files(ONE)) == (3, 1)
    result = run(scene, instance)
    assert result.success
    assert (scene.files(ZERO), scene.files(ONE)) == (1, 1)
    (output,) = [e for e in result.all_events if e.is_successful_output]
    metadata = output.step_output_data.metadata
    assert (metadata["files_before"].value, metadata["files_after"].value) == (4, 2)
    assert scene.committed(ZERO) == scene.expected("0", 10)


def test_the_claim_of_a_run_that_ended_is_taken_over(
    scene: Scene, instance: dg.DagsterInstance
) -> None:
    ended = run(scene, instance, shards=["1"]).run_id
    scene.store.claim_rewrite(scene.key, ZERO, ended, RewriteKind.COMPACTION)
    assert run(scene, instance).success
    assert scene.files(ZERO) == 1


def test_a_shard_that_cannot_be_compacted_fails_the_run_after_the_others(
    scene: Scene, instance: dg.DagsterInstance
) -> None:
    scene.store.claim_rewrite(scene.key, ZERO, "unknown-to-dagster", RewriteKind.REPLAY)
    failed = run(scene, instance)
    assert not failed.success
    assert "Run unknown-to-dagster is replaying shard 0" in sentence(failed)
    assert (scene.files(ZERO), scene.files(ONE)) == (3, 1)
    unknown = run(scene, instance, shards=["9"])
    assert "has no shard '9'" in sentence(unknown)


def test_a_run_of_the_sensor_compacts_only_its_shards(
    scene: Scene, instance: dg.DagsterInstance
) -> None:
    """Goal: without shards it only removes files; with a number, those before it are old."""
    assert run(scene, instance, node="a", vacuum=True).success
    assert (scene.files(ZERO), scene.files(ONE)) == (3, 3)
    assert run(scene, instance, node="a", shards=["0", "1"], old_until={"0": 3, "1": 2}).success
    assert (scene.files(ZERO), scene.files(ONE)) == (1, 2)
