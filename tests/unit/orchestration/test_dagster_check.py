"""The lines of `leasehold doctor` about Dagster: its instance, daemon, launcher and sensors."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import DagsterInstance
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon.types import DaemonHeartbeat
from dagster_shared.error import SerializableErrorInfo

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.orchestration.instance import create_instance, embedded_text, nodes_text
from dagster_leasehold.orchestration.settings import DEFINITIONS_MODULE, Settings
from dagster_leasehold.orchestration.supervision import dagster_processes, preflight
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, publish, withdraw
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome
from tests.unit.orchestration.test_doctor import examined, without_store

UNREACHABLE = SerializableErrorInfo(
    "dagster._core.errors.DagsterUserCodeUnreachableError: Could not reach user code server\n",
    [],
    "DagsterUserCodeUnreachableError",
    SerializableErrorInfo("_InactiveRpcError of RPC that terminated with:\n", [], "_InactiveRpc"),
)
RAISED = SerializableErrorInfo(
    "dagster._core.errors.SensorExecutionError: Error occurred during evaluation_fn\n",
    [],
    "SensorExecutionError",
    SerializableErrorInfo("ValueError: no such shard\nand more\n", [], "ValueError"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConsumedHome:
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)
    # `opened_instance` sets it for all that this process does.
    monkeypatch.setenv("DAGSTER_HOME", "")
    return ConsumedHome(tmp_path / "home")


def opened(home: ConsumedHome, text: str = embedded_text()) -> DagsterInstance:
    """Make the Dagster instance of a home, and open it; it is closed with the test's process."""
    return DagsterInstance.from_config(str(create_instance(home.settings, text)))


def tick(instance: DagsterInstance, sensor: str, *ends: TickStatus | SerializableErrorInfo) -> None:
    """Have a sensor tick: each tick ends in a status, or fails with an error."""
    target = LoadableTargetOrigin(module_name=DEFINITIONS_MODULE)
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target, "leasehold")
    origin = RemoteRepositoryOrigin(location, "__repository__").get_instigator_origin(sensor)
    state = InstigatorState(
        origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, SensorInstigatorData()
    )
    instance.add_instigator_state(state)
    for number, end in enumerate(ends):
        failed = isinstance(end, SerializableErrorInfo)
        instance.create_tick(
            TickData(
                state.instigator_origin_id,
                sensor,
                InstigatorType.SENSOR,
                TickStatus.FAILURE if failed else end,
                time.time() - 100 + number,
                run_ids=[],
                error=end if failed else None,
                selector_id=state.selector_id,
            )
        )


@pytest.mark.parametrize(("age_s", "daemon"), [(None, "failed"), (3.0, "ok"), (3_600.0, "failed")])
def test_the_doctor_notices_a_daemon_without_ticking_sensors(
    home: ConsumedHome,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    age_s: float | None,
    daemon: str,
) -> None:
    (home.settings.dagster_home).mkdir()
    (home.settings.dagster_home / "dagster.yaml").touch()
    status = SimpleNamespace(value="RUNNING" if age_s else "STOPPED")
    switched = [SimpleNamespace(instigator_name="night", status=status)]
    with dg.DagsterInstance.ephemeral() as instance:
        if age_s is not None:
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - age_s, "SENSOR", "d"))
        # It has no storage for sensors.
        monkeypatch.setattr(instance, "all_instigator_state", lambda: switched)
        monkeypatch.setattr(dagster_processes, "opened_instance", lambda *_: nullcontext(instance))
        code, parts = examined(home, capsys)
    assert parts["daemon"]["health"] == daemon
    assert code == (daemon == "failed")
    assert parts["launcher"]["health"] == "ok"
    assert parts["sensors"]["health"] == ("ok" if age_s else "warning")


