"""The command line: the output of each command, and one sentence for each mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, DataFile, Intent
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.sensors.statement_counts import UpkeepReport
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.conformance.published import publish_batches
from tests.declared import declare, stream_text
from tests.environment import forget_settings

KEY = GroupKey.parse("default", "demo")
NODE = NodeName("node-a")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that is not there yet, found through the environment, with one declared stream."""
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    declare(tmp_path, "demo")
    return tmp_path / "home"


class Outcome:
    """The output and the exit code of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> object:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def command(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return command


@pytest.fixture
def log(home: Path) -> LocalLog:
    return LocalLog.create(home / "logs" / "demo", 4)


@pytest.fixture
def store(home: Path, log: LocalLog) -> LeaseStore:
    """A store in which one node holds the shards of the log."""
    store = open_store(Settings(home=home).store_url)
    store.create_group(Group(KEY))
    store.register(KEY, Node(NODE, 0, "incarnation"), observer="test")
    store.sync_shards(KEY, log.list_shards(), observer="test")
    seen = {lease.shard: lease.lease_id for lease in store.snapshot(KEY).shards}
    store.claim(KEY, {shard: (NODE, seen[shard]) for shard in seen}, observer="test", reason="free")
    return store


def commit(store: LeaseStore, home: Path, shard: str, values: list[object]) -> None:
    """Commit rows of a shard as a run would, with their file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dagster_leasehold.assets.output.table.columns import (
        ColumnAgreement,
        columns_of,
        stored_schema,
    )
    from dagster_leasehold.shard_sources.source import record_schema

    ColumnAgreement(store, KEY).agree([columns_of(stored_schema(record_schema()))])
    opened = store.open_tenure(KEY, ShardId(shard), NODE, f"run-{shard}")
    assert isinstance(opened, Opened)
    start = opened.check_point or "0"
    end = str(int(start) + len(values))
    store.record_intents([Intent(opened.tenure, opened.next_sequence, start, end)])
    folder = home / "output" / "demo" / "default" / "attempt"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "shard_id": shard,
            "cursor": str(int(start) + number),
            "event_time": 1_000_000 * number,
            "key": None,
            "value": value,
            "attributes": [("a", "b")],
        }
        for number, value in enumerate(values)
    ]
    path = folder / f"{shard}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=record_schema()), path)
    store.commit(
        [
            BatchCommit(
                opened.tenure,
                opened.next_sequence,
                start,
                end,
                "attempt",
                (DataFile(f"attempt/{shard}.parquet", len(values), path.stat().st_size),),
                BatchStatistics(records=len(values), written=len(values)),
            )
        ]
    )
    store.close_tenure(opened.tenure, reason="caught up")


def test_help_names_every_command(run) -> None:
    outcome = run("--help")
    assert outcome.code == 0
    for command in (
        *("dev", "db", "group", "checkpoint", "status", "plan", "journal", "verify"),
        *("cat", "load", "shard", "gap", "simulate", "version"),
    ):
        assert re.search(rf"^  {command} ", outcome.out, re.MULTILINE), command


def test_version_is_that_of_the_distribution(run) -> None:
    assert run("version", "--json").json["dagster-leasehold"] == "0.2.0"
    assert run("version").out.startswith("dagster-leasehold 0.2.0\n")


def test_groups_are_created_listed_changed_paused_and_deleted(run, home: Path) -> None:
    assert (
        run(
            "group",
            "create",
            "demo",
            "--group",
            "g1",
            "--unordered",
            "--timeout",
            9,
            "--node-cap",
            2,
        ).code
        == 0
    )
    shown = run("group", "show", "demo", "--group", "g1", "--json").json
    assert shown["ordered"] is False
    assert shown["timeout_s"] == 9
    assert shown["node_cap"] == 2
    assert run("group", "update", "demo", "--group", "g1", "--ordered", "--node-cap", 0).code == 0
    assert run("group", "update", "demo", "--group", "g1", "--ordered").out.endswith(
        "already has these settings.\n"
    )
    shown = run("group", "show", "demo", "--group", "g1", "--json").json
    assert shown["ordered"] is True
    assert shown["node_cap"] is None
    assert run("group", "pause", "demo", "--group", "g1").code == 0
    assert run("group", "list", "--json").json[0]["paused"] is True
    assert run("group", "resume", "demo", "--group", "g1").code == 0
    assert run("group", "show", "demo", "--group", "g1", "--json").json["paused"] is False
    assert run("group", "delete", "demo", "--group", "g1").code == 0
    assert run("group", "list", "--json").json == []


