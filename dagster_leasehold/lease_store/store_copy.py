"""Moving a lease store into another database.

Consumption must not continue in the old store, or the two would disagree about committed batches.
So every group has to be drained first:

1. In a paused group no tenure can be opened, and without one neither ledger nor checkpoint can
   change. Its members can stay: they only send heartbeats and change owners.
2. The groups are checked again before the copy becomes visible. If a shard was opened or forced in
   the meantime, its epoch has changed, and the copy is undone.
3. The groups stay paused in both stores. A process that still uses the old store does nothing, and
   its node expires in the new store.

Values pass through the column types of `lease_store.columns`, so a database of another kind stores
the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, RowMapping, Table, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from dagster_leasehold.lease_store import schema
from dagster_leasehold.lease_store.errors import CopyRefused, StoreError
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.open import open_store, open_transactions
from dagster_leasehold.lease_store.release import StoredSchema
from dagster_leasehold.lease_store.rules.progress import Report
from dagster_leasehold.lease_store.rules.verification import Violation, verify
from dagster_leasehold.lease_store.tables import COPIED_TABLES
from dagster_leasehold.lease_store.transactions import Transaction, Transactions, sqlite_path

if TYPE_CHECKING:
    from pydantic import SecretStr
    from sqlalchemy import URL

    from dagster_leasehold.lease_store.store import LeaseStore

STATEMENT_S = 300
"""The limit of one statement, which reads or counts a whole table, in seconds."""
MYSQL_PORT = 3306
PORTION_ROWS = 500
KIND = "copy"

Epochs = dict[GroupKey, dict[ShardId, tuple[int, str | None]]]


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """The result of a copy: groups, rows by table, and the violations that `verify` finds."""

    groups: tuple[GroupKey, ...]
    rows: dict[str, int]
    violations: tuple[Violation, ...]


def copy_store(
    source_url: SecretStr | str, target_url: SecretStr | str, *, report: Report = lambda *_: None
) -> StoreCopy:
    """Copy a lease store whose groups are drained into an empty one of the same schema.

    Args:
        source_url: the existing store, which is not changed.
        target_url: a database of any kind that `leasehold db upgrade` has prepared.
        report: called with the numbers of rows copied so far, and in total.

    Raises:
        InvalidSetting: a database is not supported.
        CopyRefused: both are the same store, the source is empty or the target is not, or a group
            is not drained.
        SchemaTooOld, SchemaTooNew: one of them does not have this release's schema.
        StoreError: a database refuses or does not answer; nothing was copied.
    """
    source = open_transactions(source_url, statement_s=STATEMENT_S)
    target = open_transactions(target_url, statement_s=STATEMENT_S)
    store, copy = open_store(source_url), open_store(target_url)
    try:
        if _place(source.engine.url) == _place(target.engine.url):
            raise CopyRefused(
                f"The lease store at {target.place} cannot be copied into itself: give the URL of "
                "another database."
            )
        check_schema(source)
        check_schema(target)
        epochs = epochs_at_rest(store)
        if not epochs:
            raise CopyRefused(
                f"The lease store at {source.place} has no consumer group: there is nothing to "
                "copy; create the groups in the new store."
            )

        def check_unchanged() -> None:
            if epochs_at_rest(store) != epochs:
                raise CopyRefused(
                    f"The lease store at {source.place} changed during the copy, so nothing was "
                    "copied: stop its processes, and copy again."
                )

        rows = copy_tables(source, target, before_commit=check_unchanged, report=report)
        violations = tuple(violation for key in epochs for violation in verify(copy, key))
        return StoreCopy(tuple(epochs), rows, violations)
    finally:
        for transactions in (source, target):
            transactions.engine.dispose()
        store.close()
        copy.close()


def epochs_at_rest(store: LeaseStore) -> Epochs:
    """Return every shard's epoch and checkpoint; raise CopyRefused if a group is not drained."""
    epochs: Epochs = {}
    for group in store.groups():
        key = group.key
        draining = store.draining(key)
        command = f"`leasehold group drain {key.stream} --group {key.group}`"
        if not draining.paused:
            raise CopyRefused(f"Group {key} is not paused, so it continues: run {command}.")
        if draining.open:
            shard = draining.open[0]
            raise CopyRefused(
                f"Shard {shard.shard} of {key} is open in run {shard.run}: run {command}, which "
                "waits until it is closed."
            )
        for claim in store.rewrites(key):
            raise CopyRefused(
                f"Run {claim.run} is rewriting the output of shard {claim.shard} of {key} "
                f"({claim.kind}): wait until it ends, or repeat that command with "
                f"`--replaces {claim.run}` if it certainly has."
            )
        leases = store.snapshot(key).shards
        epochs[key] = {lease.shard: (lease.consumer_epoch, lease.check_point) for lease in leases}
    return epochs


