"""Checks before a command starts processes: disk space, port, Java and import path."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import dagster_leasehold
from dagster_leasehold.lease_store.errors import InvalidSetting, NoSpace
from dagster_leasehold.orchestration.settings import Settings

MIB = 1024 * 1024
HOME_BYTES = 32 * MIB
"""The disk space for the databases, logs and output of a new deployment."""
WEB_PORT_DEFAULT = 3000
PORTS_TRIED = 50


def free_bytes(path: Path) -> int | None:
    """Return the bytes that this user can write to the file system of a path.

    The path need not exist.

    Returns:
        None if the file system, such as some network file systems, does not report its size.
    """
    folder = path.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    disk = os.statvfs(folder)
    if not disk.f_blocks:
        return None
    # Many file systems reserve some blocks for the superuser.
    blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return blocks * disk.f_frsize


def require_room(home: Path, needed_bytes: int = HOME_BYTES) -> None:
    """Check that the disk has enough space for a deployment.

    Args:
        home: the folder of the deployment; it need not exist.
    """
    free = free_bytes(home)
    if free is not None and free < needed_bytes:
        raise NoSpace(
            f"The disk of the home {home} has {free // MIB} MiB left, but {needed_bytes // MIB} "
            "MiB are needed: free some space, or give a folder on another disk with --home."
        )


@contextmanager
def reserved_port(
    requested_port: int | None,
    first: int = WEB_PORT_DEFAULT,
    host: str = "127.0.0.1",
    *,
    served: bool = False,
) -> Generator[int]:
    """Reserve a port of this host for a server to start.

    A server binds its port seconds after the port was chosen, and another command could choose the
    same port in between. So this process also binds the UDP port with that number, as a lock: none
    of our servers uses UDP. The system releases it even if this process is killed.

    Args:
        requested_port: the port; None for the first free port.
        served: True if a server of ours already listens on the port.

    Raises:
        InvalidSetting: the requested port, or each of `PORTS_TRIED` ports, is in use.
    """
    for port in range(first, first + PORTS_TRIED) if requested_port is None else (requested_port,):
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mark,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener,
        ):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                mark.bind((host, port))
                if not served:
                    listener.bind((host, port))
            except OSError:
                continue
            listener.close()
            yield port
            return
    raise InvalidSetting(
        f"Port {requested_port or first} of {host} is in use: give another port with --port."
    )


def check_folder(folder: Path | None = None) -> None:
    """Check that the working folder, which Python searches first, does not hide our package."""
    here = folder or Path.cwd()
    name = dagster_leasehold.__name__
    ours = Path(dagster_leasehold.__file__).resolve().parent
    for path in (here / name / "__init__.py", here / f"{name}.py"):
        if path.exists() and not path.resolve().is_relative_to(ours):
            raise InvalidSetting(
                f"The folder {here} contains another Python package {name!r}, which hides "
                "Leasehold's: run the command in another folder, and give the home with --home."
            )


def check_spark(settings: Settings) -> None:
    """Check that this host can start Spark, unless the settings name a remote Spark."""
    from dagster_leasehold.assets.errors import SparkUnavailable
    from dagster_leasehold.assets.spark.spark_runtime import java_home
    from dagster_leasehold.assets.spark.spark_settings import is_remote

    if is_remote(settings.spark.engine):
        return
    java_home(settings.spark_folder / "java")
    # Without bash, each start of the server would fail, and its log would not show why.
    if shutil.which("bash", path=os.environ.get("PATH", "")) is None:
        raise SparkUnavailable(
            "Spark's start script needs bash, which is not on the PATH: install it, or add its "
            "folder to the PATH."
        )
