"""`leasehold doctor` on real servers, and the libraries of a real Spark worker."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_leasehold.lease_store.transactions import IDLE_TRANSACTION_S, LOCK_WAIT_S
from dagster_leasehold.orchestration import resources
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands.spark_check import versions_here, worker_versions
from dagster_leasehold.orchestration.supervision import preflight
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome
from tests.unit.orchestration.test_doctor import examined


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        pytest.param("mariadb", "MariaDB", marks=pytest.mark.mariadb),
        pytest.param("mysql", "MySQL", marks=pytest.mark.mysql),
    ],
)
def test_the_doctor_passes_for_a_home_on_a_server(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    server: str,
    kind: str,
) -> None:
    url = str(request.getfixturevalue(f"{server}_url"))
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", url)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)
    home = ConsumedHome(tmp_path, database_url=url)
    home.append(3)
    home.consume("run-1")
    home.store.close()
    code, parts = examined(home, capsys)
    assert (code, parts[f"nodes of {KEY}"]["health"]) == (0, "ok")
    # Some releases of the driver take TLS from a server that offers it, and verify nothing.
    assert re.fullmatch(
        rf"{kind} [\d.]+, READ COMMITTED, innodb_lock_wait_timeout {LOCK_WAIT_S} s, "
        rf"wait_timeout {IDLE_TRANSACTION_S} s, "
        r"(no TLS|TLS with TLS_\w+, server not verified)\.",
        parts["database"]["text"],
    )
    assert parts["privileges"]["health"] == "ok"


@pytest.mark.spark
@pytest.mark.long
def test_the_doctor_checks_a_worker_of_a_real_session(
    connect_session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = worker_versions(connect_session, ["numpy", "no_such_library"])
    assert there == {**versions_here(), "numpy": ""}
    session = SimpleNamespace(spark_session=connect_session)
    monkeypatch.setattr(resources, "spark_of", lambda _: session)
    home = ConsumedHome(tmp_path)
    home.store.close()
    main(["doctor", "--spark", "--home", str(home.settings.home)])
    [line] = [each for each in capsys.readouterr().out.splitlines() if "spark worker" in each]
    assert line == f"ok       spark worker: {', '.join(map(' '.join, versions_here().items()))}."
