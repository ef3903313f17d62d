"""The rows of all lease tables from one database into another, in one transaction on each side.

Values go through the column types of `lease_store.columns`, so that they mean the same in a
database of another kind: exact text, moments, JSON, booleans, the numbers of journal and outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from sqlalchemy import Connection, RowMapping, Table, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from dagster_leasehold.lease_store import schema
from dagster_leasehold.lease_store.engine import sqlite_path
from dagster_leasehold.lease_store.errors import CopyRefused, StoreError
from dagster_leasehold.lease_store.tables import GROUP_TABLES
from dagster_leasehold.lease_store.transactions import Transaction, Transactions

PORTION_ROWS = 500
KIND = "copy"


def check_schema(store: Transactions) -> None:
    """Refuse a database whose tables are not those of this release; nothing is made or changed.

    Raises:
        SchemaTooOld: it has none yet, or was not upgraded.
        SchemaTooNew: a newer release has upgraded it.
        StoreError: it refuses, or does not answer.
    """
    path = sqlite_path(store.engine.url)
    revision = None
    if path is None or path.exists():
        revision = store.read(KIND, lambda tx: schema.revision(tx.connection))
    schema.check(revision, store.place)


def copy_tables(
    source: Transactions,
    target: Transactions,
    *,
    before_commit: Callable[[], None],
    report: Callable[[int], None],
) -> dict[str, int]:
    """Copy every row as it was at one moment; the target has all of them, or none.

    Args:
        source: read at one moment, whatever is written to it meanwhile.
        target: of this release's schema and without rows.
        before_commit: refuses by raising, once everything is written and nothing is visible.
        report: is called with the number of rows written so far.

    Returns:
        The number of rows by table.

    Raises:
        CopyRefused: the target has rows.
        StoreError: a database refuses or does not answer, or the target has not kept all rows.
    """

    def read(reading: Transaction) -> dict[str, int]:
        if source.engine.dialect.name == "mysql":
            # Under the isolation of all other transactions, each statement sees its own moment.
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

        def mark(looking: Transaction) -> bool:
            return any(_counts(looking.connection).values())

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
        for table in GROUP_TABLES
    }


def _copied(
    source: Transactions, reading: Connection, writing: Connection, report: Callable[[int], None]
) -> dict[str, int]:
    copied: dict[str, int] = {}
    for table in GROUP_TABLES:
        copied[table.name] = 0
        for rows in _portions(source, reading, table):
            writing.execute(insert(table), [dict(row) for row in rows])
            copied[table.name] += len(rows)
            report(sum(copied.values()))
    return copied


def _portions(
    source: Transactions, reading: Connection, table: Table
) -> Generator[Sequence[RowMapping]]:
    """The rows of a table; the source's errors are told apart from the target's here.

    Raises:
        StoreError: the source refuses or does not answer.
    """
    chosen = select(table).order_by(*table.primary_key)
    try:
        with reading.execute(chosen, execution_options={"yield_per": PORTION_ROWS}) as result:
            yield from result.mappings().partitions()
    except SQLAlchemyError as error:
        raise source.translated(error) from error
