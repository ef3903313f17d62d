"""The messages to the watchdog of systemd, on a socket as systemd has it."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from dagster_leasehold.orchestration.supervision.systemd_watchdog import watchdog_notifier

LIMIT_S = 0.3
WAIT_S = 60.0


@pytest.fixture(params=["file", "abstract"])
def place(request: pytest.FixtureRequest) -> Generator[str]:
    # Paths of sockets are short, and pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="lh-") as folder:
        name = str(Path(folder) / "notify")
        yield name if request.param == "file" else f"@{name}"


@pytest.fixture
def systemd(place: str) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{place[1:]}" if place.startswith("@") else place)
        listening.settimeout(WAIT_S)
        yield listening


def environment(place: str, **changed: str) -> dict[str, str]:
    return {
        "NOTIFY_SOCKET": place,
        "WATCHDOG_USEC": str(int(LIMIT_S * 1_000_000)),
        "WATCHDOG_PID": str(os.getpid()),
        **changed,
    }


def drained(systemd: socket.socket, seconds: float) -> int:
    """Return the number of messages until there is none for so long."""
    systemd.settimeout(seconds)
    count = 0
    while True:
        try:
            systemd.recv(100)
        except TimeoutError:
            return count
        count += 1


def test_the_watchdog_is_notified_while_the_process_is_healthy(
    systemd: socket.socket, place: str
) -> None:
    sentence = ""
    with watchdog_notifier(lambda: sentence, environment(place)):
        assert [systemd.recv(100) for _ in range(5)] == [b"WATCHDOG=1"] * 5
        sentence = "A loop has not turned."
        drained(systemd, LIMIT_S)
        assert drained(systemd, LIMIT_S) == 0
        sentence = ""
        systemd.settimeout(WAIT_S)
        assert systemd.recv(100) == b"WATCHDOG=1"
    drained(systemd, LIMIT_S)
    assert drained(systemd, LIMIT_S) == 0


@pytest.mark.parametrize("changed", [{"WATCHDOG_USEC": ""}, {"WATCHDOG_PID": "1"}])
def test_without_a_watchdog_nothing_is_sent(
    systemd: socket.socket, place: str, changed: dict[str, str]
) -> None:
    with watchdog_notifier(str, environment(place, **changed)):
        assert drained(systemd, 2 * LIMIT_S) == 0


def test_a_watchdog_without_a_listener_is_no_error(place: str) -> None:
    with watchdog_notifier(str, environment(place, WATCHDOG_USEC="1000")):
        pass
    with watchdog_notifier(str, {}):
        pass
