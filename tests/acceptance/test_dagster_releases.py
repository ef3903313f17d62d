"""Runs with the oldest supported release of Dagster; all other tests use the pinned one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import assert_nothing_runs, environment, leasehold, running
from tests.declared import declare, stream_text
from tests.own_environments import PackagesMissing, own_packages
from tests.ports import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]
ROOT = Path(__file__).parents[2]
ALONGSIDE = ("dagster-shared", "dagster-pipes", "dagster-graphql")
"""Dagster's packages that have the same version as `dagster`."""
PROGRAM = """
import dagster as dg
from dagster_leasehold import LocalLog, ShardStream, build_definitions
from dagster_leasehold.assets import dagster_internals

names = [getattr(dagster_internals, name) for name in dagster_internals.__all__]
dagster_internals.code_server_client(socket="/nowhere/code.sock")
dagster_internals.daemon_of("workspace.yaml")
build_definitions([ShardStream("visits", LocalLog("log"))]).get_repository_def()
print(dg.__version__, len(names))
"""


@pytest.fixture(scope="module")
def oldest() -> tuple[str, str]:
    """The oldest supported release, and a PYTHONPATH that finds it first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = "\n".join(project["project"]["dependencies"])
    allowed: list[tuple[str, str]] = re.findall(r"(dagster[\w-]*)>=([\d.]+)", lines)
    release = dict(allowed)["dagster"]
    library = dict(allowed)["dagster-pyspark"]
    packages = [f"{name}=={number}" for name, number in allowed]
    packages += [*(f"{name}=={release}" for name in ALONGSIDE), f"dagster-spark=={library}"]
    try:
        folder = own_packages(f"dagster-{release}", tuple(packages))
    except PackagesMissing as error:
        pytest.skip(f"There is no other release of Dagster: {error}")
    return release, f"{folder}:{ROOT}"


def test_private_names_of_dagster_exist_and_definitions_are_built(
    oldest: tuple[str, str], tmp_path: Path
) -> None:
    release, path = oldest
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": path},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{release} ")


@pytest.mark.release
def test_a_deployment_commits_each_record_once(oldest: tuple[str, str], tmp_path: Path) -> None:
    release, path = oldest
    home = tmp_path / "home"
    log = LocalLog.create(load_settings(home=home).log_folder("demo"), 2)
    for row in log.list_shards():
        log.append(row.shard, [f"{row.shard}-{number}".encode() for number in range(5)])
    declare(home, stream_text("demo", pace="Pace(commit_interval_s=0)"))
    version = leasehold("version", folder=tmp_path, PYTHONPATH=path)
    assert f"dagster {release}\n" in version.out
    command = ("dev", "--home", home, "--port", free_port())
    with running(*command, folder=tmp_path, PYTHONPATH=path) as dev:

        def committed() -> int:
            done = leasehold("cat", "demo", "--home", home, folder=tmp_path, PYTHONPATH=path)
            return done.out.count("\n")

        dev.until(lambda: committed() == 10, timeout_s=240)
        assert dev.end(signal.SIGINT) == 0
        assert "Traceback" not in dev.text
    assert_nothing_runs(home)
    verified = leasehold("verify", "demo", "--home", home, folder=tmp_path, PYTHONPATH=path)
    assert verified.code == 0, verified.out
