from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.orchestration.declared_streams import named_source
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.sensors.shard_list import shard_list_step
from tests.declared import declare
from tests.unit.sensors.streams import memory_deployment, run_step

ROOT = Path(__file__).parents[3]


def environment(home: Path) -> dict[str, str]:
    variables = {
        name: text for name, text in os.environ.items() if not name.startswith("LEASEHOLD_")
    }
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    return variables | {
        "LEASEHOLD_HOME": str(home),
        "LEASEHOLD_MODULE": declare(home, "visits"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(home)]),
        "DAGSTER_HOME": str(home),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }


def test_definitions_load_without_a_log_and_the_sensor_reports_it(tmp_path):
    source = named_source("local_log", "orders", settings=Settings(home=tmp_path))
    stream = ShardStream("orders", source)
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
        pytest.param(("-m", "dagster_dg_cli.cli", "check", "defs"), marks=pytest.mark.release),
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
