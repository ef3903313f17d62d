"""`leasehold stop`: stops the processes that are recorded in a home."""

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
from dagster_leasehold.orchestration.supervision.leftovers import commands_at_work, end_leftovers

END_TIMEOUT_S = LEAVE_TIMEOUT_S + 60.0
POLL_S = 0.1


def stop(home: Home = None) -> None:
    """Stop all processes of the home, including what a killed `leasehold dev` left running.

    Runs stop at once, and the next start continues them. Agents transfer their shards first.
    """
    from dagster_leasehold.assets.spark import connect_server

    settings = load_settings(home=home)
    stopped = False
    for command in commands_at_work(settings.home):
        say(f"Stopping process {command.pid} and all that it has started …")
        sys.stdout.flush()
        _end(command)
        stopped = True
    for name in end_leftovers(settings.home):
        say(f"Stopped {name}, whose command had ended.")
        stopped = True
    folders = {settings.spark_folder, settings.home / "spark", *settings.home.glob("nodes/*/spark")}
    for folder in sorted(folders):
        if connect_server.stop(folder):
            say(f"Stopped Spark in {folder}.")
            stopped = True
    say("Nothing runs any longer." if stopped else f"Nothing runs on {settings.home}.")


def _end(command: ProcessIdentity) -> None:
    """Send SIGTERM to a command, and wait until it has ended.

    Raises:
        LeaseholdError: it takes too long.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    os.kill(command.pid, signal.SIGTERM)
    while command.existence() is Existence.ALIVE:
        if time.monotonic() > deadline:
            raise LeaseholdError(
                f"Process {command.pid} has not ended within {END_TIMEOUT_S:.0f} s: kill it, and "
                "stop the home again."
            )
        time.sleep(POLL_S)