def _place(url: URL) -> tuple[object, ...]:
    """Return a database's identity, from a URL without account and options."""
    path = sqlite_path(url)
    if path is not None:
        return (path.resolve(),)
    return ((url.host or "").lower(), url.port or MYSQL_PORT, url.database)


def check_schema(store: Transactions) -> None:
    """Refuse a database without the tables of this release, as `StoredSchema.check`."""
    path = sqlite_path(store.engine.url)
    revision = None
    if path is None or path.exists():
        revision = store.read(KIND, lambda tx: schema.stored(tx.connection)).revision
    # A newer schema can have columns that this release lacks.
    StoredSchema(revision).check(store.place)


def copy_tables(
    source: Transactions, target: Transactions, *, before_commit: Callable[[], None], report: Report
) -> dict[str, int]:
    """Copy a consistent state of all rows in one transaction; return the number by table.

    Args:
        target: has this release's schema and no rows.
        before_commit: called when all rows are written; raises to refuse the copy.
        report: called with the numbers of rows written so far, and in total.

    Raises:
        CopyRefused: the target has rows.
        StoreError: a database refuses or does not answer, or the target has not kept all rows.
    """

    def read(reading: Transaction) -> dict[str, int]:
        if source.engine.dialect.name == "mysql":
            # With the default isolation, each statement would read the state at its own time.
            reading.connection.execution_options(isolation_level="REPEATABLE READ")

        def write(writing: Transaction) -> dict[str, int]:
            _check_empty(writing.connection, target.place)
            copied = _copied(source, reading.connection, writing.connection, report)
            counts = _counts(writing.connection)
            for name, count in copied.items():
                if counts[name] != count:
                    raise StoreError(
                        f"The lease store at {target.place} kept {counts[name]} of {count} rows of "
                        f"{name}, so nothing was copied: look for triggers on its tables."
                    )
            before_commit()
            return copied

        def mark(checking: Transaction) -> bool:
            return any(_counts(checking.connection).values())

        return target.write(KIND, write, mark=mark)

    return source.read(KIND, read)


def _check_empty(connection: Connection, place: str) -> None:
    for name, count in _counts(connection).items():
        if count:
            raise CopyRefused(
                f"The lease store at {place} is not empty: its table {name} has {count} rows; "
                "copy into a new database, after `leasehold db upgrade`."
            )


def _counts(connection: Connection) -> dict[str, int]:
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in COPIED_TABLES
    }


def _copied(
    source: Transactions, reading: Connection, writing: Connection, report: Report
) -> dict[str, int]:
    copied: dict[str, int] = {}
    with _errors_of(source):
        total = sum(_counts(reading).values())
    for table in COPIED_TABLES:
        copied[table.name] = 0
        for rows in _portions(source, reading, table):
            writing.execute(insert(table), [dict(row) for row in rows])
            copied[table.name] += len(rows)
            report(sum(copied.values()), total)
    return copied


def _portions(
    source: Transactions, reading: Connection, table: Table
) -> Generator[Sequence[RowMapping]]:
    query = select(table).order_by(*table.primary_key)
    with (
        _errors_of(source),
        reading.execute(query, execution_options={"yield_per": PORTION_ROWS}) as result,
    ):
        yield from result.mappings().partitions()


@contextmanager
def _errors_of(source: Transactions) -> Generator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise source.translated(error) from error
