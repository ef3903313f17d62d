"""A lease store is copied whole, or not at all, and only while nothing in it can continue."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import Engine, select, text

from dagster_leasehold.lease_store import open_store, store_copy, tables
from dagster_leasehold.lease_store.errors import (
    CopyRefused,
    InvalidSetting,
    SchemaTooNew,
    SchemaTooOld,
    StoreError,
)
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import RewriteKind
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.store_copy import PORTION_ROWS, copy_store
from dagster_leasehold.lease_store.transactions import open_engine, parse_url
from tests.conformance.world import A, B, World, X, Y
from tests.unit.lease_store.full_store import KEY, fill

OTHER = GroupKey.parse("other", "stream")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores that are copied as files: a drained one with rows in all tables, an empty one."""
    folder = tmp_path_factory.mktemp("prepared")
    full = open_store(f"sqlite:///{folder}/full.db", upgrade=True)
    fill(World(full, KEY))
    full.close()
    open_store(f"sqlite:///{folder}/empty.db", upgrade=True).close()
    return folder


@pytest.fixture
def source(prepared: Path, tmp_path: Path) -> str:
    (tmp_path / "old").mkdir()
    shutil.copy(prepared / "full.db", tmp_path / "old/leases.db")
    return f"sqlite:///{tmp_path}/old/leases.db"


@pytest.fixture
def target(prepared: Path, tmp_path: Path) -> str:
    (tmp_path / "new").mkdir()
    shutil.copy(prepared / "empty.db", tmp_path / "new/leases.db")
    return f"sqlite:///{tmp_path}/new/leases.db"


def engine(url: str) -> Engine:
    return open_engine(parse_url(url))


def content(url: str) -> dict[str, list[Any]]:
    """All rows of all tables, as the columns' types read them."""
    with engine(url).connect() as connection:
        return {
            table.name: list(connection.execute(select(table).order_by(*table.primary_key)))
            for table in tables.COPIED_TABLES
        }


def execute(url: str, statement: str) -> None:
    with engine(url).begin() as connection:
        connection.execute(text(statement))


