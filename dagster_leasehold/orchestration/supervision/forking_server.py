"""Dagster's code server, whose run processes are forked instead of starting Python anew.

As a program (`python -m` this module, with the arguments of `dagster api grpc`), it loads Dagster,
forks a process that does nothing but fork, and becomes the code server. While there are runs, a
copy of that process has loaded what they need besides. They share its memory, and begin sooner.
Each run loads the user's modules as they are then.

The forking process has one thread: a fork in the server itself would break the threads of gRPC. If
the server dies, runs continue, as they do when Dagster starts them. If the forking process dies,
runs continue and the server ends, for its supervisor to start both again.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from pkgutil import resolve_name
from typing import Any

from dagster_leasehold.orchestration.presentation import say

SHARED = ("dagster_leasehold.orchestration.build", "dagster_leasehold.lease_store.sql_store")
OF_RUNS = ("pyarrow.parquet", "pyspark.sql.connect.session")
IDLE_S = 600.0
"""How long the modules of runs stay loaded without a run, as long as Spark stays."""
REAP_S = 0.2
"""How late the end of a run's process is noticed while a process of its own holds its pipe."""
PROGRAM = "dagster_leasehold.orchestration.supervision.forking_server"
NOT_FORKED = 71
"""The exit code of a process that could not be forked, as of `EX_OSERR`."""
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Messages(queue.Queue[Any]):
    """The queue through which a run's process tells its server that it has begun."""

    def __reduce__(self) -> tuple[type[Outlet], tuple[()]]:
        return Outlet, ()


class Outlet:
    """The other end of `Messages`, in the run's process."""

    pipe: Connection

    def put(self, message: object) -> None:
        """Send a message, unless the server is gone."""
        with suppress(OSError):
            self.pipe.send(message)


class Stop(threading.Event):
    """The event that asks a run's process to end."""

    interrupt: Callable[[], object] = staticmethod(lambda: None)

    def set(self) -> None:
        """Interrupt the process, as it interrupts itself on the event of `multiprocessing`."""
        super().set()
        self.interrupt()

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return multiprocessing.get_context("fork").Event, ()


class ForkedProcess:
    """A run's process, with what Dagster's server uses of `multiprocessing.Process`.

    Args:
        forker: has it forked.
        target: the function that it calls.
        args: of the function.
    """

    def __init__(
        self, forker: Forker, target: Callable[..., object], args: Sequence[object]
    ) -> None:
        self._forker = forker
        self.work = target, args
        self.exitcode: int | None = None

    def start(self) -> None:
        """Have it forked."""
        number = self._forker.begin(self)
        for each in self.work[1]:
            if isinstance(each, Stop):
                each.interrupt = partial(self._forker.tell, number, None)

    def is_alive(self) -> bool:
        """Return False once it has ended."""
        return self.exitcode is None

    def hear(self, message: object) -> None:
        """Pass a message of the process on."""
        for each in self.work[1]:
            if isinstance(each, Messages):
                each.put(message)


class Forker:
    """The server's end of the pipe to the forking process, in place of `multiprocessing`.

    Args:
        pipe: to the forking process.
    """

    Queue, Event = Messages, Stop

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._numbers = count()
        self._processes: dict[int, ForkedProcess] = {}
        self.Process = partial(ForkedProcess, self)
        threading.Thread(target=self._listen, name="forked-runs", daemon=True).start()

    def begin(self, process: ForkedProcess) -> int:
        """Have a process forked; return its number."""
        number = next(self._numbers)
        self._processes[number] = process
        self.tell(number, process.work)
        return number

    def tell(self, number: int, work: object) -> None:
        """Have a process forked for some work, or interrupted if that is None."""
        with self._lock:
            self._pipe.send((number, work))

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, message, exit_code = self._pipe.recv()
                if exit_code is None:
                    self._processes[number].hear(message)
                else:
                    self._processes.pop(number).exitcode = exit_code
        say("The process that forks runs has ended, and so does the code server.")
        sys.stdout.flush()
        os._exit(1)


def _pipe(*, duplex: bool = True) -> tuple[Connection, Connection]:
    # Types know of Windows, too, where its ends are of another class.
    ends: Any = multiprocessing.Pipe(duplex)
    return ends


def fork_runs(server: Connection) -> Callable[[], object]:
    """Fork a process for each work that the server sends; return the work in each of these.

    Ends the process when the server is gone, and its runs continue.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    while True:
        if (loaded := os.fork()) == 0:
            _load(OF_RUNS)
            return _fork_runs(server)
        # The modules that runs need go with the process that has loaded them, for lack of runs.
        _, status = os.waitpid(loaded, 0)
        if status or not server.poll(None):
            os._exit(0)


def _fork_runs(server: Connection) -> Callable[[], object]:
    """As `fork_runs`, until no run has been at work for `IDLE_S`."""
    runs: dict[int, tuple[int, Connection]] = {}
    while True:
        ready = wait([server, *(pipe for _, pipe in runs.values())], REAP_S if runs else IDLE_S)
        if not (ready or runs):
            os._exit(0)
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
            _pass_on(runs, server)
        except (EOFError, OSError):
            os._exit(1)


def _pass_on(runs: dict[int, tuple[int, Connection]], server: Connection) -> None:
    """Tell the server what runs have told, and which have ended."""
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


def _load(names: Iterable[str]) -> None:
    """Load modules, as far as they are installed, for good."""
    for name in names:
        with suppress(ImportError):
            resolve_name(name)
    gc.collect()
    gc.freeze()  # so that no collection writes to the memory that all share


def main() -> None:
    """Fork the process that forks runs, and serve."""
    from dagster import DagsterInstance

    from dagster_leasehold.assets.dagster_internals import start_runs_with
    from dagster_leasehold.assets.spark.users_modules import UsersModules

    if sys.platform == "linux":
        # The configuration of Dagster's instance can name classes of the user's.
        modules = UsersModules()
        sys.meta_path.insert(0, modules)
        # It loads half of Dagster. The server and each run say what keeps it from being opened.
        with suppress(Exception), DagsterInstance.get():
            pass
        sys.meta_path.remove(modules)
        _load(SHARED)
        own, other = _pipe()
        if os.fork() == 0:
            own.close()
            work = fork_runs(other)
            modules.forget_changed()
            work()
            return
        other.close()
        start_runs_with(Forker(own))
    sys.argv[0] = "dagster"
    runpy.run_module("dagster", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # Under its own name: Dagster's program becomes the main module, and messages name their class.
    resolve_name(PROGRAM).main()
