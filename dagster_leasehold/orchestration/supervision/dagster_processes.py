"""Dagster's daemon and webserver as child processes of `leasehold dev`, on the loopback address."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.orchestration.project_module import DEFINITIONS_MODULE, import_folders
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.steady_daemon import (
    DAEMON,
    SOCKET_FILE,
    WORKSPACE_FILE,
)

if TYPE_CHECKING:
    from dagster import DagsterInstance


LOOPBACK = "127.0.0.1"
START_MAX_S = 120.0
POLL_S = 0.1


def child_environment(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Dagster's processes: both homes and the import path."""
    folders = [str(each) for each in import_folders(settings.home) if each != Path.cwd()]
    inherited = filter(None, [environment.get("PYTHONPATH")])
    return {
        **environment,
        "LEASEHOLD_HOME": str(settings.home.absolute()),
        "DAGSTER_HOME": str(settings.dagster_home),
        "PYTHONPATH": os.pathsep.join([*folders, *inherited]),
        "PYTHONUNBUFFERED": "1",
    }


def daemon(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    module: str = DEFINITIONS_MODULE,
    served_in: Path | None = None,
) -> ChildProcess:
    """Return Dagster's daemon with its code server, as a child that is not started yet.

    Args:
        served_in: the folder of the code server's socket, for `webserver`; its path must be short.
    """
    folder_option = ["--folder", str(served_in)] if served_in else []
    return ChildProcess(
        "the Dagster daemon",
        [sys.executable, "-m", DAEMON, module, *folder_option],
        log=settings.home.absolute() / "daemon.log",
        environment=environment,
        forked=True,
    )


def webserver(
    settings: Settings, environment: Mapping[str, str], port: int, served_in: Path
) -> ChildProcess:
    """Return Dagster's webserver for this host, as a child that is not started yet.

    `served_in` is the folder of the code server's socket and workspace file.
    """
    return ChildProcess(
        "the Dagster webserver",
        [
            *(sys.executable, "-m", "dagster_webserver", "-w", str(served_in / WORKSPACE_FILE)),
            *("--host", LOOPBACK, "--port", str(port)),
        ],
        log=settings.home.absolute() / "webserver.log",
        environment=environment,
        forked=True,
    )


def wait_for_code(served_in: Path, background: ChildProcess, stop: Event) -> None:
    """Wait until the daemon's code server listens or `stop` is set."""
    socket_file = served_in / SOCKET_FILE
    _wait_for(background, lambda: stop.is_set() or socket_file.exists())


def wait_for_port(port: int, pages: ChildProcess, stop: Event) -> None:
    """Wait until the webserver accepts connections or `stop` is set."""

    def answers() -> bool:
        if stop.is_set():
            return True
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
        return False

    _wait_for(pages, answers)


def _wait_for(child: ChildProcess, answers: Callable[[], bool]) -> None:
    if reason := child.until(answers, START_MAX_S, POLL_S):
        raise LeaseholdError(f"{child.title} {reason}: see {child.log}.")


@contextmanager
def opened_instance(settings: Settings, home: Path | None = None) -> Generator[DagsterInstance]:
    """Open the Dagster instance in a folder; by default, the one in Leasehold's home."""
    from dagster import DagsterInstance

    folder = str(home or settings.dagster_home)
    # The instance's configuration can contain paths relative to DAGSTER_HOME.
    os.environ["DAGSTER_HOME"] = folder
    with DagsterInstance.from_config(folder) as instance:
        yield instance
