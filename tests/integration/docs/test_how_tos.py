"""The commands of how-to pages, one after the other, on a home in the state that the page is about.

Real log, store and output; the sweeps of runs happen in this process, without Spark.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import dagster_leasehold.assets.rewriting.replay
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.command_line import main
from tests.database_server import PASSWORD
from tests.environment import forget_settings
from tests.own_environments import PackagesMissing, own_environment
from tests.rest_catalog import give_token, rest_catalog
from tests.spark_iceberg import PROGRAM
from tests.table_engines import duckdb_with_iceberg
from tests.unit.docs.test_docs import DOCS, fences
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

Printed = Callable[[str], str]
READ = DOCS / "how-to/read-the-table.md"
DECLARATION = """
from pathlib import Path
from dagster_leasehold import LocalLog, ShardStream

def parsed(records):
    return records

streams = [ShardStream("visits", LocalLog(Path("home/logs/visits")), transform=parsed)]
"""


RUN_OF_ROWS = """
job = defs.resolve_implicit_global_asset_job_def()
with dg.DagsterInstance.ephemeral() as instance:
    run = job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("rows")])
(made,) = run.asset_materializations_for_node("rows")
print(made.metadata["rows"].value)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """Four shards of ten records each, read in batches of four."""
    yield from consumed(tmp_path, monkeypatch, KEY)


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """The same of a stream `visits`, which a module of its project declares."""
    project = tmp_path / "visits_project"
    project.mkdir()
    (project / "streams.py").write_text(DECLARATION, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_project()
    yield from consumed(tmp_path, monkeypatch, GroupKey.parse("default", "visits"))
    forget_project()


def forget_project() -> None:
    """Remove the imported modules of this project, also those of another test."""
    for name in ("visits_project", "visits_project.streams"):
        sys.modules.pop(name, None)


def consumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: GroupKey
) -> Generator[ConsumedHome]:
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    home = ConsumedHome(tmp_path / "home", shards=4, key=key)
    home.append(10)
    home.consume("run-1")
    yield home
    home.store.close()


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    def command(line: str) -> str:
        assert main(shlex.split(line)) == 0, line
        return capsys.readouterr().out

    return command


def commands(page: str, heading: str) -> list[str]:
    """Return the commands that a section has its reader type, without the program's name."""
    blocks = "".join(fences(DOCS / "how-to" / page, "console", heading))
    lines = [line.strip() for line in blocks.splitlines()]
    return [line.removeprefix("$ leasehold ") for line in lines if line.startswith("$ leasehold ")]


def test_the_commands_for_a_stuck_shard_find_its_reason(
    home: ConsumedHome, printed: Printed
) -> None:
    """Records of shard 3 are gone unread, so that its runs fail; then its node has left, too."""
    status, plan, journal, gaps, quarantine, force = (
        line.replace("visits", "demo")
        for line in commands("troubleshooting.md", "A shard does not move")
    )
    home.append(5)
    home.log.retain("3", "15")
    home.consume("run-2")
    assert "already_alloc" in printed(status)
    assert "10" in printed(gaps)
    assert "held [10, 15)" in " ".join(printed(journal).split())
    assert printed(quarantine)
    home.store.leave(KEY, home.store.pulse(KEY).nodes[0].name, "a-1")
    assert "not_alloc" in printed(status)
    assert "no new node for shard 3: no live node takes runs" in printed(plan)
    printed(force.replace(" 18000 ", " 15 "))
    assert home.store.snapshot(KEY).shards[3].check_point == "15"
    assert "are damaged" in " ".join(printed(journal).split())


def test_the_commands_of_an_upgrade_work(home: ConsumedHome, printed: Printed) -> None:
    rolled, drain, upgrade, verify, resume = commands("operations.md", "Upgrade")
    assert rolled == upgrade
    assert printed(drain)
    assert home.store.pulse(KEY).group.paused
    assert "has the schema of this release" in printed(upgrade)
    assert "no violations" in printed(verify)
    assert printed(resume)
    assert not home.store.pulse(KEY).group.paused
    assert open_store(home.settings.store_url).groups()