def test_load_reads_a_pipe_once(run, tmp_path: Path) -> None:
    """A check of the pipe before it is read would end it for its writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=lambda: pipe.write_bytes(b"one\ntwo\n"))
    feeder.start()
    assert run("load", "demo", "pipe", "--shards", 1, "--json").json["records"] == 2
    feeder.join(timeout=10)


def test_load_creates_the_log_and_appends_lines_unchanged(run, home: Path, tmp_path: Path) -> None:
    (tmp_path / "in.log").write_bytes(b"a\r\n\nb\xff\nlast")
    outcome = run("load", "demo", "in.log", "--shards", 2)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("Loaded 4 records into 2 shards")
    listed = run("shard", "list", "--json").json
    assert [shard["end"] for shard in listed] == ["2", "2"]


def test_shards_are_split_and_merged(run, log: LocalLog) -> None:
    assert run("shard", "split", "demo", "0").out == "Split shard 0 into 4 and 5.\n"
    assert run("shard", "merge", "demo", "2", "3").out == "Merged shards 2 and 3 into 6.\n"
    listed = {shard["shard"]: shard for shard in run("shard", "list", "--json").json}
    assert listed["0"]["read_only"] is True
    assert listed["6"]["parents"] == ["2", "3"]


def test_status_shows_owner_checkpoint_and_lag(
    run, store: LeaseStore, log: LocalLog, home: Path
) -> None:
    log.append("1", [b"a", b"b", b"c"])
    commit(store, home, "1", [b"a", b"b"])
    shown = run("status", "--json").json
    shard = next(row for row in shown["shards"] if row["shard"] == "1")
    assert shard["consumer_owner"] == "node-a"
    assert shard["check_point"] == "2"
    assert shard["lag"] == 1
    assert 0 < shard["lag_seconds"] < 60
    others = [row["lag_seconds"] for row in shown["shards"] if row is not shard]
    assert others == [0] * len(others)
    assert shown["nodes"][0]["shards"] == 4
    table = run("status").out
    assert "already_alloc" in table
    assert max(len(line) for line in table.splitlines()) <= 100


def test_status_shows_unpublished_batches(
    run, store: LeaseStore, log: LocalLog, home: Path
) -> None:
    log.append("1", [b"a", b"b", b"c"])
    commit(store, home, "1", [b"a", b"b"])
    assert run("status", "--json").json["publication"] is None
    assert "Table" not in run("status").out
    publisher = publish_batches(store, KEY, NODE, ShardId("1"), 1)
    name = f"default.leasehold.{KEY.stream}"
    assert f"Table {name}: 1 publication; it has all committed output." in run("status").out
    commit(store, home, "1", [b"c"])
    shown = run("status", "--json").json["publication"]
    assert (shown["table"], shown["publisher"], shown["publications"]) == (name, "node-a", 1)
    assert (shown["waiting_batches"], shown["waiting_records"]) == (1, 1)
    assert (shown["committed_records"], shown["published_records"]) == (3, 2)
    assert shown["waiting_since"].endswith("Z")
    assert shown["waiting_seconds"] >= 0
    line = f"{name}: 1 publication; of 3 records, 1 committed batch with 1 record waits since "
    assert line in run("status").out
    publisher.publish()
    assert run("status", "--json").json["publication"]["waiting_batches"] == 0


def test_status_shows_the_cost_of_membership(run, store: LeaseStore, home: Path) -> None:
    store.groups()
    state = run("status", "--json").json
    assert (state["upkeep"], state["processes"]) == (None, [])
    noted = UpkeepReport("2026-01-02T12:00:00+00:00", 20.0, 2, 4, {"beat": 8, "pulse": 4})
    noted.save(home / "upkeep" / KEY.stream / f"{KEY.group}.json")
    assert run("status", "--json").json["upkeep"]["statements"] == {"beat": 8, "pulse": 4}
    assert "lease term of 20 s" in " ".join(run("status").out.split())


def test_plan_explains_itself_and_changes_nothing(run, store: LeaseStore) -> None:
    store.register(KEY, Node(NodeName("node-b"), 0, "other"), observer="test")
    before = store.snapshot(KEY)
    shown = run("plan", "--json").json
    assert shown["plan"]["moves"] == shown["plan"]["moves_minimum"] == 2
    assert "node-b" in run("plan", "--explain").out
    assert store.snapshot(KEY) == before


def test_journal_lists_each_claim_with_its_reason(run, store: LeaseStore) -> None:
    entries = run("journal", "demo", "2", "--json").json
    assert [entry["edge"] for entry in entries if entry["kind"] == "edge"] == [1, 3]
    table = run("journal").out
    assert "edge 3" in table
    assert max(len(line) for line in table.splitlines()) <= 100
    assert len(run("journal", "--limit", 2, "--json").json) == 2


def test_verify_passes_a_sound_history_and_reports_its_extent(
    run, store: LeaseStore, log: LocalLog, home: Path
) -> None:
    log.append("1", [b"a", b"b"])
    commit(store, home, "1", [b"a", b"b"])
    outcome = run("verify")
    assert outcome.code == 0
    assert "1 tenures and 1 committed batches, no violations" in outcome.out


def test_verify_fails_on_a_checkpoint_that_the_ledger_does_not_reach(
    run, store: LeaseStore, log: LocalLog, home: Path
) -> None:
    """Method: a row of the store is changed by hand, past every rule."""
    import sqlite3

    log.append("1", [b"a", b"b"])
    commit(store, home, "1", [b"a", b"b"])
    with sqlite3.connect(home / "leases.db") as database:
        database.execute("UPDATE batch SET end_cursor = '1'")
    outcome = run("verify", "--json")
    assert outcome.code == 1
    assert outcome.json["violations"]


def test_cat_prints_committed_records_and_no_others(
    run, store: LeaseStore, log: LocalLog, home: Path
) -> None:
    log.append("1", [b"a", b"b", b"c"])
    commit(store, home, "1", ["grüße\r".encode(), b"\xff\x00"])
    orphan = home / "output" / "demo" / "default" / "zombie"
    orphan.mkdir()
    (orphan / "1.parquet").write_bytes((orphan.parent / "attempt" / "1.parquet").read_bytes())
    outcome = run("cat", "demo")
    assert outcome.code == 0, outcome.err
    first, second = [json.loads(line) for line in outcome.out.splitlines()]
    assert first == {
        "shard_id": "1",
        "cursor": "0",
        "event_time": "1970-01-01T00:00:00.000000Z",
        "key": None,
        "value": "grüße\r",
        "attributes": {"a": "b"},
    }
    assert second["value_base64"] == "/wA="
    assert "value" not in second
    assert run("cat", "demo", "0").out == ""


def test_cat_into_a_closed_pipe_is_quiet(store: LeaseStore, log: LocalLog, home: Path) -> None:
    commit(store, home, "1", [b"x" * 100] * 5_000)
    done = subprocess.run(
        f"{sys.executable} -m dagster_leasehold.orchestration.command_line "
        f"cat demo --home {home} | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["cursor"] == "0"


def test_a_checkpoint_is_set_only_by_force(run, store: LeaseStore, log: LocalLog) -> None:
    log.append("1", [b"a", b"b", b"c"])
    refused = run("checkpoint", "set", "demo", "1", "2")
    assert refused.code == 2
    assert "--force" in refused.err
    assert run("checkpoint", "set", "demo", "1", "2", "--force", "--reason", "skip it").code == 0
    assert run("checkpoint", "get", "demo", "1", "--json").json[0]["check_point"] == "2"
    forced = [entry for entry in run("journal", "--json").json if entry["kind"] == "force"]
    assert forced[0]["reason"] == "skip it"
    assert run("checkpoint", "set", "demo", "1", "end", "--force").code == 0
    assert run("checkpoint", "get", "demo", "1", "--json").json[0]["check_point"] == "3"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("frob", "No such command 'frob'"),
        ("status --frob", "No such option"),
        ("status nope", "Its streams are: demo"),
        ("cat nope", "Its streams are: demo"),
        ("status --group nope", "Its groups are: default"),
        ("cat demo 77", "Its shards are: 0, 1, 2, 3"),
        ("cat demo ../1", "not a valid shard name"),
        ("checkpoint get demo 77", "Its shards are: 0, 1, 2, 3"),
        ("checkpoint set demo 1 99 --force", "not a cursor of shard '1'"),
        ("checkpoint set demo 1 yesterday --force", "not a cursor of shard '1'"),
        ("checkpoint set demo 1 -- -1 --force", ""),
        ("shard split demo 77", "no shard '77'"),
        ("shard merge demo 0 2", "do not touch"),
        ("shard merge demo 0 0", "itself"),
        ("load demo missing.log", "missing.log cannot be read"),
        ("load demo .", "cannot be read: Is a directory"),
        ("load demo x --shards 0", "--shards"),
        ("group create demo", "default"),
        ("group create demo --group a/b", "not a valid consumer group name"),
        ("group create demo --group g --initial-position soon", "not a position"),
        ("group create demo --group g --timeout 0", "timeout"),
        ("group create demo --group g --node-cap -1", "--node-cap"),
        ("group create demo --group g --assignment best", "assignment"),
        ("group show demo --group nope", "no consumer group 'nope'"),
        ("group delete demo", "force"),
        ("journal --limit 0", "--limit"),
        ("simulate --change explode:3", "explode"),
        ("simulate --nodes many", "--nodes"),
    ],
)
def test_each_mistake_is_one_sentence_and_changes_nothing(
    run, store: LeaseStore, arguments: str, says: str
) -> None:
    before = store.snapshot(KEY)
    outcome = run(*arguments.split())
    assert outcome.code == 2
    assert outcome.out == ""
    assert re.fullmatch(r"[^\n]+[.?]\n", outcome.err), outcome.err
    assert "Traceback" not in outcome.err
    assert says in outcome.err
    assert store.snapshot(KEY) == before


def test_a_home_without_a_store_is_one_sentence_and_stays_absent(run, home: Path) -> None:
    for command in ("status", "plan", "journal", "verify", "cat demo", "group list"):
        outcome = run(*command.split())
        assert outcome.code == 2
        assert "no lease store in" in outcome.err
    assert not home.exists()


def test_a_stream_without_a_group_says_what_creates_it(run, home: Path, log: LocalLog) -> None:
    home.mkdir(exist_ok=True)
    open_store(Settings(home=home).store_url).groups(KEY.stream)
    outcome = run("cat", "demo")
    assert outcome.code == 2
    assert "no consumer group 'default'. `leasehold dev` creates it." in outcome.err


def test_a_home_that_is_a_file_is_one_sentence(run, home: Path) -> None:
    home.write_text("")
    for command in ("status", "group create demo --group g", "dev"):
        outcome = run(*command.split())
        assert outcome.code == 2, command
        assert str(home) in outcome.err


@pytest.mark.parametrize(
    ("source", "library", "options", "install"),
    [
        (
            "kafka",
            "confluent_kafka",
            {"bootstrap_servers": "localhost:9"},
            "dagster-leasehold[kafka]",
        ),
        ("kinesis", "boto3", {"region": "eu-west-1"}, "dagster-leasehold[kinesis]"),
        (
            "loghub",
            "aliyun",
            {"endpoint": "a.example", "project": "logs"},
            "dagster-leasehold[loghub]",
        ),
    ],
)
def test_a_source_without_its_library_says_what_to_install(
    run,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    library: str,
    options: dict[str, str],
    install: str,
) -> None:
    """Method: the library is there for the tests, so that its import is forbidden."""
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    declare(Path(), stream_text("orders", source, options=options))
    assert run("group", "create", "orders").code == 0
    for command in ("status", "dev"):
        outcome = run(command)
        assert outcome.code == 2, outcome.out
        assert re.fullmatch(r"[^\n]+[.]\n", outcome.err), outcome.err
        assert f"The source '{source}' needs the library {library}" in outcome.err
        assert f"pip install '{install}'" in outcome.err


def test_an_unexpected_error_names_the_file_with_its_stack_trace(
    run, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("dagster_leasehold.orchestration.group_view.lags_of", broken)
    outcome = run("status")
    assert outcome.code == 3
    (path,) = re.findall(r"is in (\S+\.log)", outcome.err)
    assert "ZeroDivisionError: boom" in Path(path).read_text()
    Path(path).unlink()
    assert "Traceback" not in outcome.err
    assert "Traceback" in run("--debug", "status").err


def test_an_interrupt_is_no_error_with_a_stack_trace(
    run, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dagster_leasehold.orchestration.group_view.lags_of", interrupted)
    outcome = run("status")
    assert (outcome.code, outcome.err) == (130, "Interrupted.\n")


def test_unlisted_source_trouble_leaves_the_status_readable(
    run, store: LeaseStore, home: Path
) -> None:
    (home / "logs" / "demo" / "catalog.json").write_text("{")
    outcome = run("status")
    assert outcome.code == 0
    assert "The lag is unknown" in outcome.out


def test_shards_of_two_groups_are_listed_separately(run, store: LeaseStore) -> None:
    """Two groups of a stream keep checkpoints of their own."""
    other = GroupKey.parse("other", "demo")
    store.create_group(Group(other))
    store.sync_shards(other, [ShardListing(ShardId("1"))], observer="test")
    assert [
        row["shard"] for row in run("checkpoint", "get", "--group", "other", "--json").json
    ] == ["1"]
