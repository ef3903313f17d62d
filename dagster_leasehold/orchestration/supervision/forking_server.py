"""Dagster's code server with forked run processes, which start faster than a new interpreter.

As a program (`python -m` this module, with the arguments of `dagster api grpc`), it loads Dagster,
forks the forking process, and becomes the code server. The forking process loads the libraries that
only runs need, and forks one process per run, which shares its memory. Each run imports the user's
modules itself, in their current version.

The forking process has one thread; a fork in the server itself would break gRPC's threads. If the
server dies, runs continue, as in Dagster's own server. If the forking process dies, runs continue
and the server exits, so that its supervisor restarts both. `code_server` and `steady_daemon` start
this program.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import runpy
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from pkgutil import resolve_name
from typing import IO, Any

from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.supervision.forked_programs import (
    RUN_MODULES,
    SHARED_MODULES,
    load,
    users_modules,
)

REAP_S = 0.2
"""The interval of checks for ended runs. A closed pipe shows most ends at once, but not if a child
of the run keeps the pipe open."""
MIRROR_S = 1.0
PROGRAM = "dagster_leasehold.orchestration.supervision.forking_server"
NOT_FORKED = 71
"""The exit code of a run whose fork failed, the value of `os.EX_OSERR`."""
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Messages(queue.Queue[Any]):
    """The server's end of the queue through which a run's process reports that it has started."""

    def __reduce__(self) -> tuple[type[Outlet], tuple[()]]:
        return Outlet, ()


class Outlet:
    """The end of `Messages` in the run's process."""

    pipe: Connection

    def put(self, message: object) -> None:
        """Send a message, unless the server has ended."""
        with suppress(OSError):
            self.pipe.send(message)


class Stop(threading.Event):
    """The event that ends a run's process."""

    interrupt: Callable[[], object] = staticmethod(lambda: None)

    def set(self) -> None:
        """Set the event, and interrupt the run's process, which does not share the event."""
        super().set()
        self.interrupt()

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return multiprocessing.get_context("fork").Event, ()


class ForkedProcess:
    """A run's process, with the part of `multiprocessing.Process` that Dagster's server uses."""

    def __init__(
        self, forker: Forker, target: Callable[..., object], args: Sequence[object]
    ) -> None:
        self._forker = forker
        self.work = target, args
        self.exitcode: int | None = None

    def start(self) -> None:
        """Request the fork."""
        number = self._forker.begin(self)
        for each in self.work[1]:
            if isinstance(each, Stop):
                each.interrupt = partial(self._forker.send, number, None)

    def is_alive(self) -> bool:
        """Return True until its exit code is known."""
        return self.exitcode is None

    def deliver(self, message: object) -> None:
        """Put a message from the process into the server's queue."""
        for each in self.work[1]:
            if isinstance(each, Messages):
                each.put(message)


class Forker:
    """The server's end of the pipe to the forking process, in place of `multiprocessing`."""

    Queue, Event = Messages, Stop

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._numbers = count()
        self._processes: dict[int, ForkedProcess] = {}
        self.Process = partial(ForkedProcess, self)
        threading.Thread(target=self._receive, name="forked-runs", daemon=True).start()

    def begin(self, process: ForkedProcess) -> int:
        """Request the fork of a process; return its number."""
        number = next(self._numbers)
        self._processes[number] = process
        self.send(number, process.work)
        return number

    def send(self, number: int, work: object) -> None:
        """Request the fork of a process for `work`, or its interruption if `work` is None."""
        with self._lock:
            self._pipe.send((number, work))

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, message, exit_code = self._pipe.recv()
                if exit_code is None:
                    self._processes[number].deliver(message)
                else:
                    self._processes.pop(number).exitcode = exit_code
        say("The process that forks runs has ended, so the code server exits, too.")
        sys.stdout.flush()
        os._exit(1)


def _pipe(*, duplex: bool = True) -> tuple[Connection, Connection]:
    # Annotated as Any, because the declared type also covers Windows, where the class differs.
    ends: Any = multiprocessing.Pipe(duplex)
    return ends


def fork_runs(server: Connection) -> Callable[[], object]:
    """Fork a process for each run that the server requests.

    It returns only in a forked process, with the work of its run. The forking process exits when
    the server has ended; its runs continue.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    load(RUN_MODULES)
    runs: dict[int, tuple[int, Connection]] = {}
    while True:
        ready = wait([server, *(pipe for _, pipe in runs.values())], REAP_S if runs else None)
        try:
            if server in ready:
                number, work = server.recv()
                if work is None:
                    if number in runs:
                        os.kill(runs[number][0], signal.SIGINT)
                    continue
                pipe, end = _pipe(duplex=False)
                try:
                    pid = os.fork()
                except OSError:
                    server.send((number, None, NOT_FORKED))
                    continue
                if pid == 0:
                    for each in (server, pipe, *(other for _, other in runs.values())):
                        each.close()
                    target, args = work
                    return _work_of(target, args, end)
                end.close()
                runs[number] = pid, pipe
            _forward(runs, server)
        except (EOFError, OSError):
            os._exit(0)


def _forward(runs: dict[int, tuple[int, Connection]], server: Connection) -> None:
    """Send the server the messages and exit codes of the runs."""
    for number, (pid, pipe) in [*runs.items()]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        with suppress(EOFError):
            while pipe.poll():
                server.send((number, pipe.recv(), None))
        if ended:
            del runs[number]
            pipe.close()
            server.send((number, None, os.waitstatus_to_exitcode(status)))


def _work_of(
    target: Callable[..., object], args: Sequence[object], pipe: Connection
) -> Callable[[], object]:
    for each in args:
        if isinstance(each, Outlet):
            each.pipe = pipe
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # otherwise all runs would draw the same numbers
    return partial(target, *args)


@contextmanager
def mirrored(path: str, stream: IO[str]) -> Generator[None]:
    """Copy the growing file to the current target of a stream, on a thread, within the block.

    Dagster's own way takes two processes for each stream of a run.
    """
    over = threading.Event()
    output = os.fdopen(os.dup(stream.fileno()), "wb")

    def copy() -> None:
        with suppress(OSError), output, open(path, "rb") as file:
            while True:
                is_last = over.wait(MIRROR_S)
                shutil.copyfileobj(file, output)
                output.flush()
                if is_last:
                    return

    thread = threading.Thread(target=copy, name="mirrored-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> None:
    """Fork the forking process, then become Dagster's code server."""
    from dagster_leasehold.assets.dagster_internals import mirror_output_with, start_runs_with

    if sys.platform == "linux":
        load(SHARED_MODULES)
        own, other = _pipe()
        if os.fork() == 0:
            own.close()
            work = fork_runs(other)
            users_modules.unload_changed()
            mirror_output_with(mirrored)
            work()
            return
        other.close()
        start_runs_with(Forker(own))
    sys.argv[0] = "dagster"
    runpy.run_module("dagster", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # Called under the module's own name: `__main__` becomes Dagster's program, and pickled objects
    # name the module of their class.
    resolve_name(PROGRAM).main()