@pytest.mark.mariadb
def test_the_commands_of_a_move_to_mysql_keep_each_record_once(
    home: ConsumedHome, printed: Printed, mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumption continues in the new store, and every record is in the output once."""
    upgrade, drain, copy, verify, status, resume = commands("operations.md", "Move to MySQL")
    exported = "".join(fences(DOCS / "how-to/operations.md", "console", "Move to MySQL"))
    assert "export NEW_DATABASE_URL=" in exported
    monkeypatch.setenv("NEW_DATABASE_URL", mariadb_url)
    assert main(shlex.split(copy)) == 2, "neither is there a table, nor is the group drained"
    assert "has the schema of this release" in printed(upgrade)
    assert printed(drain)
    copied = printed(copy)
    assert "no violations" in copied
    assert PASSWORD not in copied
    assert "export LEASEHOLD_DATABASE_URL=" in exported
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", mariadb_url)
    assert "no violations" in printed(verify)
    assert "10" in printed(status)
    assert printed(resume)
    moved = ConsumedHome(home.settings.home, database_url=mariadb_url)
    moved.append(5)
    moved.consume("run-2")
    moved.store.close()
    assert values(printed("cat demo")) == sorted(f"{s}:{n}" for s in range(4) for n in range(15))
    assert "no violations" in printed(verify)
    old = home.store.snapshot(KEY)
    assert old.group.paused
    assert {lease.check_point for lease in old.shards} == {"10"}


def test_the_commands_of_a_replay_fix_the_output(
    visits: ConsumedHome, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug sent the last records to quarantine: the replay commits them.

    The vacuum removes the quarantine files, which no snapshot of the table names.
    """
    monkeypatch.setattr(
        dagster_leasehold.assets.rewriting.replay, "SparkSweeper", lambda **_: visits.sweeper
    )
    cat, journal, replay, verify = commands("backfill-and-replay.md", "Replay after a bug")
    visits.append(2)
    visits.sweeper.refuses = lambda value: value.endswith((b":10", b":11"))
    visits.consume("run-2")
    assert values(printed(cat)) == sorted(f"3:{number}" for number in range(10))
    assert "open" in printed(journal)
    visits.sweeper.refuses = lambda _: False
    assert "Replay of visits/default" in printed(replay)
    assert {batch.generation for batch in visits.store.batches(visits.key)} == {1}
    assert "no violations" in printed(verify)
    everything = sorted(f"{shard}:{number}" for shard in range(4) for number in range(12))
    assert values(printed("cat visits")) == everything
    for path in visits.output.rglob("*.parquet"):
        os.utime(path, (0, 0))
    assert "Removed 4 files" in printed("vacuum visits")
    assert values(printed("cat visits")) == everything


def test_the_commands_after_an_outage_of_the_store_publish(
    home: ConsumedHome, printed: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: the folder of the table's metadata cannot be reached; runs write elsewhere."""
    section = "When the store or catalog is unavailable"
    status, create, verify = commands("troubleshooting.md", section)
    away = home.output / "metadata"
    away.touch()
    home.append(2)
    home.consume("run-2")
    assert main(shlex.split(create)) != 0
    assert "Output that can be written is still committed" in joined(capsys.readouterr().err)
    assert "16 committed batches with 48 records wait since" in joined(printed(status))
    away.unlink()
    assert "they equal the ledger's" in joined(printed(create))
    assert "no violations" in printed(verify)


def test_the_commands_for_another_catalog_create_the_table(
    home: ConsumedHome, printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the page's file of settings, with the address of a stand-in for the service."""
    (settings,) = fences(READ, "toml", "Publish into another catalog")
    assert "export PYICEBERG_CATALOG__LAKE__TOKEN=" in "".join(
        fences(READ, "console", "Publish into another catalog")
    )
    give_token(monkeypatch)
    with rest_catalog(tmp_path) as uri:
        Path("leasehold.toml").write_text(settings.replace("https://catalog.example.com", uri))
        (create,) = commands("read-the-table.md", "Publish into another catalog")
        created = joined(printed(create))
    assert "to the table leasehold.demo of catalog lake" in created
    assert "they equal the ledger's" in created


@pytest.mark.long
def test_an_asset_of_dagster_iceberg_reads_the_table(
    home: ConsumedHome, printed: Printed, tmp_path: Path
) -> None:
    """Method: the page's program, in an environment of its own, and the run of its asset."""
    try:
        programs = own_environment("dagster-iceberg-0.3.14", ("dagster-iceberg==0.3.14",))
    except PackagesMissing as error:
        pytest.skip(f"There is no dagster-iceberg: {error}")
    printed("table create demo")
    (program,) = fences(READ, "python", "With dagster-iceberg")
    (tmp_path / "reports.py").write_text(program + RUN_OF_ROWS, "utf-8")
    url = home.settings.store_url.get_secret_value()
    done = subprocess.run(
        [programs / "python", "reports.py"],
        cwd=tmp_path,
        env={**os.environ, "LEASEHOLD_DATABASE_URL": url, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "40\n"


def test_the_queries_of_the_page_read_the_table(
    home: ConsumedHome, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python blocks are run; Spark's is the line that `test_engines` runs.

    Trino and Athena do not run here. Their blocks, and the settings of Spark's JDBC catalog, follow
    their documentation and are not run.
    """
    printed("table create demo")
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", home.settings.store_url.get_secret_value())
    connection = duckdb_with_iceberg()
    monkeypatch.setattr("duckdb.connect", lambda: connection)
    first, arrow, duckdb, spark = fences(READ, "python", "With any engine")
    names: dict[str, Any] = {}
    # DuckDB's extension is loaded from a package here.
    for block in (first, arrow, duckdb.replace("INSTALL iceberg; LOAD iceberg", "SELECT 1")):
        exec(block, names)
    assert names["recent"].num_rows == names["frame"].height == 40
    assert sorted(names["counts"]) == [(str(shard), 10) for shard in range(4)]
    assert spark.strip().removeprefix("frame = ") in PROGRAM


def joined(text: str) -> str:
    """Text as one line, wherever the terminal broke it."""
    return " ".join(text.split())


def values(lines: str) -> list[str]:
    """The records that `leasehold cat` printed, sorted."""
    return sorted(json.loads(line)["value"] for line in lines.splitlines())
