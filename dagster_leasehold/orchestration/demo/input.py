"""The input of a demo: lines of files or a generated access log, and the loading of it in parts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from dagster_leasehold.lease_store.errors import RecordRefused
from dagster_leasehold.shard_sources.local_log import LocalLog, Record

RECORDS_DEFAULT = 200_000
LINE_BYTES_MAX = 64 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
FIRST_TIME = datetime(2026, 1, 1, tzinfo=UTC)
METHODS = ("GET",) * 8 + ("POST", "HEAD")
STATUSES = (200,) * 14 + (204, 301, 304, 404, 429, 500)
PATHS = (
    "/", "/search", "/cart", "/checkout", "/login", "/api/items", "/api/orders",
    "/static/site.css", "/static/site.js", "/health",
)  # fmt: skip
AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (iPhone)", "curl/8.5", "Googlebot/2.1")
PART_RECORDS = 20_000
DIGEST_BYTES = 16


class RecordDigest:
    """A digest of a multiset of records: equal for the same records in any order of shards.

    The sum of the hashes of all records: a missing, a doubled or a changed record changes it.
    """

    def __init__(self) -> None:
        self.records = 0
        self._sum = 0

    def add(self, values: Iterable[bytes]) -> None:
        """Count records in."""
        for value in values:
            self.records += 1
            self._sum += int.from_bytes(blake2b(value, digest_size=DIGEST_BYTES).digest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordDigest) and (
            (self.records, self._sum) == (other.records, other._sum)
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __str__(self) -> str:
        return f"{self._sum % 2 ** (8 * DIGEST_BYTES):032x}"


class Loader:
    """A loader that appends records to the shards that are writable at the time, by turns.

    Args:
        log: the log to append to.
        records: all records; they keep their order within each shard, and from parent to child.
    """

    def __init__(self, log: LocalLog, records: Iterator[bytes | Record]) -> None:
        self._log = log
        self._records = records
        self.digest = RecordDigest()

    def load(self, count: int) -> int:
        """Append the next `count` records, or the rest; return their number."""
        loaded = 0
        with ExitStack() as writers:
            open_ = [
                writers.enter_context(self._log.writer(entry.shard))
                for entry in self._log.list_shards()
                if not entry.read_only
            ]
            while part := list(islice(self._records, min(PART_RECORDS, count - loaded))):
                for turn, writer in enumerate(open_):
                    if share := part[turn :: len(open_)]:
                        writer.append(share)
                self.digest.add(
                    record.value if isinstance(record, Record) else record for record in part
                )
                loaded += len(part)
        return loaded


@dataclass(frozen=True)
class DemoInput:
    """The input of a demo: files, or generated records if there are none."""

    files: tuple[Path, ...] = ()
    records: int = RECORDS_DEFAULT
    seed: int = 1

    @property
    def count(self) -> int:
        """The number of records."""
        return count_lines(self.files) if self.files else self.records

    def loader(self, log: LocalLog) -> Loader:
        """Return a loader of the records into a log."""
        if self.files:
            return Loader(log, lines_of(self.files))
        return Loader(log, access_log(self.records, self.seed))


def count_lines(files: Sequence[Path]) -> int:
    """Return the number of records in files; a last line without a line feed is one."""
    total = 0
    for path in files:
        last = b"\n"
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                total += block.count(b"\n")
                last = block[-1:]
        total += last != b"\n"
    return total


def lines_of(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield all lines in order; a carriage return stays, and an empty line is a record.

    Raises:
        RecordRefused: a line is longer than a record may be.
    """
    for path in files:
        with path.open("rb") as stream:
            number = 0
            while line := stream.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
                    raise RecordRefused(
                        f"Line {number} of {path} has more than {LINE_BYTES_MAX} bytes, the most "
                        "that a record may have."
                    )
                yield line.removesuffix(b"\n")


def access_log(records: int, seed: int) -> Iterator[Record]:
    """Yield records of the combined log format in order of time, keyed by the client's address."""
    # Not for secrets: the same seed must give the same log. One draw a record keeps it fast.
    draw = random.Random(seed)
    time, stamp = FIRST_TIME, ""
    for number in range(records):
        bits = draw.getrandbits(64)
        later = time + timedelta(milliseconds=1 + bits % 40)
        if later.second != time.second or not stamp:
            stamp = f"{later:%d/%b/%Y:%H:%M:%S}"
        time = later
        client = f"10.{bits >> 8 & 15}.{bits >> 12 & 255}.{1 + (bits >> 20) % 254}"
        line = (
            f"{client} - - [{stamp} +0000] "
            f'"{METHODS[(bits >> 32) % len(METHODS)]} {PATHS[(bits >> 36) % len(PATHS)]}'
            f'?request={number} HTTP/1.1" '
            f"{STATUSES[(bits >> 42) % len(STATUSES)]} {120 + (bits >> 48)} "
            f'"-" "{AGENTS[(bits >> 6) % len(AGENTS)]}"'
        )
        yield Record(line.encode(), key=client.encode(), event_time=time)
