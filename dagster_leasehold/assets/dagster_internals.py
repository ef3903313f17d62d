"""All that Leasehold takes from Dagster's private modules: eight names.

Each stands here with its reason, and with what is lost should a release of Dagster drop it. What is
slow to import is imported by the function that uses it. Tests import all of them with the oldest
release of Dagster that is allowed, and with the one of the constraints.
"""

from __future__ import annotations

import inspect
import multiprocessing
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

# The whole comes before its parts. Of two threads that import Dagster, one would hold a part's lock
# and wait for the whole, and the other the reverse: Python lets both continue with halves.
import dagster

from dagster_leasehold.assets.errors import DagsterUnsupported

try:
    # Carries the streams in the metadata of `Definitions`, so that they survive a merge. Without
    # it, the command line finds only streams that a module names itself.
    from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue

    # Begins the name of a job that no page lists. Without it, the job that links a sensor to the
    # page of its asset is listed.
    from dagster._core.definitions.target import ANONYMOUS_ASSET_JOB_PREFIX

    # Fails a run that cannot be launched, with a sentence. Without it, a stack trace takes its
    # place.
    from dagster._core.errors import DagsterLaunchFailedError

    # The argument of `RunLauncher.launch_run`, which Dagster lets a project override. It is a type.
    from dagster._core.launcher.base import LaunchRunContext

    # The tag that names a run's code server. Without it, terminating a run takes a minute where the
    # server hangs.
    from dagster._core.storage.tags import GRPC_INFO_TAG
except ImportError as error:
    raise DagsterUnsupported(
        f"Leasehold needs of Dagster what release {dagster.__version__} does not have ({error}): "
        "install an earlier release of Dagster, or a later one of Leasehold."
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
    "start_runs_with",
    "without_ticks",
]


def code_server_client(
    *, socket: str | None = None, host: str | None = None, port: int | None = None
) -> DagsterGrpcClient:
    """Return a client of a code server, to beat for it, and to launch runs on it.

    Without it, nodes on several hosts take no runs.
    """
    from dagster._grpc.client import DagsterGrpcClient

    return DagsterGrpcClient(socket=socket, host=host or "localhost", port=port)


def daemon_of(workspace: str) -> Callable[[], None]:
    """Return Dagster's daemon for a workspace, to be run in this process.

    It runs beside the thread that keeps its code server. Without it, the daemon is a process more.
    """
    from dagster._daemon.cli import main

    def run() -> None:
        sys.argv = [sys.argv[0], "run", "-w", workspace]
        main()

    return run


def has_ticked_later(state: Any, now_s: float) -> bool:
    """Return True if a sensor's last tick is in the future, because the wall clock was set back."""
    from dagster._core.scheduler.instigation import SensorInstigatorData

    data = state.instigator_data
    if not isinstance(data, SensorInstigatorData):
        return False
    return max(data.last_tick_timestamp or 0.0, data.last_tick_start_timestamp or 0.0) > now_s


def without_ticks(state: Any) -> Any:
    """Return the state of a sensor that never ticked.

    Without it, sensors wait after the clock was set back, until it has caught up.
    """
    data = state.instigator_data
    return state.with_data(data._replace(last_tick_timestamp=None, last_tick_start_timestamp=None))


def start_runs_with(context: object) -> None:
    """Have Dagster's code server in this process start its runs with a context of another kind.

    It asks `multiprocessing` for one that starts Python anew. Should a release ask elsewhere, it
    gets that, and a run begins later.
    """
    multiprocessing_context = multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        asking = inspect.currentframe()
        asker = asking and asking.f_back and asking.f_back.f_globals.get("__name__")
        return context if asker == "dagster._grpc.server" else multiprocessing_context(method)

    multiprocessing.get_context = get_context
