"""Dagster's daemon with one permanent code server.

If Dagster's daemon loads a module itself, it replaces its code server every minute, which takes two
seconds of CPU time even without records. As a program (`python -m` this module, with the module of
the definitions), this module starts the server at a socket that only its user can reach, keeps the
server running, and becomes the daemon. With `--folder DIR`, the socket and the workspace file are
in that folder, so that a webserver can use the same server. With `--health HOST:PORT`, it serves
health pages.

Dagster schedules by the wall clock. If the clock is set back by an hour, Dagster's daemon ticks no
sensor and starts no run for an hour. After such a step, this module deletes last ticks that are in
the future, and restarts the daemon within the process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import load_settings, location_of
from dagster_leasehold.orchestration.supervision import forking_server
from dagster_leasehold.orchestration.supervision.child_processes import RestartWaits
from dagster_leasehold.orchestration.supervision.daemon_health import SERVER_LOOP, daemon_pages
from dagster_leasehold.orchestration.supervision.forked_programs import (
    DAEMON_MODULES,
    fork_of,
    make_forkable,
)
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint

HEARTBEAT_S = 5.0
HEARTBEAT_TIMEOUT_S = 20
"""A server without heartbeats for this time, in seconds, ends as soon as its runs have ended."""
START_MAX_S = 120.0
HUNG_S = 120.0
"""A server without an answer for this time is killed, in seconds. Every start is shorter."""
POLL_S = 0.1
STEP_S = 1.0
"""The smallest backward step of the clock that counts, in seconds. NTP's gradual corrections are
smaller."""
SOCKET_FILE, WORKSPACE_FILE = "code.sock", "workspace.yaml"
DAEMON = "dagster_leasehold.orchestration.supervision.steady_daemon"


def _server_program() -> str:
    """Return the program of the code server.

    With agents, it is Dagster's own, because runs start on the agents' servers, and an unused
    forking process occupies 100 MB.
    """
    with suppress(LeaseholdError):
        if load_settings().agents:
            return "dagster"
    return forking_server.PROGRAM


class SteadyServer:
    """A code server at a Unix socket, restarted after it ends.

    Args:
        folder: the folder of its socket; its path must be short, as the system limits socket paths.
    """

    def __init__(self, module: str, folder: Path) -> None:
        self._module = module
        self._socket = folder / SOCKET_FILE
        self._waits = RestartWaits()
        self._start()

    @property
    def workspace(self) -> str:
        """The content of a workspace file with the address of the server."""
        return (
            "load_from:\n"
            "  - grpc_server:\n"
            f"      socket: {self._socket}\n"
            f"      location_name: {location_of(self._module)}\n"
        )

    def _start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._begin_at: float | None = None
        self._started_at = self._answered_at = steady_clock()
        command = [
            *(sys.executable, "-m", _server_program(), "api", "grpc", "--lazy-load-user-code"),
            *("-m", self._module, "--location-name", location_of(self._module)),
            *("--socket", str(self._socket), "--heartbeat"),
            *("--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)),
        ]
        fork = fork_of(command, os.environ)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=fork,  # noqa: PLW1509
        )

    def wait_until_ready(self) -> None:
        """Wait until the server answers or has ended, at most `START_MAX_S`.

        The daemon reports a server that does not answer.
        """
        while self._process.poll() is None and steady_clock() - self._started_at < START_MAX_S:
            if self._beat():
                return
            time.sleep(POLL_S)

    def check(self) -> None:
        """Send a heartbeat; restart a server that has ended, and kill a server that hangs."""
        now = steady_clock()
        if self._begin_at is not None:
            if now >= self._begin_at:
                self._start()
            return
        code = self._process.poll()
        if code is not None:
            self._waits.settle(now - self._started_at)
            wait_s = self._waits.next_s()
            self._begin_at = now + wait_s
            say(f"The code server ended with code {code} and restarts in {wait_s:.0f} s.")
        elif not self._beat() and steady_clock() - self._answered_at > HUNG_S:
            say(f"The code server has not answered for {HUNG_S:.0f} s: it is restarted.")
            self._process.kill()

    def end(self) -> None:
        """Send SIGTERM to the server, which ends after its runs."""
        self._process.terminate()

    def _beat(self) -> bool:
        from dagster_leasehold.assets.dagster_internals import code_server_client

        try:
            code_server_client(socket=str(self._socket)).heartbeat("daemon")
        except Exception:
            # Dagster wraps gRPC's errors in classes that differ between its releases.
            return False
        self._answered_at = steady_clock()
        return True


class ClockWatch:
    """Detects backward steps of the wall clock, by comparison with a monotonic clock."""

    def __init__(self, wall: Clock, steady: Clock) -> None:
        self._wall, self._steady = wall, steady
        self._ahead_s = wall() - steady()

    def set_back_s(self) -> float:
        """Return by how many seconds the clock was set back since the last call, or 0."""
        last_ahead_s, self._ahead_s = self._ahead_s, self._wall() - self._steady()
        back_s = last_ahead_s - self._ahead_s
        return back_s if back_s > STEP_S else 0.0


def _supervise(
    server: SteadyServer, record_iteration: Callable[[str], object], set_back: Event
) -> NoReturn:
    """Keep the server running, and restart the daemon after a backward step of the clock."""
    watch = ClockWatch(time.time, steady_clock)
    while True:
        record_iteration(SERVER_LOOP)
        time.sleep(HEARTBEAT_S)
        server.check()
        if back_s := watch.set_back_s():
            say(f"The clock was set back by {back_s:.0f} s: the daemon is restarted.")
            set_back.set()
            os.kill(os.getpid(), signal.SIGINT)


def run_daemon(daemon: Callable[[], None], set_back: Event) -> None:
    """Run Dagster's daemon, and run it again whenever the clock was set back."""
    from dagster import DagsterInstance

    while True:
        set_back.clear()
        with DagsterInstance.get() as instance:
            delete_future_ticks(instance, time.time())
        try:
            daemon()
        except (SystemExit, KeyboardInterrupt):
            if not set_back.is_set():
                raise
        if not set_back.is_set():
            return


