"""A deployment that is upgraded node by node while it consumes.

Each release is a wheel in a separate environment. The leases are on MariaDB, Dagster's storage is
the SQLite of the home, and records are written to a Kafka topic all the time.
"""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.release import HEAD, RELEASE
from tests.acceptance.leasehold_process import (
    Finished,
    Running,
    assert_nothing_runs,
    leasehold,
    running,
)
from tests.acceptance.node_scene import KEY, SHARDS, STREAM, Writer
from tests.declared import declare, stream_text
from tests.kafka_broker import KafkaBroker
from tests.mariadb import MariaDB
from tests.own_environments import built_wheel, installed_wheel
from tests.ports import free_port
from tests.table_engines import duckdb_query
from tests.unit.test_layout import ROOT

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.mariadb,
    pytest.mark.timeout(900),
]

TIMEOUT_S = 9
WAIT_S = 240.0
NODES = {"node-a", "node-b"}
SETTINGS = f"lease_timeout_s = {TIMEOUT_S}\n"
NEXT, NEXT_RELEASE = f"{int(HEAD) + 1:04}", "0.9.0"
NEXT_REVISION = f'''
from alembic import op
from sqlalchemy import Column, String

revision, down_revision = "{NEXT}", "{HEAD}"


def upgrade():
    """A revision that only adds."""
    op.add_column("consumer_group", Column("of_next_release", String(8), server_default="new"))
'''


@dataclass(frozen=True)
class Deployment:
    """A home and a database, and the programs of each release that use them."""

    home: Path
    url: str
    server: MariaDB
    broker: KafkaBroker

    def write_settings(self) -> None:
        stream = stream_text(
            STREAM,
            "kafka",
            options={"bootstrap_servers": self.broker.address},
            pace="Pace(run_budget_s=20, commit_interval_s=0.5, idle_limit_s=2)",
        )
        declare(self.home, stream, settings=SETTINGS)

    def run(self, program: Path, *words: object) -> Finished:
        """Run a command of a release to its end."""
        return leasehold(
            *(*words, "--home", self.home),
            folder=self.home.parent,
            program=[program],
            timeout_s=WAIT_S,
            LEASEHOLD_DATABASE_URL=self.url,
        )

    def done(self, program: Path, *words: object) -> str:
        """Run a command of a release that succeeds; return its output."""
        finished = self.run(program, *words)
        assert finished.code == 0, finished.out + finished.err
        return finished.out

    def refused(self, program: Path, *words: object) -> str:
        """Run a command of a release that is refused; return its sentence."""
        finished = self.run(program, *words)
        assert finished.code == 2, finished.out + finished.err
        assert len(finished.err.strip().splitlines()) == 1, finished.err
        return finished.err

    @contextmanager
    def up(self, program: Path, nodes: int) -> Iterator[Running]:
        """Start everything on this host; return when its page answers."""
        words = ("dev", "--nodes", nodes, "--port", free_port())
        with self.running(program, *words) as up:
            up.until(lambda: "Open http://" in up.text, WAIT_S)
            yield up

    @contextmanager
    def running(self, program: Path, *words: object) -> Iterator[Running]:
        folder = self.home.parent / f"{time.monotonic_ns()}"
        folder.mkdir()
        variables = {
            "LEASEHOLD_DATABASE_URL": self.url,
            "LEASEHOLD_SPARK_STATE": str(self.home / "spark"),
        }
        words = (*words, "--home", self.home)
        with running(*words, folder=folder, program=[program], **variables) as command:
            yield command

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self.server.execute(query, database=self.url.rsplit("/", 1)[1])

    def check_points(self) -> dict[str, int]:
        rows = self.rows("SELECT shard_id, check_point FROM loghub_client_shard_lease")
        return {_text(shard): int(_text(cursor) or 0) for shard, cursor in rows}

    def owners(self) -> set[str]:
        """Return the nodes that may consume shards now."""
        rows = self.rows("SELECT DISTINCT consumer_owner FROM loghub_client_shard_lease")
        return {_text(owner) for (owner,) in rows}

    def wait_for_progress(self, command: Running, nodes: set[str]) -> None:
        """Return when these nodes and no others share the shards, and each has continued."""
        before = self.check_points()

        def gone_on() -> bool:
            now = self.check_points()
            moved = [cursor > before.get(shard, 0) for shard, cursor in now.items()]
            return len(moved) == SHARDS and all(moved) and self.owners() == nodes

        command.until(gone_on, WAIT_S)

    def wait_for_all(self, command: Running, writer: Writer) -> None:
        """Return when all that was written is committed."""
        command.until(lambda: set(self.check_points().values()) == {writer.written}, WAIT_S)

    def assert_all_is_there_once(self, program: Path, writer: Writer) -> None:
        """Compare the written records with the table and the ledger."""
        self.done(program, "table", "create", STREAM)
        self.done(program, "verify")
        rows = [json.loads(line) for line in self.done(program, "cat", STREAM).splitlines()]
        values: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            values[row["shard_id"]].append(row["value"])
        expected = {
            str(shard): [f"{shard}-{number}" for number in range(writer.written)]
            for shard in range(SHARDS)
        }
        assert values == expected
        assert self.in_table() == writer.expected()

    def in_table(self) -> list[tuple[str, bytes]]:
        """Return shards and values of the published table, as DuckDB reads them."""
        store = open_store(self.url)
        publication = store.publication(KEY)
        pointer = publication and store.table_pointer(publication.table)
        store.close()
        return sorted(duckdb_query(pointer.location, "shard_id, value")) if pointer else []


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


