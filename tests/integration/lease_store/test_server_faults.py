"""A database that stalls, restarts, is demoted, deadlocks, or keeps a dead client's locks."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, text

from dagster_leasehold.lease_store.errors import StoreReadOnly, StoreUnavailable
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Beaten, Changed
from tests.conformance.test_races import at_once
from tests.conformance.world import A, B, World, X, Y
from tests.database_server import DatabaseServer
from tests.freezing import freeze

pytestmark = [pytest.mark.long, pytest.mark.servers("mariadb", "mysql")]

ANSWER_MAX_S = 10.0


def database(world: World) -> str:
    return str(world.store._transactions.engine.url.database)


@contextmanager
def locked(server: DatabaseServer, world: World, statement: str) -> Generator[Any]:
    """An open transaction of another process that has run a statement."""
    connection = server.connect(database(world))
    try:
        connection.autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute(statement)
        yield connection
    finally:
        connection.close()


def timed(call: Callable[[], Any]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def connection_id(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT CONNECTION_ID()")).scalar_one())


def held(world: World) -> Any:
    world.group()
    world.join(A, B)
    world.add(X, Y)
    return world.hold(A, X)[0]


def test_a_row_that_stays_locked_is_reported_in_time(server: DatabaseServer, world: World) -> None:
    """The default wait is 50 s, longer than any lease: ours ends well within a beat's trust."""
    held(world)
    lock = "SELECT * FROM loghub_client_worker_instance FOR UPDATE"
    with locked(server, world, lock):

        def beat() -> None:
            with pytest.raises(StoreUnavailable, match="busy"):
                world.store.beat(world.key, A, "a-1")

        assert 1.5 < timed(beat) < ANSWER_MAX_S
    assert world.store.beat(world.key, A, "a-1") == Beaten(2)


def test_a_short_lock_delays_an_operation(server: DatabaseServer, world: World) -> None:
    """A lock wait that ran out is repeated as a whole transaction, and leaves nothing half done."""
    held(world)
    lock = "SELECT * FROM loghub_client_shard_lease WHERE shard_id = 'y' FOR UPDATE"
    with locked(server, world, lock) as other:
        timer = threading.Timer(2.3, other.commit)
        timer.start()
        claims = {Y: (A, 0)}
        outcome = world.store.claim(world.key, claims, observer="t", reason="r")
        timer.join(10)
    assert outcome == {Y: Changed((Y,))}
    assert world.edges(Y) == [1, 3]
    generation = world.generation()
    assert generation == 5  # two joins, one list, two claims: the failed attempt left none


def test_deadlocks_are_survived(server: DatabaseServer, world: World) -> None:
    """Another program locks our rows in the opposite order, again and again."""
    held(world)
    stop = threading.Event()
    first = "SELECT * FROM loghub_client_shard_lease WHERE shard_id = 'y' FOR UPDATE"
    second = "UPDATE consumer_group SET update_time = UTC_TIMESTAMP(6)"

    def cross() -> None:
        import pymysql

        while not stop.is_set():
            try:
                with locked(server, world, first) as other, other.cursor() as cursor:
                    cursor.execute(second)
                    other.commit()
            except pymysql.err.OperationalError:
                continue

    thread = threading.Thread(target=cross)
    thread.start()
    try:
        for number in range(10):
            seen = world.shard(Y).lease_id
            claimed = world.store.claim(world.key, {Y: (A, seen)}, observer="t", reason="r")
            assert claimed == {Y: Changed((Y,))}, number
            world.store.leave(world.key, A, "a-1")
            world.join(A)
    finally:
        stop.set()
        thread.join(30)
    assert world.edges(Y) == [1] + [3, 4] * 10


def test_many_nodes_claim_many_shards_without_deadlock(
    server: DatabaseServer, world: World
) -> None:
    world.group()
    nodes = [NodeName(f"n{number}") for number in range(6)]
    shards = [ShardId(f"s{number:03}") for number in range(60)]
    world.join(*nodes)
    world.add(*shards)

    def share(index: int) -> int:
        won = 0
        for shard in shards[index::2] + shards[1 - index % 2 :: 2]:
            claims = {shard: (nodes[index], 0)}
            outcome = world.store.claim(world.key, claims, observer="t", reason="r")
            won += isinstance(outcome[shard], Changed)
            world.store.beat(world.key, nodes[index], f"{nodes[index]}-1")
        return won

    won = at_once(*(lambda i=i: share(i) for i in range(len(nodes))))
    assert sum(won) == len(shards)
    assert all(world.edges(shard) == [1, 3] for shard in shards[:5])


