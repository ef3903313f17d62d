"""Partitions replayed in Dagster with `from` and `to`, on real Spark and a local log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from typing_extensions import override

from dagster_leasehold.assets.output.table.catching_up import catch_up
from dagster_leasehold.assets.partitions import asset_key, asset_op_name
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import RewriteKind
from dagster_leasehold.lease_store.rules.verification import verify
from tests.integration.assets.runs import RECORDS
from tests.integration.assets.test_dagster_runs import Scene, expected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


class ReplayScene(Scene):
    """The small deployment, and a way to replay partitions of it."""

    @override
    def consume(self, *shards: str) -> dg.ExecuteInProcessResult:
        """Publish the batches, too, that a run leaves to the sensor: a replay skips them."""
        consumed = super().consume(*shards)
        place = local_place(self.home / "output")
        catch_up(
            self.store, self.stream.key, place, table=self.stream.iceberg, catalog=CatalogSettings()
        )
        return consumed

    def replay(self, partition: str, **config: Any) -> dg.ExecuteInProcessResult:
        job = self.defs.resolve_implicit_global_asset_job_def()
        ops = {asset_op_name(self.stream): {"config": config}}
        return job.execute_in_process(
            instance=self.instance,
            partition_key=partition,
            run_config={"ops": ops},
            raise_on_error=False,
        )

    def generations(self, shard: str) -> list[int]:
        batches = self.store.batches(self.stream.key, ShardId(shard))
        return [batch.generation for batch in batches]


NewScene = Callable[[Transform | None], ReplayScene]


@pytest.fixture
def new_scene(home: Path, spark_folder: Path, connect_session: object) -> Iterator[NewScene]:
    del connect_session  # requested so that the server is warm
    with dg.DagsterInstance.ephemeral() as instance:
        yield lambda transform: ReplayScene(home, spark_folder, instance, transform)


def upper(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return records.withColumn("value", f.concat(f.lit(b"today "), f.col("value")))


def test_a_partition_is_replayed_with_the_current_transform(new_scene: NewScene) -> None:
    assert new_scene(None).consume("0", "1", "2").success
    scene = new_scene(upper)
    batches = len(scene.generations("0"))
    leases = scene.store.snapshot(scene.stream.key).shards
    assert scene.replay("0", **{"from": "begin"}).success
    assert scene.committed("0") == [b"today " + value for value in expected("0")]
    assert scene.committed("1") == expected("1"), "nobody asked for the others"
    assert scene.generations("0") == [1] * batches
    assert scene.store.snapshot(scene.stream.key).shards == leases
    assert verify(scene.store, scene.stream.key) == []
    (record,) = scene.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=asset_key(scene.stream), asset_partitions=["0"]), limit=1
    ).records
    assert record.asset_materialization is not None
    metadata = record.asset_materialization.metadata
    assert metadata["replayed_batches"].value == batches
    assert metadata["replayed_records"].value == RECORDS


def test_only_the_span_is_replayed(new_scene: NewScene) -> None:
    assert new_scene(None).consume("0").success
    scene = new_scene(upper)
    ends = [batch.end for batch in scene.store.batches(scene.stream.key, ShardId("0"))]
    assert len(ends) == 3
    assert scene.replay("0", **{"from": ends[0], "to": ends[1]}).success
    assert scene.generations("0") == [0, 1, 0]
    old, new = expected("0"), [b"today " + value for value in expected("0")]
    first, second = int(ends[0]), int(ends[1])
    assert scene.committed("0") == old[:first] + new[first:second] + old[second:]


def test_an_impossible_replay_is_one_sentence(new_scene: NewScene) -> None:
    def broken(records: DataFrame) -> DataFrame:
        raise ValueError("today's transform is broken")

    assert new_scene(None).consume("0").success
    scene = new_scene(broken)
    failed = scene.replay("0", **{"from": "begin"})
    assert not failed.success
    assert "Shard 0 was not replayed" in scene.sentence(failed)
    assert "today's transform is broken" in scene.sentence(failed)
    scene.store.claim_rewrite(
        scene.stream.key, ShardId("0"), "somebody-else", RewriteKind.COMPACTION
    )
    refused = scene.replay("0", to="end")
    assert "Run somebody-else is compacting shard 0" in scene.sentence(refused)
    assert "ends at 1, before it starts at 2" in scene.sentence(
        scene.replay("0", **{"from": "2", "to": "1"})
    )
    assert scene.generations("0") == [0, 0, 0]
    assert scene.committed("0") == expected("0")


def test_the_claim_of_an_ended_run_is_taken_over(new_scene: NewScene) -> None:
    scene = new_scene(None)
    ended = scene.consume("0")
    scene.store.claim_rewrite(scene.stream.key, ShardId("0"), ended.run_id, RewriteKind.REPLAY)
    assert scene.replay("0", **{"from": "begin"}).success
    assert scene.generations("0") == [1, 1, 1]
    assert scene.store.rewrites(scene.stream.key) == []
