"""Output in an object store (S3, Google Cloud Storage, Azure) or in Hadoop's file system.

An object appears, complete and durable, when its writer closes it. There are no folders to make or
to sync. The age of an object cannot be changed: a separate object lists the files that are being
replaced, and vacuum uses its age as theirs.

Credentials come from the environment or the platform, as for the store's own tools, or from the
catalog of the table at this place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import uuid
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from dagster_leasehold.assets.places.place import (
    MOVING_SIGN,
    SIGNS_FOLDER,
    Entry,
    NewFile,
    OutputPlace,
)
from dagster_leasehold.assets.places.store_clients import own_client

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

REPLACED_FOLDER = "replaced"
"""The folder with lists of replaced files, beside the attempts."""
REQUESTS_AT_ONCE = 16
LIST_FILES_MAX = 10_000
"""The most files in one list."""


class StoreFile(NewFile):
    """A new object."""

    def __init__(self, place: StorePlace) -> None:
        system, path = place.arrow()
        self._place = place
        self.sink = system.open_output_stream(path)

    @override
    def written(self) -> int:
        # No flush: it would wait for the upload, which only `sync` does.
        return self.sink.tell()

    @override
    def sync(self) -> None:
        self.sink.close()

    @override
    def abandon(self) -> None:
        # Only closing releases the writer. That also writes the object, which is then deleted.
        with contextlib.suppress(OSError):
            self.sink.close()
        with contextlib.suppress(OSError):
            self._place.remove(missing_ok=True)


class StoreAccess(Protocol):
    """Access to a store with credentials that are only in the memory of each process."""

    def client(self) -> FileSystem:
        """Return Arrow's client, whose credentials stay valid for a while; raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class StorePlace(OutputPlace):
    """A prefix or an object.

    Attributes:
        scheme: `s3`, `gs`, `abfss` or `hdfs`.
        root: the bucket, Azure's `container@account…`, or Hadoop's name node.
        path: the key, without a slash at either end.
        access: gets credentials from a catalog; None to use the credentials of the platform.
    """

    is_local = False
    signs_every_s = 10.0
    watch_every_s = 5.0

    scheme: str
    root: str
    path: str = ""
    access: StoreAccess | None = None

    @override
    def __truediv__(self, relative: str) -> StorePlace:
        return replace(self, path=posixpath.join(self.path, relative))

    @override
    def __str__(self) -> str:
        return f"{self.scheme}://{self.root}/{self.path}"

    @property
    @override
    def name(self) -> str:
        return posixpath.basename(self.path)

    @override
    def make_folder(self, *, exist_ok: bool = False) -> None:
        del exist_ok

    @override
    def sync_folder(self) -> None: ...

    @override
    def remove_folder(self) -> None:
        system, path = self.arrow()
        with contextlib.suppress(OSError):
            system.delete_dir(path)

    @override
    def remove_empty_folder(self) -> None: ...

    @override
    def create(self) -> StoreFile:
        return StoreFile(self)

    @override
    def put(self, content: bytes) -> None:
        system, path = self.arrow()
        with system.open_output_stream(path) as stream:
            stream.write(content)

    @override
    def put_first(self, content: bytes) -> bool:
        """Write an object unless it exists; stores show a new object at once.

        Arrow has no conditional write. So each writer first puts an announcement beside the object:

        1. A and B find no object, and each puts its own announcement.
        2. Each lists the announcements. At least one of them finds both, and gives up.
        3. A finds only its own. It reads the object again before it writes: if B wrote the object
           and removed its announcement before step 2, A finds the object now.
        """
        if self.content() is not None:
            return False
        announcements = replace(self, path=f"{self.path}.writers")
        own = hashlib.sha256(content).hexdigest()
        (announcements / own).put(b"")
        try:
            if [*announcements.names("")] != [own]:
                raise OSError("another process is writing it at this moment")
            if self.content() is not None:
                return False
            self.put(content)
        finally:
            (announcements / own).remove(missing_ok=True)
        return True

    @override
    def content(self) -> bytes | None:
        system, path = self.arrow()
        try:
            with system.open_input_stream(path) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    @override
    def sizes(self, files: Sequence[str]) -> list[int | None]:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as requests:
            return [*requests.map(lambda file: (self / file)._size(), files)]

    @override
    def remove(self, *, missing_ok: bool = False) -> None:
        system, path = self.arrow()
        try:
            system.delete_file(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    @override
    def arrow(self) -> tuple[FileSystem, str]:
        access = self.access
        system = access.client() if access else own_client(self.scheme, self.root)
        if self.scheme == "hdfs":
            return system, f"/{self.path}"
        return system, f"{self.root.partition('@')[0]}/{self.path}".rstrip("/")

    @override
    def write_sign(self, task: str) -> None:
        # One name for all tasks: a reader needs no listing, and any change is a sign.
        (self / f"{SIGNS_FOLDER}/{MOVING_SIGN}").put(f"{task} {uuid.uuid4().hex}".encode())

    @override
    def signs_of_progress(self) -> Hashable:
        with contextlib.suppress(OSError):
            return (self / f"{SIGNS_FOLDER}/{MOVING_SIGN}").content()
        return None

    @override
    def now_ns(self) -> int:
        probe = self / f".vacuum-{uuid.uuid4().hex}"
        probe.put(b"")
        try:
            return probe.modified_ns()
        finally:
            probe.remove(missing_ok=True)

    @override
    def entries(self, below: str) -> Iterator[Entry]:
        from pyarrow.fs import FileSelector, FileType

        system, path = (self / below).arrow()
        _, own = self.arrow()
        selector = FileSelector(path, recursive=True, allow_not_found=True)
        infos = _infos(system, selector)
        occupied = {posixpath.dirname(info.path) for info in infos}
        for info in infos:
            folder = info.type == FileType.Directory
            # Other folders are only prefixes of the names of objects.
            if not folder or info.path not in occupied:
                relative = info.path.removeprefix(f"{own}/")
                yield Entry(relative, info.mtime_ns or 0, info.size or 0, folder=folder)

    @override
    def names(self, below: str) -> Iterator[str]:
        from pyarrow.fs import FileSelector, FileType

        system, path = (self / below).arrow()
        _, own = self.arrow()

        def entries(folder: str, *, recursive: bool) -> list[FileInfo]:
            selector = FileSelector(folder, recursive=recursive, allow_not_found=True)
            return _infos(system, selector)

        def files_below(folder: str) -> list[str]:
            infos = entries(folder, recursive=True)
            return [info.path for info in infos if info.type == FileType.File]

        folders: list[str] = []
        for info in entries(path, recursive=False):
            if info.type == FileType.Directory:
                folders.append(info.path)
            else:
                yield info.path.removeprefix(f"{own}/")
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as requests:
            for first in range(0, len(folders), REQUESTS_AT_ONCE):
                for paths in requests.map(files_below, folders[first : first + REQUESTS_AT_ONCE]):
                    yield from (each.removeprefix(f"{own}/") for each in paths)

    @override
    def modified_ns(self) -> int:
        from pyarrow.fs import FileType

        info = self._info()
        if info.type == FileType.NotFound:
            raise FileNotFoundError(f"{self} does not exist")
        return info.mtime_ns

    @override
    def record_replaced(self, files: Iterable[str]) -> None:
        paths = list(files)
        for first in range(0, len(paths), LIST_FILES_MAX):
            record = self / f"{REPLACED_FOLDER}/{uuid.uuid4().hex}.json"
            record.put(json.dumps(paths[first : first + LIST_FILES_MAX]).encode())

    @override
    def replaced_ns(self) -> Mapping[str, int]:
        newest: dict[str, int] = {}
        for record in self.entries(REPLACED_FOLDER):
            content = (self / record.path).content()
            for path in json.loads(content) if content is not None else ():
                newest[path] = max(newest.get(path, 0), record.modified_ns)
        return newest

    @override
    def drop_replaced(self, before_ns: int) -> None:
        for record in list(self.entries(REPLACED_FOLDER)):
            if not record.folder and record.modified_ns < before_ns:
                (self / record.path).remove(missing_ok=True)

    @override
    def remove_empty_folders(self, folders: Collection[str]) -> None:
        # Arrow keeps an empty object for a folder whose last object was deleted.
        for folder in folders:
            (self / folder).remove_folder()

    def _size(self) -> int | None:
        try:
            return self._info().size
        except OSError:
            return None

    def _info(self) -> FileInfo:
        system, path = self.arrow()
        return system.get_file_info(path)


def _infos(system: FileSystem, selector: Any) -> list[FileInfo]:
    infos: Any = system.get_file_info(selector)
    return infos
