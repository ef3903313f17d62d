"""An older copy of the lease store is restored while processes are alive: output stays correct."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.errors import IntentConflict, LeaseLost
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, DataFile, Intent
from dagster_leasehold.lease_store.outcomes import Changed, Opened, Stale
from dagster_leasehold.lease_store.publication_rows import PublishLock, ShardAhead
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.sql_store import SqlStore
from dagster_leasehold.shard_sources.source import ReadRange
from tests.ledger_output import ledger_paths, ledger_records
from tests.mariadb import MariaDB
from tests.unit.assets.output.table.restored_scene import Restored
from tests.unit.orchestration.consumed_home import AT_ONCE, KEY, NODE, ConsumedHome

pytestmark = [pytest.mark.long, pytest.mark.mariadb]

SHARD = ShardId("0")


@dataclass
class Backups:
    """Copies of all rows of one database, as a dump and its restoration leave them."""

    mariadb: MariaDB
    database: str

    def dump(self) -> str:
        copy = f"{self.database}_dump"
        self.mariadb.create_database(copy)
        for table in self._tables():
            self.mariadb.execute(
                f"CREATE TABLE `{copy}`.`{table}` LIKE `{self.database}`.`{table}`",
                f"INSERT INTO `{copy}`.`{table}` SELECT * FROM `{self.database}`.`{table}`",
            )
        return copy

    def restore(self, copy: str) -> None:
        for table in self._tables():
            self.mariadb.execute(
                "SET foreign_key_checks = 0",
                f"DELETE FROM `{self.database}`.`{table}`",
                f"INSERT INTO `{self.database}`.`{table}` SELECT * FROM `{copy}`.`{table}`",
            )
        self.mariadb.drop_database(copy)

    def _tables(self) -> list[str]:
        return [str(row[0]) for row in self.mariadb.execute("SHOW TABLES", database=self.database)]


@pytest.fixture
def home(tmp_path: Path, mariadb_url: str) -> ConsumedHome:
    return ConsumedHome(tmp_path / "home", shards=1, database_url=mariadb_url)


@pytest.fixture
def backups(mariadb: MariaDB, mariadb_url: str) -> Backups:
    return Backups(mariadb, mariadb_url.rsplit("/", 1)[1])


def opened(home: ConsumedHome, run: str, replaces: str | None = None) -> Opened:
    outcome = home.store.open_tenure(KEY, SHARD, NODE, run, replaces=replaces)
    assert isinstance(outcome, Opened)
    return outcome


def batch(home: ConsumedHome, tenure: Tenure, sequence: int, start: int, end: int) -> BatchCommit:
    """The next batch of a run, written and intended, to be committed."""
    range_ = ReadRange(SHARD, str(start), str(end))
    intent = Intent(tenure, sequence, range_.start, range_.end)
    assert isinstance(home.store.record_intents([intent])[SHARD], Changed)
    result = home.sweeper([range_], {SHARD: range(1)})[SHARD]
    files: tuple[DataFile, ...] = result.files  # pyright: ignore[reportAttributeAccessIssue]
    attempt: str = result.attempt  # pyright: ignore[reportAttributeAccessIssue]
    statistics = BatchStatistics(end - start, None, end - start, 0, None, None)
    return BatchCommit(
        tenure=tenure, sequence=sequence, start=range_.start, end=range_.end,
        attempt=attempt, files=files, statistics=statistics,
    )  # fmt: skip


def committed(home: ConsumedHome) -> list[bytes]:
    parts = ledger_records(home.store, KEY, home.place, SHARD)
    return [value for part in parts for value in part.column("value").to_pylist()]


def expected(count: int) -> list[bytes]:
    return [b"0:%d" % number for number in range(count)]


def test_consumption_continues_from_the_restored_checkpoint(
    home: ConsumedHome, backups: Backups
) -> None:
    """Commits after the dump are consumed again, and their first files are orphans."""
    home.append(8)
    home.consume("run-1")
    dump = backups.dump()
    home.append(12)
    home.consume("run-2")
    lost = set(ledger_paths(home.store, KEY, home.place))
    assert committed(home) == expected(20)

    backups.restore(dump)
    assert committed(home) == expected(8)
    assert verify(home.store, KEY) == []
    lost -= set(ledger_paths(home.store, KEY, home.place))

    home.consume("run-3")
    assert committed(home) == expected(20)
    assert verify(home.store, KEY) == []
    now = set(ledger_paths(home.store, KEY, home.place))
    assert lost
    assert not lost & now
    removed = vacuum(home.store, KEY, home.place, older_than=AT_ONCE).removed
    assert {str(home.output / path) for path in removed} == lost
    assert committed(home) == expected(20)


def test_an_epoch_that_is_given_twice_fences_the_first_run(
    home: ConsumedHome, backups: Backups
) -> None:
    """The epoch of a run that was alive before is given again; its tenure's id is not."""
    home.append(8)
    home.consume("run-1")
    dump = backups.dump()
    home.append(4)
    zombie = opened(home, "zombie").tenure
    written = batch(home, zombie, 2, 8, 12)

    backups.restore(dump)
    successor = opened(home, "successor").tenure
    assert (successor.epoch, successor.holder) == (zombie.epoch, zombie.holder)
    assert not home.store.review([zombie])[SHARD].current
    assert isinstance(home.store.commit([written])[SHARD], Stale)
    intent = Intent(zombie, 2, "8", "12")
    assert isinstance(home.store.record_intents([intent])[SHARD], Stale)
    for attempt in (
        lambda: home.store.save_checkpoint(zombie, "12"),
        lambda: home.store.announce(zombie, handoff_eta_s=1.0),
        lambda: home.store.record_gap(zombie, start="8", end="12", reason="?"),
        lambda: home.store.close_tenure(zombie, reason="?"),
    ):
        with pytest.raises(LeaseLost):
            attempt()
    assert committed(home) == expected(8)

    done = batch(home, successor, 2, 8, 12)
    assert isinstance(home.store.commit([done])[SHARD], Changed)
    assert isinstance(home.store.commit([written])[SHARD], Stale)
    assert committed(home) == expected(12)
    assert verify(home.store, KEY) == []


