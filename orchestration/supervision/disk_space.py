"""Room on the disk of a home, which is looked at before anything is started there."""

from __future__ import annotations

import os
from pathlib import Path

from dagster_leasehold.lease_store.errors import NoSpace

MIB = 1024 * 1024
HOME_BYTES = 32 * MIB
"""What a deployment writes in its first minutes, with room to spare: databases, logs, drafts."""
SERVER_BYTES = 160 * MIB
"""The data folder of a new MariaDB, with what it takes while it is made."""


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


def require_room(home: Path, needed_bytes: int) -> None:
    """Refuse a disk on which what is about to be started would fail half-way.

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
