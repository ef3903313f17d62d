"""The embedded Connect server: started once, private, replaced when outdated, stopped on
request.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.connect_server import ConnectServer, running, stop
from dagster_leasehold.assets.spark.connect_watch import LOG_FILE, PROPERTIES_FILE, register_client
from dagster_leasehold.assets.spark.spark_session import server_conf, spark_environment
from dagster_leasehold.assets.spark.spark_settings import TOKEN_VARIABLE, SparkSettings
from dagster_leasehold.lease_store.process_identity import ProcessIdentity, current_place
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.spark]

PROJECT = Path(__file__).parents[3]
START = (
    "import sys; from pathlib import Path; "
    "from dagster_leasehold.assets.spark.spark_session import connect_address; "
    "print(connect_address(Path(sys.argv[1])))"
)
ASK = (
    "import sys; from dagster_leasehold.assets.spark.spark_resource import SparkResource; "
    "print(SparkResource(mode=sys.argv[1], folder=sys.argv[2]).spark_session.range(7).count())"
)


def python(*arguments: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE}
    if token is not None:
        environment[TOKEN_VARIABLE] = token
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


until = partial(wait_for, "the server", timeout_s=30)


def group_of(pid: int) -> list[psutil.Process]:
    """The processes of a group that still run."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (psutil.Error, OSError):
            continue
    return processes


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "spark"
    # This process uses it as well, so that it stays while no other does.
    register_client(folder)
    yield folder
    stop(folder)


def test_one_private_server_is_started_and_ends(folder: Path) -> None:
    """Goal: the whole life. Method: two processes start it at once, then all doors are tried."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = [*pool.map(lambda _: python(START, str(folder)), range(2))]
    addresses = {answer.stdout.strip() for answer in answers}
    assert len(addresses) == 1, [answer.stderr[-1000:] for answer in answers]
    server = running(folder)
    assert server is not None
    assert addresses == {server.address}
    assert "localhost" in server.address

    # A process that finds the server searches no Java, which would start one in each run.
    second = connect_server.connect_server(
        folder, {}, lambda: pytest.fail("nothing to start"), user_conf={}
    )
    assert second == server

    # It outlived its starters, and answers processes that can read its token.
    [address] = addresses
    token = ConnectServer.read_token(folder)
    assert python(ASK, "connect", str(folder)).stdout.strip() == "7"
    assert python(ASK, address, str(folder), token=token).stdout.strip() == "7"
    for wrong in (None, "guess"):
        refused = python(ASK, address, str(folder), token=wrong)
        assert refused.returncode != 0
        assert "SparkUnavailable" in refused.stderr

    # The token is in one private file, and on no command line.
    for name in (connect_server.TOKEN_FILE, connect_server.STATE_FILE, PROPERTIES_FILE):
        assert (folder / name).stat().st_mode & 0o077 == 0, name
    assert folder.stat().st_mode & 0o077 == 0
    processes = group_of(server.pid)
    assert len(processes) >= 2
    assert not any(token in " ".join(process.cmdline()) for process in processes)
    for name in (LOG_FILE, connect_server.STATE_FILE, PROPERTIES_FILE):
        assert token not in (folder / name).read_text(errors="replace"), name

    # It listens on the loopback alone.
    listening = [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}

    # Its JVM dies: the leftovers are not mistaken for a server.
    [jvm] = [process for process in processes if "java" in process.name()]
    jvm.kill()
    until(lambda: running(folder) is None)
    assert python(ASK, "connect", str(folder)).stdout.strip() == "7"
    second = running(folder)
    assert second is not None
    assert second.pid != server.pid

    # Its watcher is killed alone: the system ends the JVM with it, on Linux.
    os.kill(second.pid, signal.SIGKILL)
    until(lambda: not second.alive())
    if sys.platform == "linux":
        until(lambda: group_of(second.pid) == [])
    stop(folder)
    until(lambda: group_of(second.pid) == [])
    assert not (folder / connect_server.TOKEN_FILE).exists()
    assert not stop(folder)


@pytest.mark.release
def test_changed_settings_restart_the_server(folder: Path) -> None:
    """Method: Java's command line shows the heap; a session shows the other settings."""
    ask = (
        "import json, sys; from dagster_leasehold.assets.spark.spark_resource import SparkResource;"
        "resource = SparkResource(folder=sys.argv[1], conf=json.loads(sys.argv[2]));"
        "print(resource.spark_session.conf.get('spark.sql.shuffle.partitions'))"
    )
    servers: list[ConnectServer] = []
    for memory, partitions in (("600m", "5"), ("700m", "6")):
        settings = SparkSettings(memory=memory, conf={"spark.sql.shuffle.partitions": partitions})
        answer = python(ask, str(folder), json.dumps(settings.whole_conf))
        assert answer.stdout.strip() == partitions, answer.stderr[-1000:]
        server = running(folder)
        assert server is not None
        [java] = [each for each in group_of(server.pid) if "java" in each.name()]
        assert f"-Xmx{memory}" in java.cmdline()
        servers.append(server)
    assert group_of(servers[0].pid) == []


