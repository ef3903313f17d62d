"""A lease store after a long life: a valid ledger and journal of any size.

The rows are inserted in bulk through the store's tables, and equal the rows that the store's
operations would have written. `verify` accepts them, and consumption continues after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Any

from sqlalchemy import Table, insert, update

from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchCommit,
    BatchState,
    BatchStatistics,
    DataFile,
    Intent,
)
from dagster_leasehold.lease_store.open import open_store, open_transactions
from dagster_leasehold.lease_store.outcomes import Changed, Opened, Registered
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.lease_store.sql_store.mapping import BATCH, note_row
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tables import batch, lease_journal, shard_lease
from dagster_leasehold.lease_store.transactions import Transaction, Transactions

KEY = GroupKey.parse("group", "stream")
NODE = NodeName("node-a")
INCARNATION = "first"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS = 100
BATCHES_PER_TENURE = 2
ROWS_PER_INSERT = 5_000
STATEMENT_S = 600


@dataclass(frozen=True, slots=True)
class Age:
    """How much a store has seen.

    Attributes:
        batches: committed batches, and as many entries of the journal.
        shards: that they are spread over evenly.
        step: the event time between two batches of a shard.
    """

    batches: int
    shards: int = 16
    step: timedelta = timedelta(seconds=10)

    @property
    def per_shard(self) -> int:
        """Batches of each shard; an even number."""
        return self.batches // self.shards // BATCHES_PER_TENURE * BATCHES_PER_TENURE

    @property
    def names(self) -> list[ShardId]:
        """The shards."""
        return [ShardId(str(number)) for number in range(self.shards)]

    @property
    def middle(self) -> datetime:
        """A time in the middle of all records."""
        return BEGIN + self.step * (self.per_shard // 2)


def fill(url: str, age: Age) -> None:
    """Make the store of a URL that old; it has no lease tables yet."""
    store = open_store(url, upgrade=True)
    store.create_group(Group(KEY))
    assert isinstance(store.register(KEY, Node(NODE, 0, INCARNATION), observer="test"), Registered)
    store.sync_shards(KEY, [ShardListing(shard) for shard in age.names], observer="test")
    claims = dict.fromkeys(age.names, (NODE, 0))
    store.claim(KEY, claims, observer="test", reason="test")
    store.close()
    transactions = open_transactions(url, statement_s=STATEMENT_S)
    for shard in age.names:
        _insert(transactions, batch, _ledger(age, shard))
        _insert(transactions, lease_journal, _journal(age, shard))
    values = {
        "check_point": str(age.per_shard * RECORDS),
        "consumer_epoch": age.per_shard // BATCHES_PER_TENURE,
        "committed_until": age.per_shard,
        "published_until": age.per_shard,
        "committed_batches": age.per_shard,
        "ledger_rows": age.per_shard,
        "committed_records": age.per_shard * RECORDS,
        "watermark": BEGIN + age.step * age.per_shard,
    }
    transactions.write("fill", lambda tx: tx.connection.execute(update(shard_lease).values(values)))
    transactions.engine.dispose()


def _insert(transactions: Transactions, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    """Insert rows as the driver takes them; values go through the columns' own types."""
    dialect = transactions.engine.dialect
    if (first := next(rows, None)) is None:
        return
    columns = [column for column in table.c if column.name in first]
    convert = [column.type.dialect_impl(dialect).bind_processor(dialect) for column in columns]
    names = [column.name for column in columns]
    compiled = insert(table).compile(dialect=dialect, column_keys=names)
    statement, positional = str(compiled), compiled.positional
    pairs = list(zip(names, convert, strict=True))
    converted = (
        {name: way(row[name]) if way else row[name] for name, way in pairs}
        for row in chain([first], rows)
    )
    taken = (tuple(row.values()) if positional else row for row in converted)
    while portion := list(islice(taken, ROWS_PER_INSERT)):

        def write(tx: Transaction, portion: list[Any] = portion) -> None:
            tx.connection.exec_driver_sql(statement, portion)

        transactions.write("fill", write)


