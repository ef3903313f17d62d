"""Dagster's daemon beside one code server that stays.

Told to load a module, Dagster's daemon starts a new code server every minute and ends the one
before it: two seconds of processor time each time, whether there are records or not. As a program
(`python -m` this module, with the module of definitions), this one starts the server itself, at a
socket that only its user can reach, and then becomes the daemon. With `--folder DIR`, socket and
workspace file are there, so that a webserver can use the same server, and the daemon waits until
the file `storage-ready` is there as well. With `--health HOST:PORT` it
serves the pages by which an orchestrator knows how it does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import location_of
from dagster_leasehold.orchestration.supervision.child_processes import RestartWaits
from dagster_leasehold.orchestration.supervision.daemon_health import SERVER, daemon_pages
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint
from dagster_leasehold.orchestration.supervision.sensor_ticks import SensorTicks, forget_later_ticks
from dagster_leasehold.orchestration.supervision.steady_loops import wait_by

HEARTBEAT_S = 5.0
HEARTBEAT_TIMEOUT_S = 20
"""After how many seconds without its daemon the server ends, once its runs have ended."""
START_MAX_S = 120.0
HUNG_S = 120.0
"""After how long without an answer the server is ended, in seconds: longer than any start."""
POLL_S = 0.1
SOCKET_FILE, WORKSPACE_FILE = "code.sock", "workspace.yaml"


class SteadyServer:
    """A code server at a socket, started again whenever it has ended.

    Args:
        module: the definitions that it loads.
        folder: of its socket; short, since the path of a socket must be.
    """

    def __init__(self, module: str, folder: Path) -> None:
        self._module = module
        self._socket = folder / SOCKET_FILE
        self._waits = RestartWaits()
        self._start()

    @property
    def workspace(self) -> str:
        """The text of a workspace file that leads Dagster's processes to the server."""
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
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dagster", "api", "grpc", "--lazy-load-user-code"),
                *("-m", self._module, "--location-name", location_of(self._module)),
                *("--socket", str(self._socket), "--heartbeat"),
                *("--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)),
            ],
            stdin=subprocess.DEVNULL,
        )

    def wait_until_ready(self) -> None:
        """Return when the server answers, has ended, or took too long: the daemon shows which."""
        while self._process.poll() is None and steady_clock() - self._started_at < START_MAX_S:
            if self._beat():
                return
            time.sleep(POLL_S)

    def look(self) -> None:
        """Beat for the server's daemon; start the server if that is due, and end one that hangs."""
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
            say(f"The code server ended with code {code}: it is started again in {wait_s:.0f} s.")
        elif not self._beat() and steady_clock() - self._answered_at > HUNG_S:
            say(f"The code server has not answered for {HUNG_S:.0f} s: it is started again.")
            self._process.kill()

    def end(self) -> None:
        """Tell the server to end; it does once its runs have ended."""
        self._process.terminate()

    def _beat(self) -> bool:
        """Tell the server that its daemon lives; return False if it does not answer."""
        from dagster._grpc.client import DagsterGrpcClient

        try:
            DagsterGrpcClient(socket=str(self._socket)).heartbeat("daemon")
        except Exception:
            # Dagster wraps whatever gRPC raises, by kinds that change from release to release.
            return False
        self._answered_at = steady_clock()
        return True


def _keep(server: SteadyServer, ticks: SensorTicks, turned: Callable[[str], object]) -> NoReturn:
    """Keep the server running and sensors ticking; to be called on a thread of its own."""
    while True:
        turned(SERVER)
        time.sleep(HEARTBEAT_S)
        server.look()
        ticks.look()


def _forget_later_ticks(now_s: float) -> None:
    from dagster import DagsterInstance

    with DagsterInstance.get() as instance:
        forget_later_ticks(instance, now_s)


def arguments() -> ArgumentParser:
    """Return the parser of the command line."""
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
    """Start the server, and run the daemon until it is told to end."""
    given = arguments().parse_args()
    # As the daemon does once it runs: SIGTERM ends the block, and its folder goes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        own = tempfile.TemporaryDirectory(prefix="leasehold-")
        folder = Path(given.folder or stack.enter_context(own))
        turned: Callable[[str], object] = lambda _: None  # noqa: E731
        if given.health:
            try:
                health = stack.enter_context(daemon_pages(Endpoint.parse(given.health)))
            except LeaseholdError as error:
                sys.exit(str(error))
            turned = health.turned
        server = SteadyServer(given.module, folder)
        stack.callback(server.end)
        workspace = folder / WORKSPACE_FILE
        workspace.write_text(server.workspace, encoding="utf-8")
        # While the server loads the definitions, this process loads Dagster.
        from dagster._daemon.cli import main as run_daemon

        server.wait_until_ready()
        wait_by(steady_clock)
        ticks = SensorTicks(time.time, steady_clock, _forget_later_ticks)
        keep = threading.Thread(target=_keep, args=(server, ticks, turned), daemon=True)
        keep.start()
        sys.argv = [sys.argv[0], "run", "-w", str(workspace)]
        run_daemon()


if __name__ == "__main__":
    main()
