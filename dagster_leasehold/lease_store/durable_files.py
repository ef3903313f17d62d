"""Files that are replaced atomically, and files and folders that survive a power failure."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO


def sync_file(file: IO[Any]) -> None:
    """Make the content of an open file durable."""
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
    """Create a folder and its missing parents, all with durable names.

    A durable file is lost if the name of a parent folder is not durable:

    1. A job creates the folder of its attempt, writes files, and syncs the files and the folder.
    2. The commit that names them is durable.
    3. The power fails before the folder's own name is written to the disk.

    Raises:
        FileExistsError: it exists, and `exist_ok` is false; or it is a file.
        OSError: it cannot be created.
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
    """Open a draft that replaces a file atomically once it is complete.

    An incomplete draft is deleted. Each draft has a unique name, so two processes can replace a
    file at once.

    Args:
        path: the file, in an existing folder.
        durable: wait until the new file and its name are durable.
        mode: the permissions of the draft; by default the permissions of new files.

    Raises:
        OSError: the file cannot be written; the old one stays.
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
    """Replace a file by a text; see `replacing`."""
    with replacing(path, durable=durable, mode=mode) as file:
        file.write(content.encode())
