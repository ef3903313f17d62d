"""The script `deploy/home/databases.sh` in a new MySQL, and the accounts that it creates."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from dagster import DagsterInstance

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.orchestration.supervision.health_pages import HEALTH, READINESS
from tests import mysql as mysql_server
from tests.acceptance.leasehold_process import assert_nothing_runs, leasehold, running
from tests.declared import declare, stream_text
from tests.freezing import freeze
from tests.mysql import MySQL
from tests.ports import free_port
from tests.unit.deploy.compose_file import FILE, project

pytestmark = [
    pytest.mark.long,
    pytest.mark.mysql,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]
START_S, END_S = 240.0, 120.0
SECRETS = {
    "MYSQL_ROOT_PASSWORD": "root1",
    "LEASEHOLD_ADMIN_PASSWORD": "admin2",
    "LEASEHOLD_PASSWORD": "node3",
    "DAGSTER_PASSWORD": "dagster4",
}
KEY = GroupKey.parse("default", "demo")


@pytest.fixture
def server(tmp_path: Path) -> Generator[MySQL]:
    """A new server in which the script ran as the MySQL image runs it."""
    if reason := mysql_server.reason_missing():
        pytest.skip(reason)
    client = shutil.which("mysql") or shutil.which("mariadb")
    if client is None:
        pytest.skip("there is no client of MySQL or MariaDB on the path")
    with mysql_server.running() as server:
        server.execute(
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{SECRETS['MYSQL_ROOT_PASSWORD']}'"
        )
        # In the image, the client finds the socket of its server by itself.
        wrapper = tmp_path / "bin" / "mysql"
        wrapper.parent.mkdir()
        wrapper.write_text(
            f'#!/bin/sh\nexec {client} --no-defaults --socket={server.socket} "$@"\n'
        )
        wrapper.chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", FILE.parent / "home/databases.sh"],
            env=SECRETS | {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield server


def environment(service: str, server: MySQL, home: Path) -> dict[str, str]:
    """Return the environment of a service, with this server and this home in the place of its."""
    text = project()["services"][service]["environment"]
    filled = {
        name: re.sub(r"\$\{(\w+):\?\}", lambda match: SECRETS[match[1]], value)
        for name, value in text.items()
    }
    url = filled["LEASEHOLD_DATABASE_URL"].replace("@mysql:3306/", f"@127.0.0.1:{server.port}/")
    return filled | {
        "LEASEHOLD_DATABASE_URL": url,
        "LEASEHOLD_HOME": str(home),
        "LEASEHOLD_OUTPUT": str(home / "output"),
        "DAGSTER_HOME": str(home / "dagster"),
        "DAGSTER_MYSQL_HOSTNAME": "127.0.0.1",
        "DAGSTER_MYSQL_PORT": str(server.port),
    }


def status(at: str, page: str) -> int:
    try:
        with urlopen(f"http://{at}{page}", timeout=5) as answer:
            return answer.status
    except HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_upgrades_and_a_node_work_with_their_accounts(
    server: MySQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node outlives a silence of the server, and calls itself healthy and not ready in it."""
    home = tmp_path / "home"
    shutil.copytree(FILE.parent / "home", home)
    nobody = {"bootstrap_servers": "127.0.0.1:1"}
    declare(home, stream_text("demo", "kafka", options=nobody), settings="lease_timeout_s = 20\n")
    node = environment("node-a", server, home)
    refused = leasehold("db", "upgrade", folder=home, **node)
    assert refused.code != 0, "the ordinary account may not change the schema"
    for service in ("upgrade-leases", "upgrade-dagster"):
        program, *words = project()["services"][service]["command"]
        variables = environment(service, server, home)
        command = [Path(sys.executable).with_name(program)]
        done = leasehold(*words, program=command, folder=home, timeout_s=START_S, **variables)
        assert done.code == 0, done.out + done.err
    for name, value in node.items():
        monkeypatch.setenv(name, value)
    with DagsterInstance.get() as instance:
        ensure_instance_address(instance)
    store = open_store(node["LEASEHOLD_DATABASE_URL"])
    store.create_group(Group(KEY))
    health = f"127.0.0.1:{free_port()}"
    words = ("node", "--name", "node-a", "--port", free_port(), "--health", health)
    with running(*words, folder=home, **node) as agent:
        agent.until(lambda: status(health, READINESS) == 200, START_S)
        [row] = store.snapshot(KEY).nodes
        assert row.name == NodeName("node-a")
        assert row.member
        freeze(server.pid)
        try:
            agent.until(lambda: status(health, READINESS) == 503, START_S)
            assert status(health, HEALTH) == 200
        finally:
            os.kill(server.pid, signal.SIGCONT)
        agent.until(lambda: status(health, READINESS) == 200, START_S)
        assert agent.end(signal.SIGTERM, END_S) == 0, agent.text
    [row] = store.snapshot(KEY).nodes
    assert not row.member
    store.close()
    assert_nothing_runs(home)