def test_a_run_that_was_open_in_the_backup_cannot_skip_lost_records(
    home: ConsumedHome, backups: Backups
) -> None:
    """Its tenure is current again, but it is ahead of the checkpoint: nothing of it is taken."""
    home.append(8)
    home.consume("run-1")
    home.append(12)
    alive = opened(home, "alive").tenure
    dump = backups.dump()
    first = batch(home, alive, 2, 8, 12)
    assert isinstance(home.store.commit([first])[SHARD], Changed)
    second = batch(home, alive, 3, 12, 16)

    backups.restore(dump)
    assert home.store.review([alive])[SHARD].current
    with pytest.raises(IntentConflict):
        home.store.commit([second])
    with pytest.raises(IntentConflict):
        home.store.record_intents([Intent(alive, 4, "16", "20")])
    with pytest.raises(IntentConflict):
        home.store.record_intents([Intent(alive, 2, "16", "20")])
    assert committed(home) == expected(8)

    home.store.close_tenure(alive, reason="it failed")
    home.consume("run-3")
    assert committed(home) == expected(20)
    assert verify(home.store, KEY) == []


# -- with a published table ---------------------------------------------------------------------

LEASEHOLD, LAKE = "leasehold", "lake"


@pytest.fixture(params=[LEASEHOLD, LAKE])
def scene(tmp_path: Path, mariadb_url: str, request: pytest.FixtureRequest) -> Restored:
    """A stream whose table is in the lease database, or in a SQL catalog of its own."""
    catalog = CatalogSettings()
    if request.param == LAKE:
        properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
        catalog = CatalogSettings(LAKE, properties)
    return Restored(tmp_path, catalog, database_url=mariadb_url)


def trimmed_after_backup(scene: Restored, backups: Backups) -> None:
    """Restore a backup after the source has trimmed records consumed and published since then."""
    scene.consume(8)
    scene.publish()
    dump = backups.dump()
    scene.consume(8)
    scene.publish()
    scene.trim()
    backups.restore(dump)
    assert {head.check_point for head in scene.home.store.heads(KEY).values()} == {"8"}


def test_a_restored_ledger_follows_its_table(scene: Restored, backups: Backups) -> None:
    """Nothing is consumed twice, and records that the source has trimmed survive."""
    trimmed_after_backup(scene, backups)
    scene.publish("adopt")
    scene.check(16)
    scene.consume(4)
    scene.publish()
    scene.check(20)
    assert scene.publisher().comparison.compare().differences == ()


def test_a_roll_forward_that_is_killed_loses_and_duplicates_no_record(
    scene: Restored, backups: Backups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after the first of two shards; the command is repeated."""
    trimmed_after_backup(scene, backups)
    kind, rolled = type(scene.home.store), list[ShardId]()
    forward = kind.roll_forward

    def roll_forward(store: SqlStore, lock: PublishLock, ahead: ShardAhead) -> object:
        if rolled:
            raise KeyboardInterrupt
        rolled.append(ahead.shard)
        return forward(store, lock, ahead)

    monkeypatch.setattr(kind, "roll_forward", roll_forward)
    with pytest.raises(KeyboardInterrupt):
        scene.publish("adopt")
    monkeypatch.undo()
    with pytest.raises(TableUnavailable, match="table create --adopt"):
        scene.publish()
    scene.publish("adopt")
    scene.check(16)
    scene.consume(4)
    scene.publish()
    scene.check(20)