def test_the_doctor_checks_the_instance_of_the_environment(
    home: ConsumedHome,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A project with its own Dagster has none in Leasehold's home."""
    _, parts = examined(home, capsys)
    assert parts["dagster"]["health"] == "warning"
    assert "or in DAGSTER_HOME" in parts["dagster"]["text"]
    assert "daemon" not in parts
    own = create_instance(Settings(home=tmp_path / "project"))
    monkeypatch.setenv("DAGSTER_HOME", str(own))
    _, parts = examined(home, capsys)
    assert parts["dagster"] == {
        "part": "dagster", "health": "ok", "text": f"the instance in {own}."
    }  # fmt: skip
    assert parts["daemon"]["health"] == "failed"
    monkeypatch.setenv("DAGSTER_HOME", str(own))
    inner = create_instance(home.settings)
    _, parts = examined(home, capsys)
    assert parts["dagster"]["text"] == f"the instance in {inner}.", "the home's own comes first"


def test_sensors_of_ours_whose_last_tick_failed_are_named_with_the_error(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    success, started = TickStatus.SUCCESS, TickStatus.STARTED
    with opened(home) as instance:
        tick(instance, "demo_rebalance", RAISED, success)
        _, parts = examined(home, capsys)
        assert parts["ticks"]["health"] == "ok"
        tick(instance, "demo_housekeeping", success, RAISED, started)
        tick(instance, "days_watermark", RAISED)
        tick(instance, "somebody_elses", RAISED)
        _, parts = examined(home, capsys)
        assert parts["ticks"]["health"] == "warning"
        assert parts["ticks"]["text"].startswith(
            "the last tick of days_watermark, demo_housekeeping failed (ValueError: no such shard)"
        )
        tick(instance, "hours_watermark", UNREACHABLE)
        _, parts = examined(home, capsys)
    assert parts["ticks"]["text"].startswith(
        "the last tick of hours_watermark failed (DagsterUserCodeUnreachableError: Could not reach "
        "user code server): "
    )


def test_a_sensor_that_is_switched_off_is_not_blamed_for_its_last_tick(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(home) as instance:
        tick(instance, "demo_housekeeping", RAISED)
        [state] = instance.all_instigator_state()
        instance.update_instigator_state(state.with_status(InstigatorStatus.STOPPED))
        _, parts = examined(home, capsys)
    assert (parts["sensors"]["health"], parts["ticks"]["health"]) == ("warning", "ok")


def with_agent(home: ConsumedHome, instance: DagsterInstance) -> None:
    """Have the node answer at this instance's address, and its agent publish a code server."""
    row = next(each for each in home.store.pulse(KEY).nodes if each.name == NODE)
    row = replace(row, address=ensure_instance_address(instance))
    home.store.register(KEY, row, observer="test")
    publish(instance, NODE, Endpoint("127.0.0.1", 4201))


def test_a_launcher_that_sends_no_run_to_an_agent_is_refused(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(home) as instance:
        _, parts = examined(home, capsys)
        assert parts["launcher"]["health"] == "ok"
        assert parts["launcher"]["text"] == "DefaultRunLauncher; no node has an agent."
        with_agent(home, instance)
        code, parts = examined(home, capsys)
        assert (code, parts["launcher"]["health"]) == (1, "failed")
        assert parts["launcher"]["text"].startswith(
            f"DefaultRunLauncher sends no runs to agents, although {NODE} has an agent: "
        )
        withdraw(instance, NODE)
        _, parts = examined(home, capsys)
        assert parts["launcher"]["health"] == "ok"
        monkeypatch.setenv("LEASEHOLD_AGENTS", "true")
        _, parts = examined(home, capsys)
    assert parts["launcher"]["health"] == "failed"
    assert "LEASEHOLD_AGENTS" in parts["launcher"]["text"]


def test_the_launcher_of_nodes_fits_with_agents_and_without(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(home, nodes_text()) as instance:
        with_agent(home, instance)
        _, parts = examined(home, capsys)
    assert parts["launcher"]["health"] == "ok"
    assert parts["launcher"]["text"] == "NodeRunLauncher."


def test_a_launcher_is_checked_by_the_settings_if_the_store_is_unavailable(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(home):
        without_store(home)
        _, parts = examined(home, capsys)
    assert parts["launcher"]["health"] == "ok"
    assert parts["launcher"]["text"].endswith("the settings; nodes were not checked.")
