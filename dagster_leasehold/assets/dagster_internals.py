"""The eight names that Leasehold imports from Dagster's private modules.

A comment at each name gives the reason, and the effect if a release of Dagster removes it.
Functions import the slow modules themselves. Tests import all names with the oldest supported
release of Dagster and with the pinned one.
"""

from __future__ import annotations

import inspect
import multiprocessing
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

# The package is imported before its modules. Otherwise, of two threads that import Dagster, one
# could lock a module and wait for the package while the other does the reverse. Python resolves
# that deadlock by giving both a partly initialized module.
import dagster

from dagster_leasehold.assets.errors import DagsterUnsupported

try:
    # Keeps the streams in the metadata of `Definitions`, where they survive a merge. Without it,
    # the command line finds only streams that are variables of a module.
    from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue

    # The prefix of jobs that Dagster's pages do not list. Without it, they list the job that links
    # a sensor to its asset.
    from dagster._core.definitions.target import ANONYMOUS_ASSET_JOB_PREFIX

    # Fails a run that cannot be launched, with one sentence. Without it, Dagster shows a stack
    # trace.
    from dagster._core.errors import DagsterLaunchFailedError

    # The type of the argument of `RunLauncher.launch_run`, a method that projects can override.
    from dagster._core.launcher.base import LaunchRunContext

    # The tag that names a run's code server. Without it, terminating a run takes a minute if the
    # server hangs.
    from dagster._core.storage.tags import GRPC_INFO_TAG
except ImportError as error:
    raise DagsterUnsupported(
        f"Dagster {dagster.__version__} lacks something that Leasehold imports ({error}). Install "
        "an earlier release of Dagster or a later release of Leasehold."
    ) from None

if TYPE_CHECKING:
    from dagster._grpc.client import DagsterGrpcClient

__all__ = [
    "ANONYMOUS_ASSET_JOB_PREFIX",
    "GRPC_INFO_TAG",
    "DagsterLaunchFailedError",
    "LaunchRunContext",
    "ObjectMetadataValue",
    "code_server_client",
    "daemon_of",
    "has_ticked_later",
    "mirror_output_with",
    "start_runs_with",
    "without_ticks",
]


def code_server_client(
    *, socket: str | None = None, host: str | None = None, port: int | None = None
) -> DagsterGrpcClient:
    """Return a client that sends heartbeats to a code server and launches runs on it.

    Without it, nodes on several hosts cannot take runs.
    """
    from dagster._grpc.client import DagsterGrpcClient

    return DagsterGrpcClient(socket=socket, host=host or "localhost", port=port)


def daemon_of(workspace: str) -> Callable[[], None]:
    """Return a function that runs Dagster's daemon for a workspace in this process.

    Without it, the daemon needs a process besides the one that keeps its code server running.
    """
    from dagster._daemon.cli import main

    def run() -> None:
        sys.argv = [sys.argv[0], "run", "-w", workspace]
        main()

    return run


def has_ticked_later(state: Any, now_s: float) -> bool:
    """Return True if a sensor's last tick is in the future, because the wall clock was set back."""
    names = ("last_tick_timestamp", "last_tick_start_timestamp")
    ticks = (getattr(state.instigator_data, name, None) for name in names)
    return any(tick is not None and tick > now_s for tick in ticks)


def without_ticks(state: Any) -> Any:
    """Return a sensor's state without its last ticks.

    Without it, sensors do not tick after the clock was set back, until the clock has caught up.
    """
    data = state.instigator_data
    return state.with_data(data._replace(last_tick_timestamp=None, last_tick_start_timestamp=None))


def mirror_output_with(mirror: Callable[..., Any]) -> None:
    """Make runs in this process mirror their captured output with `mirror`, a context manager.

    Without it, four more processes per run copy the output to the log of the code server.
    """
    with suppress(ImportError):
        from dagster._core.execution import compute_logs

        compute_logs.execute_posix_tail = mirror


def start_runs_with(context: object) -> None:
    """Make Dagster's code server in this process start its runs with `context`.

    By default, the server uses a context of `multiprocessing` that starts a new interpreter per
    run. If a later release of Dagster calls `get_context` from another module, it gets that
    default, and runs start later.
    """
    original = multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        frame = inspect.currentframe()
        caller = frame and frame.f_back and frame.f_back.f_globals.get("__name__")
        return context if caller == "dagster._grpc.server" else original(method)

    multiprocessing.get_context = get_context
