"""`leasehold stop`: stops the processes of a home."""

from __future__ import annotations

import os
import signal
import sys
import time

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.process_identity import Existence, ProcessIdentity
from dagster_leasehold.orchestration.commands.nodes import LEAVE_TIMEOUT_S
from dagster_leasehold.orchestration.commands.options import Home
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.orchestration.supervision.leftovers import end_leftovers, live_commands

END_TIMEOUT_S = LEAVE_TIMEOUT_S + 60.0
POLL_S = 0.1


def stop(home: Home = None) -> None:
    """Stop all processes of the home, including leftovers of a killed `leasehold dev`.

    Agents first transfer their shards. Runs stop at once, and continue at their checkpoints after
    the next start.
    """
    from dagster_leasehold.assets.spark import connect_server

    settings = load_settings(home=home)
    any_stopped = False
    for command in live_commands(settings.home):
        say(f"Stopping process {command.pid} and its child processes …")
        sys.stdout.flush()
        _terminate(command)
        any_stopped = True
    for name in end_leftovers(settings.home):
        say(f"Stopped {name}, a leftover of a command that has ended.")
        any_stopped = True
    folders = {settings.spark_folder, settings.home / "spark", *settings.home.glob("nodes/*/spark")}
    for folder in sorted(folders):
        if connect_server.stop(folder):
            say(f"Stopped Spark in {folder}.")
            any_stopped = True
    say("All processes have stopped." if any_stopped else f"No processes run on {settings.home}.")


def _terminate(command: ProcessIdentity) -> None:
    deadline = time.monotonic() + END_TIMEOUT_S
    os.kill(command.pid, signal.SIGTERM)
    while command.existence() is Existence.ALIVE:
        if time.monotonic() > deadline:
            raise LeaseholdError(
                f"Process {command.pid} has not ended within {END_TIMEOUT_S:.0f} s: kill it, and "
                "run `leasehold stop` again."
            )
        time.sleep(POLL_S)
