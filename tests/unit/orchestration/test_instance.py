from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from dagster import DagsterInstance
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.instance.config import dagster_instance_config
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon.sensor import get_elapsed

from dagster_leasehold.orchestration.instance import (
    FORMER_LOCATIONS,
    OWNED_MARK,
    create_instance,
    embedded_text,
    production_text,
)
from dagster_leasehold.orchestration.settings import DEFINITIONS_MODULE, Settings, location_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(home=tmp_path / "home")


def test_a_fresh_home_becomes_a_working_instance(settings):
    home = create_instance(settings)
    with DagsterInstance.from_config(str(home)) as instance:
        assert instance.get_runs_count() == 0
        assert not instance.telemetry_enabled
        assert instance.get_settings("sensors")["use_threads"] is True
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert {limit["key"] for limit in queue.tag_concurrency_limits} == {
            "dagster/partition",
            "leasehold/node",
            "dagster/backfill",
        }


def test_several_processes_may_create_it_at_once(settings):
    code = (
        "from dagster_leasehold.orchestration.instance import create_instance\n"
        "from dagster_leasehold.orchestration.settings import Settings\n"
        f"create_instance(Settings(home={str(settings.home)!r}))\n"
    )
    starting = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in starting:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


def test_a_configuration_of_somebodys_own_stays(settings):
    home = create_instance(settings)
    path = home / "dagster.yaml"
    assert path.read_text().startswith(OWNED_MARK)
    path.write_text("telemetry:\n  enabled: false\n")
    create_instance(settings)
    assert path.read_text() == "telemetry:\n  enabled: false\n"


def origin_of_sensor(module, location):
    target = LoadableTargetOrigin(module_name=module)
    repository = RemoteRepositoryOrigin(
        ManagedGrpcPythonEnvCodeLocationOrigin(target, location), "__repository__"
    )
    return repository.get_instigator_origin("demo_rebalance")


@pytest.mark.parametrize(("ahead_s", "last"), [(-5.0, True), (5_400.0, False)])
def test_ticks_that_came_later_than_now_are_forgotten_since_the_clock_was_set_back(
    settings, ahead_s, last
):
    home = create_instance(settings)
    at_s = time.time() + ahead_s
    data = SensorInstigatorData(at_s, cursor="until 7", last_tick_start_timestamp=at_s)
    running = InstigatorStatus.RUNNING
    state = InstigatorState(
        origin_of_sensor(DEFINITIONS_MODULE, "leasehold"), InstigatorType.SENSOR, running, data
    )
    with DagsterInstance.from_config(str(home)) as instance:
        instance.add_instigator_state(state)
    create_instance(settings)
    with DagsterInstance.from_config(str(home)) as instance:
        [after] = instance.all_instigator_state()
    assert (get_elapsed(after) is not None) is last
    assert after.instigator_data.cursor == "until 7"
    assert after.status is running


@pytest.mark.parametrize("former", FORMER_LOCATIONS)
def test_a_sensor_that_was_turned_off_stays_off_under_the_name_of_now(settings, former):
    """Goal: an upgrade starts nothing; Dagster keeps sensors by the name of their location."""

    def state(location, status=InstigatorStatus.STOPPED, cursor="read until 7"):
        origin = origin_of_sensor(former, location)
        data = SensorInstigatorData(cursor=cursor)
        return InstigatorState(origin, InstigatorType.SENSOR, status, data)

    home = create_instance(settings)
    with DagsterInstance.from_config(str(home)) as instance:
        instance.add_instigator_state(state(former))
    create_instance(settings)
    with DagsterInstance.from_config(str(home)) as instance:
        [kept_off] = instance.all_instigator_state()
        assert kept_off == state("leasehold")
        instance.update_instigator_state(state("leasehold", InstigatorStatus.RUNNING, "until 9"))
        # A leftover of the old name changes nothing any more.
        instance.add_instigator_state(state(former))
    create_instance(settings)
    with DagsterInstance.from_config(str(home)) as instance:
        [later] = instance.all_instigator_state()
        assert later == state("leasehold", InstigatorStatus.RUNNING, "until 9")


def test_the_code_location_has_a_short_name_in_every_process(settings):
    home = create_instance(settings)
    location = yaml.safe_load((home / "workspace.yaml").read_text())["load_from"][0]
    assert location["python_module"] == {
        "module_name": DEFINITIONS_MODULE,
        "location_name": "leasehold",
    }
    repository_workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    assert repository_workspace["load_from"] == [location]
    assert location_of(DEFINITIONS_MODULE) == "leasehold"
    assert location_of("mine.definitions") == "mine.definitions"


def test_an_older_configuration_of_ours_is_renewed(settings):
    home = create_instance(settings)
    path = home / "dagster.yaml"
    path.write_text(f"{OWNED_MARK}\ntelemetry:\n  enabled: true\n")
    create_instance(settings)
    assert path.read_text() == embedded_text()


def test_the_production_configuration_is_valid_and_holds_no_secret(tmp_path, monkeypatch):
    values = {"HOSTNAME": "db", "PORT": "3306", "USERNAME": "u", "PASSWORD": "p", "DATABASE": "d"}
    for name, value in values.items():
        monkeypatch.setenv(f"DAGSTER_MYSQL_{name}", value)
    (tmp_path / "dagster.yaml").write_text(production_text())
    config, _ = dagster_instance_config(str(tmp_path))
    database = config["storage"]["custom"]["config"]["mysql_db"]
    assert database["password"] == {"env": "DAGSTER_MYSQL_PASSWORD"}
    assert all(set(value) == {"env"} for value in database.values())


@pytest.mark.parametrize("text", [embedded_text(), production_text()])
def test_every_configuration_is_one_yaml_document_with_limits(text):
    parsed = yaml.safe_load(text)
    assert parsed["concurrency"]["runs"]["max_concurrent_runs"] >= 2
    assert parsed["run_coordinator"]["config"]["dequeue_interval_seconds"] == 1
