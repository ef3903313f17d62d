"""A log from its first record to the proof, on one machine: `python examples/demo.py`.

It makes a log of 8 shards, loads records into it, and starts `leasehold dev`, whose two nodes share
the shards. While they consume, it splits a shard and merges two. Then it ends what it has started,
and compares what DuckDB reads in the published table with what was loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from dagster_leasehold import LeaseholdError, LocalLog
from dagster_leasehold.sources import Record

SHARDS = 8
FIRST_PART = 0.6
"""The share of the records that is loaded before the start."""
PART_RECORDS = 20_000
POLL_S = 2.0
END_S = 120.0
MARK = "demo.json"
SETTINGS = """\
nodes = ["node-a", "node-b"]
module = "streams"
"""
STREAMS = '''\
"""The stream of the demo, in small batches, so that it shows many of them."""

from dagster_leasehold import Limits, Pace, ShardStream, named_source

demo = ShardStream(
    "demo",
    named_source("local_log", "demo"),
    limits=Limits(records_max=5_000),
    pace=Pace(commit_interval_s=0),
)
'''
METHODS = ("GET",) * 8 + ("POST", "HEAD")
STATUSES = (200,) * 14 + (204, 301, 304, 404, 429, 500)
PATHS = ("/", "/search", "/cart", "/login", "/api/items", "/api/orders", "/static/site.css")
AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (iPhone)", "curl/8.5", "Googlebot/2.1")
FIRST_TIME = datetime(2026, 1, 1, tzinfo=UTC)


class DemoFailed(Exception):
    """The demo did not come to its end; the message says how far it came."""


class Digest:
    """The number of records and the sum of their hashes: the same for any order of them."""

    def __init__(self) -> None:
        self.records = self.total = 0

    def add(self, value: bytes) -> None:
        """Count a record in; one that is missing, doubled or changed makes another sum."""
        self.records += 1
        self.total += int.from_bytes(blake2b(value, digest_size=16).digest())


def access_log(records: int, seed: int) -> Iterator[Record]:
    """Yield records of the combined log format in order of time, the same for the same seed."""
    draw, at = random.Random(seed), FIRST_TIME
    for number in range(records):
        bits = draw.getrandbits(64)
        at += timedelta(milliseconds=1 + bits % 40)
        client = f"10.{bits >> 8 & 15}.{bits >> 12 & 255}.{1 + (bits >> 20) % 254}"
        line = (
            f"{client} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "
            f'"{METHODS[(bits >> 32) % len(METHODS)]} {PATHS[(bits >> 36) % len(PATHS)]}'
            f'?request={number} HTTP/1.1" '
            f"{STATUSES[(bits >> 42) % len(STATUSES)]} {120 + (bits >> 48)} "
            f'"-" "{AGENTS[(bits >> 6) % len(AGENTS)]}"'
        )
        yield Record(line.encode(), key=client.encode(), event_time=at)


def lines_of(paths: Sequence[Path]) -> Iterator[Record]:
    """Yield each line of the files as a record, without its line feed."""
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                yield Record(line.removesuffix(b"\n"))


class Demo:
    """One demo in a folder of its own."""

    def __init__(self, home: Path, records: Iterator[Record], timeout_s: float) -> None:
        self.home = home
        self.log = LocalLog.create(home / "logs" / "demo", SHARDS)
        self.loaded = Digest()
        self._records = records
        self._began_s = time.monotonic()
        self._deadline_s = self._began_s + timeout_s
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("LEASEHOLD_DATABASE_URL", "LEASEHOLD_OUTPUT", "LEASEHOLD_MODULE")
        }

    def run(self, expected: int) -> bool:
        """Run the demo to its end; return True if everything is where it belongs."""
        self.say(f"loaded {self.load(round(expected * FIRST_PART)):,} of {expected:,} records")
        with self._deployment():
            self._until("something was committed", lambda now: committed(now) > 0 or not expected)
            self.say(self.reshard())
            self.load(expected)
            self._until("everything was in the table", self._complete)
            owners = Counter(row["consumer_owner"] for row in self._status()["shards"])
            owners.pop(None, None)
            shares = ", ".join(f"{node} {number}" for node, number in sorted(owners.items()))
            self.say(f"everything is in the table; shards: {shares}. Stopping")
        proven = self._leasehold("verify").returncode == 0
        return self._compare_table() and proven

    def say(self, text: str) -> None:
        """Print a line, with the time since the beginning."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)

    def load(self, count: int) -> int:
        """Append so many of the records to the shards that are writable now, by turns."""
        writable = [row.shard for row in self.log.list_shards() if not row.read_only]
        left = count
        while part := list(islice(self._records, min(PART_RECORDS, left))):
            for turn, shard in enumerate(writable):
                if share := part[turn :: len(writable)]:
                    self.log.append(shard, share)
            for record in part:
                self.loaded.add(record.value)
            left -= len(part)
        return count - left

    def reshard(self) -> str:
        """Split a shard and merge two others; return a sentence about that."""
        rows = [row for row in self.log.list_shards() if not row.read_only]
        by_hash = [row.shard for row in sorted(rows, key=lambda row: row.hash_begin)]
        split, first, second = by_hash[0], *by_hash[len(by_hash) // 2 :][:2]
        low, high = self.log.split(split)
        merged = self.log.merge(first, second)
        return (
            f"split shard {split} into {low} and {high}, merged {first} and {second} into {merged}"
        )

    # -- the deployment -------------------------------------------------------------------------

    @contextmanager
    def _deployment(self) -> Generator[None]:
        """Have `leasehold dev` run for the block; nothing of it is left afterwards."""
        self.say("starting Dagster and Spark")
        with (self.home / "dev.log").open("wb") as log:
            self._dev = subprocess.Popen(
                self._command("dev"),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield
        finally:
            self._dev.send_signal(signal.SIGINT)
            self._dev.wait(END_S)

    def _command(self, *words: str) -> list[str]:
        leasehold = Path(sys.executable).with_name("leasehold")
        return [str(leasehold), *words, "--home", str(self.home)]

    def _leasehold(self, *words: str, shows: bool = True) -> subprocess.CompletedProcess[str]:
        out = None if shows else subprocess.PIPE
        command = self._command(*words)
        return subprocess.run(
            command, env=self._environment, stdout=out, stderr=out, text=True, check=False
        )

    def _status(self) -> dict[str, Any]:
        done = self._leasehold("status", "demo", "--json", shows=False)
        # Until the sensors have made the group there is nothing to show.
        return json.loads(done.stdout) if done.returncode == 0 else {"shards": []}

    def _until(self, what: str, reached: Callable[[dict[str, Any]], bool]) -> None:
        while not reached(now := self._status()):
            self.say(f"{committed(now):,} records committed, {in_table(now):,} in the table")
            if self._dev.poll() is not None or time.monotonic() > self._deadline_s:
                raise DemoFailed(f"The demo ended before {what}: see {self.home / 'dev.log'}.")
            time.sleep(POLL_S)

    def _complete(self, now: dict[str, Any]) -> bool:
        seen = {row["shard"] for row in now["shards"]}
        listed = {row.shard: row for row in self.log.list_shards()}
        over = {row["shard"] for row in now["shards"] if row["state"] == "over"}
        return (
            seen == listed.keys()
            and over == {shard for shard, row in listed.items() if row.read_only}
            and in_table(now) == self.loaded.records
        )

    # -- the table ------------------------------------------------------------------------------

    def _compare_table(self) -> bool:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("leasehold", type="sql", uri=f"sqlite:///{self.home / 'leases.db'}")
        table, shards = Digest(), Counter[str]()
        for shard, value in rows_in_duckdb(catalog.load_table("leasehold.demo").metadata_location):
            table.add(value)
            shards[shard] += 1
        for shard, records in sorted(shards.items(), key=lambda item: int(item[0])):
            print(f"  shard {shard:>2}: {records:>9,} records")
        same = (table.records, table.total) == (self.loaded.records, self.loaded.total)
        numbers = f"{self.loaded.records:,} loaded, {table.records:,} read by DuckDB"
        print(f"Records: {numbers}, {'each once' if same else 'which DIFFER'}.")
        return same


def committed(status: dict[str, Any]) -> int:
    """Return the number of committed records."""
    return (status.get("publication") or {}).get("committed_records") or 0


def in_table(status: dict[str, Any]) -> int:
    """Return the number of records that the table shows."""
    return (status.get("publication") or {}).get("published_records") or 0


def rows_in_duckdb(metadata: str) -> Iterator[tuple[str, bytes]]:
    """Yield shard and value of all rows of a table, as DuckDB reads them."""
    import duckdb

    # Extensions from packages are not signed; with them, nothing is fetched from a network.
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for name in ("avro", "iceberg"):
            package = Path(str(files(f"duckdb_extension_{name}")))
            connection.load_extension(str(next(package.rglob("*.duckdb_extension"))))
        connection.execute("SELECT shard_id, value FROM iceberg_scan(?)", [metadata])
        while rows := connection.fetchmany(PART_RECORDS):
            yield from rows


def empty_home(home: Path) -> None:
    """Make the folder, or empty it if a demo made it; end if it holds anything else."""
    if home.exists() and any(home.iterdir()):
        if not (home / MARK).exists():
            sys.exit(f"The folder {home} is not empty, and no demo made it: name another one.")
        stop = [str(Path(sys.executable).with_name("leasehold")), "stop", "--home", str(home)]
        if subprocess.run(stop, check=False).returncode:
            sys.exit(1)  # It has said why.
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).write_text("{}\n")
    (home / "leasehold.toml").write_text(SETTINGS)
    (home / "streams.py").write_text(STREAMS)


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=Path(".leasehold"))
    parser.add_argument("--input", type=Path, action="append", default=[], help="lines are records")
    parser.add_argument("--records", type=int, default=200_000, help="generated without an input")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds until it gives up")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        expected = sum(1 for _ in lines_of(given.input)) if given.input else given.records
        records = lines_of(given.input) if given.input else access_log(given.records, given.seed)
        home = given.home.absolute()
        empty_home(home)
        proven = Demo(home, records, given.timeout).run(expected)
    except (DemoFailed, LeaseholdError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    print(f"To see it in a browser: leasehold dev --home {given.home}")
    sys.exit(not proven)


if __name__ == "__main__":
    main()
