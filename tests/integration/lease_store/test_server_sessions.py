"""Sessions that are set up for leases, despite the defaults of servers."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import CheckpointRefused, StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store import SqlStore
from dagster_leasehold.lease_store.sql_store.mapping import SHARD
from dagster_leasehold.lease_store.transactions import (
    IDLE_S,
    IDLE_TRANSACTION_S,
    LOCK_WAIT_S,
    open_engine,
    parse_url,
)
from tests.conformance.test_races import at_once
from tests.conformance.world import NOON, A, B, World, X
from tests.database_server import DatabaseServer
from tests.integration.lease_store.commit_proxy import CommitProxy
from tests.mysql import MySQL

pytestmark = pytest.mark.servers("mariadb", "mysql")


def one_value(store: SqlStore, query: str) -> object:
    engine = store._transactions.engine
    with engine.connect() as connection:
        return connection.execute(text(query)).scalar()


def test_every_session_is_set_up(store: SqlStore) -> None:
    with store._transactions.engine.connect() as connection:
        assert connection.get_isolation_level() == "READ COMMITTED"
    assert "STRICT_ALL_TABLES" in str(one_value(store, "SELECT @@sql_mode"))
    assert one_value(store, "SELECT @@time_zone") == "+00:00"
    assert one_value(store, "SELECT @@innodb_lock_wait_timeout") == LOCK_WAIT_S


def test_a_silent_session_ends_soon_within_a_transaction_and_later_outside(
    server: DatabaseServer, store: SqlStore
) -> None:
    """A frozen client must not keep its locks; a session that rests between two beats must stay."""
    store.groups()
    engine = store._transactions.engine
    with engine.connect() as connection:
        limit, number = connection.execute(text("SELECT @@wait_timeout, CONNECTION_ID()")).one()
        assert limit == IDLE_TRANSACTION_S
        connection.commit()
    # Straight from the pool, without what happens when a connection leaves it for use.
    record = engine.pool._pool.queue[-1]  # pyright: ignore[reportAttributeAccessIssue]
    with record.dbapi_connection.cursor() as cursor:
        cursor.execute("SELECT @@wait_timeout, CONNECTION_ID()")
        assert cursor.fetchone() == (IDLE_S, number)


def test_a_beat_costs_four_round_trips(through_proxy: World, proxy: CommitProxy) -> None:
    """Limits of idle time come in the place of a ping and a rollback, and add none."""
    through_proxy.group()
    through_proxy.join(A)
    proxy.queries.clear()
    through_proxy.store.beat(through_proxy.key, A, "a-1")
    limit, update, commit, rest = proxy.queries
    assert limit == f"SET SESSION wait_timeout = {IDLE_TRANSACTION_S}"
    assert update.startswith("UPDATE loghub_client_worker_instance")
    assert commit == "COMMIT"
    assert rest == f"SET SESSION wait_timeout = {IDLE_S}"


@pytest.mark.parametrize("verb", ["evict", "leave"])
def test_the_shards_of_a_node_that_leaves_are_freed_together(
    through_proxy: World, proxy: CommitProxy, verb: str
) -> None:
    """A round trip for each would hold the group's row, and with it all other nodes, for long."""
    world = through_proxy
    world.group()
    shards = [ShardId(f"s{number:03}") for number in range(120)]
    world.add(*shards)
    costs: list[int] = []
    for count in (3, 120):
        world.join(A)
        rows = world.store.snapshot(world.key).shards[:count]
        claims = {row.shard: (A, row.lease_id) for row in rows}
        world.store.claim(world.key, claims, observer="t", reason="planned")
        for shard in shards[:2]:
            world.open(A, shard)
        proxy.queries.clear()
        if verb == "evict":
            seen = world.node(A).lease_id
            outcome = world.store.evict(world.key, A, seen, observer="t", reason="silent")
        else:
            outcome = world.store.leave(world.key, A, "a-1")
        assert outcome == Changed(tuple(shards[:count]))
        costs.append(len(proxy.queries))
    assert costs[1] == costs[0]
    assert verify(world.store, world.key) == []


