"""Programs that a process forks from itself, so that they share the libraries that it has imported.

`leasehold dev` imports Dagster once. Its daemon, webserver and agents are forks of it, and an
agent's code server is a fork of the agent. A fork starts at once, and needs memory only for its own
data. A process forks only while it has one Python thread, since a fork breaks gRPC's threads.
Otherwise, and outside Linux, a new interpreter runs the program.

A forking process does not import the declarations of streams, because each fork must import their
current version; `in_child_process` calls functions that import them. `users_modules` records the
user's other modules, so that a run can unload them after an edit.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn, TypeVar

from dagster_leasehold.assets.spark.users_modules import UsersModules
from dagster_leasehold.orchestration.supervision.interrupts import NUMBERS

T = TypeVar("T")
SHARED_MODULES = (
    *("dagster_leasehold.lease_store.sql_store", "dagster_leasehold.shard_sources.local_log"),
    *("dagster_leasehold.orchestration.build", "dagster_leasehold.orchestration.components"),
    *("dagster._core.storage.sqlite_storage", "dagster._core.storage.root"),
    *("dagster._core.storage.migration.utils", "dagster._core.instance.factory"),
    *("dagster._grpc.client", "dagster._grpc.server", "dagster._utils.test.definitions"),
    *("upath.implementations.local", "pendulum"),
)
TABLE_MODULES = ("dagster_leasehold.assets.output.table.group_table", "pyiceberg.table")
RUN_MODULES = (
    *(*TABLE_MODULES, "pyiceberg.io.pyarrow", "pyarrow.dataset", "pyarrow.parquet"),
    *("dagster_pyspark", "pyspark.sql.connect.session", "dagster._core.executor.in_process"),
)
NODE_MODULES = (*SHARED_MODULES, "dagster_leasehold.orchestration.supervision.node_agent")
DAEMON_MODULES = (*SHARED_MODULES, *TABLE_MODULES, "dagster._daemon.cli")
DEV_MODULES = (*NODE_MODULES, *RUN_MODULES, *DAEMON_MODULES, "dagster_webserver.cli")
ROOM = "_LEASEHOLD_ROOM"
ROOM_BYTES = 1000
"""The memory for the command line of a forked program, which replaces its parent's."""
users_modules = UsersModules()
"""The user's modules that a forking process has imported, because Dagster's instance names them."""
loaded: list[str] = []
"""The modules that forks share; without any, programs are not forked."""


def load(names: Iterable[str]) -> None:
    """Import the installed ones of these modules, and exempt them from garbage collection."""
    for name in names:
        with suppress(ImportError):
            resolve_name(name)
            loaded.append(name)
    gc.collect()
    gc.freeze()  # no collection then writes to the memory that all forks share
    # Python starts a full collection once the number of objects has grown by a quarter. Without a
    # collection here, that number would include the frozen objects.
    gc.collect()


def make_forkable(command: str, environment: Mapping[str, str], modules: Iterable[str]) -> None:
    """Import the modules that forks of this program share, on Linux.

    The system shows the environment and command line with which an interpreter was started. So this
    function restarts the interpreter with `environment`, and with memory for longer command lines.
    It does nothing in a fork, or if another program has called the command.
    """
    if sys.platform != "linux" or loaded or command not in sys.orig_argv[1:]:
        return
    if os.environ.pop(ROOM, None) is None:
        # The first variable follows the command line in memory.
        room = {ROOM: "-" * ROOM_BYTES}
        line = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, line, room | dict(environment))
    load(modules)
    sys.meta_path.insert(0, users_modules)


def in_child_process(work: Callable[[], T]) -> T:
    """Call `work` in a child process, and return its result, or raise its exception."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    if (child := os.fork()) == 0:
        try:
            try:
                sender.send((work(), None))
            except Exception as error:
                error.add_note(traceback.format_exc())
                sender.send((None, error))
            sys.stdout.flush()
        finally:
            os._exit(0)
    sender.close()
    value, error = receiver.recv()
    os.waitpid(child, 0)
    if error is not None:
        raise error
    return value


def fork_of(
    command: Sequence[str], environment: Mapping[str, str]
) -> Callable[[], NoReturn] | None:
    """Return a `preexec_fn` for `Popen` that runs a Python program in the fork.

    It is None if `Popen` must start an interpreter.
    """
    if not loaded or threading.active_count() > 1:
        return None
    sys.stdout.flush()
    return partial(_run_program, [*command], dict(environment))


def _run_program(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a Python program in this process, a fork by `Popen`, and exit."""
    code: Any = 1
    gc.enable()  # `Popen` disables it before a fork with a function
    try:
        # The parent waits until `Popen`'s pipe is closed.
        for file in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if file > 2:
                    os.close(file)
        for number in {*NUMBERS, signal.SIGALRM}:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        _set_command_line(command)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[0] = os.getcwd()
        sys.argv[1:] = command[3:]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # pyright: ignore
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ending:
        code = ending.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _set_command_line(command: Sequence[str]) -> None:
    """Make the system show this command line for this process."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    line, variables = int(fields[45]), int(fields[47])
    room = variables - line + len(ROOM) + ROOM_BYTES
    text = os.fsencode(" ".join(command)).ljust(variables - line + 1)[:room]
    ctypes.memmove(line, text + b"\0", len(text) + 1)