def _run(number: int) -> str:
    return f"run-{number // BATCHES_PER_TENURE}"


def _ledger(age: Age, shard: ShardId) -> Iterator[dict[str, Any]]:
    batch_ = Batch(shard, 0, "", "", BatchState.COMMITTED, 1, "", NODE)
    constant = BATCH.row(KEY, batch_)
    constant |= {"records": RECORDS, "bytes": 20_000, "written": RECORDS}
    for number in range(age.per_shard):
        first = BEGIN + age.step * number
        last = first + age.step - timedelta(microseconds=1)
        run = _run(number)
        path = f"attempts/{run}-{number}/{shard}.parquet"
        file = DataFile(path, RECORDS, 4_096, first_event_time=first, last_event_time=last)
        yield constant | {
            "sequence": number,
            "start_cursor": str(number * RECORDS),
            "end_cursor": str((number + 1) * RECORDS),
            "epoch": number // BATCHES_PER_TENURE + 1,
            "run": run,
            "attempt": path.rpartition("/")[0],
            "files": BATCH.bound("files", (file,)),
            "first_event_time": first,
            "last_event_time": last,
            "committed_at": last,
        }


def _journal(age: Age, shard: ShardId) -> Iterator[dict[str, Any]]:
    """Each tenure opened and closed: an entry per batch."""
    opening = Note("open", "opened", shard=shard, from_owner=NODE, to_owner=NODE)
    entry = note_row(KEY, opening, observer=str(NODE), at=BEGIN, transaction_id="")
    for number in range(age.per_shard):
        closing = number % BATCHES_PER_TENURE
        yield entry | {
            "kind": "close" if closing else "open",
            "recorded_at": BEGIN + age.step * number,
            "epoch": number // BATCHES_PER_TENURE + 1,
            "run": _run(number),
            "check_point": str(number * RECORDS),
            "transaction_id": f"{shard}-{number}",
        }


@dataclass(slots=True)
class Consumption:
    """A run that continues after the aged rows, one batch of every shard at a time."""

    store: LeaseStore
    age: Age
    tenures: dict[ShardId, Tenure]
    number: int
    at: datetime

    @classmethod
    def begin(cls, store: LeaseStore, age: Age) -> Consumption:
        """Open all shards."""
        tenures: dict[ShardId, Tenure] = {}
        number = 0
        for shard in age.names:
            opened = store.open_tenure(KEY, shard, NODE, "live")
            assert isinstance(opened, Opened)
            tenures[shard] = opened.tenure
            number = opened.next_sequence
        return cls(store, age, tenures, number, BEGIN + age.step * number)

    def commit(self, files: int | None = None) -> None:
        """Intend and commit the next batch of each shard.

        Args:
            files: spread over the shards, a step of event time each; one of each by default.
        """
        shards = self.age.names
        files = files or len(shards)
        start, end = str(self.number * RECORDS), str((self.number + 1) * RECORDS)
        intents = [Intent(self.tenures[shard], self.number, start, end) for shard in shards]
        assert all(isinstance(out, Changed) for out in self.store.record_intents(intents).values())
        attempt = f"attempts/live-{self.number}"
        commits: list[BatchCommit] = []
        for at, shard in enumerate(shards):
            own = tuple(
                self._file(f"{attempt}/{shard}-{number}.parquet", number // len(shards))
                for number in range(at, files, len(shards))
            )
            times = [file.first_event_time for file in own] or [None]
            written = RECORDS * len(own)
            seen = BatchStatistics(written, 200 * written, written, 0, times[0], times[-1])
            commits.append(
                BatchCommit(self.tenures[shard], self.number, start, end, attempt, own, seen)
            )
        assert all(isinstance(outcome, Changed) for outcome in self.store.commit(commits).values())
        self.number += 1
        self.at += self.age.step * -(-files // len(shards))

    def _file(self, path: str, step: int) -> DataFile:
        first = self.at + self.age.step * step
        last = first + self.age.step - timedelta(microseconds=1)
        times = {"first_event_time": first, "last_event_time": last}
        return DataFile(path, RECORDS, 4_096, **times, untimed=0)
