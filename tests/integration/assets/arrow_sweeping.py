"""The cases of sweeps with transforms of Arrow tables, beside those of DataFrames."""

from __future__ import annotations

import os
import threading
from typing import Any

import pyarrow as pa

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange
from tests.integration.assets.sweeping import AWKWARD, Sweeping


class ArrowSweeping(Sweeping):
    """The same log and sweeps, with more cases."""

    def check_an_arrow_transform_is_applied(self) -> None:
        def sized(table: pa.Table) -> pa.Table:
            sizes = [len(value) for value in table.column("value").to_pylist()]
            return table.append_column("size", pa.array(sizes, pa.int64())).slice(1)

        results = self.run(arrow_transform(sized))
        for shard, outcome in results.items():
            assert isinstance(outcome, SweepOutcome), outcome
            table = self.table(outcome)
            assert table.column("size").to_pylist()[:3] == [1, 3, 10]
            assert set(table.column("shard_id").to_pylist()) == {shard}
            assert outcome.statistics.records == len(AWKWARD) + self.records
            assert outcome.statistics.written == table.num_rows == outcome.statistics.records - 1
            [file] = outcome.files
            assert file.first_event_time == min(table.column("event_time").to_pylist())

    def check_an_arrow_filter_to_nothing_leaves_nothing(self) -> None:
        results = self.run(arrow_transform(lambda table: table.slice(0, 0)))
        assert all(result.files == () for result in results.values())
        assert {result.statistics.records for result in results.values()} == {
            len(AWKWARD) + self.records
        }
        assert [*(self.output / "attempts").iterdir()] == []

    def check_an_arrow_transform_quarantines(self) -> None:
        def odd_ones(table: pa.Table) -> pa.Table:
            values = table.column("value").to_pylist()
            errors = ["odd" if value[-1:] in b"13579" and value else None for value in values]
            return table.append_column("quarantine_error", pa.array(errors, pa.string()))

        [outcome] = self.run(arrow_transform(odd_ones), self.ranges("1")).values()
        assert isinstance(outcome, SweepOutcome), outcome
        odd = self.records // 2
        assert outcome.statistics.quarantined == odd
        assert outcome.statistics.written == len(AWKWARD) + self.records - odd
        assert "quarantine_error" not in self.table(outcome).column_names
        bad = self.table(outcome, quarantine=True)
        assert bad.column_names == ["shard_id", "cursor", "event_time", "key", "value", "error"]
        assert bad.column("error").to_pylist() == ["odd"] * odd
        cursors = [int(cursor) for cursor in bad.column("cursor").to_pylist()]
        assert cursors == sorted(cursors)

    def check_wrong_arrow_transforms_are_one_sentence(self) -> None:
        def dropped(table: pa.Table) -> pa.Table:
            return table.drop_columns(["shard_id"])

        def of_others(table: pa.Table) -> pa.Table:
            return table.set_column(0, "shard_id", pa.array(["9"] * table.num_rows))

        def unwritable(table: pa.Table) -> pa.Table:
            runs = pa.RunEndEncodedArray.from_arrays([table.num_rows], [1])
            return table.append_column("runs", runs)

        cases: dict[str, Any] = {
            "ZeroDivisionError: division by zero": lambda table: 1 / 0,
            "returned NoneType": lambda table: None,
            "dropped or changed the column shard_id": dropped,
            "changed values of the column shard_id": of_others,
            "which a table cannot have: return another type": unwritable,
        }
        for message, function in cases.items():
            results = self.run(arrow_transform(function), self.ranges("0", "1"))
            assert set(results) == {"0", "1"}
            for error in results.values():
                assert isinstance(error, TransformError), error
                assert message in str(error), error
                assert "\n" not in str(error)
            assert [*(self.output / "attempts").iterdir()] == []

    def check_a_transform_that_cannot_travel_is_refused(self) -> None:
        lock = threading.Lock()
        results = self.run(arrow_transform(lambda table: (lock.locked(), table)[1]))
        for error in results.values():
            assert isinstance(error, TransformError)
            assert "cannot be sent to Spark (TypeError: cannot pickle" in str(error)

    def check_one_poison_shard_of_an_arrow_transform_stops_alone(self) -> None:
        """Goal: its neighbours in the same task go through, in the same job."""

        def poison(table: pa.Table) -> pa.Table:
            if table.column("shard_id")[0].as_py() == "2":
                raise ValueError("cannot do shard 2")
            return table

        results = self.run(arrow_transform(poison))
        error = results.pop(ShardId("2"))
        assert isinstance(error, TransformError)
        assert "raised ValueError: cannot do shard 2, for the record at cursor" in str(error)
        for outcome in results.values():
            assert self.table(outcome).num_rows == len(AWKWARD) + self.records
        assert len({outcome.attempt for outcome in results.values()}) == 1, "nothing is repeated"

    def check_a_transform_that_ends_its_worker_stops_alone(self) -> None:
        def deadly(table: pa.Table) -> pa.Table:
            if table.column("shard_id")[0].as_py() == "2":
                os._exit(3)
            return table

        results = self.run(arrow_transform(deadly))
        assert isinstance(results.pop(ShardId("2")), TransformError)
        for outcome in results.values():
            assert isinstance(outcome, SweepOutcome), outcome
            assert self.table(outcome).num_rows == len(AWKWARD) + self.records

    def check_a_long_range_is_made_in_parts_side_by_side(self) -> None:
        """Goal: the files of one batch, read as they are listed, hold its records in order."""
        shard, values = ShardId("3"), [b"%d" % number for number in range(200_000)]
        begin = int(self.log.bounds([shard])[shard].end)
        self.log.append(shard, values)
        range_ = ReadRange(shard, str(begin), str(begin + len(values)), len(values))
        results = self.run(None, [*self.ranges("0"), range_])
        outcome = results[shard]
        assert isinstance(outcome, SweepOutcome), outcome
        assert len(outcome.files) == 4
        table = self.table(outcome)
        assert table.column("value").to_pylist() == values
        assert table.column("cursor")[0].as_py() == range_.start
        assert outcome.statistics.records == outcome.statistics.written == len(values)
        assert outcome.statistics.bytes == sum(map(len, values))
        assert len(results[ShardId("0")].files) == 1

        def odd(rows: pa.Table) -> pa.Table:
            if any(value == b"123456" for value in rows.column("value").to_pylist()):
                raise ValueError("cannot do this")
            return rows

        results = self.run(arrow_transform(odd), [*self.ranges("0"), range_])
        assert isinstance(results[shard], TransformError), "one part fails its batch"
        attempt = self.output / results[ShardId("0")].attempt
        assert len([*attempt.iterdir()]) == 1, "the other parts are not left behind"

    def check_an_empty_range_is_an_outcome_without_files(self) -> None:
        [outcome] = self.run(None, [ReadRange(ShardId("0"), "5", "5", 0)]).values()
        assert isinstance(outcome, SweepOutcome), outcome
        assert (outcome.files, outcome.statistics.records) == ((), 0)


CASES = [name for name in dir(ArrowSweeping) if name.startswith("check_")]
