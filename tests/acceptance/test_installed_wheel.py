"""The wheel, installed beside a project whose own packages are named like rooms of the tree.

Method: build the wheel, install it into an empty environment that finds the dependencies of the
tests' own, but not this checkout, and let a project with its own `assets`, `sensors` and
`orchestration` consume one partition of a small log with Spark, from a folder elsewhere.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.leasehold_process import environment
from tests.declared import declare
from tests.own_environments import built_wheel, installed_wheel
from tests.unit.test_layout import FILES, PACKAGE, PACKAGES, ROOT, name

pytestmark = pytest.mark.long

PROJECT = {
    "assets/__init__.py": '"""Streams of the project."""\n',
    "assets/visits.py": """
from dagster_leasehold import LocalLog, ShardStream, load_settings, parse_json


def parsed(records):
    return parse_json(records, "path string, status int")


visits = ShardStream("visits", LocalLog(load_settings().log_folder("visits")), transform=parsed)
""",
    "sensors/__init__.py": '"""Sensors of the project."""\n',
    "sensors/hourly.py": """
import dagster as dg


@dg.sensor(target="*")
def quiet(context):
    return dg.SkipReason("nothing to do")
""",
    "orchestration/__init__.py": '"""What Dagster loads of the project."""\n',
    "orchestration/definitions.py": """
import dagster as dg

from assets.visits import visits
from dagster_leasehold import build_definitions
from lease_store import TEAM
from sensors.hourly import quiet

defs = dg.Definitions.merge(
    build_definitions([visits]), dg.Definitions(sensors=[quiet], metadata={"team": TEAM})
)
""",
    "lease_store.py": 'TEAM = "shop"\n',
    "shard_sources.py": "SOURCES = ()\n",
    "simulation.py": "SEEDS = ()\n",
    # Two ticks as Dagster's daemon makes them, and one partition as its web page materializes it.
    "play.py": """
import json

import dagster as dg

import assets, lease_store, orchestration, sensors, shard_sources, simulation
import dagster_leasehold
import dagster_leasehold.assets.shard_stream
from orchestration.definitions import defs

repository = defs.get_repository_def()
with dg.DagsterInstance.ephemeral() as instance:
    for sensor, ticks in (("visits_housekeeping", 1), ("visits_rebalance", 2)):
        cursor = None
        for _ in range(ticks):
            context = dg.build_sensor_context(
                instance, cursor, repository_def=repository, resources=defs.resources
            )
            tick = repository.get_sensor_def(sensor).evaluate_tick(context)
            cursor = tick.cursor
    run = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey("visits")],
        partition_key="0",
        tags={"dagster/partition": "0"},
    )
    [event] = [
        event for event in run.get_asset_materialization_events() if event.partition == "0"
    ]
own = (assets, lease_store, orchestration, sensors, shard_sources, simulation)
print(json.dumps({
    "records": event.materialization.metadata["records"].value,
    "own": [module.__file__ for module in own],
    "installed": [dagster_leasehold.__file__, dagster_leasehold.assets.shard_stream.__file__],
}))
""",
}
LINES = '{"path": "/cart", "status": 200}\n{"path": "/search", "status": 404}\nno visit\n'


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, a project, and a folder elsewhere to work from."""

    python: Path
    project: Path
    elsewhere: Path

    def run(self, *command: object, path: str = "") -> subprocess.CompletedProcess[str]:
        variables = {
            "LEASEHOLD_HOME": str(self.elsewhere / "home"),
            "LEASEHOLD_SPARK": "local[2]",
            "PYTHONPATH": path,
        }
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.elsewhere,
            env=environment() | variables,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=180,
            check=False,
        )

    def output(self, *command: object, path: str = "") -> str:
        done = self.run(*command, path=path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"), ROOT)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    python = installed_wheel(folder / "venv", wheel) / "python"
    project, elsewhere = folder / "project", folder / "elsewhere"
    declare(elsewhere / "home", "visits")
    for path, text in PROJECT.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text, "utf-8")
    return Installed(python, project, elsewhere)


def build(target: str, folder: Path, into: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    [built] = into.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return built


def contents(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    """Goal: no room of the tree is installed at the top, and no file of a room is forgotten."""
    held = set(zipfile.ZipFile(wheel).namelist())
    metadata = {each for each in held if each.split("/")[0].endswith(".dist-info")}
    files = {name(path) for path in FILES}
    assert held - metadata == {each for each in files if each.startswith(f"{PACKAGE}/")}
    assert f"{PACKAGE}/py.typed" in held
    assert f"{PACKAGE}/lease_store/migrations/script.py.mako" in held
    assert {Path(each).name for each in metadata} >= {"METADATA", "entry_points.txt", "LICENSE"}


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Goal: a build from the published sources contains every package."""

    with tarfile.open(build("sdist", ROOT, tmp_path)) as sources:
        sources.extractall(tmp_path, filter="data")
    [unpacked] = (path for path in tmp_path.iterdir() if path.is_dir())
    assert contents(build("wheel", unpacked, tmp_path)) == contents(wheel)


def test_a_clone_without_symbolic_links_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Method: where links are not supported, git writes each as a file that holds its target."""
    clone = tmp_path / "clone"
    for path in FILES:
        copy = clone / name(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for link in (path for path in ROOT.iterdir() if path.is_symlink()):
        (clone / link.name).write_text(str(link.readlink()), "utf-8")
    assert contents(build("wheel", clone, tmp_path)) == contents(wheel)


@pytest.mark.parametrize("room", PACKAGES)
def test_the_environment_does_not_see_the_checkout(installed: Installed, room: str) -> None:
    done = installed.run(installed.python, "-c", f"import {room}")
    assert f"ModuleNotFoundError: No module named '{room}'" in done.stderr


@pytest.mark.spark
def test_a_project_with_packages_of_the_same_names_consumes_its_stream(
    installed: Installed,
) -> None:
    command = installed.python.parent / "leasehold"
    log = installed.elsewhere / "visits.log"
    log.write_text(LINES, "utf-8")
    installed.output(command, "load", "visits", log, "--shards", 1)

    played = installed.output(
        installed.python, "-P", installed.project / "play.py", path=str(installed.project)
    )
    answer = json.loads(played.splitlines()[-1])
    assert answer["records"] == 3
    assert all(Path(file).is_relative_to(installed.project) for file in answer["own"])
    environment_folder = installed.python.parents[1]
    assert all(Path(file).is_relative_to(environment_folder) for file in answer["installed"])

    read = installed.output(command, "cat", "visits")
    rows = [json.loads(line) for line in read.splitlines()]
    assert [(row["path"], row["status"]) for row in rows] == [("/cart", 200), ("/search", 404)]
    quarantined = installed.output(command, "quarantine", "list", "visits", "--json")
    assert "no visit" in quarantined
    installed.output(command, "verify", "visits")
