from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from dagster_leasehold.orchestration.declared_streams import stream_of
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.stream_settings import StreamSettings
from dagster_leasehold.sensors.shard_list import shard_list_step
from tests.unit.sensors.streams import memory_deployment, run_step

ROOT = Path(__file__).parents[3]


def environment(home: Path) -> dict[str, str]:
    variables = {
        name: text for name, text in os.environ.items() if not name.startswith("LEASEHOLD_")
    }
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    return variables | {
        "LEASEHOLD_HOME": str(home),
        "LEASEHOLD_STREAMS": '[{"name": "visits"}]',
        "PYTHONPATH": str(ROOT),
        "DAGSTER_HOME": str(home),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }


def test_settings_become_a_stream_with_their_limits(tmp_path):
    declared = StreamSettings(
        name="orders",
        batch_records_max=10,
        batch_bytes_max=20,
        shards_per_run=3,
        run_budget_s=4,
        compact=False,
        compact_target_bytes=5,
        compact_after_s=0,
        vacuum_after_s=60,
    )
    stream = stream_of(declared, Settings(home=tmp_path))
    assert (stream.limits.records_max, stream.limits.bytes_max) == (10, 20)
    assert (stream.shards_per_run, stream.run_budget_s) == (3, 4)
    assert (stream.compact, stream.compact_target_bytes) == (False, 5)
    assert (stream.compact_after_s, stream.vacuum_after_s) == (0, 60)
    assert stream.source.spark_options()["root"] == str(tmp_path / "logs" / "orders")


def test_a_log_that_does_not_exist_yet_is_said_by_the_sensor_and_loads_all_the_same(tmp_path):
    stream = stream_of(StreamSettings(name="orders"), Settings(home=tmp_path))
    deployment, _ = memory_deployment()
    step = shard_list_step(stream, deployment)
    with dg.DagsterInstance.ephemeral() as instance:
        line = run_step(step, instance).line
    assert str(tmp_path / "logs" / "orders") in line
    assert "\n" not in line


@pytest.mark.dagster_processes
@pytest.mark.parametrize(
    "command",
    [
        ("-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"),
        ("-m", "dagster_dg_cli.cli", "check", "defs"),
    ],
    ids=["dagster definitions validate", "dg check defs"],
)
def test_dagster_accepts_the_definitions(command, tmp_path):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
