"""Programs that a process forks from itself, so that they share the libraries that it has imported.

`leasehold dev` imports Dagster once. Its daemon, webserver and agents are forks of it, which start
at once and have only their own data. A process forks only while it has one thread of Python, since
a fork breaks gRPC's threads. Otherwise, and outside Linux, a new interpreter runs the program.
"""

from __future__ import annotations

import ctypes
import gc
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
from typing import Any, NoReturn

from dagster_leasehold.orchestration.supervision.interrupts import NUMBERS

SHARED = ("dagster_leasehold.orchestration.build", "dagster_leasehold.lease_store.sql_store")
OF_DEV = (
    *(*SHARED, "dagster._daemon.cli", "dagster._grpc.server", "dagster_webserver.cli"),
    "dagster_leasehold.orchestration.declared_streams",
    *("dagster_leasehold.orchestration.supervision.node_agent", "pyarrow.parquet"),
)
ROOM = "_LEASEHOLD_ROOM"
ROOM_BYTES = 1000
"""The room for the command line of a forked program, which replaces that of its parent."""
loaded: list[str] = []
"""The modules that were imported to be shared by forks; without any, programs are not forked."""


def load(names: Iterable[str]) -> None:
    """Import the modules that are installed, and exempt them from garbage collection."""
    for name in names:
        with suppress(ImportError):
            resolve_name(name)
            loaded.append(name)
    gc.collect()
    gc.freeze()  # so that no collection writes to the memory that all forks share


def prepare(command: str, environment: Mapping[str, str]) -> None:
    """Make this program one that can be forked: with this environment, and with modules loaded.

    The system shows the environment and the command line with which an interpreter began, so this
    one begins again, unless it is another program that has called the command.
    """
    if sys.platform != "linux" or command not in sys.argv[1:]:
        return
    if os.environ.pop(ROOM, None) is None:
        # The first variable follows the command line in memory.
        room = {ROOM: "-" * ROOM_BYTES}
        line = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, line, room | dict(environment))
    load(OF_DEV)


def fork_of(
    command: Sequence[str], environment: Mapping[str, str]
) -> Callable[[], NoReturn] | None:
    """Return a `preexec_fn` for `Popen` that runs a program of Python in the fork.

    Returns:
        None if `Popen` has to start an interpreter.
    """
    if not loaded or threading.active_count() > 1:
        return None
    sys.stdout.flush()
    return partial(_become, [*command], dict(environment))


def _become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a Python program in this process, which `Popen` has forked, and exit."""
    code: Any = 1
    try:
        # The parent waits until the pipe closes that `Popen` has opened.
        for file in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if file > 2:
                    os.close(file)
        for number in {*NUMBERS, signal.SIGALRM}:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        _show(command)
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


def _show(command: Sequence[str]) -> None:
    """Let the system show this command line for this process."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    line, variables = int(fields[45]), int(fields[47])
    room = variables - line + len(ROOM) + ROOM_BYTES
    text = os.fsencode(" ".join(command)).ljust(variables - line + 1)[:room]
    ctypes.memmove(line, text + b"\0", len(text) + 1)
