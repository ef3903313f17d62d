"""The daemon that forks the Python workers of the embedded server, in place of Spark's own.

Its name is Spark's setting `spark.python.daemon.module`. Workers keep imported modules from task to
task, and the server outlives runs. So before each task, a worker unloads the user's modules if one
was edited, and the task imports them again. Spark collects garbage after each task, which takes
twice as long as a small task; long-lived objects are therefore excluded. Workers share the memory
of the modules that most tasks need. The rest is Spark's own daemon.
"""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import suppress
from importlib import import_module

from dagster_leasehold.assets.spark.users_modules import UsersModules

SHARED = (
    *("pandas", "pyarrow.parquet", "pyspark.worker"),
    "dagster_leasehold.assets.consuming.range_tasks",
    "dagster_leasehold.shard_sources.local_log",
)
"""The modules that workers share, because the daemon imports them before it forks a worker."""


def main() -> None:
    """Fork workers until Spark closes the standard input."""
    from pyspark import daemon

    for name in SHARED:
        with suppress(ImportError):
            import_module(name)
    gc.freeze()
    modules = UsersModules()
    sys.meta_path.insert(0, modules)
    run_task = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        # Spark calls this right after the previous task. A task begins with its first byte.
        with suppress(OSError):
            sock.recv(1, socket.MSG_PEEK)
        modules.unload_changed()
        module_count = len(sys.modules)
        exit_code = run_task(sock, authenticated)
        if len(sys.modules) != module_count:
            _exclude_from_collections()
        return exit_code

    daemon.worker = worker
    daemon.manager()


def _exclude_from_collections() -> None:
    """Collect garbage now, and exclude the remaining objects from later collections."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
