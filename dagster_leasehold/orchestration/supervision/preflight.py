"""Checks before anything is started: room on the disk, a free port, Java, and our own package."""

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
"""The room for the first minutes of a deployment, and some to spare: databases, logs, drafts."""
WEB_PORT_DEFAULT = 3000
PORTS_TRIED = 50


def free_bytes(path: Path) -> int | None:
    """Return the room for this account on the disk that holds a path, or will hold it.

    Returns:
        Bytes, or None where the disk does not tell, as some that are reached over a network.
    """
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    disk = os.statvfs(place)
    if not disk.f_blocks:
        return None
    # A part of many disks is reserved for the superuser.
    blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return blocks * disk.f_frsize


def require_room(home: Path, needed_bytes: int = HOME_BYTES) -> None:
    """Refuse a disk that is too full for a deployment.

    Args:
        home: the folder of the deployment, which need not exist yet.
        needed_bytes: what will be written soon.

    Raises:
        NoSpace: the disk has less room than that.
    """
    free = free_bytes(home)
    if free is not None and free < needed_bytes:
        raise NoSpace(
            f"The disk that holds the home {home} has {free // MIB} MiB left, and "
            f"{needed_bytes // MIB} MiB are needed: make room there, or name a folder on another "
            "disk with --home."
        )


@contextmanager
def held_port(
    requested_port: int | None,
    first: int = WEB_PORT_DEFAULT,
    host: str = "127.0.0.1",
    *,
    served: bool = False,
) -> Generator[int]:
    """Hold the wanted port of this host, or the next free one, against all other holders.

    A server binds its port seconds after it was chosen, and then another one might have chosen it
    as well. What marks it as chosen is the port of UDP of the same number, which nothing here uses,
    and which the system takes back however its holder ends.

    Args:
        requested_port: the port; None for the first free one.
        first: the port to try first.
        host: the address to listen on.
        served: True where a server of ours listens there already.

    Raises:
        InvalidSetting: the wanted port is taken, or all that were tried are.
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
        f"Port {requested_port or first} of {host} is in use: name another one with --port."
    )


def check_folder(folder: Path | None = None) -> None:
    """Refuse a folder that hides our package from the processes to be started.

    Python looks for a module where it is started before it looks among installed packages.

    Raises:
        InvalidSetting: it holds a package of our name that is not ours.
    """
    here = folder or Path.cwd()
    name = dagster_leasehold.__name__
    ours = Path(dagster_leasehold.__file__).resolve().parent
    for path in (here / name / "__init__.py", here / f"{name}.py"):
        if path.exists() and not path.resolve().is_relative_to(ours):
            raise InvalidSetting(
                f"The folder {here} has a Python package {name!r} of its own, which hides "
                "Leasehold's: start the command in another folder, with --home for the home."
            )


def check_spark(settings: Settings) -> None:
    """Refuse a machine that cannot start Spark, if Spark is to be started.

    Raises:
        JavaNotFound: there is no Java to run it.
        SparkUnavailable: there is no bash to start it.
    """
    from dagster_leasehold.assets.errors import SparkUnavailable
    from dagster_leasehold.assets.spark.spark_runtime import java_home
    from dagster_leasehold.assets.spark.spark_settings import is_remote

    if is_remote(settings.spark.engine):
        return
    java_home(settings.spark_folder / "java")
    # Spark's own start is a script. Without its shell, the server would end at once, again and
    # again, and its log would not say why.
    if shutil.which("bash", path=os.environ.get("PATH", "")) is None:
        raise SparkUnavailable(
            "Spark is started by a script of bash, and no bash is on the PATH: install it, or "
            "have PATH name its folder."
        )
