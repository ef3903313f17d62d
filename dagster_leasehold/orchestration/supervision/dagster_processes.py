"""Dagster's own processes on the embedded instance: daemon and webserver, on the loopback."""

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
from dagster_leasehold.orchestration.settings import PREFIX, Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.steady_daemon import SOCKET_FILE, WORKSPACE_FILE

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from dagster_leasehold.assets.shard_stream import ShardStream

LOOPBACK = "127.0.0.1"
DAEMON = "dagster_leasehold.orchestration.supervision.steady_daemon"
START_MAX_S = 120.0
POLL_S = 0.1


def child_environment(
    settings: Settings, environment: Mapping[str, str], *, settings_of_home_only: bool = False
) -> dict[str, str]:
    """Return the environment of Dagster's processes: both homes, and where the modules are.
    With `settings_of_home_only`, no other setting of the environment goes along, so that what is
    written in the home decides.
    """
    own = {PREFIX + name.upper() for name in Settings.model_fields}
    folders = [str(each) for each in import_folders() if each != Path.cwd()]
    inherited = filter(None, [environment.get("PYTHONPATH")])
    return {
        **{
            name: value
            for name, value in environment.items()
            if not (settings_of_home_only and name in own)
        },
        "LEASEHOLD_HOME": str(settings.home.absolute()),
        "DAGSTER_HOME": str(settings.dagster_home),
        "PYTHONPATH": os.pathsep.join([*folders, *inherited]),
        "PYTHONUNBUFFERED": "1",
    }


def daemon(
    settings: Settings,
    environment: Mapping[str, str],
    folder: Path | None = None,
    *,
    module: str = DEFINITIONS_MODULE,
    served_in: Path | None = None,
) -> ChildProcess:
    """Return the daemon, which ticks the sensors and launches the runs; its log is in the home.

    `served_in` is a folder whose path is short, through which `webserver` uses its code server.
    """
    shared = ["--folder", str(served_in)] if served_in else []
    return ChildProcess(
        "the Dagster daemon",
        [sys.executable, "-m", DAEMON, module, *shared],
        log=settings.home.absolute() / "daemon.log",
        environment=environment,
        folder=folder,
    )


def webserver(
    settings: Settings, environment: Mapping[str, str], port: int, served_in: Path
) -> ChildProcess:
    """Return the webserver, for browsers on this machine only; its log is in the home."""
    return ChildProcess(
        "the Dagster webserver",
        [
            *(sys.executable, "-m", "dagster_webserver", "-w", str(served_in / WORKSPACE_FILE)),
            *("--host", LOOPBACK, "--port", str(port)),
        ],
        log=settings.home.absolute() / "webserver.log",
        environment=environment,
    )


def wait_for_code(served_in: Path, background: ChildProcess, stop: Event) -> None:
    """Return when the daemon's code server listens, or when it is time to stop.

    Raises:
        LeaseholdError: the daemon has ended, or takes too long.
    """
    socket_file = served_in / SOCKET_FILE
    _wait_for(background, lambda: stop.is_set() or socket_file.exists())


def wait_for_port(port: int, pages: ChildProcess, stop: Event) -> None:
    """Return when the webserver takes connections, or when it is time to stop.

    Raises:
        LeaseholdError: it has ended, or takes too long.
    """

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
    """Open the Dagster instance of a folder; None is the one in Leasehold's home."""
    from dagster import DagsterInstance

    folder = str(home or settings.dagster_home)
    # The configuration may name folders relative to DAGSTER_HOME.
    os.environ["DAGSTER_HOME"] = folder
    with DagsterInstance.from_config(folder) as instance:
        yield instance


def materialize_lease_table(settings: Settings, stream: ShardStream) -> bool:
    """Materialize the lease table of a stream on the instance; return True if that succeeded."""
    import dagster as dg

    from dagster_leasehold.assets.lease_asset import build_lease_asset
    from dagster_leasehold.orchestration.resources import deployment_of

    with opened_instance(settings) as instance:
        asset = build_lease_asset(stream, deployment_of(settings))
        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        done = dg.materialize([asset], instance=instance, raise_on_error=False, run_config=quiet)
        return done.success


def count_runs(settings: Settings, *statuses: str) -> int:
    """Return the number of the instance's runs that have one of these statuses."""
    from dagster import DagsterRunStatus, RunsFilter

    wanted = [DagsterRunStatus(status) for status in statuses]
    with opened_instance(settings) as instance:
        return instance.get_runs_count(RunsFilter(statuses=wanted))


def active_runs(settings: Settings) -> int:
    """Return the number of runs that wait, start or work."""
    from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

    return count_runs(settings, *(status.value for status in NOT_FINISHED_STATUSES))