def test_a_frozen_server_is_reported_in_time(server: DatabaseServer, world: World) -> None:
    """Without time-outs a client would wait for ever on a server that accepts and never answers."""
    held(world)

    def look() -> None:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            world.store.pulse(world.key)

    freeze(server.pid)
    try:
        assert timed(look) < ANSWER_MAX_S
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert world.store.pulse(world.key).group.key == world.key


def test_killed_connections_are_replaced(server: DatabaseServer, world: World) -> None:
    tenure = held(world)
    # Connections of other databases may end by themselves meanwhile.
    rows = server.execute(
        f"SELECT id FROM information_schema.processlist WHERE db = '{database(world)}'"
    )
    assert rows
    server.execute(*(f"KILL {identity}" for (identity,) in rows))
    assert isinstance(world.consume(tenure, "0", "5"), Changed)


def test_a_restarted_server_is_found_again(server: DatabaseServer, world: World) -> None:
    tenure = held(world)
    world.intend(tenure, "0", "5")
    server.stop(kill=True)
    # Its number may be another process's by now.
    other = subprocess.Popen(["sleep", "300"])
    server.socket_lock.write_text(f"{other.pid}\n")
    try:
        with pytest.raises(StoreUnavailable):
            world.store.pulse(world.key)
    finally:
        try:
            server.start()
        finally:
            other.kill()
            other.wait()
    assert isinstance(world.consume(tenure, "0", "5"), Changed)
    assert world.shard(X).check_point == "5"


def test_connections_to_a_demoted_server_are_dropped(server: DatabaseServer, world: World) -> None:
    """Error 1290 leaves the driver's connection healthy: it must not stay in the pool."""
    held(world)
    engine = world.store._transactions.engine
    before = connection_id(engine)
    assert connection_id(engine) == before
    server.execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreReadOnly, match="primary"):
            world.store.beat(world.key, A, "a-1")
        assert connection_id(engine) != before
        assert world.store.pulse(world.key).group.key == world.key
    finally:
        server.execute("SET GLOBAL read_only = 0")
    assert world.store.beat(world.key, A, "a-1") == Beaten(2)


def test_a_privileged_account_does_not_write_to_a_replica(
    server: DatabaseServer, server_url: str
) -> None:
    """The server refuses only ordinary accounts, so the store checks for itself."""
    from dagster_leasehold.lease_store import open_store

    server.execute(
        f"CREATE USER 'mighty'@'127.0.0.1' IDENTIFIED BY '{server.password}'",
        "GRANT ALL ON *.* TO 'mighty'@'127.0.0.1'",
    )
    url = server.url(server_url.rsplit("/", 1)[1], user="mighty")
    open_store(server_url, upgrade=True).close()
    world = World(open_store(url), GroupKey.parse("group", "stream"))
    held(world)
    world.store.close()
    server.execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreReadOnly, match="primary"):
            world.store.beat(world.key, A, "a-1")
        assert world.node(A).lease_id == 1
    finally:
        server.execute("SET GLOBAL read_only = 0")
    assert world.store.beat(world.key, A, "a-1") == Beaten(2)
    world.store.close()
    server.execute("DROP USER 'mighty'@'127.0.0.1'")


def test_a_long_lived_connection_sees_new_commits(world: World) -> None:
    """Two ticks with a change by another process between them: the second sees it."""
    held(world)
    from dagster_leasehold.lease_store import open_store

    other = open_store(world.store._transactions.engine.url.render_as_string(False))
    before = other.pulse(world.key)
    world.store.beat(world.key, A, "a-1")
    world.claim(B, Y)
    after = other.pulse(world.key)
    other.close()
    assert after.group.generation == before.group.generation + 1
    assert [node.lease_id for node in after.nodes] == [2, 1]


def test_an_idle_tick_is_three_statements(world: World) -> None:
    """Pulse, beat and progress, one statement each, however many shards there are."""
    held(world)
    world.add(*(ShardId(f"s{number:03}") for number in range(200)))
    world.store.statements.clear()
    world.store.pulse(world.key)
    world.store.beat(world.key, A, "a-1")
    world.store.progress(world.key, [A])
    assert world.store.statements == {"pulse": 1, "beat": 1, "progress": 1}


def test_lists_of_ten_thousand_shards_are_sent_in_pieces(world: World) -> None:
    """Long lists travel in pieces that fit a packet."""
    world.group()
    world.join(A)
    shards = [ShardId(f"shard-{number:05}") for number in range(10_000)]
    world.add(*shards)
    snapshot = world.store.snapshot(world.key)
    assert len(snapshot.shards) == 10_000
    claims = dict.fromkeys(shards[:1000], (A, 0))
    outcomes = world.store.claim(world.key, claims, observer="t", reason="r")
    assert all(isinstance(outcome, Changed) for outcome in outcomes.values())
    assert len(world.store.progress(world.key, [A])) == 1_000
