"""Files that are replaced as a whole, and files and folders that survive a power failure."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO


def sync_file(file: IO[Any]) -> None:
    """Have the content of an open file on the disk."""
    file.flush()
    os.fsync(file.fileno())


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


@contextmanager
def replacing(path: Path, *, durable: bool = False, mode: int | None = None) -> Generator[BinaryIO]:
    """Open a draft that takes the place of a file as a whole when it is complete.

    Readers see the old file or the new one, and never a part of either. A draft that an error
    leaves incomplete is deleted; each has a name of its own, so that two processes can replace
    one file at the same moment.

    Args:
        path: the file, in a folder that exists.
        durable: wait until the new file and its name are on the disk.
        mode: the permissions that the draft has from its first moment on; by default those that
            the process gives to new files.

    Raises:
        OSError: the file cannot be written; the old one is as it was.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(draft, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield file
            if durable:
                sync_file(file)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def replace_file(
    path: Path, content: str, *, durable: bool = False, mode: int | None = None
) -> None:
    """Replace a file as a whole by a text; see `replacing`."""
    with replacing(path, durable=durable, mode=mode) as file:
        file.write(content.encode())
