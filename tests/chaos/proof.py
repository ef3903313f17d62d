"""The proof after every incident: the journal and the ledger, and each record once."""

from __future__ import annotations

from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from tests.chaos.stream import KEY
from tests.ledger_output import ledger_records


class Proof:
    """Checks the output as it grows; records that were verified are read again only at the end."""

    def __init__(self, store: LeaseStore, output: Output) -> None:
        self._store = store
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
        for batch in sorted(self._store.batches(KEY), key=lambda batch: batch.sequence):
            at = self._checked.get(batch.shard, 0)
            if int(batch.end) > at:
                sentences += self._check(batch, at)
                self._checked[batch.shard] = int(batch.end)
        return sentences

    def _check(self, batch: Batch, at: int) -> list[str]:
        values: list[bytes] = []
        for file in batch.files:
            with (self._output / file.path).parquet() as parquet:
                values += parquet.read(["value"]).column("value").to_pylist()
        if int(batch.start) == at and values == expected(batch.shard, at, int(batch.end)):
            return []
        return [f"batch {batch.batch_id} [{batch.start}, {batch.end}) after {at}: {values[:3]} …"]

    def violations_at_the_end(self, written: dict[ShardId, int]) -> list[str]:
        """Compare all output once more, as a reader sees it, with all that was written."""
        sentences = self.violations()
        for shard, count in written.items():
            values = [
                value
                for part in ledger_records(self._store, KEY, self._output, shard)
                for value in part.column("value").to_pylist()
            ]
            if values != expected(shard, 0, count):
                sentences.append(f"shard {shard} has {len(values)} of {count} records, or others")
        return sentences


def expected(shard: ShardId, start: int, end: int) -> list[bytes]:
    return [b"%s:%d" % (shard.encode(), number) for number in range(start, end)]
