"""Notifications to systemd's watchdog, which restarts a service that stops sending them.

A unit enables the watchdog with `WatchdogSec=`, and systemd passes its socket and its timeout in
the environment. Without systemd, nothing is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread

from dagster_leasehold.orchestration.supervision.health_pages import Check

MESSAGES_PER_LIMIT = 3
"""The number of messages per timeout, so that one delayed message causes no restart."""


@contextmanager
def watchdog_notifier(
    unhealthy: Check, environment: Mapping[str, str] = os.environ
) -> Generator[None]:
    """Notify systemd's watchdog within the block, while this process is healthy.

    Args:
        environment: the variables, with the watchdog's socket, its timeout in microseconds, and the
            id of the process that must notify it.
    """
    path, limit = environment.get("NOTIFY_SOCKET", ""), environment.get("WATCHDOG_USEC", "")
    if not path or not limit or environment.get("WATCHDOG_PID", "") not in ("", str(os.getpid())):
        yield
        return
    # An abstract socket's name begins with a zero byte, which is "@" in the environment.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    ended, wait_s = Event(), int(limit) / 1_000_000 / MESSAGES_PER_LIMIT

    def notify() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            while not ended.wait(wait_s):
                # Without the message, systemd restarts the service after the timeout.
                with suppress(OSError):
                    if not unhealthy():
                        sender.sendto(b"WATCHDOG=1", address)

    thread = Thread(target=notify, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
