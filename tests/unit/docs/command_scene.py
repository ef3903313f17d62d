"""The real output of each command, in one small scene, for the page of the command line.

The commands run in this process on a real log, store and output. Arrow reads and writes the records
of a sweep instead of Spark, unless a test plays the scene with Spark.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.settings import PREFIX
from tests.declared import declare
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

HOME = Path(".leasehold")
LINES = ("GET /", "GET /cart", "PUT /cart", "GET /pay", "GET /cart", "no request")
MODULE = "requests_stream"
DECLARATION = """
from pathlib import Path
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.shard_sources.local_log import LocalLog

def parsed(records):
    return records

streams = [ShardStream("demo", LocalLog(Path(".leasehold/logs/demo")), transform=parsed)]
"""
Outputs = dict[tuple[str, ...], tuple[str, str]]
"""For the words of a command: the whole command, and its output."""


@dataclass
class Scene:
    """A folder to work in, and the output of its commands so far."""

    with_spark: bool = False
    outputs: Outputs = field(default_factory=Outputs)

    def run(self, command: str, *, words: int = 1, code: int = 0) -> None:
        """Run a command, and keep its output under its first words."""
        arguments = shlex.split(command)
        printed, failed = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(failed):
            ended = main(arguments)
        assert ended == code, f"{command}: {ended} {failed.getvalue()}"
        text = "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())
        self.outputs[tuple(arguments[:words])] = (f"leasehold {command}", settled(text))


def settled(text: str) -> str:
    """Return text with fixed times and random ids, in as many letters."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "2026-03-01T12:00:00", text)
    text = re.sub(r"(?<=T12:00:00)\.\d{6}", ".000000", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "0123456789abcdef" * 2, text)
    text = re.sub(r"\b\d{15,20}\b", "4711471147114711471", text)
    text = text.replace(str(Path.cwd()), "/srv/requests")
    versions = "here Python 3.12.3, pyspark 4.1.1, pyarrow 21.0.0, dagster-leasehold 0.2.0."
    text = re.sub("here Python .*", versions, text)
    text = re.sub(r"SQLite [\d.]+\d", "SQLite 3.45.1", text)
    text = re.sub(r"(?<= in )\d+(?= ms)", "3", text)
    text = re.sub(r"(?<=the database's by )\d+\.\d(?= s)", "0.0", text)
    text = re.sub(r"\b\d s ago", "0 s ago", text)
    return re.sub(r"after \d+\.\d s", "after 0.0 s", text)


@contextlib.contextmanager
def empty_folder(folder: Path) -> Generator[None]:
    """Work in a folder, with only its settings."""
    others = (PREFIX, "DAGSTER_HOME")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    with contextlib.chdir(folder), patch.dict(os.environ, environment, clear=True):
        path = list(sys.path)
        try:
            yield
        finally:
            sys.path[:] = path
            sys.modules.pop(MODULE, None)


def play(folder: Path, *, with_spark: bool = False) -> Outputs:
    """Play the scene in an empty folder; return the output of its commands."""
    with empty_folder(folder):
        scene = Scene(with_spark)
        Path("requests.log").write_text("".join(f"{line}\n" for line in LINES), "utf-8")
        Path(f"{MODULE}.py").write_text(DECLARATION, "utf-8")
        declare(Path(), "demo")
        scene.run("version")
        scene.run("db upgrade", words=2)
        scene.run("load demo requests.log --shards 2")
        scene.run("group create demo --timeout 30", words=2)
        home = ConsumedHome(HOME, records_max=2)
        try:
            _look(scene, home)
            _rewrite(scene, home)
            _change(scene, home)
        finally:
            home.store.close()
        scene.run("simulate --nodes 3 --shards 8 --change crash")
        return scene.outputs


def _look(scene: Scene, home: ConsumedHome) -> None:
    """Commands that read."""
    home.join()
    home.sweeper.refuses = lambda value: b"request" in value
    home.consume("5f2a9c31")
    scene.run("status")
    scene.run("report demo --html report.html")
    scene.run("doctor")
    home.store.register(KEY, Node(NodeName("b"), 0, "b-1"), observer="test")
    scene.run("plan --explain")
    scene.run("journal --limit 4")
    scene.run("verify")
    scene.run("cat demo 0")
    scene.run("cat demo --parquet requests.parquet")
    scene.outputs["cat", "--parquet"] = scene.outputs.pop(("cat",))
    scene.run("cat demo 0")
    scene.run("where demo 0 1")
    scene.run("checkpoint get", words=2)
    scene.run("shard list", words=2)
    scene.run("group list", words=2)
    scene.run("group show demo", words=2)
    scene.run("quarantine list demo", words=2)
    scene.run("quarantine skip demo 1", words=2)


def _rewrite(scene: Scene, home: ConsumedHome) -> None:
    """Commands that rewrite committed output."""
    spark = contextlib.nullcontext()
    if not scene.with_spark:
        spark = patch(
            "dagster_leasehold.assets.rewriting.replay.SparkSweeper", lambda **_: home.sweeper
        )
    home.sweeper.refuses = lambda _: False
    with spark:
        scene.run(f"quarantine retry demo -m {MODULE}", words=2)
        scene.run("replay demo 0")
    scene.run("table create demo", words=2)
    scene.run("table move demo", words=2)
    scene.run("compact demo")
    for path in HOME.rglob("*.parquet"):
        os.utime(path, (0, 0))
    scene.run("vacuum demo --older-than 1h --dry-run")
    scene.run("db take-over demo", words=2)


def _change(scene: Scene, home: ConsumedHome) -> None:
    """Commands that change a group, a log or a checkpoint; retention removes unread records."""
    scene.run("group update demo --ordered --node-cap 8", words=2)
    scene.run("group accept-log demo", words=2)
    scene.run("checkpoint set demo 1 begin --force --reason 'read it again'", words=2)
    home.log.retain("1", "3")
    home.consume("77d0be12")
    scene.run("gap list demo", words=2)
    scene.run("gap ack demo 1", words=2)
    scene.run("shard split demo 0", words=2)
    scene.run("shard merge demo 3 1", words=2)
    scene.run("group pause demo", words=2)
    scene.run("group drain demo", words=2)
    os.environ["NEW_DATABASE_URL"] = "sqlite:///new/leases.db"
    scene.run("db upgrade --env NEW_DATABASE_URL", words=3)
    scene.run("db copy --to-env NEW_DATABASE_URL", words=2)
    scene.run("db prune --older-than 30", words=2)
    scene.run("group resume demo", words=2)
    scene.run("group delete demo --force", words=2)