@pytest.fixture
def deployment(tmp_path: Path, mariadb: MariaDB, mariadb_url: str) -> Iterator[Deployment]:
    home = tmp_path / "home"
    home.mkdir()
    with KafkaBroker() as broker:
        yield Deployment(home, mariadb_url, mariadb, broker)


@pytest.fixture
def writer(deployment: Deployment) -> Writer:
    return Writer(deployment.broker)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("releases")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    return built_wheel(folder, ROOT)


@pytest.fixture(scope="module")
def new(folder: Path, wheel: Path) -> Path:
    """The program of this release."""
    return installed_wheel(folder / "new", wheel) / "leasehold"


@pytest.fixture(scope="module")
def following(folder: Path, wheel: Path) -> Path:
    """The program of a release to come: this one, and a revision that only adds."""
    programs = installed_wheel(folder / "following", wheel)
    [packages] = (folder / "following/lib").glob("python*/site-packages")
    store = packages / "dagster_leasehold/lease_store"
    (store / f"migrations/versions/{NEXT}_next.py").write_text(NEXT_REVISION, "utf-8")
    [metadata] = packages.glob("dagster_leasehold-*/METADATA")
    for file, before, after in (
        (store / "release.py", f'("{HEAD}",)', f'("{HEAD}", "{NEXT}")'),
        (metadata, f"Version: {RELEASE}", f"Version: {NEXT_RELEASE}"),
    ):
        text = file.read_text("utf-8")
        assert before in text
        file.write_text(text.replace(before, after, 1), "utf-8")
    return programs / "leasehold"


def test_nodes_are_upgraded_one_by_one(
    deployment: Deployment, writer: Writer, new: Path, following: Path
) -> None:
    """Goal: consuming continues, and the releases share the database until the end."""
    deployment.write_settings()
    deployment.done(new, "db", "upgrade")
    node = ("node", "--name", "node-b", "--port", free_port())
    with writer, deployment.up(new, 1) as up:
        with deployment.running(new, *node) as b:
            deployment.wait_for_progress(up, NODES)
            deployment.done(following, "db", "upgrade")
            deployment.wait_for_progress(up, NODES)
            assert b.end(signal.SIGTERM) == 0, b.text
        with deployment.running(following, *node) as second:
            deployment.wait_for_progress(up, NODES)
            several = f"The nodes run several releases: {RELEASE} on node-a; {NEXT_RELEASE} on "
            assert several in deployment.done(new, "status")
            assert up.end(signal.SIGINT) == 0, up.text
            with deployment.up(following, 1) as first:
                deployment.wait_for_progress(first, NODES)
                assert "several releases" not in deployment.done(new, "status")
                writer.stop()
                deployment.wait_for_all(first, writer)
                assert second.end(signal.SIGTERM) == 0, second.text
                assert first.end(signal.SIGINT) == 0, first.text
    assert_nothing_runs(deployment.home)
    deployment.assert_all_is_there_once(new, writer)
    deployment.rows(f"UPDATE leasehold_schema SET oldest_revision = '{NEXT}'")
    sentence = deployment.refused(new, "status")
    assert f"releases with schema {NEXT} or later; this release has schema {HEAD}" in sentence
