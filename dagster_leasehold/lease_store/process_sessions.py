"""The processes of a session: all that a child of ours has started, whoever is their parent by now.

A child leads a session of its own, and the processes that it starts belong to it until they leave.
So all of it can be found and ended though the child itself is gone.
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
    """Return the processes that are left of the session of a leader."""
    if not leader.same_place:
        return []
    now = start_of(leader.pid)
    if now is not None and not leader.began_at(now):
        # The system gives a number away only when nothing is left of its session.
        return []
    session: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if not has_ended(process) and os.getsid(process.pid) == leader.pid:
                session.append(process)
    return session


def wait_for_end(processes: Collection[psutil.Process], timeout_s: float) -> bool:
    """Wait until processes have ended; return False if one of them has not within `timeout_s`.

    An orphan has ended though nothing has collected its exit code: in a container, the first
    process often never does.
    """
    deadline = time.monotonic() + timeout_s
    while not all(map(has_ended, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def has_ended(process: psutil.Process) -> bool:
    """Return True if a process is gone, or only its exit code is left."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def end_session(leader: ProcessIdentity, patience_s: float = 0.0) -> int:
    """End all that is left of the session of a leader; return the number of processes.

    A code server's runs are of its session, and outlive it when it is killed.

    Args:
        leader: of the session.
        patience_s: how long its processes can take to end when told to, before they are killed.
    """
    session = session_of(leader)
    if patience_s:
        for process in session:
            with suppress(psutil.Error):
                process.terminate()
        wait_for_end(session, patience_s)
    killed = session_of(leader)
    for process in killed:
        with suppress(psutil.Error):
            process.kill()
    wait_for_end(killed, KILL_TIMEOUT_S)
    return len(session)
