"""The form of all commands: JSON, the width of tables, progress, shell completion."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.orchestration.command_line import main
from tests.command_output import output_of
from tests.declared import declare
from tests.unit.docs.command_line_page import commands, root
from tests.unit.orchestration.consumed_home import ConsumedHome, home_of_process

pytestmark = pytest.mark.long

WITHOUT_JSON = {("dev",), ("stop",), ("node",), ("metrics",), ("top",)}
"""Commands that serve until Ctrl-C, the one that ends them, and the demo, which is for people."""
PROGRAM = Path(sys.executable).with_name("leasehold")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """Two shards of ten records in three batches each, one of which is in quarantine."""
    with home_of_process(tmp_path, monkeypatch, refuses=lambda value: value == b"1:9") as home:
        yield home


def test_every_command_that_ends_accepts_json() -> None:
    without = {
        path
        for path, command in commands(root())
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == WITHOUT_JSON


CHANGES = (
    ("db upgrade", {"upgraded": True}),
    ("load demo in.log", {"records": 2, "stream": "demo"}),
    ("group create demo --group other --timeout 9", {"group": "other", "timeout_s": 9.0}),
    ("group update demo --group other --unordered", {"changed": True, "ordered": False}),
    ("group update demo --group other --unordered", {"changed": False, "ordered": False}),
    ("group pause demo --group other", {"group": "other", "paused": True}),
    ("group resume demo --group other", {"paused": False}),
    ("group delete demo --group other", {"stream": "demo", "group": "other", "deleted": True}),
    ("checkpoint set demo 1 begin --force", {"from": "10", "to": "0", "begin_again": []}),
    ("gap ack demo 1", {"group": "demo/default", "shard": "1", "accepted": []}),
    ("shard split demo 0", {"parents": ["0"], "children": ["2", "3"]}),
    ("shard merge demo 3 1", {"parents": ["3", "1"], "children": ["4"]}),
    ("cat demo --parquet new.parquet", {"file": "new.parquet", "records": 10}),
)


def test_the_result_of_a_change_is_one_json_document(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: all commands that change something, in one history."""
    Path("in.log").write_bytes(b"a\nb\n")
    for command, expected in CHANGES:
        document: dict[str, Any] = json.loads(output_of(capsys, *command.split(), "--json"))
        assert {name: document.get(name) for name in expected} == expected, command


