"""Forged log files: right checksums, and contents that no writer would write."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.local_log.format import (
    DECODED_BYTES_MAX,
    END_MARK,
    FOOTER_END_BYTES,
    RECORD_BYTES_MAX,
    Entry,
    MessageMalformed,
    Record,
    decode,
    decoded_size,
    encode,
    file_header,
    file_schema,
    packed_footer,
)
from dagster_leasehold.shard_sources.source import ReadRange
from tests.unit.shard_sources.local_logs import NOW, ZERO, data_files, file_names

RECORDS = [
    Record(b"value %d" % n * 20, b"key", NOW, {"name": "x" * n, "other": "naïve"})
    for n in range(20)
]


def entry_of(encoded: bytes, records: int) -> Entry:
    return Entry(
        offset=0,
        position=len(file_header()),
        length=len(encoded),
        records=records,
        payload=100,
        time_max=0,
        time_max_so_far=0,
        checksum=zlib.crc32(encoded),
    )


def forge(log: LocalLog, encoded: bytes, entry: Entry) -> None:
    """Replace the only file of shard 0 by a file with this message and entry."""
    (name,) = file_names(log)
    name.path.unlink()
    forged = name._replace(end=entry.records)
    forged.path.write_bytes(file_header() + encoded + END_MARK + packed_footer([entry]))


def read(log: LocalLog) -> list[bytes]:
    batches = list(log.read(ReadRange(ZERO, "0", "20")))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    log = LocalLog.create(tmp_path / "log", 1, clock=lambda: NOW)
    log.append("0", RECORDS)
    return log


def message_of(values: list[bytes]) -> bytes:
    """Return a message of any size in one batch, as no writer would write it."""
    count = len(values)
    columns = [
        pa.nulls(count, file_schema().field(0).type),
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(count, file_schema().field(3).type),
    ]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, file_schema(), options=options) as stream:
        stream.write_batch(pa.record_batch(columns, schema=file_schema()))
    return sink.getvalue().to_pybytes()[len(file_header()) : -8]


def size_of(encoded: bytes) -> int:
    message = pa.ipc.read_message(pa.py_buffer(encoded))
    return decoded_size(memoryview(message.metadata), memoryview(message.body))


@pytest.mark.parametrize("count", [1, 20])
def test_the_declared_size_is_that_of_the_buffers(count: int) -> None:
    encoded = encode(RECORDS[:count], NOW).encoded
    rows = decode(encoded, entry_of(encoded, count), "here")
    buffers = [b for column in rows.columns for b in column.buffers() if b is not None]
    # Buffers are padded in a message.
    assert rows.nbytes <= size_of(encoded) <= sum(b.size for b in buffers) + 64 * len(buffers)


def test_the_largest_record_is_accepted() -> None:
    """A reader accepts everything that a writer can write, compressible or not."""
    many = {f"name {n}": "x" * 1000 for n in range(1000)}
    for record in (
        b"\0" * RECORD_BYTES_MAX,
        random.Random(1).randbytes(RECORD_BYTES_MAX),
        Record(b"\0" * (RECORD_BYTES_MAX - 2_000_000), b"key", NOW, many),
    ):
        chunk: list[bytes | Record] = [b"x" * 1_000_000, record]
        encoded = encode(chunk, NOW).encoded
        assert len(encoded) <= DECODED_BYTES_MAX
        assert decode(encoded, entry_of(encoded, 2), "here").num_rows == 2


def test_a_bomb_is_refused_before_it_expands(log: LocalLog, tmp_path: Path) -> None:
    """256 MiB of zeros in a message of a megabyte, measured in a separate process."""
    encoded = message_of([bytes(2**27)] * 2)
    assert len(encoded) < 2**21
    forge(log, encoded, entry_of(encoded, 2))
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from dagster_leasehold.lease_store.errors import LogCorrupt\n"
        "from dagster_leasehold.lease_store.identifiers import ShardId\n"
        "from dagster_leasehold.shard_sources.local_log import LocalLog\n"
        "from dagster_leasehold.shard_sources.source import ReadRange\n"
        "log = LocalLog.open(Path(sys.argv[1]))\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "try: list(log.read(ReadRange(ShardId('0'), '0', '2')))\n"
        "except LogCorrupt as error: print(peak() - before, error)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program, str(log.root)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    grown_kib, sentence = outcome.stdout.split(" ", 1)
    assert int(grown_kib) < 32 * 1024
    assert "more than the limit" in sentence
    assert sentence.count("\n") == 1


def test_a_declared_terabyte_is_not_allocated(log: LocalLog) -> None:
    encoded = bytearray(message_of([b"\0" * 10_000]))
    at = encoded.find(struct.pack("<q", 10_000))
    assert at > 0
    for declared in (2**40, 2**62, 20_000, -2):
        encoded[at : at + 8] = struct.pack("<q", declared)
        forge(log, bytes(encoded), entry_of(bytes(encoded), 1))
        with pytest.raises(LogCorrupt):
            list(log.read(ReadRange(ZERO, "0", "1")))


def test_a_wrong_count_in_the_footer_is_detected(log: LocalLog) -> None:
    encoded = encode(RECORDS, NOW).encoded
    for records in (19, 21, 2**31):
        forge(log, encoded, entry_of(encoded, records))
        with pytest.raises(LogCorrupt, match="holds 20 records"):
            list(log.read(ReadRange(ZERO, "0", "5")))


def test_offsets_that_contradict_the_file_name_are_detected(log: LocalLog) -> None:
    (file,) = data_files(log)
    file.rename(file.with_name(f"{0:020d}-{21:020d}.arrow"))
    with pytest.raises(LogCorrupt, match="other offsets than its name"):
        read(log)


def test_entries_with_a_hole_are_detected(log: LocalLog) -> None:
    (file,) = data_files(log)
    encoded = encode(RECORDS[:9], NOW).encoded
    first = entry_of(encoded, 9)
    second = first._replace(offset=11, position=first.position_end)
    file.write_bytes(file_header() + encoded * 2 + END_MARK + packed_footer([first, second]))
    with pytest.raises(LogCorrupt, match="does not hold offset 9"):
        read(log)


def test_a_footer_of_gigabytes_is_not_read(log: LocalLog) -> None:
    (file,) = data_files(log)
    stored = file.read_bytes()
    file.write_bytes(stored[:-FOOTER_END_BYTES] + b"\xff" * FOOTER_END_BYTES)
    with pytest.raises(LogCorrupt, match="damaged at its end"):
        read(log)


def test_a_message_of_gigabytes_is_not_read(log: LocalLog) -> None:
    (file,) = data_files(log)
    entry = entry_of(b"", 20)._replace(length=2**32 - 1)
    with file.open("r+b") as forged:
        forged.seek(entry.position_end)  # a hole: it takes no room on the disk
        forged.write(END_MARK + packed_footer([entry]))
    with pytest.raises(LogCorrupt, match="above the limit"):
        list(log.read(ReadRange(ZERO, "0", "1")))


def test_any_damage_under_a_right_checksum_has_a_typed_outcome(log: LocalLog) -> None:
    """Random bytes with a right checksum give records or `LogCorrupt`."""
    encoded = encode(RECORDS, NOW).encoded
    chance = random.Random(7)
    refused = 0
    for _ in range(1_500):
        changed = bytearray(encoded)
        for _ in range(chance.choice((1, 1, 2, 8))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            rows = decode(bytes(changed), entry_of(bytes(changed), 20), "here")
            assert rows.num_rows == 20
        except LogCorrupt:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("metadata", [b"", b"\0" * 8, b"\xff" * 64, struct.pack("<I", 10**9)])
def test_invalid_metadata_is_detected(metadata: bytes) -> None:
    with pytest.raises(MessageMalformed):
        decoded_size(metadata, b"")
