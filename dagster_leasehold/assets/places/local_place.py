"""Output on a disk: a local disk, or one that every host mounts.

The files of a commit must be durable before the commit. Syncing a file makes its content durable;
several files at once take hardly longer than one. Syncing the folder makes the names durable. Ages
come from the clock of the file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from dagster_leasehold.assets.places.place import (
    MOVING_SIGN,
    SIGNS_FOLDER,
    Entry,
    NewFile,
    OutputPlace,
)
from dagster_leasehold.lease_store.durable_files import (
    make_folder,
    replacing,
    sync_file,
    sync_folder,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class LocalFile(NewFile):
    """A new file on a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self.sink = path.open("xb")

    @override
    def written(self) -> int:
        self._file.flush()
        return self._file.tell()

    @override
    def sync(self) -> None:
        sync_file(self._file)
        self._file.close()

    @override
    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LocalPlace(OutputPlace):
    """A folder or file on a disk, by its absolute path."""

    is_local = True
    signs_every_s = 1.0
    watch_every_s = 0.25

    path: Path

    @override
    def __truediv__(self, relative: str) -> LocalPlace:
        return LocalPlace(self.path / relative)

    @override
    def __str__(self) -> str:
        return str(self.path)

    @property
    @override
    def name(self) -> str:
        return self.path.name

    @property
    @override
    def address(self) -> Path:
        return self.path

    @override
    def make_folder(self, *, exist_ok: bool = False) -> None:
        make_folder(self.path, exist_ok=exist_ok)

    @override
    def sync_folder(self) -> None:
        sync_folder(self.path)

    @override
    def remove_folder(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    @override
    def remove_empty_folder(self) -> None:
        with contextlib.suppress(OSError):  # it is not empty
            self.path.rmdir()

    @override
    def create(self) -> LocalFile:
        return LocalFile(self.path)

    @override
    def put(self, content: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as file:
            file.write(content)

    @override
    def put_first(self, content: bytes) -> bool:
        folder = self.path.parent
        make_folder(folder, exist_ok=True)
        draft = folder / f".{self.name}.{uuid.uuid4().hex}.draft"
        try:
            with draft.open("xb") as file:
                file.write(content)
                sync_file(file)
            # A link fails if the name exists, and readers only ever see the whole file.
            os.link(draft, self.path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # This file system has no links, so a reader can see the file while it is empty.
            return self._create_whole(content)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(folder)
        return True

    def _create_whole(self, content: bytes) -> bool:
        try:
            with self.path.open("xb") as file:
                file.write(content)
                sync_file(file)
        except FileExistsError:
            return False
        sync_folder(self.path.parent)
        return True

    @override
    def content(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    @override
    def sizes(self, files: Sequence[str]) -> list[int | None]:
        return [_size(self.path / file) for file in files]

    @override
    def remove(self, *, missing_ok: bool = False) -> None:
        self.path.unlink(missing_ok=missing_ok)

    @override
    def arrow(self) -> tuple[FileSystem, str]:
        from pyarrow import fs

        return fs.LocalFileSystem(), str(self.path)

    @override
    def write_sign(self, task: str) -> None:
        path = self.path / SIGNS_FOLDER / f"{MOVING_SIGN}-{task}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b".")

    @override
    def signs_of_progress(self) -> Hashable:
        signs: set[tuple[str, int]] = set()
        for folder, folders, names in os.walk(self.path):
            for path in (f"{folder}/{name}" for name in (*folders, *names)):
                with contextlib.suppress(OSError):
                    signs.add((path, os.stat(path).st_size))
        return frozenset(signs)

    @override
    def now_ns(self) -> int:
        with tempfile.NamedTemporaryFile(dir=self.path, prefix=".vacuum-") as probe:
            return os.stat(probe.name).st_mtime_ns

    @override
    def entries(self, below: str) -> Iterator[Entry]:
        def raise_unless_missing(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        for folder, names, files in os.walk(self.path / below, onerror=raise_unless_missing):
            for name in (*names, *files):
                path = Path(folder) / name
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue  # its attempt has just removed it
                if path.is_symlink():
                    continue
                relative = path.relative_to(self.path).as_posix()
                yield Entry(relative, status.st_mtime_ns, status.st_size, folder=name in names)

    @override
    def modified_ns(self) -> int:
        return self.path.lstat().st_mtime_ns

    @override
    def record_replaced(self, files: Iterable[str]) -> None:
        for file in files:
            # A missing file cannot be read either; a replay writes its records again.
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.path / file)

    @override
    def remove_empty_folders(self, folders: Collection[str]) -> None:
        for folder in sorted(folders, reverse=True):
            (self / folder).remove_empty_folder()


def _size(path: Path) -> int | None:
    # Opening the file makes a network file system check with its server.
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError:
        return None


def local_place(path: Path) -> LocalPlace:
    """Return the place of a path."""
    return LocalPlace(path.absolute())
