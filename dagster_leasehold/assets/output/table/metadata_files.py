"""PyIceberg's view of a place of output: small metadata files, read and written whole.

A file that was written is durable before anything names it. PyIceberg's own access to stores is
not used, so that output and metadata have one way to disks and stores, and one to credentials.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import cast

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from typing_extensions import override

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import LogCorrupt, one_line


class PlaceIO(FileIO):
    """The metadata files below one location.

    Args:
        place: holds them.
        location: the place's URI for readers.
    """

    def __init__(self, place: OutputPlace, location: str) -> None:
        super().__init__({})
        self._place = place
        self.location = location

    def write(self, location: str, content: bytes) -> None:
        """Write a new file, durable in content and name.

        Raises:
            TableUnavailable: it cannot be written.
        """
        path = self._at(location)
        folder = self._place / self._relative(location).rpartition("/")[0]
        with _reached(location, "written"):
            folder.make_folder(exist_ok=True)
            file = path.create()
            try:
                file.sink.write(content)
                file.settle()
            except BaseException:
                file.abandon()
                raise
            folder.sync_folder()

    def read(self, location: str) -> bytes | None:
        """Return the content of a file; None if there is none.

        Raises:
            TableUnavailable: it cannot be read.
        """
        with _reached(location, "read"):
            return self._at(location).content()

    def dated(self, folder: str) -> dict[str, int]:
        """Return the locations of the files below a folder, each with the time of its last change.

        Raises:
            TableUnavailable: they cannot be listed.
        """
        with _reached(f"{self.location}/{folder}", "listed"):
            return {
                f"{self.location}/{entry.path}": entry.modified_ns
                for entry in self._place.entries(folder)
                if not entry.folder
            }

    @override
    def new_input(self, location: str) -> InputFile:
        return _Input(location, self._at(location))

    @override
    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self._at(location), self)

    @override
    def delete(self, location: str | InputFile | OutputFile) -> None:
        name = location if isinstance(location, str) else location.location
        self._at(name).remove(missing_ok=True)

    def discard(self, locations: Iterable[str]) -> None:
        """Delete files here that nothing names, as far as that works; what stays is vacuum's."""
        for location in filter(self.has_place_for, locations):
            try:
                self.delete(location)
            except OSError:
                continue

    def has_place_for(self, location: str) -> bool:
        """Return True if the location is below this one."""
        return location.startswith(f"{self.location}/")

    def _at(self, location: str) -> OutputPlace:
        return self._place / self._relative(location)

    def _relative(self, location: str) -> str:
        if not self.has_place_for(location):
            raise LogCorrupt(
                f"The table names {location}, which is not below {self.location}, where the "
                "stream's output is: set the setting output back, or give the stream another table "
                "name."
            )
        return location.removeprefix(f"{self.location}/")


class _Input(InputFile):
    """A file that is read whole when it is opened."""

    def __init__(self, location: str, place: OutputPlace) -> None:
        super().__init__(location)
        self._place = place

    def __len__(self) -> int:
        return len(self._content())

    @override
    def exists(self) -> bool:
        return self._place.content() is not None

    @override
    def open(self, seekable: bool = True) -> InputStream:
        return cast(InputStream, io.BytesIO(self._content()))

    def _content(self) -> bytes:
        with _reached(self.location, "read"):
            content = self._place.content()
        if content is None:
            raise FileNotFoundError(f"There is no {self.location}.")
        return content


class _Output(OutputFile):
    """A file that is written when its content is complete."""

    def __init__(self, location: str, place: OutputPlace, files: PlaceIO) -> None:
        super().__init__(location)
        self._place = place
        self._files = files
        self._written = 0

    def __len__(self) -> int:
        return self._written

    @override
    def exists(self) -> bool:
        return self._place.content() is not None

    @override
    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._place)

    @override
    def create(self, overwrite: bool = False) -> OutputStream:
        return cast(OutputStream, _Whole(self))

    def put(self, content: bytes) -> None:
        """Write the file."""
        self._files.write(self.location, content)
        self._written = len(content)


class _Whole(io.BytesIO):
    """Bytes that become a file when they are closed, unless an error closes them."""

    def __init__(self, file: _Output) -> None:
        super().__init__()
        self._file: _Output | None = file

    @override
    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self._file = None
        self.close()

    @override
    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.put(self.getvalue())
        super().close()


@contextmanager
def _reached(location: str, done: str) -> Generator[None]:
    """Turn an error of the disk or the store into one that says what follows from it."""
    try:
        yield
    except OSError as error:
        raise TableUnavailable(
            f"The table's metadata {location} cannot be {done} ({one_line(str(error))}): make sure "
            "that the output can be reached; output is still committed where it can be written, "
            "and the table follows."
        ) from error
