"""The parts of the live benchmark that measure: flows, ages, CPU time, Dagster's storage."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from benchmarks.figures.dagster_storage import stored
from benchmarks.figures.live_deployment import visible_ages
from benchmarks.figures.live_records import SHARDS, Flow, age_figures
from benchmarks.figures.live_streaming import batch_files
from benchmarks.figures.process_tree import cpu_below
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, BatchStatistics
from dagster_leasehold.orchestration.instance import create_instance
from dagster_leasehold.orchestration.settings import Settings

BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_flow_keeps_its_rate_and_spreads_it_evenly():
    written = dict.fromkeys(map(str, range(SHARDS)), 0)

    def write(portions: dict[str, list[bytes]]) -> None:
        for shard, records in portions.items():
            written[shard] += len(records)

    flow = Flow(SHARDS * 1000, 0.01, write)
    with flow:
        while min(written.values()) < 20:
            pass
    assert written == flow.written
    assert len(set(written.values())) == 1


def test_ages_are_median_95_percent_and_highest():
    assert age_figures([]) == {"age s": "", "95 % s": "", "highest s": ""}
    assert age_figures([3.0]) == {"age s": 3.0, "95 % s": 3.0, "highest s": 3.0}
    assert age_figures(range(101)) == {"age s": 50, "95 % s": 95, "highest s": 100}


def test_a_record_is_visible_from_the_publication_that_passed_its_batch() -> None:
    at = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second) for second in range(20)]
    shard = ShardId("0")

    def row(sequence: int, first: datetime) -> Batch:
        seen = BatchStatistics(1, 1, 1, 0, first, first)
        state, node = BatchState.COMMITTED, NodeName("a")
        return Batch(shard, sequence, "0", "1", state, 1, "run", node, statistics=seen)

    rows = [row(0, at[0]), row(1, at[1]), row(2, at[4]), row(3, at[12])]
    publications = [(at[2], {shard: 1}), (at[8], {shard: 3}), (at[13], {shard: 3})]
    assert visible_ages(rows, publications) == [7.0, 4.0]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the times of ended children")
def test_the_time_of_ended_processes_stays_in_the_sum():
    """Goal: that of a grandchild, too, once its parent has waited for it."""
    before = cpu_below()
    command = [sys.executable, "-c", BUSY]
    nested = f"import subprocess; subprocess.run({command!r})"
    subprocess.run([sys.executable, "-c", nested], check=True)
    assert cpu_below() - before >= 0.3


def test_events_are_counted_once(tmp_path: Path):
    """Goal: events of a partition are separate, and copies that Dagster keeps do not count."""
    settings = Settings(home=tmp_path)
    create_instance(settings)
    with dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        before = stored(settings)
        run = dg.DagsterRun(job_name="job")
        instance.add_run(run)
        for partition in ("0", "1", None):
            event = dg.AssetMaterialization("demo", partition=partition)
            instance.report_dagster_event(
                dg.DagsterEvent(
                    "ASSET_MATERIALIZATION",
                    "job",
                    event_specific_data=dg._core.events.StepMaterializationData(event),
                ),
                run.run_id,
            )
        grown = stored(settings).since(before)
    assert (grown.runs, grown.events, grown.of_shards) == (1, 3, 2)
    assert grown.rows > grown.events
    assert grown.bytes > 0


def test_the_files_of_a_streaming_batch_are_found_in_its_log(tmp_path: Path):
    """Method: the file source's log as Spark writes it, in which every tenth file is a summary."""
    log = tmp_path / "sources" / "0"
    log.mkdir(parents=True)

    def entry(number: int) -> str:
        return json.dumps({"path": f"file:///in/{number}.json", "batchId": number})

    (log / "3").write_text(f"v1\n{entry(3)}")
    (log / "9.compact").write_text(f"v1\n{entry(8)}\n{entry(9)}")
    assert batch_files(tmp_path, "3") == [Path("/in/3.json")]
    assert batch_files(tmp_path, "9") == [Path("/in/9.json")]
