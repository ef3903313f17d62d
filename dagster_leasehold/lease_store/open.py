"""Open a lease store by its URL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.times import utc_now

if TYPE_CHECKING:
    from pydantic import SecretStr

    from dagster_leasehold.lease_store.sql_store import SqlStore
    from dagster_leasehold.lease_store.transactions import Transactions


WHOLE_TABLE_S = 3_600
"""The limit of a statement of an upgrade, such as a large index, in seconds."""


def open_store(
    url: SecretStr | str, *, upgrade: bool = False, clock: Callable[[], datetime] = utc_now
) -> SqlStore:
    """Return the lease store at a URL; it connects on first use.

    The first use creates a SQLite file, or upgrades it to this release's schema.

    Args:
        url: `sqlite:///path` or `mysql+pymysql://user:password@host:port/database`.
        upgrade: upgrade the schema of any database now.
        clock: the wall clock for the journal's dates; no decision depends on it.

    Raises:
        InvalidSetting: the database is not supported.
        StoreError: with `upgrade`, the database refuses or does not answer.

    Examples:
        >>> store = open_store("sqlite:///leases.db")
        >>> store.groups()
        []
    """
    from dagster_leasehold.lease_store.sql_store import SqlStore

    store = SqlStore(open_transactions(url), clock)
    if upgrade:
        store.upgrade()
    return store


def open_transactions(url: SecretStr | str, *, statement_s: int | None = None) -> Transactions:
    """Return the transactions of the store at a URL; they connect on first use.

    Args:
        statement_s: the limit of a statement in seconds; by default a limit that is safe for
            leases.

    Raises:
        InvalidSetting: the database is not supported.
    """
    from dagster_leasehold.lease_store.transactions import (
        READ_TIMEOUT_S,
        Transactions,
        open_engine,
        parse_url,
        sqlite_path,
    )

    parsed = parse_url(url if isinstance(url, str) else url.get_secret_value())
    place = str(sqlite_path(parsed) or parsed.set(password=None, query={}).render_as_string())
    engine = open_engine(parsed, statement_s=statement_s or READ_TIMEOUT_S)
    long_running = None
    if statement_s is None and sqlite_path(parsed) is None:
        long_running = partial(open_engine, parsed, statement_s=WHOLE_TABLE_S)
    return Transactions(engine, place, long_running=long_running)
