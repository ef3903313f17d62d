"""The proof after every incident: the journal and the ledger, and each record once.

Each file has records of one route and partition, and each record is also in the table of its
route, once. A file that compaction has written is sorted.
"""

from __future__ import annotations

from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.units import Unit, each_unit
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.routes import parsed_route, route_of
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from tests.chaos.stream import KEY, KINDS, TABLE
from tests.ledger_output import ledger_records


class Proof:
    """Checks the output as it grows; records that were verified are read again only at the end."""

    def __init__(self, store: LeaseStore, output: Output) -> None:
        self._store = store
        self._root = output
        self._output = output_place(output)
        self._checked: dict[ShardId, int] = {}

    @property
    def records(self) -> int:
        """The number of records that are there once, in their place."""
        return sum(self._checked.values())

    def violations(self) -> list[str]:
        """Return the current violations: of the whole ledger, and of the files since the
        last call.
        """
        sentences = [str(violation) for violation in verify(self._store, KEY)]
        by_shard: dict[ShardId, list[Batch]] = {}
        for batch in sorted(self._store.batches(KEY), key=lambda batch: batch.sequence):
            by_shard.setdefault(batch.shard, []).append(batch)
        for shard, batches in by_shard.items():
            for unit in each_unit(batches):
                at, end = self._checked.get(shard, 0), int(unit[-1].end)
                if end > at:
                    sentences += self._check(unit, at)
                    self._checked[shard] = end
        return sentences

    def _check(self, unit: Unit, at: int) -> list[str]:
        texts: list[str] = []
        sentences: list[str] = []
        shard, start, end = unit[0].shard, int(unit[0].start), int(unit[-1].end)
        for file in (file for batch in unit for file in batch.files):
            with (self._output / file.path).parquet() as parquet:
                rows = parquet.read(["text", "n", "part", "kind"]).to_pydict()
            texts += rows["text"]
            numbers, parts = rows["n"], {*rows["part"]}
            if parts != {dict(file.partition).get("part")}:
                sentences.append(f"{file.path} has records of {parts}, not of {file.partition}")
            if {*map(parsed_route, rows["kind"])} != {route_of(file.path)}:
                sentences.append(f"{file.path} has records of {set(rows['kind'])}")
            if file.sorted_by and numbers != sorted(numbers, reverse=True):
                sentences.append(f"{file.path} is not sorted by {file.sorted_by}")
        if start > at or in_order(texts) != expected(shard, start, end):
            name = unit[0].batch_id
            sentences.append(f"batch {name} [{start}, {end}) after {at}: {texts[:3]} …")
        return sentences

    def violations_at_the_end(self, written: dict[ShardId, int]) -> list[str]:
        """Compare all output once more, as a reader sees it, with all that was written."""
        sentences = self.violations()
        for shard, count in written.items():
            texts = [
                text
                for part in ledger_records(self._store, KEY, self._output, shard)
                for text in part.column("text").to_pylist()
            ]
            if in_order(texts) != expected(shard, 0, count):
                sentences.append(f"shard {shard} has {len(texts)} of {count} records, or others")
        return sentences + self._violations_in_routes(written)

    def _violations_in_routes(self, written: dict[ShardId, int]) -> list[str]:
        """Compare the table of each route with all that was written for it."""
        output = CommittedOutput(self._store, KEY, self._root, TABLE)
        sentences: list[str] = []
        for place, kind in enumerate(KINDS):
            if not (route := parsed_route(kind)):
                continue
            rows = output.dataset(route=route, wait=True).to_table(columns=["text"])
            target = [
                text
                for shard, count in written.items()
                for text in expected(shard, 0, count)[place :: len(KINDS)]
            ]
            if sorted(rows["text"].to_pylist()) != sorted(target):
                sentences.append(f"route {route} has {rows.num_rows} of {len(target)} records")
        return sentences


def in_order(texts: list[str]) -> list[str]:
    """Return the texts of records in the order of the log, which partitions do not keep."""
    return sorted(texts, key=lambda text: int(text.rpartition(":")[2]))


def expected(shard: ShardId, start: int, end: int) -> list[str]:
    return [f"{shard}:{number}" for number in range(start, end)]
