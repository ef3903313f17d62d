"""The watcher of the embedded Spark server: the server ends with its users and with the watcher.

Method: the watcher is a separate process, and a Python that sleeps stands for the server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.assets.spark.connect_watch import (
    CLIENTS,
    KEEPERS,
    PROPERTIES_FILE,
    in_use,
    register_client,
    register_keeper,
)
from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from tests.waiting import wait_for

WATCH = """
import sys
from pathlib import Path
from dagster_leasehold.assets.spark import connect_watch
connect_watch.CHECK_S, connect_watch.UNUSED_MAX_S = 0.05, 0.3
connect_watch.IDLE_MAX_S = float(sys.argv[2])
connect_watch._command = lambda folder: [sys.executable, "-c", "import time; time.sleep(60)"]
connect_watch.watch(Path(sys.argv[1]))
"""


until = partial(wait_for, "the server", timeout_s=30)


def ended_process() -> ProcessIdentity:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = ProcessIdentity.of(process.pid)
        process.communicate(b"\n")
    return identity


@contextmanager
def watching(
    folder: Path, idle_max_s: float = 60.0
) -> Generator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A watcher at work, and the server that it has started."""
    (folder / PROPERTIES_FILE).touch()
    with subprocess.Popen([sys.executable, "-c", WATCH, str(folder), str(idle_max_s)]) as watcher:
        try:
            until(lambda: psutil.Process(watcher.pid).children() != [])
            [server] = psutil.Process(watcher.pid).children()
            yield watcher, server
        finally:
            watcher.terminate()


def test_a_folder_is_in_use_while_a_registered_process_runs(tmp_path: Path) -> None:
    assert not in_use(tmp_path, CLIENTS)
    register_client(tmp_path)
    register_client(tmp_path)
    assert in_use(tmp_path, CLIENTS)
    users = tmp_path / CLIENTS
    [own] = users.iterdir()
    elsewhere = replace(ProcessIdentity.of(os.getpid()), place="another")
    for identity in (ended_process(), elsewhere):
        (users / str(identity)).touch()
    (users / "nonsense").touch()
    assert in_use(tmp_path, CLIENTS)
    assert [*users.iterdir()] == [own], "the others are forgotten"
    own.unlink()
    assert not in_use(tmp_path, CLIENTS)


def test_the_folder_of_a_server_is_private(tmp_path: Path) -> None:
    register_client(tmp_path / "spark")
    assert (tmp_path / "spark").stat().st_mode & 0o077 == 0


def test_a_server_stays_while_it_is_used_and_ends_soon_afterwards(tmp_path: Path) -> None:
    register_client(tmp_path)
    with watching(tmp_path) as (watcher, server):
        time.sleep(1.0)
        assert server.is_running()
        [own] = (tmp_path / CLIENTS).iterdir()
        own.unlink()
        watcher.wait(30)
        assert not server.is_running()


def test_a_server_that_is_kept_ends_after_a_long_time_without_a_client(tmp_path: Path) -> None:
    register_keeper(tmp_path)
    with watching(tmp_path) as (_, server):
        time.sleep(1.0)
        assert server.is_running()
        assert in_use(tmp_path, KEEPERS)
        assert not in_use(tmp_path, CLIENTS)
    with watching(tmp_path, idle_max_s=0.5) as (watcher, server):
        watcher.wait(30)
        assert not server.is_running()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_server_ends_with_a_watcher_that_is_killed(tmp_path: Path) -> None:
    register_client(tmp_path)
    with watching(tmp_path) as (watcher, server):
        watcher.send_signal(signal.SIGKILL)
        until(lambda: not server.is_running())