def test_cat_writes_one_parquet_file_and_never_over_another(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output_of(capsys, "cat", "demo", "--parquet", "all.parquet")
    assert out == "Wrote 19 committed records of demo/default to all.parquet.\n"
    lines = output_of(capsys, "cat", "demo", "--json").splitlines()
    rows = pq.read_table("all.parquet").to_pylist()
    assert [row["value"].decode() for row in rows] == [json.loads(line)["value"] for line in lines]
    before = Path("all.parquet").read_bytes()
    for file, reason in (
        ("all.parquet", "already exists: give a new file with --parquet"),
        ("nowhere/all.parquet", "does not exist: create it, or give another file with --parquet"),
    ):
        error = output_of(capsys, "cat", "demo", "1", "--parquet", file, code=2)
        assert reason in error
    assert Path("all.parquet").read_bytes() == before


LONG = "a-very-long-name-of-something-" * 4
WIDE = GroupKey.parse(LONG[:60], "demo")


def test_tables_fit_a_hundred_columns_for_any_names(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: nodes, shards, cursors, runs and reasons as long as they may be."""
    node = NodeName(LONG[:64])
    shards = [ShardId(LONG[:63] + str(number)) for number in range(3)]
    home.store.create_group(Group(WIDE))
    home.store.register(WIDE, Node(node, 0, "incarnation"), observer="test")
    home.store.register(WIDE, Node(NodeName("b"), 0, "b-1"), observer="test")
    listings = [ShardListing(shards[0]), *(ShardListing(each, (shards[0],)) for each in shards[1:])]
    home.store.sync_shards(WIDE, listings, observer="test")
    lease_ids = {lease.shard: lease.lease_id for lease in home.store.snapshot(WIDE).shards}
    home.store.claim(
        WIDE, {shards[0]: (node, lease_ids[shards[0]])}, observer="test", reason=LONG * 2
    )
    home.store.open_tenure(WIDE, shards[0], node, "9" * 32)
    home.append(5)
    home.log.retain("0", "15")
    home.consume("run-2")
    wide = ("--group", WIDE.group)
    for command in (
        ("status", *wide),
        ("plan", *wide),
        ("journal", *wide),
        ("checkpoint", "get", *wide),
        ("group", "list"),
        ("group", "show", *wide),
        ("group", "drain", "demo", *wide, "--timeout", "0"),
        ("gap", "list", "demo"),
        ("shard", "list"),
        ("quarantine", "list", "demo"),
        ("compact", "demo"),
        ("simulate", "--nodes", "40", "--shards", "400", "--change", "crash:7"),
    ):
        drained = command[1] == "drain"
        lines = table_lines(output_of(capsys, *command, code=1 if drained else 0))
        assert lines, command
        assert max(map(len, lines)) <= 100, command


def table_lines(text: str) -> list[str]:
    """Lines of tables and their titles: all but sentences."""
    return [line for line in text.splitlines() if not re.search(r"[a-z0-9][.:]( |$)", line)]


def on_terminal(*arguments: str) -> tuple[str, str]:
    """Return the output of a command, and the text on a terminal as its standard error."""
    screen, its_end = pty.openpty()
    with os.fdopen(screen, "rb", buffering=0) as shown:
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=its_end,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
        )
        os.close(its_end)
        seen = b""
        while True:
            try:
                block = shown.read(65_536)
            except OSError:  # the terminal is closed, as Linux reports it
                break
            if not block:
                break
            seen += block
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, seen
    return out.decode(), seen.decode(errors="replace")


def test_long_work_shows_its_progress_on_a_terminal_alone(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in.log").write_bytes(b"line\n" * 1000)
    for command, shows in (
        ("load demo in.log --json", "1,000 records"),
        ("cat demo --parquet all.parquet --json", "19 of 19 records"),
        ("compact demo --json", "6 of 6 batches"),
        ("vacuum demo --json", "finding unneeded files"),
    ):
        out, screen = on_terminal(*command.split())
        assert shows in screen, command
        json.loads(out)  # the bar has left standard output alone
    capsys.readouterr()
    assert main(["load", "demo", "in.log"]) == 0
    assert capsys.readouterr().err == ""


def completed(words: str) -> set[str]:
    """Return the proposals of a real bash after these words, by the script that we print."""
    program = f"""
        source <(_LEASEHOLD_COMPLETE=source_bash {shlex.quote(str(PROGRAM))})
        COMP_WORDS=({words}) COMP_CWORD=$(( {len(words.split())} - 1 ))
        _leasehold_completion {shlex.quote(str(PROGRAM))}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_streams(home: ConsumedHome, tmp_path: Path) -> None:
    declare(tmp_path / "home", "orders", "visits")
    assert completed("leasehold q") == {"quarantine"}
    assert completed("leasehold group de") == {"delete"}
    assert "--older-than" in completed("leasehold vacuum --o")
    assert completed("leasehold status vis") == {"visits"}
    assert completed("leasehold cat ord") == {"orders"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(home: ConsumedHome, shell: str) -> None:
    done = subprocess.run(
        [PROGRAM],
        env=os.environ | {"_LEASEHOLD_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert f"complete_{shell}" in done.stdout


def test_wrong_settings_complete_nothing_and_print_nothing(
    home: ConsumedHome, tmp_path: Path
) -> None:
    (tmp_path / "leasehold.toml").write_text("nodes = [")
    assert completed("leasehold status d") == set()