def refused(source: str, target: str, kind: type[Exception] = CopyRefused) -> str:
    with pytest.raises(kind) as error:
        copy_store(source, target)
    sentence = str(error.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_every_row_of_every_table_arrives_as_it_was(source: str, target: str) -> None:
    before = content(source)
    assert set(before) == set(tables.metadata.tables)
    assert all(before.values()), "a table without rows shows nothing"
    reports: list[tuple[int, int | None]] = []
    copied = copy_store(source, target, report=lambda *seen: reports.append(seen))
    assert content(target) == before == content(source)
    assert copied.groups == (KEY,)
    assert copied.rows == {name: len(rows) for name, rows in before.items()}
    assert copied.violations == ()
    rows = sum(copied.rows.values())
    assert reports[-1] == (rows, rows)


def test_consumption_continues_in_the_copy(source: str, target: str) -> None:
    copy_store(source, target)
    world = World(open_store(target), KEY)
    last = world.journal()[-1].sequence
    group = world.store.pulse(KEY).group
    world.store.update_group(dataclasses.replace(group, paused=False), observer="test")
    opened = world.open(A, X, "run-9")
    assert (opened.check_point, opened.tenure.epoch) == ("10", 2)
    world.consume(opened.tenure, "10", "20", opened.next_sequence)
    assert world.journal()[-1].sequence > last
    assert open_store(source).batches(KEY, X)[-1].end == "10"


def test_rows_are_copied_in_portions(source: str, target: str) -> None:
    world = World(open_store(source), OTHER)
    world.group(paused=True)
    world.add(*(ShardListing(type(X)(f"s{number}")) for number in range(PORTION_ROWS + 1)))
    reports: list[tuple[int, int | None]] = []
    copied = copy_store(source, target, report=lambda *seen: reports.append(seen))
    assert copied.rows["loghub_client_shard_lease"] == PORTION_ROWS + 3
    assert max(b - a for (a, _), (b, _) in itertools.pairwise(reports)) <= PORTION_ROWS
    assert content(target) == content(source)


def test_a_store_is_not_copied_into_itself(source: str, tmp_path: Path) -> None:
    assert "into itself" in refused(source, source)
    (tmp_path / "link").symlink_to(tmp_path / "old")
    assert "into itself" in refused(source, f"sqlite:///{tmp_path}/link/leases.db")
    place = "mysql+pymysql://a:secret@LOCALHOST/leases"
    sentence = refused(place, "mysql+pymysql://b:secret@localhost:3306/leases?charset=utf8mb4")
    assert "into itself" in sentence
    assert "secret" not in sentence


def test_the_target_must_be_empty(source: str, target: str) -> None:
    copy_store(source, target)
    before = content(target)
    assert "is not empty" in refused(source, target)
    assert content(target) == before


def test_the_target_must_have_the_schema(source: str, target: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    assert "leasehold db upgrade" in refused(source, f"sqlite:///{missing}", SchemaTooOld)
    assert not missing.exists()
    execute(target, "UPDATE leasehold_schema SET version_num = '0005', oldest_revision = NULL")
    assert "(schema 0005), which cannot be upgraded" in refused(source, target, SchemaTooOld)
    execute(target, "UPDATE leasehold_schema SET version_num = '9999'")
    refused(source, target, SchemaTooNew)
    refused(target, source, SchemaTooNew)


def test_a_store_without_groups_is_not_copied(target: str, tmp_path: Path) -> None:
    empty = f"sqlite:///{shutil.copy(tmp_path / 'new/leases.db', tmp_path / 'empty.db')}"
    assert "nothing to copy" in refused(empty, target)
    refused("postgresql://host/leases", target, InvalidSetting)


def test_a_group_that_is_not_drained_is_not_copied(source: str, target: str) -> None:
    """Each of several groups counts, and a paused one may still have an open shard."""
    world = World(open_store(source), OTHER)
    world.group()
    assert "other is not paused" in refused(source, target)
    world.join(B)
    world.add(Y)
    world.hold(B, Y)
    group = world.store.pulse(OTHER).group
    world.store.update_group(dataclasses.replace(group, paused=True), observer="test")
    sentence = refused(source, target)
    assert "Shard y of stream/other is open in run run-1" in sentence
    assert "leasehold group drain stream --group other" in sentence
    assert not any(content(target).values())


def test_output_that_is_being_rewritten_is_not_copied(source: str, target: str) -> None:
    store = open_store(source)
    store.claim_rewrite(KEY, X, "replay-1", RewriteKind.REPLAY)
    assert "--replaces replay-1" in refused(source, target)
    store.release_rewrite(KEY, X, "replay-1")
    copy_store(source, target)


def meanwhile(change: Callable[[], None]) -> Any:
    """Have something happen to the source once its rows are read, before they are counted."""
    copied = store_copy._copied  # pyright: ignore[reportPrivateUsage]

    def then(*arguments: Any) -> dict[str, int]:
        rows = copied(*arguments)
        change()
        return rows

    return patch.object(store_copy, "_copied", then)


def test_a_change_during_the_copy_undoes_it(source: str, target: str) -> None:
    store = open_store(source)

    def force() -> None:
        store.force_checkpoint(KEY, Y, "3", observer="test", reason="test")

    with meanwhile(force):
        assert "changed during the copy" in refused(source, target)
    assert not any(content(target).values())
    paused = store.pulse(KEY).group

    def resume() -> None:
        store.update_group(dataclasses.replace(paused, paused=False), observer="test")

    with meanwhile(resume):
        assert "is not paused" in refused(source, target)
    assert not any(content(target).values())


def test_a_copy_with_missing_rows_is_refused(source: str, target: str) -> None:
    execute(
        target,
        "CREATE TRIGGER lossy BEFORE INSERT ON gap WHEN NEW.acknowledged BEGIN "
        "SELECT RAISE(IGNORE); END",
    )
    assert "kept 0 of 1 rows of gap" in refused(source, target, StoreError)
    assert not any(content(target).values())


def test_a_damaged_history_is_copied_and_named(source: str, target: str) -> None:
    execute(source, "DELETE FROM batch WHERE sequence = 0")
    execute(source, "UPDATE batch SET holder = 'nobody'")
    copied = copy_store(source, target)
    assert {violation.rule for violation in copied.violations} >= {"fence"}
    assert content(target) == content(source)


def test_a_database_that_fails_is_named(source: str, target: str, tmp_path: Path) -> None:
    """The tables of the other one are not blamed."""
    execute(source, "ALTER TABLE event_window RENAME TO gone")
    assert str(tmp_path / "old") in refused(source, target, StoreError)
    execute(source, "ALTER TABLE gone RENAME TO event_window")
    execute(target, "ALTER TABLE event_window DROP COLUMN late")
    assert str(tmp_path / "new") in refused(source, target, StoreError)
