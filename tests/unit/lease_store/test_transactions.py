"""Transactions: whole, retried whole, bounded, and settled when a reply is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store.database_errors import MYSQL_VERDICTS, Verdict
from dagster_leasehold.lease_store.errors import (
    OutcomeUnknown,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from dagster_leasehold.lease_store.transactions import (
    ATTEMPTS_MAX,
    IDLE_TRANSACTION_S,
    READ_TIMEOUT_S,
    Raced,
    Transaction,
    Transactions,
    open_engine,
    parse_url,
)
from tests.unit.lease_store.test_database_errors import of_mysql


class Bench:
    """Transactions on a separate file, with a clock and pauses that a test sees."""

    def __init__(self, folder: Path) -> None:
        self.engine = open_engine(parse_url(f"sqlite:///{folder}/bench.db"))
        self.now = 0.0
        self.pauses: list[float] = []
        self.numbers = iter(range(100))
        self.transactions = Transactions(
            self.engine,
            "here",
            sleep=self.pauses.append,
            clock=lambda: self.now,
            jitter=lambda: 0.5,
            new_id=lambda: f"t{next(self.numbers)}",
        )
        self.write(lambda tx: tx.connection.execute(text("CREATE TABLE t (n INTEGER)")))

    def write(
        self, work: Callable[[Transaction], Any], mark: Callable[[Transaction], bool] | None = None
    ) -> Any:
        return self.transactions.write("test", work, mark=mark)

    def rows(self) -> list[int]:
        return self.transactions.read(
            "test", lambda tx: list(tx.connection.execute(text("SELECT n FROM t")).scalars())
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def insert(tx: Transaction, number: int = 1) -> int:
    tx.connection.execute(text("INSERT INTO t VALUES (:n)"), {"n": number})
    return number


def failing(*errors: Exception) -> Callable[[Transaction], int]:
    """Work that writes a row and then fails, once for each error."""
    pending = list(errors)

    def work(tx: Transaction) -> int:
        insert(tx)
        if pending:
            raise pending.pop(0)
        return 7

    return work


@pytest.mark.parametrize(
    "number", [n for n, v in MYSQL_VERDICTS.items() if v in (Verdict.RETRY, Verdict.LOST)]
)
def test_the_whole_transaction_is_repeated(bench: Bench, number: int) -> None:
    """A lock wait that ran out rolls back one statement only: the first half must not stay."""
    assert bench.write(failing(of_mysql(number))) == 7
    assert bench.rows() == [1]
    assert len(bench.pauses) == 1


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1290, StoreReadOnly),
        (1792, StoreReadOnly),
        (1836, StoreReadOnly),
        (2003, StoreUnavailable),
        (1040, StoreUnavailable),
        (1045, StoreError),
        (1406, StoreError),
    ],
)
def test_an_error_that_no_retry_can_cure_is_raised_at_once(
    bench: Bench, number: int, expected: type[Exception]
) -> None:
    with pytest.raises(expected, match="here") as caught:
        bench.write(failing(of_mysql(number)))
    assert type(caught.value) is expected
    assert "\n" not in str(caught.value)
    assert bench.pauses == []
    assert bench.rows() == []


def test_attempts_are_bounded_and_spread(bench: Bench) -> None:
    errors = [of_mysql(1213)] * 20
    with pytest.raises(StoreUnavailable, match="busy"):
        bench.write(failing(*errors))
    assert len(bench.pauses) == ATTEMPTS_MAX - 1
    assert bench.pauses == sorted(bench.pauses)
    assert sum(bench.pauses) < 2
    assert bench.rows() == []


def test_a_contended_transaction_is_given_up_in_time(bench: Bench) -> None:
    """Two lock waits of 2 s each are enough: a holder must not spend its trust here."""

    def slow(tx: Transaction) -> None:
        bench.now += 2.1
        raise of_mysql(1205)

    with pytest.raises(StoreUnavailable):
        bench.write(slow)
    assert bench.now < 5


def test_an_operation_that_lost_a_race_reads_again(bench: Bench) -> None:
    assert bench.write(failing(Raced(), Raced())) == 7
    assert bench.rows() == [1]


def test_a_connection_that_is_lost_every_time_is_unavailable(bench: Bench) -> None:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        bench.write(failing(*[of_mysql(2013)] * 9))
    assert len(bench.pauses) == 2


def test_an_abandoned_transaction_leaves_nothing(bench: Bench) -> None:
    def work(tx: Transaction) -> str:
        insert(tx)
        return tx.abandon("nothing to do")

    assert bench.write(work) == "nothing to do"
    assert bench.rows() == []


def test_the_callers_own_error_undoes_everything(bench: Bench) -> None:
    with pytest.raises(KeyError):
        bench.write(failing(KeyError("x")))
    assert bench.rows() == []


def test_reading_changes_nothing(bench: Bench) -> None:
    bench.transactions.read("test", insert)
    assert bench.rows() == []


def test_statements_are_counted_by_kind(bench: Bench) -> None:
    before = bench.transactions.statements["test"]

    def work(tx: Transaction) -> None:
        insert(tx)
        insert(tx)

    bench.write(work)
    assert bench.transactions.statements["test"] == before + 2


def marked(*numbers: int) -> Callable[[Transaction], bool]:
    def mark(tx: Transaction) -> bool:
        stored = tx.connection.execute(text("SELECT n FROM t")).scalars().all()
        return set(numbers) <= set(stored)

    return mark


def test_a_lost_reply_is_settled_by_the_mark(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Took effect: the first outcome stands, and nothing is written twice."""
    lose(bench, monkeypatch, True)
    outcomes = iter(["first", "second"])

    def work(tx: Transaction) -> str:
        insert(tx)
        return next(outcomes)

    assert bench.write(work, marked(1)) == "first"
    assert bench.rows() == [1]


