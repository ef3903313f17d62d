"""The process that forks the Python workers of the embedded server, in place of Spark's own.

Workers stay from task to task with their imported modules, and the server stays from run to run.
Before each task they forget the user's modules if one has been edited, so that the task imports
them again. Spark collects garbage after each task, which took twice as long as a small task itself:
what stays with a worker is kept out of that. All else is Spark's: see `spark.python.daemon.module`
in its configuration.
"""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import suppress

from dagster_leasehold.assets.spark.users_modules import UsersModules


def main() -> None:
    """Fork workers until Spark closes the standard input."""
    from pyspark import daemon

    modules = UsersModules()
    sys.meta_path.insert(0, modules)
    work = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        # Spark calls it when the task before is done: the first byte says that another begins.
        with suppress(OSError):
            sock.recv(1, socket.MSG_PEEK)
        modules.forget_changed()
        imported = len(sys.modules)
        code = work(sock, authenticated)
        if len(sys.modules) != imported:
            _keep_from_collections()
        return code

    daemon.worker = worker
    daemon.manager()


def _keep_from_collections() -> None:
    """Collect all garbage now, and no object that is left in later collections."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
