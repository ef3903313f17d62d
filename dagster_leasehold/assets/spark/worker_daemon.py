"""The process that forks the Python workers of the embedded server, in place of Spark's own.

Workers stay from task to task with their imported modules, and the server stays from run to run.
Before each task they forget the user's modules if one has been edited, so that the task imports
them again. All else is Spark's: see `spark.python.daemon.module` in its configuration.
"""

from __future__ import annotations

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
        return work(sock, authenticated)

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
