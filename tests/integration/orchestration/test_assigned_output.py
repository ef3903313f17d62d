"""A deployment whose catalog assigns the location of its output, through its front doors.

Credentials live for seconds. The commands, the readers and a following run on Spark outlive them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from threading import Thread

import pytest

from dagster_leasehold import LeaseholdResource
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.following import Follow
from dagster_leasehold.assets.consuming.node_consumption import consume_shards
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.resources import deployment_of
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.reading import declared_stream
from tests import object_store
from tests.declared import declare
from tests.environment import forget_settings
from tests.failpoints import Failpoint
from tests.rest_catalog import Assigning, give_token, rest_catalog
from tests.session_store import Sessions, session_store
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

LIFE_S = 4.0


class AssignedHome(ConsumedHome):
    """A home whose settings name a catalog that assigns locations."""

    def __init__(self, folder: Path, uri: str) -> None:
        home = folder / "home"
        catalog = f'[catalog_properties]\ntype = "rest"\nuri = "{uri}"\n'
        declare(home, str(KEY.stream), settings=f'output = "catalog"\ncatalog = "lake"\n{catalog}')
        super().__init__(home)
        self.settings = load_settings(home=home)

    def open_output(self) -> None:
        """Let the runs of this process write to the assigned location."""
        self.sweeper.output_root = Target(self.settings).own_output(KEY)


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(LIFE_S)


@pytest.fixture
def service(sessions: Sessions) -> Generator[Assigning]:
    with session_store(sessions) as bucket:
        yield Assigning(f"s3://{bucket}/lake", sessions)


@pytest.fixture
def home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Assigning
) -> Generator[AssignedHome]:
    forget_settings(monkeypatch)
    give_token(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with rest_catalog(tmp_path, properties=object_store.PYICEBERG, assigning=service) as uri:
        home = AssignedHome(tmp_path, uri)
        yield home
        home.store.close()


def values(shards: int, records: int) -> set[bytes]:
    return {b"%d:%d" % (shard, number) for shard in range(shards) for number in range(records)}


def test_the_commands_and_the_readers_work_at_the_location(
    home: AssignedHome, service: Assigning, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cat", "demo"]) == 2
    assert "demo/default has no table yet in catalog lake" in capsys.readouterr().err
    assert main(["table", "create", "demo"]) == 0
    home.open_output()
    home.append(5)
    home.consume("run-1")
    time.sleep(LIFE_S + 0.1)
    for command in ("table create demo", "verify demo --files", "compact demo", "vacuum demo"):
        assert main(command.split()) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["cat", "demo"]) == 0
    assert capsys.readouterr().out.count("\n") == 10
    stream = declared_stream("demo")
    assert {*stream.dataset().to_table()["value"].to_pylist()} == values(2, 5)
    assert {*stream.table().scan().to_arrow()["value"].to_pylist()} == values(2, 5)
    main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    parts = {each["part"]: (each["health"], each["text"]) for each in findings}
    assert parts["output"][0] == parts["catalog"][0] == "ok"
    assert service.warehouse in parts["output"][1]
    assert parts["catalog"][1] == "1 table in the catalog lake."


def test_a_run_says_that_the_catalog_is_away(
    home: AssignedHome, service: Assigning, capsys: pytest.CaptureFixture[str]
) -> None:
    service.away = True
    assert main(["table", "create", "demo"]) == 2
    assert "Catalog lake cannot be opened" in capsys.readouterr().err
    service.away = False
    assert main(["table", "create", "demo"]) == 0


def test_a_process_that_is_killed_after_it_created_the_table_is_repeated(
    home: AssignedHome,
) -> None:
    """Method: SIGKILL, before anything is at the location; then another process runs."""
    program = "from dagster_leasehold.orchestration.entry import main; main()"
    command = [sys.executable, "-c", program, "table", "create", "demo"]
    armed = os.environ | {failpoints.ENVIRONMENT_VARIABLE: Failpoint.AFTER_TABLE.label}
    assert subprocess.run(command, env=armed, check=False).returncode == -signal.SIGKILL
    at = str(Target(home.settings).output(KEY))
    home.open_output()
    home.append(5)
    home.consume("run-1")
    assert main(["table", "create", "demo"]) == 0
    assert declared_stream("demo").table().metadata.location == at
    assert {*declared_stream("demo").dataset().to_table()["value"].to_pylist()} == values(2, 5)


@pytest.mark.parametrize("properties", [{}, {"type": "rest", "uri": "http://127.0.0.1:1"}])
def test_the_setting_needs_another_catalog(tmp_path: Path, properties: dict[str, str]) -> None:
    resource = LeaseholdResource(
        home=str(tmp_path), output="catalog", catalog="lake", catalog_properties=properties
    )
    if properties:
        assert resource.settings().catalog_settings.assigns
        return
    with pytest.raises(InvalidSetting, match=r"^Setting 'output' is not valid: The lease database"):
        resource.settings()
    assert not Settings(home=tmp_path, output="./catalog").catalog_settings.assigns


@pytest.mark.spark
def test_a_following_run_outlives_its_credentials(
    home: AssignedHome, sessions: Sessions, spark_folder: Path
) -> None:
    """Method: records arrive for several lifetimes, and one run takes them to the table."""
    deployment, rounds = deployment_of(home.settings), 10

    def feed() -> None:
        for _ in range(rounds):
            home.append(2)
            time.sleep(LIFE_S / 2)

    home.append(1)
    feeding = Thread(target=feed)
    feeding.start()
    reports, took_s = consume_shards(
        home.stream,
        deployment,
        spark=SparkResource(mode="connect", folder=str(spark_folder)),
        node=NODE,
        incarnation="a-1",
        run="run-1",
        shards=[lease.shard for lease in home.store.snapshot(KEY).shards],
        follow=Follow(Pace(0.5, idle_limit_s=2 * LIFE_S), time.sleep),
    )
    feeding.join()
    assert {report.stopped for report in reports} == {StopReason.CAUGHT_UP}
    assert took_s > 3 * LIFE_S
    assert verify(home.store, KEY) == []
    stream = declared_stream("demo")
    assert sorted(stream.dataset().to_table()["value"].to_pylist()) == sorted(
        values(2, 2 * rounds + 1)
    )
    assert not sessions.refused
    assert len({ends for ends, _ in sessions.ends.values()}) > 5
