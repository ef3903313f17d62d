"""Ranges that a plan has read, kept on the host for Spark's workers there.

A plan reads a shard to find the end of a batch. Without these files, Spark would read the same
records again, and a shard allows only two megabytes a second. Each shard has at most one file: the
next plan replaces it. If a file is missing, damaged, or on another host, the worker reads from the
service instead.

The files contain records. They are in the stream's folder of the home, readable by its user alone.
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

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.process_identity import current_boot
from dagster_leasehold.shard_sources.kinesis.user_records import UserRecord, add_record
from dagster_leasehold.shard_sources.record_columns import RecordColumns
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa


class PlannedRanges:
    """The planned ranges of one stream; the folder is created for the first one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def writer(self, shard: str) -> RangeWriter:
        """Replace the shard's range by a new one."""
        folder = self._folder / shard
        shutil.rmtree(folder, ignore_errors=True)
        return RangeWriter(ShardId(shard), folder)

    def read(self, shard: str, start: str, end: str) -> Iterator[pa.RecordBatch] | None:
        """Return the batches of exactly this range; None if it is not kept here."""
        import pyarrow as pa

        try:
            reader = pa.ipc.open_file(pa.OSFile(str(self._folder / shard / _name(start, end))))
            if not reader.schema.equals(record_schema()):
                return None
        except (OSError, pa.ArrowInvalid):
            return None
        return (reader.get_batch(number) for number in range(reader.num_record_batches))


class RangeWriter:
    """The range of a plan in progress; a disk error drops the range and is not raised."""

    def __init__(self, shard: ShardId, folder: Path) -> None:
        import pyarrow as pa

        self._shard = shard
        self._folder = folder
        self._columns = RecordColumns(shard)
        self._draft: Path | None = None
        self._writer: Any = None
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(suffix=".part", dir=folder)
            os.close(descriptor)
            self._draft = Path(name)
            self._sink = pa.OSFile(name, "wb")
            self._writer = pa.ipc.new_file(self._sink, record_schema())

    def add(self, record: UserRecord) -> None:
        """Append a record."""
        if self._writer is not None:
            add_record(self._columns, record)
            if self._columns.full:
                self._flush()

    def keep(self, start: str, end: str) -> None:
        """Complete the range, so that it can be read."""
        self._flush()
        try:
            self._close()
            if self._draft is not None:
                self._draft.replace(self._folder / _name(start, end))
                self._draft = None
        except OSError:
            self.drop()

    def drop(self) -> None:
        """Remove a range that is not complete."""
        with suppress(OSError):
            self._close()
        if self._draft is not None:
            with suppress(OSError):
                self._draft.unlink(missing_ok=True)
        self._draft = None

    def _flush(self) -> None:
        if self._writer is None or not len(self._columns):
            return
        try:
            self._writer.write_batch(self._columns.batch())
        except OSError:
            self.drop()
        self._columns = RecordColumns(self._shard)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._sink.close()
        self._writer = None


def _name(start: str, end: str) -> str:
    # A reboot can leave a file incomplete. Names contain the boot, so it is not found.
    text = f"{current_boot()} {start} {end}"
    return hashlib.sha256(text.encode()).hexdigest()[:32] + ".arrow"
