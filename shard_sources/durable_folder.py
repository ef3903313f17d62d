"""Folders whose names survive a power failure, like the files in them that a commit relies on."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, exist_ok: bool = False) -> None:
    """Make a folder and the parents that are missing; their names are durable when this returns.

    A file that is on the disk is lost all the same if the name of a folder above it is not:

    1. a job makes the folder of its attempt, writes files, and syncs the files and their folder;
    2. the commit that names them is durable;
    3. the power fails before the entry of the attempt's folder was written back.

    Args:
        folder: the new folder.
        exist_ok: take one that is there already; who made it has made its name durable.

    Raises:
        FileExistsError: it is there already, and `exist_ok` is false; or it is a file.
        OSError: it cannot be made.
    """
    if exist_ok and folder.is_dir():
        return
    missing: list[Path] = []
    for each in (folder, *folder.parents):
        if each.is_dir():
            break
        missing.append(each)
    for each in reversed(missing[1:]):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)
    folder.mkdir(exist_ok=exist_ok)
    sync_folder(folder.parent)
