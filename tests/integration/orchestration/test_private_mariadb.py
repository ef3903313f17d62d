"""The MariaDB of a home: made once, kept, let go of when its keeper dies, and nobody else's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import StoreError, StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.mariadb_access import FOLDER, Access, dagster_variables
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision import private_mariadb
from dagster_leasehold.orchestration.supervision.private_mariadb import PrivateMariaDB
from tests.acceptance.leasehold_process import assert_nothing_runs, leasehold

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(300)]
KEY = GroupKey.parse("default", "demo")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose MariaDB has a lease store with one group, and is stopped."""
    home = tmp_path_factory.mktemp("private") / "home"
    home.mkdir()
    with PrivateMariaDB(home):
        store = open_store(Settings(home=home).store_url, upgrade=True)
        store.create_group(Group(KEY))
        store.close()
    return home


def test_a_stopped_server_is_served_for_a_command_and_keeps_what_it_had(
    home: Path, tmp_path: Path
) -> None:
    assert_nothing_runs(home)
    done = leasehold("group", "list", "--home", home, folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "demo" in done.out
    assert_nothing_runs(home)


def test_its_password_is_in_files_of_this_user_alone(home: Path) -> None:
    access = Access.of(home)
    assert access is not None
    secret = access.password.get_secret_value()
    assert secret not in f"{access!r} {access}"
    holders = [path for path in home.rglob("*") if path.is_file() and _holds(path, secret)]
    assert {path.name for path in holders} <= {"access.json", "account.sql"}
    for path in holders:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((home / FOLDER).stat().st_mode) == 0o700
    with PrivateMariaDB(home) as server:
        process = psutil.Process(server.process.pid)
        assert secret not in " ".join(process.cmdline())
        # Only the loopback is listened on, and only with the password.
        listening = [each.laddr.ip for each in process.net_connections("tcp")]
        assert set(listening) == {"127.0.0.1"}
        with pytest.raises(StoreError, match="Access denied"):
            open_store(
                f"mysql+pymysql://leasehold:wrong@127.0.0.1:{access.port}/leasehold"
            ).groups()


def _holds(path: Path, secret: str) -> bool:
    return secret.encode() in path.read_bytes()


def test_a_server_whose_keeper_was_killed_is_ended_and_started_again(home: Path) -> None:
    keeper = (
        "import os, sys; from pathlib import Path\n"
        "from dagster_leasehold.orchestration.supervision.private_mariadb import PrivateMariaDB\n"
        "server = PrivateMariaDB(Path(sys.argv[1])).__enter__()\n"
        "print(server.process.pid); sys.stdout.flush(); os._exit(9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", keeper, str(home)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    left = int(killed.stdout)
    assert psutil.pid_exists(left)
    with PrivateMariaDB(home) as server:
        assert server.process.pid != left
        assert not psutil.pid_exists(left)
        store = open_store(Settings(home=home).store_url)
        assert [group.key for group in store.groups()] == [KEY]
    assert_nothing_runs(home)


def test_a_second_keeper_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_mariadb, "LOCK_TIMEOUT_S", 0.1)
    with (
        PrivateMariaDB(home),
        pytest.raises(StoreUnavailable, match="Another process serves the MariaDB of"),
        PrivateMariaDB(home),
    ):
        pass


def test_a_machine_without_the_program_says_what_is_missing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_mariadb, "_program", lambda name: None)
    with pytest.raises(StoreUnavailable, match="install mariadb-server"), PrivateMariaDB(home):
        pass


def test_dagster_finds_its_storage_in_the_server_unless_the_environment_names_one(
    home: Path,
) -> None:
    access = Access.of(home)
    assert access is not None
    variables = dagster_variables(home, {})
    assert variables["DAGSTER_MYSQL_PORT"] == str(access.port)
    assert dagster_variables(home, {"DAGSTER_MYSQL_HOSTNAME": "db"}) == {}
    assert dagster_variables(home.parent, dict(os.environ)) == {}
