"""The watchdog of systemd: it starts a service again that has not said for long that it is well.

A unit asks for it with `WatchdogSec=`; its process is told in the environment where to say so, and
how often. Without systemd, nothing is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread

from dagster_leasehold.orchestration.supervision.health_pages import Check

MESSAGES_PER_LIMIT = 3
"""A message that a busy host delays must not end the service."""


@contextmanager
def told_watchdog(unhealthy: Check, environment: Mapping[str, str] = os.environ) -> Generator[None]:
    """Tell systemd within the block that this process is well, for as long as it is.

    Args:
        unhealthy: the check behind `/healthz`.
        environment: names the socket, the limit in microseconds, and the process that is meant.
    """
    place, limit = environment.get("NOTIFY_SOCKET", ""), environment.get("WATCHDOG_USEC", "")
    if not place or not limit or environment.get("WATCHDOG_PID", "") not in ("", str(os.getpid())):
        yield
        return
    # A name without a file begins with a zero byte, which no environment can hold.
    address = f"\0{place[1:]}" if place.startswith("@") else place
    ended, wait_s = Event(), int(limit) / 1_000_000 / MESSAGES_PER_LIMIT

    def tell() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            while not ended.wait(wait_s):
                # What is not heard counts as not said.
                with suppress(OSError):
                    if not unhealthy():
                        to.sendto(b"WATCHDOG=1", address)

    thread = Thread(target=tell, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
