"""Spark's own Connect server next to Sail, a server of the same protocol that needs no Java.

`python -m benchmarks.connect_engines [--rounds 3] [--records 1000000] [--json]` fetches Sail and
the newest PySpark that its workers run with from the package index, and measures both engines with
it.

Each round starts each engine anew, and a process that consumes through it as a run does:

* `port s`: from the start of the server until its port is open;
* `first commit s`: from the start of a process to its first commit through a server that is there;
* the three ways of the throughput benchmark over all records, the second time that each runs;
* `memory at rest MiB`, `memory MiB`: of the server with its workers, before and at most.

A way that fails has its error instead of seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.figures.engine_client import LARGE, SMALL, WAYS
from benchmarks.figures.parquet_input import PORTION, make_input
from benchmarks.figures.process_tree import MEBIBYTE, memory_bytes, peak_memory, trees
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.connect_server import TOKEN_VARIABLE, ConnectServer
from dagster_leasehold.assets.spark.connect_watch import register_client
from tests.ports import free_port
from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]
SPARK, SAIL = "spark", "sail"
PACKAGES = ("pyspark==4.2.1", "pysail==0.7.2")
SHARDS = 16
CLIENT = (sys.executable, "-m", "benchmarks.figures.engine_client")
START = """
import sys
from pathlib import Path
from dagster_leasehold.assets.spark.spark_session import connect_address
connect_address(Path(sys.argv[1]))
"""


def fetch(folder: Path) -> None:
    """Install both packages, without what they need, which is here already."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder))
    subprocess.run([*pip, *PACKAGES], check=True)


@contextmanager
def spark_server(folder: Path, environment: Mapping[str, str]) -> Generator[tuple[str, int]]:
    """Start the embedded server; yield its address and the process that watches over it."""
    subprocess.run([sys.executable, "-c", START, folder], env=environment, cwd=ROOT, check=True)
    server = ConnectServer.read(folder)
    if server is None:
        raise RuntimeError("Spark's own Connect server has started and left no state")
    # The process that started it has ended, and a server without users ends soon.
    register_client(folder)
    try:
        os.environ[TOKEN_VARIABLE] = server.read_token(folder)
        yield server.address, server.pid
    finally:
        connect_server.stop(folder)


@contextmanager
def sail_server(_folder: Path, environment: Mapping[str, str]) -> Generator[tuple[str, int]]:
    """Start Sail; yield its address and its process."""
    port = free_port()
    command = [sys.executable, "-m", "pysail", "spark", "server", "--port", str(port)]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for("the port of Sail", partial(_listens, port), 60.0)
            yield f"sc://localhost:{port}", process.pid
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


ENGINES = {SPARK: spark_server, SAIL: sail_server}


def measure(engine: str, inputs: Path, folder: Path, records: int) -> dict[str, Any]:
    """Return the figures of one engine, started anew, over what is in the folder of inputs."""
    (folder / "client").mkdir(parents=True)
    for name in (SMALL, LARGE):
        (folder / name).symlink_to(inputs / name)
    path = os.pathsep.join([str(inputs / "packages"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    # Without compiled files every process would compile both packages anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    with ENGINES[engine](folder / "server", environment) as (address, pid):
        opened_s = time.monotonic() - began
        rest = memory_bytes(trees([pid]))
        with peak_memory(lambda: [pid], own=False) as peak:
            client = subprocess.run(
                [*CLIENT, str(folder), address, str(records), str(time.monotonic())],
                env=environment | {TOKEN_VARIABLE: os.environ.get(TOKEN_VARIABLE, "")},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                check=True,
            )
        figures = json.loads(client.stdout)
    return {
        "port s": round(opened_s, 2),
        "first commit s": figures["first commit"],
        **{f"{way} s": figures[way] for way in WAYS},
        "memory at rest MiB": round(rest / MEBIBYTE),
        "memory MiB": round(peak[0] / MEBIBYTE),
    }


def middle(rounds: list[dict[str, Any]], name: str) -> Any:
    """Return the median of a figure; an error stays what it is."""
    values = [round_[name] for round_ in rounds]
    errors = [value for value in values if isinstance(value, str)]
    return errors[0] if errors else statistics.median(values)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="leasehold-engines-"))
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in ENGINES}
    try:
        fetch(folder / "packages")
        for name, records in ((SMALL, PORTION), (LARGE, arguments.records)):
            (folder / name).mkdir()
            make_input(folder / name, records, SHARDS, lines=False)
        for number in range(arguments.rounds):
            for engine, rounds in taken.items():
                place = folder / f"{engine}-{number}"
                rounds.append(measure(engine, folder, place, arguments.records))
                print(f"round {number + 1}: {engine}: {rounds[-1]}", file=sys.stderr)
                shutil.rmtree(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [
        {"figure": name, **{engine: middle(rounds, name) for engine, rounds in taken.items()}}
        for name in taken[SPARK][0]
    ]
    note = f"{arguments.records:,} records, {SHARDS} shards, Python {platform.python_version()}"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
