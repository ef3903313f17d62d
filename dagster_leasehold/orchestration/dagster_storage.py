"""Dagster's storage in MySQL or MariaDB, with timeouts and a connection pool.

The connections of Dagster's own class have no timeout. If the database host becomes unreachable
during a statement, or the server hangs, the calling thread blocks until its process ends. That
thread can be the daemon's loop, or a request of the web server.

Dagster's class also opens a connection per transaction. The driver then reads the host's
certificates, which took half a core of the daemon and delayed its ticks.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from dagster import Field, IntSource, StringSource
from dagster_mysql import DagsterMySQLStorage
from dagster_mysql.utils import mysql_url_from_config
from sqlalchemy import event
from sqlalchemy.dialects import plugins
from sqlalchemy.engine import CreateEnginePlugin, Engine
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from dagster_leasehold.lease_store.database_errors import Verdict, verdict

CONNECT_LIMIT_S = 3
"""Short, since Dagster tries to connect six times, and a tick has a timeout of 60 s."""
STATEMENT_LIMIT_S = 30
"""The timeout of a reply: longer than any query of the UI, shorter than a tick's timeout."""
IDLE_S = 60
"""The server closes sessions that are idle for longer, so only busy processes keep one open."""
RECYCLE_S = 15
"""The longest life of a connection, which limits the time until a fail-over's DNS is used."""
_PLUGIN, _LIMIT = "leasehold_limits", "leasehold_statement_limit_s"


class LimitedMySQLStorage(DagsterMySQLStorage):
    """The storage class for `dagster.yaml`: Dagster's class with a timeout per statement."""

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Return the fields of this class's block in `dagster.yaml`."""
        return {
            "mysql_db": {
                "hostname": StringSource,
                "port": Field(IntSource, is_required=False, default_value=3306),
                "username": StringSource,
                "password": StringSource,
                "db_name": StringSource,
            },
            "statement_limit_s": Field(
                IntSource,
                is_required=False,
                default_value=STATEMENT_LIMIT_S,
                description="The longest time to wait for a reply, in seconds.",
            ),
        }

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Any) -> LimitedMySQLStorage:
        """Open the storage that the block describes."""
        address: Any = {"mysql_db": config_value["mysql_db"]}
        url = with_limits(mysql_url_from_config(address), config_value["statement_limit_s"])
        return cls(url, inst_data)


def with_limits(url: str, statement_s: int) -> str:
    """Return a URL whose engines have a timeout of `statement_s` seconds per reply."""
    limits = {"plugin": _PLUGIN, _LIMIT: str(statement_s)}
    return sa.make_url(url).update_query_dict(limits).render_as_string(hide_password=False)


class StatementLimits(CreateEnginePlugin):
    """Sets the timeouts on each engine of a URL, and a pool if the engine has none.

    It is a plugin, since Dagster creates engines in several places. Parameters of the URL cannot
    set the timeouts: they are texts, and the driver requires numbers.
    """

    def __init__(self, url: sa.URL, kwargs: dict[str, Any]) -> None:
        super().__init__(url, kwargs)
        self._limit_s = int(str(url.query[_LIMIT]))
        if kwargs.get("poolclass") is NullPool:
            kwargs |= {
                "poolclass": QueuePool,
                "pool_size": 1,
                "max_overflow": -1,
                "pool_recycle": RECYCLE_S,
                "pool_pre_ping": True,
            }

    def update_url(self, url: sa.URL) -> sa.URL:
        """Remove this plugin's own parameter."""
        return url.difference_update_query([_LIMIT])

    def engine_created(self, engine: Engine) -> None:
        """Set the timeouts on each new connection, and drop connections that cannot be reused."""

        def set_limits(_dialect: object, _record: object, _args: object, options: Any) -> None:
            options["connection_timeout"] = CONNECT_LIMIT_S
            options["read_timeout"] = options["write_timeout"] = self._limit_s

        event.listen(engine, "do_connect", set_limits)
        event.listen(engine, "connect", _limit_idle_time)
        event.listen(engine, "handle_error", _drop_connection)


def _limit_idle_time(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("SET SESSION wait_timeout = %s", (IDLE_S,))
    cursor.close()


def _drop_connection(context: ExceptionContext) -> None:
    """Drop a connection after a timeout, or if its server has become a replica.

    1. A statement times out, and its connection returns to the pool.
    2. The server sends the reply later.
    3. The next statement on the connection would read that reply as its own.
    """
    timed_out = isinstance(context.original_exception, TimeoutError)
    error = context.sqlalchemy_exception
    if timed_out or (isinstance(error, DBAPIError) and verdict(error) is Verdict.READ_ONLY):
        context.is_disconnect = True


plugins.register(_PLUGIN, __name__, StatementLimits.__name__)
