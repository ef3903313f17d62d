"""The loading of a demo's input in parts, and a digest that shows if each record came out once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from itertools import islice

from dagster_leasehold.shard_sources.local_log import LocalLog, Record

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