def test_a_commit_that_never_arrived_is_sent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(bench, monkeypatch, False)
    outcomes = iter(["first", "second"])

    def work(tx: Transaction) -> str:
        insert(tx)
        return next(outcomes)

    assert bench.write(work, marked(1)) == "second"
    assert bench.rows() == [1]


def test_without_a_mark_the_work_is_harmless_to_repeat(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(bench, monkeypatch, True)
    assert bench.write(insert) == 1
    assert bench.rows() == [1, 1]


def test_the_mark_of_the_lost_transaction_is_searched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(bench, monkeypatch, True)
    ids: list[str] = []
    looked: list[str] = []

    def work(tx: Transaction) -> None:
        ids.append(tx.id)
        insert(tx)

    def mark(tx: Transaction) -> bool:
        looked.append(tx.id)
        return True

    bench.write(work, mark)
    assert looked == ids


def test_an_unsettled_write_is_distinguished_from_an_undone_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(bench, monkeypatch, True)

    def mark(tx: Transaction) -> bool:
        raise of_mysql(2003)

    with pytest.raises(OutcomeUnknown, match="it is unknown if"):
        bench.write(insert, mark)


def lose(bench: Bench, monkeypatch: pytest.MonkeyPatch, *effects: bool) -> None:
    """The replies to the next COMMITs get lost; True where it had taken effect."""
    pending = list(effects)
    original = Connection.commit

    def commit(self: Connection) -> None:
        if not pending:
            original(self)
            return
        if pending.pop(0):
            original(self)
        else:
            self.rollback()
        raise lost()

    monkeypatch.setattr(Connection, "commit", commit)


def lost() -> DBAPIError:
    return of_mysql(2013, "Lost connection to MySQL server during query")


def test_a_transaction_that_was_ended_for_its_silence_is_distinguished_from_a_dead_server(
    bench: Bench,
) -> None:
    """The server ended the transaction, and the sentence must not blame the server."""

    def held_up(tx: Transaction) -> None:
        insert(tx)
        bench.now += IDLE_TRANSACTION_S
        insert(tx)
        raise of_mysql(2013)

    with pytest.raises(StoreUnavailable, match=r"stalled for 5 s.*held up") as caught:
        bench.write(held_up)
    assert "running" not in str(caught.value)
    assert bench.rows() == []


def test_a_statement_timeout_is_distinguished_from_a_dead_server(bench: Bench) -> None:
    def slow(*_: object) -> None:
        bench.now += READ_TIMEOUT_S
        raise of_mysql(2013)

    event.listen(bench.engine, "before_cursor_execute", slow)
    with pytest.raises(StoreUnavailable, match="no reply within 4 s") as caught:
        bench.write(insert)
    assert "running" not in str(caught.value)


def test_work_without_a_lease_uses_a_long_running_engine(bench: Bench) -> None:
    with bench.transactions.long_running_engine() as same:
        assert same is bench.engine
    long_running = open_engine(bench.engine.url)
    transactions = Transactions(bench.engine, "here", long_running=lambda: long_running)
    with transactions.long_running_engine() as other:
        assert other is long_running
