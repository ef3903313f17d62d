"""Finds and ends the processes that a child process has started, by their session.

Each child leads a session, to which its own children belong. So they can be found and ended after
the child has ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress

import psutil

from dagster_leasehold.lease_store.process_identity import ProcessIdentity, start_of

POLL_S = 0.05
KILL_TIMEOUT_S = 60.0


def session_of(leader: ProcessIdentity) -> list[psutil.Process]:
    """Return the remaining processes of a leader's session."""
    if not leader.same_place:
        return []
    now = start_of(leader.pid)
    if now is not None and not leader.began_at(now):
        # The system reuses a pid only after its session is empty.
        return []
    session: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if not has_ended(process) and os.getsid(process.pid) == leader.pid:
                session.append(process)
    return session


def wait_for_end(processes: Collection[psutil.Process], timeout_s: float) -> bool:
    """Wait until processes have ended; return False if one has not within `timeout_s`.

    Zombies count as ended, because in a container they sometimes have no parent to reap them.
    """
    deadline = time.monotonic() + timeout_s
    while not all(map(has_ended, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def has_ended(process: psutil.Process) -> bool:
    """Return True if a process is gone or a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def end_session(leader: ProcessIdentity, grace_s: float = 0.0) -> int:
    """End the remaining processes of a leader's session; return their number.

    For example, a killed code server leaves its runs. `grace_s` is the time between SIGTERM and
    SIGKILL.
    """
    session = session_of(leader)
    if grace_s:
        for process in session:
            with suppress(psutil.Error):
                process.terminate()
        wait_for_end(session, grace_s)
    killed = session_of(leader)
    for process in killed:
        with suppress(psutil.Error):
            process.kill()
    wait_for_end(killed, KILL_TIMEOUT_S)
    return len(session)