def delete_future_ticks(instance: Any, now_s: float) -> None:
    """Delete the last ticks of sensors that are in the future after the clock was set back.

    Otherwise, Dagster's daemon would tick such a sensor only after that time.
    """
    from dagster_leasehold.assets.dagster_internals import has_ticked_later, without_ticks

    states: Iterable[Any] = instance.all_instigator_state()
    for state in states:
        if has_ticked_later(state, now_s):
            instance.update_instigator_state(without_ticks(state))


def arguments() -> ArgumentParser:
    """Return the parser of this program's arguments."""
    parser = ArgumentParser(prog="steady_daemon", description="Dagster's daemon.")
    parser.add_argument("module", help="module of definitions")
    parser.add_argument(
        "--folder", metavar="DIR", help="folder of the socket and of the workspace file"
    )
    parser.add_argument(
        "--health", metavar="HOST:PORT", help="address of the pages /healthz and /readyz"
    )
    return parser


def main() -> None:
    """Start the server, and run the daemon until a signal ends it."""
    options = arguments().parse_args()
    make_forkable(DAEMON, os.environ, DAEMON_MODULES)
    # The daemon handles these signals later. Until then, SIGTERM must end the block, so that the
    # temporary folder is removed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="leasehold-")
        folder = Path(options.folder or stack.enter_context(temporary))
        # Started before the pages, because this process can fork only while it has one thread.
        server = SteadyServer(options.module, folder)
        stack.callback(server.end)
        record_iteration: Callable[[str], object] = lambda _: None  # noqa: E731
        if options.health:
            try:
                health = stack.enter_context(daemon_pages(Endpoint.parse(options.health)))
            except LeaseholdError as error:
                sys.exit(str(error))
            record_iteration = health.record_iteration
        workspace = folder / WORKSPACE_FILE
        workspace.write_text(server.workspace, encoding="utf-8")
        # While the server loads the definitions, this process loads Dagster.
        from dagster_leasehold.assets.dagster_internals import daemon_of

        daemon = daemon_of(str(workspace))
        server.wait_until_ready()
        set_back = Event()
        threading.Thread(
            target=_supervise, args=(server, record_iteration, set_back), daemon=True
        ).start()
        run_daemon(daemon, set_back)


if __name__ == "__main__":
    main()
