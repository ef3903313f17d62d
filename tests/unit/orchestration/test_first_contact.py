"""Obstacles to a deployment are noticed before anything is started, in one sentence each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import JavaNotFound
from dagster_leasehold.assets.spark import spark_runtime
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.dagster_processes import wait_for_port
from tests.declared import declare
from tests.ports import free_port


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which a command ends as a mistake; it names no address."""
    assert main(list(arguments)) == 2
    written = capsys.readouterr()
    assert "http://" not in written.out
    assert written.err.count("\n") == 1
    return written.err


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One stream, wherever a command is started."""
    folder = tmp_path_factory.mktemp("declared")
    monkeypatch.setenv("LEASEHOLD_MODULE", declare(folder, "visits"))
    monkeypatch.syspath_prepend(folder)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.mark.parametrize("command", ["dev", "dev --nodes 2"])
def test_a_folder_with_a_package_of_our_name_is_refused(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "dagster_leasehold"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    sentence = refused(capsys, *command.split(), "--home", str(tmp_path / "home"))
    assert f"contains another Python package '{name}'" in sentence
    assert not (tmp_path / "home").exists()


def test_a_home_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    sentence = refused(capsys, "dev", "--home", str(tmp_path / "file" / "home"))
    assert "cannot be created: Not a directory." in sentence


def test_a_port_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = refused(capsys, "dev", "--home", str(tmp_path), "--port", str(port))
    assert f"Port {port} of 127.0.0.1 is in use" in sentence


def test_a_machine_without_java_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> Path:
        raise JavaNotFound("There is no Java: install one.")

    monkeypatch.setattr(spark_runtime, "java_home", missing)
    assert refused(capsys, "dev", "--home", str(tmp_path)) == "There is no Java: install one.\n"


@pytest.mark.parametrize("command", ["dev", "dev --nodes 2"])
def test_a_path_without_bash_is_refused(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: no server of Spark's is started again and again that cannot even begin."""
    monkeypatch.setattr(spark_runtime, "java_home", lambda *_, **__: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = refused(capsys, *command.split(), "--home", str(tmp_path / "home"))
    assert sentence.startswith("Spark's start script needs bash, which is not on the PATH")


def test_a_web_page_that_does_not_start_has_no_address(tmp_path: Path) -> None:
    child = ChildProcess(
        "the webserver",
        [sys.executable, "-c", "raise SystemExit(7)"],
        log=tmp_path / "log",
        environment=dict(os.environ),
    )
    with child:
        assert child.until(lambda: False, timeout_s=30).startswith("ended")
        with pytest.raises(LeaseholdError, match="ended with code 7 before it answered: see"):
            wait_for_port(free_port(), child, threading.Event())


def test_a_home_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    """Method: root ignores modes, so the command runs without that privilege where it can."""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    command = [
        sys.executable,
        "-m",
        "dagster_leasehold.orchestration.command_line",
        "dev",
        "--home",
        str(home),
    ]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.stderr.startswith("setpriv:"):
        pytest.skip("this machine lets nobody give a privilege up")
    assert done.returncode == 2, done.stderr
    assert "Permission denied" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "http://" not in done.stdout
