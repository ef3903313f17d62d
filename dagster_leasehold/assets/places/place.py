"""The seam between output and what holds it: a folder on a disk, or a prefix in an object store.

Everything that writes, reads, replaces or removes output goes through a place. No promise rests on
renaming or listing, which object stores lack or charge for: names are made once and never reused, a
file counts if the ledger names it, and only vacuum lists.
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

MOVING_SIGN = "moving"
"""The beginning of the names of signs that records move through an attempt."""
# Spark and Arrow take a folder with this first letter for none of the data's.
SIGNS_FOLDER = "_signs"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder below a place, when it was looked at.

    Attributes:
        path: relative to the place.
        modified_ns: the time of its last change by the clock of what holds it, in nanoseconds.
        bytes: its size.
        folder: True for a folder.
    """

    path: str
    modified_ns: int
    bytes: int
    folder: bool = False


class NewFile(ABC):
    """A file that is being written; it is durable once `settle` has returned.

    Attributes:
        sink: takes the bytes; for Parquet's writer.
    """

    sink: Any

    @abstractmethod
    def written(self) -> int:
        """Hand over the file; return its size in bytes."""

    @abstractmethod
    def settle(self) -> None:
        """Make the content durable, and close the file; on a store it appears now, as a whole.

        Raises:
            OSError: it cannot be made durable.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Close and delete the unfinished file; if that fails, no row names the file."""


class OutputPlace(ABC):
    """A folder or file of output. Cheap to make, and the same in every process that it travels to.

    `str` gives the path or URI that people, Spark and engines use; `place / "relative"` what lies
    below it.
    """

    signs_every_s: float
    """The shortest time between two signs of work of one task, in seconds."""
    watch_every_s: float
    """The time between two looks at the signs of work, in seconds."""

    @abstractmethod
    def __truediv__(self, relative: str) -> Self: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of the path."""

    @property
    @abstractmethod
    def address(self) -> Path | str:
        """The path on a local disk, or the URI."""

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """True for a disk of this host, or one that is mounted there."""

    # -- folders: a store has none, and its names are durable with their content --------------

    @abstractmethod
    def make_folder(self, *, exist_ok: bool = False) -> None:
        """Make the folder and the parents that are missing, durably."""

    @abstractmethod
    def sync_folder(self) -> None:
        """Make the names in the folder durable."""

    @abstractmethod
    def remove_folder(self) -> None:
        """Delete the folder with all it holds, as far as that works; what stays is vacuum's."""

    @abstractmethod
    def remove_empty_folder(self) -> None:
        """Delete the folder if nothing is in it."""

    # -- files --------------------------------------------------------------------------------

    @abstractmethod
    def create(self) -> NewFile:
        """Open a new file of this name, which no other process writes.

        Raises:
            OSError: it cannot be written, or, on a disk, is there already.
        """

    @abstractmethod
    def put(self, content: bytes) -> None:
        """Write a small file whole: who looks sees all of it, or none.

        Raises:
            OSError: it cannot be written.
        """

    @abstractmethod
    def put_first(self, content: bytes) -> bool:
        """Write a small file whole, if there is none of the name; return False if there is one.

        Of several processes with different contents, one succeeds.

        Raises:
            OSError: it cannot be written, or another process was writing it at this moment.
        """

    @abstractmethod
    def content(self) -> bytes | None:
        """Return the content of a small file; None if it is not there.

        Raises:
            OSError: it cannot be read.
        """

    @abstractmethod
    def sizes(self, files: Sequence[str]) -> list[int | None]:
        """Return the sizes in bytes of files of this place, as a reader sees them.

        None for one that is not there.
        """

    @abstractmethod
    def remove(self, *, missing_ok: bool = False) -> None:
        """Delete the file.

        Raises:
            FileNotFoundError: it is not there, and `missing_ok` is false.
            OSError: it cannot be deleted.
        """

    # -- Arrow --------------------------------------------------------------------------------

    @abstractmethod
    def arrow(self) -> tuple[FileSystem, str]:
        """Return Arrow's file system, and the path in it."""

    def parquet(self) -> pq.ParquetFile:
        """Open the file as Parquet, to be closed by its reader.

        Raises:
            OSError: it cannot be read.
            pyarrow.ArrowInvalid: it is no Parquet.
        """
        import pyarrow.parquet as pq

        system, path = self.arrow()
        return pq.ParquetFile(path, filesystem=system)

    def schema(self) -> pa.Schema:
        """Return the schema of the file, which is Parquet; it raises as `parquet` does."""
        with self.parquet() as file:
            return file.schema_arrow

    # -- signs of work, for processes that wait ----------------------------------------------------

    @abstractmethod
    def note_work(self, task: str) -> None:
        """Leave a sign in this attempt's folder that records move through a task.

        Raises:
            OSError: it cannot be left.
        """

    @abstractmethod
    def signs_of_work(self) -> Hashable:
        """Return what changes while tasks leave signs in this attempt's folder."""

    # -- vacuum, and what concerns it ---------------------------------------------------------

    @abstractmethod
    def now_ns(self) -> int:
        """Return the time by the clock that dates files, in nanoseconds."""

    @abstractmethod
    def entries(self, below: str) -> Iterator[Entry]:
        """Yield all files below a folder of this place, and folders; links are not followed.

        A store has folders only where nothing else is left of them.

        Raises:
            OSError: they cannot be listed.
        """

    @abstractmethod
    def names(self, below: str) -> Iterator[str]:
        """Yield the paths of all files below a folder of this place, relative to the place.

        Memory is bounded by the files of one folder of it, and the number of such folders.

        Raises:
            OSError: they cannot be listed.
        """

    @abstractmethod
    def modified_ns(self) -> int:
        """Return when the file was changed, by the clock that dates files, in nanoseconds.

        Raises:
            FileNotFoundError: it is not there.
        """

    @abstractmethod
    def note_replaced(self, files: Iterable[str]) -> None:
        """Note, by the clock that dates files, that these files of this place are being replaced.

        Raises:
            OSError: it cannot be noted.
        """

    @abstractmethod
    def replaced_ns(self) -> Mapping[str, int]:
        """Return when files were last noted as replaced, where their own age does not say it."""

    @abstractmethod
    def forget_replaced(self, before_ns: int) -> None:
        """Delete notes of files that were replaced before a moment."""

    @abstractmethod
    def remove_empty_folders(self, folders: Collection[str]) -> None:
        """Delete the empty ones of these folders of this place, the deepest first.

        Nothing writes into them, and nothing in them was committed.
        """


class MovingRecords:
    """Leaves signs of progress while records move through a task, now and then.

    A task that is done before its first sign is due leaves no sign.

    Args:
        folder: the attempt's folder.
        clock: gives monotonic seconds.
    """

    def __init__(self, folder: OutputPlace, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._task = uuid.uuid4().hex
        self._clock = clock
        self._noted_at = clock()

    def moved(self) -> None:
        """Show that records move; if the disk refuses the sign, the work goes on."""
        now = self._clock()
        if now - self._noted_at < self._folder.signs_every_s:
            return
        self._noted_at = now
        with suppress(OSError):
            self._folder.note_work(self._task)