def test_a_session_that_cannot_be_set_up_is_refused(
    server: DatabaseServer, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy before the server rewrites settings: this is an error at connect, not a lost
    update.
    """
    from dagster_leasehold.lease_store import transactions

    monkeypatch.setattr(transactions, "SQL_MODE", "ANSI_QUOTES")
    with pytest.raises(StoreError, match="strict sql_mode"):
        open_store(server_url, upgrade=True)


def test_an_operation_sees_concurrent_commits(world: World) -> None:
    """At REPEATABLE READ, 1. A reads lease 0. 2. B claims: 1. 3. A's claim misses, and reading
    again in the same transaction still shows 0. At READ COMMITTED it shows 1."""
    engine = open_engine(parse_url(world.store._transactions.engine.url.render_as_string(False)))
    world.group()
    world.join(A)
    world.add(X)
    query = text("SELECT lease_id FROM loghub_client_shard_lease")
    seen: dict[str, list[object]] = {}
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        with engine.connect() as connection:
            connection.execution_options(isolation_level=level)
            first = connection.execute(query).scalar()
            world.claim(A, X)
            seen[level] = [first, connection.execute(query).scalar()]
            connection.rollback()
        world.store.leave(world.key, A, "a-1")
        world.join(A)
    engine.dispose()
    assert seen == {"READ COMMITTED": [0, 1], "REPEATABLE READ": [2, 2]}


def test_a_slow_machine_reads_a_large_group(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends an idle transaction, and making leases of thousands of rows takes long."""
    world.group()
    world.add(X)
    engine = world.store._transactions.engine
    event.listen(engine, "checkout", idle_for_a_second_at_most)

    read = SHARD.read

    def slow(row: Any) -> ShardLease:
        time.sleep(3)
        return read(row)

    monkeypatch.setattr(SHARD, "read", slow)
    assert [lease.shard for lease in world.store.snapshot(world.key).shards] == [X]


def idle_for_a_second_at_most(connection: Any, *_: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION wait_timeout = 1")


def test_no_update_is_lost_between_two_sessions(world: World) -> None:
    """Two threads count as often as they can; a beat whose answer is lost counts twice."""
    world.group()
    world.join(A)

    def count() -> int:
        for _ in range(100):
            world.store.beat(world.key, A, "a-1")
        return 0

    at_once(count, count)
    assert world.node(A).lease_id >= 201


def test_a_write_that_changes_nothing_still_counts_its_row(world: World) -> None:
    """The driver counts changed rows, SQLAlchemy asks for found ones: no verb depends on it."""
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.store.save_checkpoint(tenure, "5")
    world.store.save_checkpoint(tenure, "5")
    world.store.announce(tenure, handoff_eta_s=1.0)
    world.store.announce(tenure, handoff_eta_s=1.0)
    assert world.shard(X).check_point == "5"


def test_stored_times_do_not_depend_on_the_time_zone_of_the_server(
    server: DatabaseServer, world: World
) -> None:
    """With the server at +09:00 and then at -11:00, moments and `update_time` stay in UTC."""
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    database = str(world.store._transactions.engine.url.database)
    try:
        for number, zone in enumerate(("+09:00", "-11:00")):
            server.execute(f"SET GLOBAL time_zone = '{zone}'")
            world.store.close()
            start, end = str(number), str(number + 1)
            assert isinstance(world.consume(tenure, start, end, number, watermark=NOON), Changed)
            assert world.shard(X).watermark == NOON
            ((updated,),) = server.execute(
                "SELECT update_time FROM loghub_client_shard_lease", database=database
            )
            away = abs(updated.replace(tzinfo=UTC) - datetime.now(UTC))
            assert away < timedelta(minutes=5)
    finally:
        server.execute("SET GLOBAL time_zone = 'SYSTEM'")


def test_the_clock_of_the_database_decides_nothing(server: DatabaseServer, world: World) -> None:
    """The clock that sessions see is set back a year between two operations: no lease is lost."""
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    engine = world.store._transactions.engine
    with engine.connect() as connection:
        connection.execute(text("SET @@timestamp = 1700000000"))
        connection.commit()
    assert isinstance(world.consume(tenure, "0", "5"), Changed)
    assert world.store.review([tenure])[X].current


def test_times_for_people_have_microseconds(server: DatabaseServer, world: World) -> None:
    database = str(world.store._transactions.engine.url.database)
    world.group()
    rows = server.execute(
        "SELECT table_name, column_name, column_type FROM information_schema.columns "
        f"WHERE table_schema = '{database}' AND data_type IN ('datetime', 'timestamp')"
    )
    assert rows
    assert {column_type for _, _, column_type in rows} == {"datetime(6)"}


def test_names_are_bytes_in_every_key(server: DatabaseServer, world: World) -> None:
    """Text would take `a`, `A`, and `a` with a blank for one key; VARBINARY does not.

    The two tables of the Iceberg catalog are of the form that its clients prescribe.
    """
    database = str(world.store._transactions.engine.url.database)
    world.group()
    rows = server.execute(
        "SELECT column_name, data_type FROM information_schema.columns "
        f"WHERE table_schema = '{database}' AND column_key = 'PRI' "
        "AND data_type NOT IN ('bigint', 'int', 'smallint') "
        "AND table_name NOT IN ('leasehold_schema', 'iceberg_tables', "
        "'iceberg_namespace_properties')"
    )
    assert {data_type for _, data_type in rows} == {"varbinary"}
    names = [ShardId(name) for name in ("a", "A", "a.", "a-", "aa")]
    world.add(*names)
    assert [row.shard for row in world.store.snapshot(world.key).shards] == sorted(names)


@pytest.mark.parametrize("name", ["á", "a ", "", "-a", "a\n", "a/b", "a" * 65])
def test_the_table_refuses_names_outside_the_grammar(
    store: SqlStore, server: DatabaseServer, name: str
) -> None:
    store.groups()
    database = str(store._transactions.engine.url.database)
    connection = server.connect(database)
    try:
        with (
            connection.cursor() as cursor,
            pytest.raises(Exception, match=r"(?i)constraint|too long"),
        ):
            cursor.execute(
                "INSERT INTO consumer_group (consume_group, logstream_sig, ordered, timeout_s, "
                "handoff_limit_s, assignment, initial_position, weighted, paused, generation, "
                "create_time, update_time) VALUES (%s, 's', 1, 20, 120, 'balanced', 'begin', "
                "0, 0, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
                (name.encode(),),
            )
    finally:
        connection.close()


def test_text_that_is_too_long_is_refused_and_not_truncated(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.store.save_checkpoint(tenure, "1" * 512)
    with pytest.raises(CheckpointRefused):
        world.store.save_checkpoint(tenure, "1" * 513)
    assert world.shard(X).check_point == "1" * 512
    with pytest.raises(StoreError, match="1406"):
        world.register(B, "b-1", address="h" * 256)


@pytest.mark.parametrize("column", ["consumer_epoch", "lease_id"])
def test_fencing_numbers_cannot_be_lowered_by_hand(
    server: DatabaseServer, world: World, column: str
) -> None:
    world.group()
    world.join(A, B)
    world.add(X)
    world.hold(A, X)
    engine = world.store._transactions.engine
    with engine.connect() as connection, pytest.raises(DBAPIError, match="never go down"):
        connection.execute(text(f"UPDATE loghub_client_shard_lease SET {column} = {column} - 1"))


def test_values_are_not_in_error_texts(world: World) -> None:
    engine = world.store._transactions.engine
    with engine.connect() as connection, pytest.raises(DBAPIError) as caught:
        connection.execute(text("SELECT :secret FROM nowhere"), {"secret": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_passwords_are_not_in_errors_or_reprs(server: DatabaseServer, server_url: str) -> None:
    wrong = server_url.replace("leasehold-test", "hunter2")
    with pytest.raises(StoreError, match="1045") as caught:
        open_store(wrong, upgrade=True)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "hunter2" not in f"{chain} {chain!r}"
        chain = chain.__cause__
    assert "hunter2" not in repr(open_store(wrong)._transactions.engine)


@pytest.mark.parametrize("snapshot_isolation", [0, 1])
def test_one_claim_wins_with_and_without_snapshot_isolation(
    server: DatabaseServer, world: World, snapshot_isolation: int
) -> None:
    """Newer MariaDB raises 1020 where older ones, and MySQL, match no row: one outcome for all."""
    from tests.conformance import test_races

    has_it = bool(server.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"))
    assert has_it or isinstance(server, MySQL)
    if not has_it and snapshot_isolation:
        pytest.skip("this server has no such setting")
    if has_it:
        server.execute(f"SET GLOBAL innodb_snapshot_isolation = {snapshot_isolation}")
    try:
        world.store.close()
        test_races.test_one_of_two_claims_wins(world)
    finally:
        if has_it:
            server.execute("SET GLOBAL innodb_snapshot_isolation = 0")
