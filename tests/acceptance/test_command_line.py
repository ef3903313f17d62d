"""Bad input through the real command: one sentence, the right exit code, and nothing lost."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from sqlalchemy import make_url

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.schema import VERSION_TABLE
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import COMMAND, Finished, environment, leasehold
from tests.declared import declare
from tests.mariadb import MariaDB
from tests.ports import free_port

pytestmark = pytest.mark.long

KEY = GroupKey.parse("default", "demo")
SENTENCE = re.compile(r"[^\n]+[.?]\n")
COMMANDS = ("status", "group list", "group create demo --group other")
NEWER = "version_num = '9999', oldest_revision = '9999'"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a log of two shards, three records, and a store that knows them."""
    home = tmp_path / "home"
    declare(home, "demo")
    log = LocalLog.create(home / "logs" / "demo", 2)
    log.append("0", [b"a", b"b"])
    log.append("1", [b"c"])
    store = open_store(Settings(home=home).store_url)
    store.create_group(Group(KEY))
    store.sync_shards(KEY, log.list_shards(), observer="test")
    return home


def content(home: Path) -> dict[str, bytes]:
    """Return the content of a home: the rows of its store, and the bytes of its other files.

    Files that Python compiles are left out.
    """
    held: dict[str, bytes] = {}
    for path in sorted(home.rglob("*")):
        if path.name == "leases.db":
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
                held[path.name] = "\n".join(database.iterdump()).encode()
        elif "__pycache__" in path.parts or path.name.startswith("leases.db"):
            continue
        elif path.is_file():
            held[str(path.relative_to(home))] = path.read_bytes()
    return held


def run(home: Path, command: str, **variables: str) -> Finished:
    """Run a command in this process on a home, with the given environment variables."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(home.parent),
        patch.dict(os.environ, {**environment(), **variables}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main([*command.split(), "--home", str(home)])
    return Finished(code, out.getvalue(), err.getvalue())


def assert_one_sentence(done: Finished, *says: str) -> None:
    assert done.code == 2, done
    assert done.out == ""
    assert SENTENCE.fullmatch(done.err), done.err
    assert "Traceback" not in done.err
    for words in says:
        assert words in done.err


def test_an_unreachable_database_is_one_sentence_for_every_command(home: Path) -> None:
    before = content(home)
    url = f"mysql+pymysql://leases:hunter2@127.0.0.1:{free_port()}/leases"
    for command in COMMANDS:
        done = run(home, command, LEASEHOLD_DATABASE_URL=url)
        assert_one_sentence(done, "127.0.0.1")
        assert "hunter2" not in done.err
    assert content(home) == before


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hunter2", "cannot be parsed"),
        ("oracle://u:hunter2@h/d", "oracle"),
        ("mysql+pymysql://u:hunter2@127.0.0.1", "names no database"),
        ("sqlite://", "path"),
    ],
)
def test_a_wrong_database_url_is_one_sentence_without_its_secret(
    home: Path, url: str, says: str
) -> None:
    done = run(home, "status", LEASEHOLD_DATABASE_URL=url)
    assert_one_sentence(done, says)
    assert "hunter2" not in done.err


def test_a_schema_of_a_newer_release_is_refused_and_unchanged(home: Path) -> None:
    with sqlite3.connect(home / "leases.db") as database:
        database.execute(f"UPDATE {VERSION_TABLE} SET {NEWER}")
    before = content(home)
    for command in (*COMMANDS, "db upgrade"):
        assert_one_sentence(run(home, command), "newer")
    assert content(home) == before


def test_a_file_that_is_no_database_is_refused_and_unchanged(home: Path) -> None:
    for path in home.glob("leases.db*"):  # SQLite would restore it from its write-ahead log
        path.unlink()
    (home / "leases.db").write_bytes(b"this is no database\n" * 100)
    for command in COMMANDS:
        assert_one_sentence(run(home, command), "leases.db")
    assert (home / "leases.db").read_bytes() == b"this is no database\n" * 100


def test_a_read_only_database_can_be_read_and_refuses_to_be_written(home: Path) -> None:
    """Method: SQLite opens the file read-only, which file modes cannot do to an administrator."""
    before = content(home)
    url = f"sqlite:///file:{home / 'leases.db'}?mode=ro&uri=true"
    assert run(home, "group list --json", LEASEHOLD_DATABASE_URL=url).code == 0
    for command in ("group create demo --group other", "group pause demo", "group delete demo"):
        assert_one_sentence(run(home, command, LEASEHOLD_DATABASE_URL=url), "write")
    assert content(home) == before


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "other"}'])
def test_a_damaged_catalog_is_refused_and_unchanged(
    home: Path, tmp_path: Path, damage: bytes
) -> None:
    (tmp_path / "in.log").write_bytes(b"x\n")
    (home / "logs" / "demo" / "catalog.json").write_bytes(damage)
    before = content(home)
    # One way of damage is met by every command, and every way by one.
    commands = (
        "shard list",
        "shard split demo 0",
        "shard merge demo 0 1",
        f"load demo {tmp_path}/in.log",
    )
    for command in commands if damage == b"{" else commands[-1:]:
        assert_one_sentence(run(home, command), "catalog")
    assert content(home) == before


def test_a_missing_log_is_one_sentence(home: Path) -> None:
    shutil.rmtree(home / "logs")
    for command in ("shard list", "shard split demo 0", "checkpoint set demo 0 begin --force"):
        assert_one_sentence(run(home, command), "demo")
    assert not (home / "logs").exists()


def test_an_append_detects_a_damaged_segment(home: Path, tmp_path: Path) -> None:
    """Goal: no record is appended after damage, and no part of the file is dropped."""
    (tmp_path / "in.log").write_bytes(b"x\ny\n")
    folder = home / "logs" / "demo" / "shards" / "0"
    segment = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    damaged = bytearray(segment.read_bytes())
    damaged[-20] ^= 0xFF
    segment.write_bytes(damaged)
    assert_one_sentence(run(home, f"load demo {tmp_path}/in.log"), str(segment))
    assert segment.read_bytes() == damaged


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes = [", "leasehold.toml"),
        ("lease_timeout_s = 'long'", "lease_timeout_s"),
        ("timeout = 3", "timeout"),
        ('[[streams]]\nname = "a"', "Declare streams in a Python module"),
    ],
)
def test_wrong_settings_are_one_sentence_for_every_command(
    home: Path, text: str, says: str
) -> None:
    (home / "leasehold.toml").write_text(text)
    # One mistake is met by every command, and every mistake by one.
    commands = ("status", "shard list", "cat demo", "dev")
    for command in commands if says == "leasehold.toml" else commands[:1]:
        assert_one_sentence(run(home, command), says)


def test_a_module_that_cannot_be_imported_is_one_sentence(home: Path) -> None:
    """Method: commands that import it in a child process, to fork others without it."""
    (home / "leasehold.toml").write_text('module = "broken"')
    (home / "broken.py").write_text("import nothing_of_this_name")
    for command in ("dev", "node --name a"):
        assert_one_sentence(run(home, command), "No module named 'nothing_of_this_name'")


def test_output_that_cannot_be_written_is_one_sentence(home: Path) -> None:
    """Method: the device that is always full."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "status", "--home", str(home)],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert SENTENCE.fullmatch(done.stderr.decode())
    assert b"No space left" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="an administrator may write anywhere")
