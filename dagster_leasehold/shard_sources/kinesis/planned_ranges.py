"""Ranges that a plan has read, kept on the host until Spark's workers there have read them.

A plan reads a shard to find where a batch ends, and Spark would read the same pages once more: half
of the two megabytes a second that a shard gives. So a plan writes its records into a file, from
which a worker on the same host takes them. There is one file a shard at most: the next plan of the
shard replaces it. A file is nothing but saved work: where it is missing or damaged, or on another
host, the service is read.

Files hold records as they are. They lie in the stream's folder of the home, for its user alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store.process_identity import current_boot
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".arrow"


class PlannedRanges:
    """Planned ranges of one stream in a folder.

    Args:
        folder: made when the first range is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def writer(self, shard: str) -> RangeWriter:
        """Begin a range of a shard; the one that was kept before is removed."""
        folder = self._of(shard)
        shutil.rmtree(folder, ignore_errors=True)
        return RangeWriter(folder)

    def read(self, shard: str, start: str, end: str) -> Iterator[pa.RecordBatch] | None:
        """The batches of exactly this range; None where it is not kept here."""
        import pyarrow as pa

        file = self._of(shard) / _name(start, end)
        try:
            reader = pa.ipc.open_file(pa.OSFile(str(file)))
            if not reader.schema.equals(record_schema()):
                return None
        except (OSError, pa.ArrowInvalid):
            return None
        return (reader.get_batch(number) for number in range(reader.num_record_batches))

    def _of(self, shard: str) -> Path:
        return self._folder / shard


class RangeWriter:
    """A range that is being planned; a disk that does not take it costs time only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sink: Any = None
        self._writer: Any = None
        self._file = Path()
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(suffix=".part", dir=folder)
            os.close(descriptor)
            self._file = Path(name)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        import pyarrow as pa

        if self._file == Path():
            return
        try:
            if self._writer is None:
                self._sink = pa.OSFile(str(self._file), "wb")
                self._writer = pa.ipc.new_file(self._sink, record_schema())
            self._writer.write_batch(batch)
        except OSError:
            self.drop()

    def keep(self, start: str, end: str) -> None:
        """Complete the range: from now on it can be read."""
        if self._writer is None:
            self.drop()
            return
        try:
            self._close()
            self._file.replace(self._folder / _name(start, end))
        except OSError:
            self.drop()

    def drop(self) -> None:
        """Leave nothing of it."""
        with suppress(OSError):
            self._close()
        if self._file != Path():
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
        self._file = Path()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._sink.close()
        self._writer = None


def _name(start: str, end: str) -> str:
    # After a reboot a file can hold less than was written: its name no longer fits then.
    text = f"{current_boot()} {start} {end}"
    return hashlib.sha256(text.encode()).hexdigest()[:32] + _SUFFIX
