"""PyIceberg's access to a place of output: small metadata files, read and written as a whole.

A file is durable before other metadata names it. PyIceberg's own storage access is not used, so
output and metadata use the same file systems and credentials.
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
        location: the URI of the place for readers.
    """

    def __init__(self, place: OutputPlace, location: str) -> None:
        super().__init__({})
        self._place = place
        self.location = location

    def write(self, location: str, content: bytes) -> None:
        """Write a new file with durable content and name."""
        path = self._at(location)
        folder = self._place / self._relative(location).rpartition("/")[0]
        with _checked_access(location, "written"):
            folder.make_folder(exist_ok=True)
            file = path.create()
            try:
                file.sink.write(content)
                file.sync()
            except BaseException:
                file.abandon()
                raise
            folder.sync_folder()

    def read(self, location: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        with _checked_access(location, "read"):
            return self._at(location).content()

    def modification_times(self, folder: str) -> dict[str, int]:
        """Return the files below a folder, each with the time of its last change."""
        with _checked_access(f"{self.location}/{folder}", "listed"):
            return {
                f"{self.location}/{entry.path}": entry.modified_ns
                for entry in self._place.entries(folder)
                if not entry.folder
            }

    @override
    def new_input(self, location: str) -> InputFile:
        return _File(location, self)

    @override
    def new_output(self, location: str) -> OutputFile:
        return _File(location, self)

    @override
    def delete(self, location: str | InputFile | OutputFile) -> None:
        name = location if isinstance(location, str) else location.location
        self._at(name).remove(missing_ok=True)

    def discard(self, locations: Iterable[str]) -> None:
        """Delete unneeded files if possible; vacuum deletes the rest."""
        for location in filter(self.contains, locations):
            try:
                self.delete(location)
            except OSError:
                continue

    def contains(self, location: str) -> bool:
        """Return True if the location is below this one."""
        return location.startswith(f"{self.location}/")

    def _at(self, location: str) -> OutputPlace:
        return self._place / self._relative(location)

    def _relative(self, location: str) -> str:
        if not self.contains(location):
            raise LogCorrupt(
                f"The table names {location}, which is not below the stream's output at "
                f"{self.location}: change the setting output back, or give the stream another "
                "table name."
            )
        return location.removeprefix(f"{self.location}/")


class _File(InputFile, OutputFile):
    """A file that is read and written as a whole."""

    def __init__(self, location: str, files: PlaceIO) -> None:
        super().__init__(location)
        self._files = files
        self._bytes: int | None = None

    def __len__(self) -> int:
        return len(self._content()) if self._bytes is None else self._bytes

    @override
    def exists(self) -> bool:
        return self._files.read(self.location) is not None

    @override
    def open(self, seekable: bool = True) -> InputStream:
        return cast(InputStream, io.BytesIO(self._content()))

    def _content(self) -> bytes:
        content = self._files.read(self.location)
        if content is None:
            raise FileNotFoundError(f"There is no {self.location}.")
        return content

    @override
    def to_input_file(self) -> InputFile:
        return self

    @override
    def create(self, overwrite: bool = False) -> OutputStream:
        return cast(OutputStream, _BufferedFile(self))

    def put(self, content: bytes) -> None:
        self._files.write(self.location, content)
        self._bytes = len(content)


class _BufferedFile(io.BytesIO):
    """A buffer that is written to a file when it is closed, unless an error occurred."""

    def __init__(self, file: _File) -> None:
        super().__init__()
        self._file: _File | None = file

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
def _checked_access(location: str, done: str) -> Generator[None]:
    """Convert an error of the disk or store to `TableUnavailable`."""
    try:
        yield
    except OSError as error:
        raise TableUnavailable(
            f"The table's metadata {location} cannot be {done} ({one_line(str(error))}): make sure "
            "that the output can be reached. Output that can be written is still committed, and "
            "published later."
        ) from error
