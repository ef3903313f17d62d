"""The database fails over to a replica that lost the last commits: two servers, real replication.

A run survives it, with the same address. Its last commits were published, too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.orchestration.command_line import main
from tests import mysql as mysql_server
from tests.database_server import PASSWORD
from tests.environment import forget_settings
from tests.mysql import MySQL
from tests.unit.assets.output.table.test_adoption import Scene, expected
from tests.unit.docs.test_docs import DOCS, fences
from tests.unit.orchestration.consumed_home import KEY

pytestmark = [pytest.mark.release, pytest.mark.mysql]

CATCH_UP_S = 60
REPLICA = "replica"


@dataclass
class Pair:
    """A primary and its replica, which lags as a test says.

    Attributes:
        primary: the server at the address of the nodes.
        replica: the other server, until it gets that address.
    """

    primary: MySQL
    replica: MySQL

    def replicate(self) -> None:
        """Begin to replicate, asynchronously."""
        ((file, position, *_),) = self.primary.execute("SHOW BINARY LOG STATUS")
        self.primary.execute(
            f"CREATE USER '{REPLICA}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT REPLICATION SLAVE ON *.* TO '{REPLICA}'@'127.0.0.1'",
        )
        self.replica.execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', "
            f"SOURCE_PORT = {self.primary.port}, SOURCE_USER = '{REPLICA}', "
            f"SOURCE_PASSWORD = '{PASSWORD}', SOURCE_LOG_FILE = '{file}', "
            f"SOURCE_LOG_POS = {position}, GET_SOURCE_PUBLIC_KEY = 1",
            "START REPLICA",
        )

    def fall_behind(self) -> None:
        """Let the replica catch up, and receive nothing from then on."""
        ((file, position, *_),) = self.primary.execute("SHOW BINARY LOG STATUS")
        waited = f"SELECT SOURCE_POS_WAIT('{file}', {position}, {CATCH_UP_S})"
        ((events,),) = self.replica.execute(waited)
        assert events is not None
        assert events >= 0, self.replica.log()
        self.replica.execute("STOP REPLICA IO_THREAD")

    def fail_over(self) -> None:
        """The primary dies; the replica takes writes at its address."""
        self.primary.stop(kill=True)
        self.replica.execute("STOP REPLICA", "RESET REPLICA ALL")
        self.replica.stop()
        self.replica.port = self.primary.port
        self.replica.start("--server-id=2")


@pytest.fixture
def pair() -> Iterator[Pair]:
    if reason := mysql_server.reason_missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        both = [stack.enter_context(mysql_server.running()) for _ in range(2)]
        for number, server in enumerate(both, 1):
            server.stop()
            server.start(f"--server-id={number}")
        pair = Pair(*both)
        pair.replicate()
        yield pair


@pytest.fixture(params=["leasehold", "lake"])
def scene(
    pair: Pair, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    url = pair.primary.create_database("leasehold")
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", url)
    catalog = CatalogSettings()
    if request.param == "lake":
        properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
        catalog = CatalogSettings("lake", properties)
        monkeypatch.setenv("LEASEHOLD_CATALOG", "lake")
        monkeypatch.setenv("LEASEHOLD_CATALOG_PROPERTIES", json.dumps(properties))
    scene = Scene(tmp_path, catalog, database_url=url)
    yield scene
    scene.home.store.close()


def test_records_of_lost_commits_are_consumed_again_once(
    scene: Scene, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    look, again = commands_of_page()
    home = scene.home
    scene.consume(8)
    scene.publish()
    home.append(8)  # two batches of each shard, both unknown to the replica
    sweeps = 0

    def fail() -> None:
        nonlocal sweeps
        sweeps += 1
        if sweeps == 1:
            pair.fall_behind()
        elif sweeps == 2:
            scene.publish()
            assert scene.published() == expected(12)
            pair.fail_over()

    home.sweeper.before = fail
    alive = home.consume("alive")
    home.sweeper.before = lambda: None
    assert sweeps == 2
    sentences = {report.error for report in alive.values()}
    assert all("Batch" in str(sentence) for sentence in sentences), sentences

    assert scene.committed() == expected(8), "the replica knows no more"
    assert verify(home.store, KEY) == []
    ended = scene.catalog.properties != {}
    for command in look:
        # The table of another catalog has files that the ledger does not know of.
        assert main(shlex.split(command)) == int(ended and command == "verify"), command
    assert ("a file that the ledger does not" in capsys.readouterr().out) is ended

    scene.consume(1)
    assert scene.committed() == expected(17)
    if ended:
        with pytest.raises(TableUnavailable, match="is not the last one of this lease"):
            scene.publish()
        assert scene.published() == expected(12), "as it was"
    for command in again:
        assert main(shlex.split(command)) == 0, command
    assert scene.published() == expected(17)
    scene.consume(1)
    scene.publish()
    assert scene.published() == scene.committed() == expected(18)


def commands_of_page() -> tuple[list[str], list[str]]:
    """Return the commands of the page before the records are committed again, and after."""
    blocks = list(fences(DOCS / "how-to/operations.md", "console", "After a failover"))
    look, again = (
        [line.removeprefix("$ leasehold ") for line in block.split("\n") if line.strip()]
        for block in blocks
    )
    return [command for command in look if command != "doctor"], again
