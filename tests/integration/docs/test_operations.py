"""The database set-up of docs/how-to/operations.md works as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, DataFile, Intent
from dagster_leasehold.lease_store.outcomes import Changed, Opened, Registered
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.declared import declare
from tests.mariadb import MariaDB

ROOT = Path(__file__).resolve().parents[3]
KEY = GroupKey.parse("default", "visits")
EAST, ZERO = NodeName("east"), ShardId("0")
PASSWORD = "of-the-test"


@pytest.fixture
def accounts(mariadb: MariaDB) -> Iterator[dict[str, str]]:
    """The URLs of the two accounts, made by the SQL of the page; the test server has no TLS."""
    page = (ROOT / "docs/how-to/operations.md").read_text("utf-8")
    # The other block grants rights on tables that do not exist yet.
    block, _ = re.findall(r"^```sql\n(.*?)^```$", page, re.M | re.S)
    statements = block.replace("…", PASSWORD).replace(" REQUIRE SSL", "").split(";")
    mariadb.execute("DROP DATABASE IF EXISTS leasehold")
    # The server under test has an account 'leasehold' already, for one address only.
    block = ";".join(statements).replace("'leasehold'@", "'leasehold_worker'@")
    mariadb.execute(*(statement for statement in block.split(";") if statement.strip()))
    yield {
        name: f"mysql+pymysql://{account}:{PASSWORD}@127.0.0.1:{mariadb.port}/leasehold"
        for name, account in (("admin", "leasehold_admin"), ("worker", "leasehold_worker"))
    }
    mariadb.drop_database("leasehold")
    mariadb.execute("DROP USER 'leasehold_admin'@'%'", "DROP USER 'leasehold_worker'@'%'")


def leasehold(url: str, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dagster_leasehold.orchestration.command_line", *words],
        env={**os.environ, "LEASEHOLD_DATABASE_URL": url, "LEASEHOLD_HOME": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.mariadb
def test_the_worker_account_has_only_the_rights_for_its_work(
    accounts: dict[str, str], tmp_path: Path
) -> None:
    """Every verb of a normal life, then the one that the page leaves to the other account."""
    open_store(accounts["admin"]).upgrade()
    store = open_store(accounts["worker"])
    store.create_group(Group(KEY))
    store.sync_shards(KEY, [ShardListing(ZERO), ShardListing(ShardId("1"))], observer="test")
    assert isinstance(store.register(KEY, Node(EAST, 0, "one"), observer="test"), Registered)
    store.beat(KEY, EAST, "one")
    claimed = store.claim(KEY, {ZERO: (EAST, 0)}, observer="test", reason="free")
    assert isinstance(claimed[ZERO], Changed)
    opened = store.open_tenure(KEY, ZERO, EAST, "run")
    assert isinstance(opened, Opened)
    tenure = opened.tenure
    store.record_intents([Intent(tenure, opened.next_sequence, "0", "5")])
    done = store.commit(
        [
            BatchCommit(
                tenure,
                opened.next_sequence,
                "0",
                "5",
                "attempt",
                (DataFile("attempt/0.parquet", 5, 100),),
                BatchStatistics(records=5, written=5),
            )
        ]
    )
    assert isinstance(done[ZERO], Changed)
    store.mark_delivered(KEY, [event.sequence for event in store.pending_events(KEY)])
    store.announce(tenure, handoff_eta_s=1.0)
    store.close_tenure(tenure, reason="test")
    store.force_checkpoint(KEY, ZERO, "0", observer="test", reason="test")
    store.leave(KEY, EAST, "one")
    with pytest.raises(StoreError) as refused:
        store.delete_group(KEY)
    assert PASSWORD not in str(refused.value)
    assert store.groups() != []
    open_store(accounts["admin"]).delete_group(KEY)
    assert store.groups() == []
    with (
        pytest.raises(DBAPIError, match="denied"),
        create_engine(accounts["worker"]).begin() as connection,
    ):
        connection.execute(text("DROP TABLE gap"))


@pytest.mark.mariadb
def test_a_worker_is_told_to_upgrade(accounts: dict[str, str], tmp_path: Path) -> None:
    """The order of the page: without the upgrade, a sentence; with it, the command works."""
    declare(tmp_path, "demo")
    early = leasehold(accounts["worker"], tmp_path, "status", "demo")
    assert early.returncode in (1, 2)
    assert "leasehold db upgrade" in early.stderr
    assert len(early.stderr.strip().splitlines()) == 1
    upgraded = leasehold(accounts["admin"], tmp_path, "db", "upgrade")
    assert upgraded.returncode == 0, upgraded.stderr
    listed = leasehold(accounts["worker"], tmp_path, "group", "list", "--json")
    assert (listed.returncode, listed.stdout.strip()) == (0, "[]"), listed.stderr
