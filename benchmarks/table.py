"""The cost of publishing to the table and of planning a scan of it, as the table grows.

`python -m benchmarks.table [--files 10 1000 100000] [--shards 1 16 128] [--stores sqlite mariadb
mysql] [--places disk s3] [--json]` fills a table with that many files, which need not exist, and
then publishes a batch of every shard, a few times: the median time of it, and the processor time of
this process. What a reader plans is measured with PyIceberg: all, and one hour of event time. `s3`
is moto's server in a process of its own, which shares the cores.

`--publications 100 1000 10000 --stores sqlite --places disk --shards 4` measures something else: a
table to which so many publications were made, one after the other, each with a batch of every
shard: its metadata, and the median of the last ones. Orphans are removed 720 publications apart, as
in an hour.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import uuid4

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable

from benchmarks.figures import print_rows
from benchmarks.object_store import own_object_store
from benchmarks.volume import server_url
from dagster_leasehold.assets.output.table.columns import columns_of
from dagster_leasehold.assets.output.table.group_table import build_publisher, location_of
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.publish_locks import take_lock
from dagster_leasehold.assets.output.table.publisher import Publisher
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.publication_rows import PublishLock
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources.source import record_schema
from tests.aged_store import BEGIN, INCARNATION, KEY, NODE, Age, Consumption, fill

REPEATS = 9
FILES_AT_ONCE = 2_000
HOURLY = 720
HOUR = timedelta(hours=1)
SETTINGS, CATALOG = TableSettings(), CatalogSettings()
NAME = SETTINGS.table_name(CATALOG.name, KEY)


@dataclass
class Table:
    """A table that is published to."""

    store: LeaseStore
    place: OutputPlace
    run: Consumption
    publisher: Publisher
    wall_s: list[float] = field(default_factory=list[float])
    own_s: list[float] = field(default_factory=list[float])

    def publish(self, files: int | None = None) -> None:
        """Commit a batch of every shard, and publish them, as a tick of the sensor does."""
        self.run.commit(files)
        began, own = time.perf_counter(), time.process_time()
        lock = take_lock(self.store, KEY, NAME, {NODE: INCARNATION})
        assert isinstance(lock, PublishLock), lock
        report = self.publisher.publish(lock)
        self.store.release_publish_lock(lock)
        self.own_s.append(time.process_time() - own)
        self.wall_s.append(time.perf_counter() - began)
        assert report.batches == len(self.run.age.names), report

    def costs(self) -> dict[str, Any]:
        """Return the medians of the newest publications, and the size of what a reader reads."""
        table = self._opened()
        current = table.current_snapshot()
        assert current is not None
        manifests = current.manifests(table.io)
        return {
            "publish_ms": 1_000 * statistics.median(self.wall_s[-REPEATS:]),
            "own_cpu_ms": 1_000 * statistics.median(self.own_s[-REPEATS:]),
            "metadata_kb": len(table.io.new_input(table.metadata_location)) / 1_000,
            "list_kb": len(table.io.new_input(current.manifest_list)) / 1_000,
            "manifests": len(manifests),
            "manifests_kb": sum(each.manifest_length for each in manifests) / 1_000,
        }

    def planning(self) -> dict[str, Any]:
        """Return the times of planning a scan, and the files that it would read.

        Scans of all files, of one hour, and of one shard: the one in the middle of all names.
        """
        half = self.run.at - (self.run.at - BEGIN) / 2
        hour = f"event_time >= '{half.isoformat()}' and event_time < '{(half + HOUR).isoformat()}'"
        names = sorted(self.run.age.names)
        shard = f"shard_id = '{names[len(names) // 2]}'"
        rows: dict[str, Any] = {}
        for name, where in {"plan": "true", "hour": hour, "shard": shard}.items():
            began, own = time.perf_counter(), time.process_time()
            rows[f"{name}_files"] = sum(1 for _ in self._opened().scan(where).plan_files())
            rows[f"{name}_cpu_ms"] = 1_000 * (time.process_time() - own)
            rows[f"{name}_ms"] = 1_000 * (time.perf_counter() - began)
        return rows

    def metadata_files(self) -> int:
        """Return the number of files of metadata, orphans too."""
        return sum(not entry.folder for entry in self.place.entries(METADATA_FOLDER))

    def remove_orphans(self) -> None:
        """Remove metadata that nothing names, as the sensor does once an hour."""
        lock = take_lock(self.store, KEY, NAME, {NODE: INCARNATION})
        assert isinstance(lock, PublishLock), lock
        self.publisher.remove_orphans(lock, older_than=timedelta())
        self.store.release_publish_lock(lock)

    def _opened(self) -> StaticTable:
        pointer = self.store.table_pointer(NAME)
        assert pointer is not None
        io = PlaceIO(self.place, location_of(self.place))
        metadata = FromInputFile.table_metadata(io.new_input(pointer.location))
        return StaticTable((NAME.name,), metadata, pointer.location, io, NoopCatalog("none"))


@contextmanager
def new_table(url: str, place: OutputPlace, shards: int) -> Generator[Table]:
    """Make an empty table of so many shards."""
    age = Age(0, shards)
    fill(url, age)
    store = open_store(url)
    agreed = store.agree_columns(KEY, columns_of(record_schema()), seen_version=0)
    assert isinstance(agreed, Changed)
    publisher = build_publisher(
        store=store, key=KEY, settings=SETTINGS, catalog=CATALOG, place=place
    )
    try:
        yield Table(store, place, Consumption.begin(store, age), publisher)
    finally:
        store.close()


def growth(url: str, place: OutputPlace, shards: int, files: int) -> dict[str, Any]:
    """Return the costs of a table with so many files."""
    with new_table(url, place, shards) as table:
        for first in range(0, files, FILES_AT_ONCE):
            table.publish(min(FILES_AT_ONCE, files - first))
        for _ in range(REPEATS):
            table.publish()
        return table.costs() | table.planning()


def age(url: str, place: OutputPlace, shards: int, marks: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the costs of a table after so many publications."""
    with new_table(url, place, shards) as table:
        for number in range(1, max(marks) + 1):
            table.publish()
            if number % HOURLY == 0:
                table.remove_orphans()
            if number in marks:
                yield {"publications": number} | table.costs() | {"files": table.metadata_files()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--files", type=int, nargs="+", default=[10, 1_000, 100_000])
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--stores", nargs="+", default=["sqlite", "mariadb", "mysql"])
    parser.add_argument("--places", nargs="+", default=["disk", "s3"])
    parser.add_argument("--publications", type=int, nargs="+")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def noted(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-table-"))
        roots = {"disk": folder}
        if "s3" in chosen.places:
            roots["s3"] = stack.enter_context(own_object_store())[0]
        for store, name, shards in product(chosen.stores, chosen.places, chosen.shards):
            which = {"store": store, "place": name, "shards": shards}
            place = output_place(roots[name])
            if chosen.publications:
                with server_url(store) as url:
                    for row in age(url, place / uuid4().hex, shards, chosen.publications):
                        noted(which | row)
                continue
            for files in chosen.files:
                with server_url(store) as url:
                    costs = growth(url, place / uuid4().hex, shards, files)
                noted(which | {"files": files} | costs)
    print_rows(rows, as_json=chosen.json)


if __name__ == "__main__":
    main()
