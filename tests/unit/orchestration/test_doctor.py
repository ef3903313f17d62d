"""`leasehold doctor` on a home that is well, and on homes where one part is not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from dagster_leasehold.lease_store import database_report
from dagster_leasehold.lease_store.release import HEAD, StoredSchema
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands.doctor import Health, findings_of
from dagster_leasehold.orchestration.supervision import dagster_processes, preflight
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConsumedHome:
    # That a Java runs is for the tests of the check itself to say.
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)
    made = ConsumedHome(tmp_path)
    made.append(3)
    made.consume("run-1")
    return made


def examined(home: ConsumedHome, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", "--home", str(home.settings.home)])
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] == (code == 0)
    return code, {each["part"]: each for each in document["findings"]}


def test_each_part_that_is_well_has_a_line(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    code, parts = examined(home, capsys)
    unwell = {name: each for name, each in parts.items() if each["health"] != "ok"}
    assert (code, unwell.keys()) == (0, {"dagster"}), "no instance was made: a warning"
    assert parts["schema"]["text"] == f"revision {HEAD}."
    assert parts["source of demo"]["text"] == "2 shards; it can be read."
    assert list(home.output.parent.parent.glob("doctor-*")) == [], "nothing is left behind"
    assert main(["doctor", "--home", str(home.settings.home)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(parts)
    assert all(line.startswith(("ok ", "warning ")) for line in lines)


def without_log(home: ConsumedHome) -> None:
    (home.log.root / "catalog.json").write_text("{")


def without_members(home: ConsumedHome) -> None:
    seen = home.store.snapshot(KEY).nodes[0].lease_id
    home.store.evict(KEY, NODE, seen, observer="test", reason="test")


def without_output(home: ConsumedHome) -> None:
    output = home.output.parent.parent
    output.rename(output.with_name("elsewhere"))
    output.write_text("a file where the folder was")


def without_store(home: ConsumedHome) -> None:
    home.store.close()
    (home.settings.home / "leases.db").unlink()


@pytest.mark.parametrize(
    ("break_it", "part"),
    [
        (without_log, "source of demo"),
        (without_members, f"nodes of {KEY}"),
        (without_output, "output"),
        (without_store, "database"),
    ],
)
def test_one_part_that_is_not_well_is_named_beside_the_others(
    home: ConsumedHome,
    capsys: pytest.CaptureFixture[str],
    break_it: Callable[[ConsumedHome], None],
    part: str,
) -> None:
    break_it(home)
    code, parts = examined(home, capsys)
    assert code == 1
    assert parts[part]["health"] == "failed"
    assert parts[part]["text"].endswith("."), parts[part]
    assert "\n" not in parts[part]["text"]
    assert parts["spark"]["health"] == "ok", "the other checks are made"


def test_a_schema_of_another_release_says_what_to_do(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_report.schema, "stored", lambda _: StoredSchema("0001"))
    _, parts = examined(home, capsys)
    assert parts["schema"]["health"] == "failed"
    assert "leasehold db upgrade" in parts["schema"]["text"]


def test_an_error_ends_its_own_check_alone() -> None:
    def check() -> Any:
        raise ZeroDivisionError("boom")
        yield

    (finding,) = findings_of("part", check)
    assert (finding.health, finding.text) == (Health.FAILED, "ZeroDivisionError: boom")


@pytest.mark.parametrize(("age_s", "daemon"), [(None, "failed"), (3.0, "ok"), (3_600.0, "failed")])
def test_a_daemon_that_runs_no_sensors_is_seen(
    home: ConsumedHome,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    age_s: float | None,
    daemon: str,
) -> None:
    (home.settings.dagster_home).mkdir()
    (home.settings.dagster_home / "dagster.yaml").touch()
    status = SimpleNamespace(value="RUNNING" if age_s else "STOPPED")
    switched = [SimpleNamespace(instigator_name="demo_rebalance", status=status)]
    with dg.DagsterInstance.ephemeral() as instance:
        if age_s is not None:
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - age_s, "SENSOR", "d"))
        # It has no storage for sensors.
        monkeypatch.setattr(instance, "all_instigator_state", lambda: switched)
        monkeypatch.setattr(dagster_processes, "opened_instance", lambda _: nullcontext(instance))
        code, parts = examined(home, capsys)
    assert parts["daemon"]["health"] == daemon
    assert code == (daemon == "failed")
    assert parts["launcher"]["health"] == "ok"
    assert parts["sensors"]["health"] == ("ok" if age_s else "warning")
