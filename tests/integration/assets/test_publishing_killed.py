"""Kill a publisher at every step, on a real database: each record is in the table once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dagster_leasehold.assets.output.table.group_table import build_publisher
from dagster_leasehold.assets.output.table.publish_locks import PublishReport, take_lock
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.failpoints import Failpoint
from tests.table_engines import duckdb_query
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

POINTS = (
    Failpoint.AFTER_PUBLISH_LOCK,
    Failpoint.BEFORE_TABLE,
    Failpoint.AFTER_STAGE,
    Failpoint.BEFORE_PUBLISH,
    Failpoint.IN_COMMIT_PUBLICATION,
    Failpoint.AFTER_PUBLISH,
)
NAME = TableSettings().table_name(CatalogSettings().name, KEY)
RECORDS = 10


def publish(home: ConsumedHome) -> PublishReport:
    lock = take_lock(home.store, KEY, NAME, {NODE: "a-1"})
    assert isinstance(lock, PublishLock)
    publisher = build_publisher(
        store=home.store,
        key=KEY,
        settings=TableSettings(),
        catalog=CatalogSettings(),
        place=output_place(home.output),
    )
    return publisher.publish(lock)


def published(home: ConsumedHome) -> list[bytes]:
    pointer = home.store.table_pointer(NAME)
    assert pointer is not None
    return sorted(row[0] for row in duckdb_query(pointer.location, "value"))


def expected(count: int) -> list[bytes]:
    return sorted(b"%d:%d" % (shard, number) for shard in range(2) for number in range(count))


def play(folder: Path, point: Failpoint, url: str | None = None) -> None:
    """Kill a publisher at a step, and have the next one, and the one after it, publish."""
    home = ConsumedHome(folder / "home", database_url=url)
    home.append(RECORDS)
    home.consume("run-1")
    point.kills("-m", __name__, str(folder / "home"), *([url] if url else []))
    publish(home)
    assert published(home) == expected(RECORDS)
    home.append(5)
    home.consume("run-2")
    publish(home)
    assert published(home) == expected(RECORDS + 5)
    home.store.close()


# One real process shows that the short tests of the publisher simulate a kill correctly.
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(each, marks=() if each is Failpoint.BEFORE_PUBLISH else pytest.mark.long)
        for each in POINTS
    ],
    ids=lambda point: point.label,
)
def test_the_next_publisher_continues_after_a_killed_one(tmp_path: Path, point: Failpoint) -> None:
    play(tmp_path, point)


@pytest.mark.long
@pytest.mark.parametrize(
    "url",
    [
        pytest.param("mariadb_url", marks=pytest.mark.mariadb),
        # Its statements equal those of MariaDB.
        pytest.param("mysql_url", marks=[pytest.mark.mysql, pytest.mark.release]),
    ],
)
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
def test_the_next_publisher_continues_after_a_killed_one_on_a_server(
    tmp_path: Path, point: Failpoint, url: str, request: pytest.FixtureRequest
) -> None:
    play(tmp_path, point, request.getfixturevalue(url))


if __name__ == "__main__":
    publish(ConsumedHome(Path(sys.argv[1]), database_url=(*sys.argv[2:], None)[0]))