def test_a_read_only_home_is_one_sentence(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    for command in ("group create demo --group g", "dev", "db upgrade"):
        assert_one_sentence(run(closed / "home", command), str(closed))


class TestMariaDB:
    """The same through PyMySQL, on a real server."""

    pytestmark = pytest.mark.mariadb

    @pytest.fixture
    def on_mariadb(self, home: Path, mariadb_url: str) -> Callable[[str], Finished]:
        return lambda command: run(home, command, LEASEHOLD_DATABASE_URL=mariadb_url)

    def test_the_error_for_an_empty_database_names_the_command_that_prepares_it(
        self, on_mariadb: Callable[[str], Finished]
    ) -> None:
        for command in ("status", "group create demo --group other"):
            assert_one_sentence(on_mariadb(command), "leasehold db upgrade")
        upgraded = on_mariadb("db upgrade")
        assert upgraded.code == 0, upgraded.err
        assert on_mariadb("db upgrade").code == 0
        assert on_mariadb("group create demo").code == 0
        assert on_mariadb("status").code == 0

    def test_a_read_only_server_is_one_sentence(
        self, on_mariadb: Callable[[str], Finished], mariadb: MariaDB
    ) -> None:
        """Method: the account has no privilege to write past read_only, as on a replica."""
        assert on_mariadb("db upgrade").code == 0
        assert on_mariadb("group create demo").code == 0
        mariadb.execute("SET GLOBAL read_only = 1")
        try:
            done = on_mariadb("group create demo --group other")
        finally:
            mariadb.execute("SET GLOBAL read_only = 0")
        listed = on_mariadb("group list --json")
        assert_one_sentence(done, "read-only")
        assert '"group": "default"' in listed.out
        assert '"group": "other"' not in listed.out

    def test_a_schema_of_a_newer_release_is_refused(
        self, on_mariadb: Callable[[str], Finished], mariadb: MariaDB, mariadb_url: str
    ) -> None:
        assert on_mariadb("db upgrade").code == 0
        database = make_url(mariadb_url).database
        mariadb.execute(f"UPDATE {VERSION_TABLE} SET {NEWER}", database=database)
        for command in ("status", "db upgrade"):
            assert_one_sentence(on_mariadb(command), "newer")


def test_cat_names_a_missing_committed_file(home: Path, tmp_path: Path) -> None:
    """Goal: missing output is never skipped silently."""
    from dagster_leasehold.lease_store.group_rows import Node
    from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
    from dagster_leasehold.lease_store.ledger_rows import (
        BatchCommit,
        BatchStatistics,
        DataFile,
        Intent,
    )
    from dagster_leasehold.lease_store.outcomes import Opened

    store = open_store(Settings(home=home).store_url)
    node = NodeName("n")
    store.register(KEY, Node(node, 0, "i"), observer="test")
    seen = {lease.shard: lease.lease_id for lease in store.snapshot(KEY).shards}
    store.claim(KEY, {ShardId("0"): (node, seen[ShardId("0")])}, observer="test", reason="free")
    opened = store.open_tenure(KEY, ShardId("0"), node, "run")
    assert isinstance(opened, Opened)
    store.record_intents([Intent(opened.tenure, opened.next_sequence, "0", "2")])
    store.commit(
        [
            BatchCommit(
                opened.tenure,
                opened.next_sequence,
                "0",
                "2",
                "attempt",
                (DataFile("attempt/0.parquet", 2, 10),),
                BatchStatistics(records=2, written=2),
            )
        ]
    )
    done = leasehold("cat", "demo", "--home", home, folder=tmp_path)
    assert_one_sentence(done, "0.parquet", "restore it from a backup")
