"""Dagster's storage in MySQL or MariaDB, with limits on its connections, and with a pool of them.

Dagster's own class opens its connections without a limit. A database host that is cut off in the
middle of a statement, or a server that hangs, then holds the thread that asked: the daemon's loop
or a page of the web server, until the process is ended.

It also opens a connection for each transaction. The driver reads the host's certificates for each
of them, which took the daemon half a core, and made its ticks late.
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
"""Dagster tries to connect six times; a sensor's tick can take 60 s."""
STATEMENT_LIMIT_S = 30
"""The limit of a reply: longer than any query of the pages takes, shorter than a tick may take."""
IDLE_S = 60
"""The server ends a session that rests for longer: only a process that asks often keeps one."""
RECYCLE_S = 15
"""The longest life of a connection; after a fail-over, the name is resolved again by then."""
_PLUGIN, _LIMIT = "leasehold_limits", "leasehold_statement_limit_s"


class LimitedMySQLStorage(DagsterMySQLStorage):
    """Dagster's storage, as `dagster.yaml` names it, with a limit on each statement."""

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Return the fields of its block in `dagster.yaml`."""
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
        """Open the storage that such a block describes."""
        address: Any = {"mysql_db": config_value["mysql_db"]}
        url = with_limits(mysql_url_from_config(address), config_value["statement_limit_s"])
        return cls(url, inst_data)


def with_limits(url: str, statement_s: int) -> str:
    """Return a URL whose engines wait so many seconds for a reply."""
    limits = {"plugin": _PLUGIN, _LIMIT: str(statement_s)}
    return sa.make_url(url).update_query_dict(limits).render_as_string(hide_password=False)


class StatementLimits(CreateEnginePlugin):
    """Sets the limits on each engine of a URL, and a pool where there is none.

    Dagster makes more than one engine, in several places.

    The driver takes them as numbers only, and a URL has texts.
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
        """Return the URL without what only this plugin understands."""
        return url.difference_update_query([_LIMIT])

    def engine_created(self, engine: Engine) -> None:
        """Have each connection of the engine made with the limits."""

        def set_limits(_dialect: object, _record: object, _words: object, options: Any) -> None:
            options["connection_timeout"] = CONNECT_LIMIT_S
            options["read_timeout"] = options["write_timeout"] = self._limit_s

        event.listen(engine, "do_connect", set_limits)
        event.listen(engine, "connect", _limit_rest)
        event.listen(engine, "handle_error", _give_up_connection)


def _limit_rest(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("SET SESSION wait_timeout = %s", (IDLE_S,))
    cursor.close()


def _give_up_connection(context: ExceptionContext) -> None:
    """Throw away a connection whose reply can still come: the next statement would take it.

    So is one to a server that no longer is the primary: it would refuse the next statement, too.
    """
    late = isinstance(context.original_exception, TimeoutError)
    error = context.sqlalchemy_exception
    if late or (isinstance(error, DBAPIError) and verdict(error) is Verdict.READ_ONLY):
        context.is_disconnect = True


plugins.register(_PLUGIN, __name__, StatementLimits.__name__)