def test_the_error_for_a_server_that_ends_at_once_has_its_last_output(folder: Path) -> None:
    import pyspark

    spark_home = str(Path(pyspark.__file__).parent)
    environment = {**os.environ, "JAVA_HOME": str(folder / "no java"), "SPARK_HOME": spark_home}
    with pytest.raises(SparkUnavailable, match=r"ended with code 1 before .*no java/bin/java"):
        connect_server.connect_server(
            folder, {}, lambda: environment, user_conf={}, start_timeout_s=60
        )


def test_a_server_ends_when_its_folder_is_deleted(folder: Path) -> None:
    assert python(START, str(folder)).returncode == 0
    server = running(folder)
    assert server is not None
    shutil.rmtree(folder)
    until(lambda: group_of(server.pid) == [])


def test_a_server_ends_soon_after_its_last_user(tmp_path: Path) -> None:
    """Method: a process starts the server and is killed, as a run and all its parents may be."""
    folder = tmp_path / "spark"
    start = f"{START}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert python(start, str(folder)).returncode == -signal.SIGKILL
    server = ConnectServer.read(folder)
    assert server is not None
    assert server.answers(), "it stays for the time of a restart"
    until(lambda: group_of(server.pid) == [], timeout_s=60)


def test_a_server_whose_start_was_interrupted_can_be_stopped(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", START, str(folder)], cwd=PROJECT) as start:
        until(lambda: ConnectServer.read(folder) is not None, timeout_s=60)
        start.kill()
    server = ConnectServer.read(folder)
    assert server is not None
    assert stop(folder)
    until(lambda: group_of(server.pid) == [])


def test_a_server_that_does_not_start_is_one_sentence(folder: Path) -> None:
    conf = {**server_conf(folder), "spark.master": "nonsense"}
    with pytest.raises(SparkUnavailable) as caught:
        connect_server.connect_server(
            folder, conf, lambda: spark_environment(folder, os.environ), user_conf={}
        )
    assert LOG_FILE in str(caught.value)
    assert "\n" not in str(caught.value)
    assert running(folder) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_state_file_is_ignored(folder: Path, content: str) -> None:
    (folder / connect_server.STATE_FILE).write_text(content)
    assert running(folder) is None
    assert not stop(folder)


def test_a_reused_process_id_is_not_mistaken_for_the_server(folder: Path) -> None:
    """Goal: after a reboot, the process id in the state file can belong to any process."""
    own = ProcessIdentity.of(os.getpid())
    elsewhere = replace(own, place=f"{own.place}1")
    for process in (replace(own, started=own.started - 1), elsewhere):
        ConnectServer(process, 1, "x", "x").write(folder)
        assert running(folder) is None
        assert not stop(folder), "and this very process survives it"


def test_a_server_of_another_folder_with_the_same_process_group_survives(folder: Path) -> None:
    """A container that came after another one finds its note, and may have the same numbers."""
    command = [sys.executable, "-c", "input()", "SparkConnectServer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as other:
        noted = replace(ProcessIdentity.of(other.pid), place="another")
        ConnectServer(noted, 1, "x", "x").write(folder)
        assert not stop(folder)
        assert other.poll() is None
        ConnectServer(replace(noted, place=current_place(), started=1), 1, "x", "x").write(folder)
        assert not stop(folder)
        assert other.poll() is None
        other.communicate(b"\n")


def test_a_step_of_the_wall_clock_does_not_restart_the_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = ProcessIdentity.of(os.getpid())
        server = ConnectServer(process, listener.getsockname()[1], "x", "x")
        server.write(folder)
        before = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: before(self) + 3600)
        assert running(folder) == server
