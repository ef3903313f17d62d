"""A place of output: a folder on a disk or a prefix in an object store, behind one interface.

Renaming and listing are avoided, because object stores lack them or charge for them: a name is
never reused, a file is part of the output if the ledger names it, and only vacuum and `verify` list
files.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

# Spark and Arrow ignore files and folders whose names begin with an underscore.
SIGNS_FOLDER = "_signs"
MOVING_SIGN = "moving"
"""The prefix of the names of files that show an attempt's progress."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder below a place, as it was listed.

    Attributes:
        path: relative to the place.
        modified_ns: the time of its last change, by the clock of the disk or store, in nanoseconds.
    """

    path: str
    modified_ns: int
    bytes: int
    folder: bool = False


class NewFile(ABC):
    """A file that is being written, and is durable once `sync` has returned.

    Attributes:
        sink: the stream that Parquet's writer writes to.
    """

    sink: Any

    @abstractmethod
    def written(self) -> int:
        """Flush the file, and return its size in bytes."""

    @abstractmethod
    def sync(self) -> None:
        """Make the content durable, and close the file. In an object store, the file appears
        now."""

    @abstractmethod
    def abandon(self) -> None:
        """Close and delete the unfinished file if possible."""


class OutputPlace(ABC):
    """A folder or file of output: a small value that can be sent to other processes.

    `str` returns its path or URI for people, Spark and engines; `place / "relative"` is a place
    below it. All methods raise OSError if the disk or store fails.
    """

    is_local: bool
    """True for a disk of this host, or a mounted one."""
    signs_every_s: float
    """The shortest time between two signs of one task's progress, in seconds."""
    watch_every_s: float
    """The interval between two reads of the signs of progress, in seconds."""

    @abstractmethod
    def __truediv__(self, relative: str) -> Self: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of the path."""

    @property
    def address(self) -> Path | str:
        """The path on a local disk, or the URI."""
        return str(self)

    # -- folders: an object store has none, and its names are durable with their content ----

    @abstractmethod
    def make_folder(self, *, exist_ok: bool = False) -> None:
        """Make the folder and its missing parents, durably."""

    @abstractmethod
    def sync_folder(self) -> None:
        """Make the names in the folder durable."""

    @abstractmethod
    def remove_folder(self) -> None:
        """Delete the folder and its content if possible; vacuum removes the rest."""

    @abstractmethod
    def remove_empty_folder(self) -> None:
        """Delete the folder if it is empty."""

    # -- files --------------------------------------------------------------------------------

    @abstractmethod
    def create(self) -> NewFile:
        """Open a new file for this process alone; on a disk, the name must not exist."""

    @abstractmethod
    def put(self, content: bytes) -> None:
        """Write a small file; readers see all of it or nothing."""

    @abstractmethod
    def put_first(self, content: bytes) -> bool:
        """Write a small file like `put`, unless it exists; return False if it does.

        If several processes write different contents, only one succeeds. Raises OSError also while
        another process is writing the file.
        """

    @abstractmethod
    def content(self) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""

    @abstractmethod
    def sizes(self, files: Sequence[str]) -> list[int | None]:
        """Return the sizes in bytes of files of this place; None for a file that cannot be read."""

    @abstractmethod
    def remove(self, *, missing_ok: bool = False) -> None:
        """Delete the file; raises FileNotFoundError if it does not exist, unless `missing_ok`."""

    # -- Arrow --------------------------------------------------------------------------------

    @abstractmethod
    def arrow(self) -> tuple[FileSystem, str]:
        """Return Arrow's file system, and the path in it."""

    def parquet(self) -> pq.ParquetFile:
        """Open the file as Parquet; the caller closes it.

        Raises:
            pyarrow.ArrowInvalid: it is not a Parquet file.
        """
        import pyarrow.parquet as pq

        system, path = self.arrow()
        return pq.ParquetFile(path, filesystem=system)

    def schema(self) -> pa.Schema:
        """Return the schema of a Parquet file; raises what `parquet` raises."""
        with self.parquet() as file:
            return file.schema_arrow

    # -- signs of progress, for processes that wait ------------------------------------------------

    @abstractmethod
    def write_sign(self, task: str) -> None:
        """Write a sign of a task's progress into this attempt's folder."""

    @abstractmethod
    def signs_of_progress(self) -> Hashable:
        """Return a value that changes whenever a task has written a sign of progress."""

    # -- listing and vacuum -------------------------------------------------------------------

    @abstractmethod
    def now_ns(self) -> int:
        """Return the current time of the clock that dates files, in nanoseconds."""

    @abstractmethod
    def entries(self, below: str) -> Iterator[Entry]:
        """Yield all files and folders below a folder of this place, without following links.

        An object store yields only empty folders.
        """

    def names(self, below: str) -> Iterator[str]:
        """Yield the paths of all files below a folder of this place, relative to the place.

        Memory is bounded by the number of files in one folder, plus the number of folders.
        """
        return (entry.path for entry in self.entries(below) if not entry.folder)

    @abstractmethod
    def modified_ns(self) -> int:
        """Return the time of the file's last change in nanoseconds, by the clock that dates files.

        Raises:
            FileNotFoundError: it does not exist.
        """

    @abstractmethod
    def record_replaced(self, files: Iterable[str]) -> None:
        """Record the current time as the time when these files were replaced."""

    def replaced_ns(self) -> Mapping[str, int]:
        """Return the time when each file was replaced; empty if `modified_ns` has these times."""
        return {}

    def drop_replaced(self, before_ns: int) -> None:
        """Delete the records of files that were replaced before this time."""
        del before_ns

    @abstractmethod
    def remove_empty_folders(self, folders: Collection[str]) -> None:
        """Delete the empty folders among these; no process writes into them."""


class MovingRecords:
    """Writes signs of progress while a task processes records, at most every `signs_every_s`."""

    def __init__(self, folder: OutputPlace, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._task = uuid.uuid4().hex
        self._clock = clock
        self._last_sign_s = clock()

    def moved(self) -> None:
        """Write a sign if one is due; the task continues if that fails."""
        now_s = self._clock()
        if now_s - self._last_sign_s < self._folder.signs_every_s:
            return
        self._last_sign_s = now_s
        with suppress(OSError):
            self._folder.write_sign(self._task)
