"""Storing many of Dagster's events at once, in its storage on a real MariaDB."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from dagster_mysql import MySQLEventLogStorage

from tests.database_server import DatabaseServer
from tests.mariadb import MariaDB
from tests.unit.assets.test_event_storage import RUN, check, events_of, rows_of, store_together

pytestmark = pytest.mark.mariadb


def storage_on(server: DatabaseServer, name: str) -> MySQLEventLogStorage:
    url = sa.make_url(server.create_database(name)).set(drivername="mysql+mysqlconnector")
    return MySQLEventLogStorage(url.render_as_string(hide_password=False))


def test_the_tables_hold_what_they_would_hold_one_event_after_the_other(mariadb: MariaDB) -> None:
    alone, together = storage_on(mariadb, "alone"), storage_on(mariadb, "together")
    for run in ("an earlier run", RUN):
        for each in [*events_of(3, run), check("1", "lag", run=run)]:
            alone.store_event(each)
        store_together(together, events_of(3, run))
        store_together(together, [check("1", "lag", run=run)])
    assert rows_of(together) == rows_of(alone)
