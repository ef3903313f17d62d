"""SQLite as the embedded default: many processes, and damaged or foreign files."""

from __future__ import annotations

import sqlite3
from collections import deque
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.pool import Pool

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import (
    InvalidSetting,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.conformance.test_races import at_once
from tests.conformance.world import A, World, X, Y

KEY = GroupKey.parse("group", "stream")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


def test_readers_of_the_file_do_not_wait_for_a_writer(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    store.create_group(Group(KEY))
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        other.execute("BEGIN IMMEDIATE")
        assert store.pulse(KEY).group.key == KEY
    other.close()
    store.close()


def test_a_lock_of_a_hanging_writer_is_reported_in_time(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    store.create_group(Group(KEY))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="busy"):
        World(store, KEY).join(A)
    other.execute("ROLLBACK")
    other.close()
    World(store, KEY).join(A)
    store.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers wait for each other as long as it takes: SQLite serves the first to ask, not all."""
    monkeypatch.setattr("dagster_leasehold.lease_store.transactions.READ_TIMEOUT_S", 60)


@pytest.mark.usefixtures("patient")
def test_two_stores_on_one_file_share_everything(path: Path) -> None:
    """As two processes do: every write of one is seen by the other, none is lost."""
    stores = [open_store(f"sqlite:///{path}") for _ in range(2)]
    worlds = [World(store, KEY) for store in stores]
    worlds[0].group()
    worlds[0].join(A)

    def beat(world: World) -> int:
        for _ in range(25):
            world.store.beat(KEY, A, "a-1")
        return 0

    at_once(*(lambda world=world: beat(world) for world in worlds))
    assert worlds[1].node(A).lease_id == 51
    for store in stores:
        store.close()


@pytest.mark.usefixtures("patient")
def test_writers_wait_for_each_other_instead_of_failing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that began as a read would find the file changed, and have to start again."""
    stores = [open_store(f"sqlite:///{path}") for _ in range(2)]
    worlds = [World(store, KEY) for store in stores]
    pauses: list[float] = []
    for store in stores:
        monkeypatch.setattr(store._transactions, "_sleep", pauses.append)
    worlds[0].group()
    worlds[0].join(A)
    worlds[0].add(X, Y)
    tenures = worlds[0].hold(A, X, Y)

    def consume(world: World, tenure: Tenure) -> int:
        for number in range(20):
            world.consume(tenure, str(number), str(number + 1), number)
        return 0

    at_once(*(lambda w=w, t=t: consume(w, t) for w, t in zip(worlds, tenures, strict=True)))
    assert pauses == []
    assert len(stores[0].batches(KEY)) == 40
    for store in stores:
        store.close()


def test_a_read_only_file_is_read_and_not_written(path: Path) -> None:
    writable = open_store(f"sqlite:///{path}")
    writable.create_group(Group(KEY))
    writable.close()
    store = open_store(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert store.groups()[0].key == KEY
    with pytest.raises(StoreReadOnly, match=r"leases\.db"):
        World(store, KEY).join(A)
    store.close()


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"\0" * 4096])
def test_a_file_that_is_no_database_is_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    store = open_store(f"sqlite:///{path}")
    with pytest.raises(StoreError, match="not a database") as caught:
        store.groups()
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content
    store.close()


def test_a_damaged_file_is_one_sentence(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    store.create_group(Group(KEY))
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(bytes(data))
    damaged = open_store(f"sqlite:///{path}")
    with pytest.raises(StoreError) as caught:
        damaged.groups()
    assert "\n" not in str(caught.value)
    damaged.close()


def test_a_missing_folder_is_created(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a/b/leases.db")
    assert store.groups() == []
    store.close()


def test_fencing_numbers_cannot_be_lowered_by_hand(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    world = World(store, KEY)
    world.group()
    world.join(A)
    world.add(X)
    world.hold(A, X)
    with sqlite3.connect(path) as other, pytest.raises(sqlite3.IntegrityError, match="go down"):
        other.execute("UPDATE loghub_client_shard_lease SET consumer_epoch = 0")
    other.close()
    store.close()


@pytest.mark.parametrize("name", ["á", "a ", "", "-a", "a\n", "a/b"])
def test_the_table_refuses_names_outside_the_grammar(path: Path, name: str) -> None:
    store = open_store(f"sqlite:///{path}")
    World(store, KEY).group()
    engine = store._transactions.engine
    with engine.connect() as connection, pytest.raises(Exception, match="CHECK"):
        connection.execute(text("UPDATE consumer_group SET consume_group = :name"), {"name": name})
    store.close()


def test_a_store_in_memory_is_refused() -> None:
    for url in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(InvalidSetting, match="path"):
            open_store(url)


def test_a_process_that_dies_in_a_transaction_leaves_nothing(path: Path) -> None:
    """SQLite rolls the dead writer back: the next one continues at once."""
    import os

    store = open_store(f"sqlite:///{path}")
    world = World(store, KEY)
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    store.close()
    child = os.fork()
    if child == 0:  # pragma: no cover
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE loghub_client_shard_lease SET check_point = 'torn'")
        os._exit(0)
    os.waitpid(child, 0)
    assert world.shard(X).check_point is None
    assert isinstance(world.consume(tenure, "0", "5"), Changed)
    store.close()


def test_a_full_disk_is_reported_and_the_server_is_not_blamed(path: Path) -> None:
    """Method: SQLite itself finds no room, because the file may not grow."""
    store = open_store(f"sqlite:///{path}")
    store.create_group(Group(KEY))
    store.close()

    def no_room(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")

    event.listen(Pool, "connect", no_room)
    try:
        full = open_store(f"sqlite:///{path}")
        keys = [GroupKey.parse("group", f"stream-{number}") for number in range(200)]
        with pytest.raises(StoreUnavailable, match=r"The disk that holds .* is full: make room"):
            deque((full.create_group(Group(key)) for key in keys), maxlen=0)
        full.close()
    finally:
        event.remove(Pool, "connect", no_room)
