"""Cases of sweeps for every kind of Spark session, called by the tests of each kind."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.consuming.spark_sweeper import run_sweep
from dagster_leasehold.assets.consuming.spark_work import SweepJob
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.guarding.job_watch import JobWatch
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import UnknownShard
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange
from tests.integration.assets.runs import WAYS

AWKWARD = [b"", b"\r", b"\x00\xff\xfe", "naïve ☃".encode(), b"a,b\tc", b"x" * 100_000]


class Sweeping:
    """A log of four shards and sweeps over it."""

    def __init__(
        self, spark: Any, folder: Path, records: int = 100, place: OutputPlace | None = None
    ) -> None:
        self.spark = spark
        self.log = LocalLog.create(folder / "log", 4)
        self.output = folder / "output"
        self.place = place or local_place(self.output)
        self.records = records
        for listing in self.log.list_shards():
            lines = [b"%s:%d" % (listing.shard.encode(), n) for n in range(records)]
            self.log.append(listing.shard, [*AWKWARD, *lines])

    def ranges(self, *shards: str) -> list[ReadRange]:
        count = len(AWKWARD) + self.records
        wanted = shards or [listing.shard for listing in self.log.list_shards()]
        return [ReadRange(ShardId(shard), "0", str(count), count) for shard in wanted]

    def run(
        self,
        transform: Any = None,
        ranges: list[ReadRange] | None = None,
        must_stop: Callable[[], bool] = lambda: False,
    ) -> dict[ShardId, Any]:
        job = SweepJob(
            stream=StreamName("orders"),
            source_options=self.log.spark_options(),
            transform=transform,
            output_root=self.place,
            new_attempt=lambda: uuid.uuid4().hex,
            watch=JobWatch(tag="leasehold-test", work="stream orders", must_stop=must_stop),
            tasks_max=4,
            divide=self.log.divide,
        )
        wanted = self.ranges() if ranges is None else ranges
        return run_sweep(self.spark, job, wanted, {each.shard: range(1) for each in wanted})

    def table(self, outcome: SweepOutcome, *, quarantine: bool = False) -> pa.Table:
        files = [file for file in outcome.files if file.quarantine == quarantine]
        return pa.concat_tables([self._read(file.path) for file in files])

    def _read(self, path: str) -> pa.Table:
        with (self.place / path).parquet() as file:
            return file.read()

    # -- cases ----------------------------------------------------------------------------------

    def check_records_come_out_as_they_went_in(self) -> None:
        for transform in WAYS.values():
            self._check_records_come_out_as_they_went_in(transform)

    def _check_records_come_out_as_they_went_in(self, transform: Any) -> None:
        results = self.run(transform)
        assert set(results) == {"0", "1", "2", "3"}
        for shard, outcome in results.items():
            assert isinstance(outcome, SweepOutcome)
            assert len(outcome.files) == 1
            table = self.table(outcome)
            lines = [b"%s:%d" % (shard.encode(), n) for n in range(self.records)]
            values = [*AWKWARD, *lines]
            assert table.column("value").to_pylist() == values
            assert table.column("cursor").to_pylist() == [str(n) for n in range(len(values))]
            source = self.log.read(self.ranges(shard)[0])
            assert table.equals(pa.Table.from_batches(source).cast(table.schema))
            assert outcome.files[0].first_event_time == outcome.statistics.first_event_time
            assert outcome.files[0].last_event_time == outcome.statistics.last_event_time
            statistics = outcome.statistics
            assert (statistics.records, statistics.written) == (len(values), len(values))
            assert statistics.bytes == sum(map(len, values))
            times = table.column("event_time").to_pylist()
            assert statistics.first_event_time == min(times)
            assert statistics.last_event_time == max(times)
        attempt = next(iter(results.values())).attempt
        left = {entry.path.rpartition(".")[2] for entry in self.place.entries(attempt)}
        assert left == {"parquet"}, "no report is left"

    def check_a_transform_is_applied(self) -> None:
        from pyspark.sql import functions

        results = self.run(lambda rows: rows.withColumn("size", functions.length("value")))
        table = self.table(results[ShardId("2")])
        assert table.column("size").to_pylist()[:3] == [0, 1, 3]

    def check_a_limit_moves_nothing(self) -> None:
        """Goal: rows that a transform removes move no cursor; only the statistics can be
        unknown.
        """
        results = self.run(lambda rows: rows.limit(1))
        assert all(isinstance(result, SweepOutcome) for result in results.values())
        assert sum(result.statistics.written for result in results.values()) == 1
        # Whether the reader was stopped or had handed all to Spark already is a matter of time.
        all_ = len(AWKWARD) + self.records
        assert {result.statistics.records for result in results.values()} <= {None, all_}

    def check_a_filter_to_nothing_leaves_nothing(self) -> None:
        results = self.run(lambda rows: rows.where("length(value) < 0"))
        assert all(result.files == () for result in results.values())
        assert {result.statistics.records for result in results.values()} == {
            len(AWKWARD) + self.records
        }

    def check_a_shuffle_keeps_shards_apart(self) -> None:
        results = self.run(lambda rows: rows.repartition(3))
        for shard, outcome in results.items():
            table = self.table(outcome)
            assert set(table.column("shard_id").to_pylist()) == {shard}
            assert table.num_rows == len(AWKWARD) + self.records

    def check_a_plan_that_reads_twice_counts_once(self) -> None:
        """Goal: Spark keeps one of two observations; no error may get lost with the other."""
        gone = ReadRange(ShardId("9"), "0", "5", 5)
        results = self.run(lambda rows: rows.unionAll(rows), [*self.ranges("0", "1"), gone])
        assert isinstance(results.pop(ShardId("9")), UnknownShard)
        all_ = len(AWKWARD) + self.records
        for outcome in results.values():
            assert (outcome.statistics.records, outcome.statistics.written) == (all_, 2 * all_)

    def check_parsing_quarantines(self) -> None:
        """Goal: one function parses for both ways, with one result."""
        from dagster_leasehold.assets.parsing import parse_json

        shard = ShardId("0")
        begin = int(self.log.bounds([shard])[shard].end)
        good = b'{"id": 7, "name": "x"}'
        self.log.append(shard, [good, b"{broken", b"[1]", b'{"id": "seven"}', b"{}"])
        ranges = [ReadRange(shard, str(begin), str(begin + 5), 5)]

        def parsed(records: Any) -> Any:
            return parse_json(records, "id INT, name STRING")

        for transform in (parsed, arrow_transform(parsed)):
            [outcome] = self.run(transform, ranges).values()
            assert isinstance(outcome, SweepOutcome), outcome
            assert (outcome.statistics.written, outcome.statistics.quarantined) == (2, 3)
            rows = self.table(outcome).to_pylist()
            assert [(row["id"], row["name"], row["value"]) for row in rows] == [
                (7, "x", good),
                (None, None, b"{}"),
            ]
            bad = self.table(outcome, quarantine=True).to_pylist()
            assert [row["value"] for row in bad] == [b"{broken", b"[1]", b'{"id": "seven"}']
            assert [row["cursor"] for row in bad] == [str(begin + n) for n in (1, 2, 3)]
            assert all("JSON" in row["error"] for row in bad)

    def check_wrong_transforms_are_one_sentence(self) -> None:
        cases: dict[str, Any] = {
            "ZeroDivisionError: division by zero": lambda rows: 1 / 0,
            "returned NoneType": lambda rows: None,
            "dropped or changed the column shard_id": lambda rows: rows.drop("shard_id"),
            "AnalysisException": lambda rows: rows.select("nope"),
            "keep these columns": lambda rows: rows.selectExpr(
                "shard_id", "'x' AS quarantine_error"
            ),
            "not a shard of its input": lambda rows: rows.selectExpr("'9' AS shard_id"),
        }
        for message, transform in cases.items():
            results = self.run(transform, self.ranges("0", "1"))
            assert set(results) == {"0", "1"}
            for error in results.values():
                assert isinstance(error, TransformError), message
                assert message in str(error)
                assert "\n" not in str(error)

    def check_one_poison_shard_stops_alone(self) -> None:
        """Method: a Python function of the user's that raises on one shard's records."""
        from pyspark.sql import functions

        def poison(rows: Any) -> Any:
            @functions.udf("string")
            def check(shard: str) -> str:
                if shard == "2":
                    raise ValueError("cannot do shard 2")
                return shard

            return rows.withColumn("checked", check("shard_id"))

        results = self.run(poison)
        error = results.pop(ShardId("2"))
        assert isinstance(error, TransformError)
        reason = (
            "shard 2 of stream orders, between cursors .+ and .+, failed with ValueError: cannot"
        )
        assert re.search(reason, str(error))
        for outcome in results.values():
            assert self.table(outcome).num_rows == len(AWKWARD) + self.records

    def check_a_source_error_names_its_shard(self) -> None:
        gone = ReadRange(ShardId("9"), "0", "5", 5)
        for transform in WAYS.values():
            results = self.run(transform, [*self.ranges("0", "1"), gone])
            assert isinstance(results[ShardId("9")], UnknownShard)
            assert isinstance(results[ShardId("0")], SweepOutcome)
            assert isinstance(results[ShardId("1")], SweepOutcome)
