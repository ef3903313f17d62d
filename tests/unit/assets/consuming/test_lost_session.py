"""A sweep whose Spark session is gone: once more in a new one, or one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from dagster_leasehold.assets.consuming import spark_sweeper
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.consuming.spark_work import SweepJob, failed_job, unavailable
from dagster_leasehold.assets.errors import SessionLost, SparkUnavailable, SweepInterrupted
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import ReadRange

CLOSED = RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] The session was closed.")
SHARD = ShardId("0")
NUMBERS = {SHARD: range(1)}


class Spark:
    """Sessions by name; those in `gone` fail every sweep."""

    def __init__(self, gone: set[str]) -> None:
        self.gone = gone
        self.current = "first"
        self.renewals: list[str] = []
        self.swept: list[str] = []

    def session(self) -> Any:
        return self.current

    def renewed(self) -> Any:
        self.renewals.append(self.current)
        self.current = f"after {self.current}"
        return self.current

    def attempt(self, session: str, job: SweepJob, *_: object) -> dict[ShardId, Any]:
        self.swept.append(session)
        if session in self.gone:
            raise failed_job(CLOSED, job, [ReadRange(SHARD, "0", "1")])
        return {SHARD: session}


def sweeper_of(spark: Spark, tmp_path: Path, **named: Any) -> SparkSweeper:
    return SparkSweeper(
        stream=ShardStream(name="orders", source=LocalLog.create(tmp_path / "log", 1)),
        spark=RunOnSpark(session=spark.session, run="run-1", work="stream orders", **named),
        output_root=local_place(tmp_path / "output"),
    )


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    spark = Spark({"first"})
    monkeypatch.setattr(spark_sweeper, "attempt_ranges", spark.attempt)
    return spark


def test_a_sweep_with_a_lost_session_is_repeated_in_a_new_one(spark: Spark, tmp_path: Path) -> None:
    sweeper = sweeper_of(spark, tmp_path, renewed=spark.renewed)
    for _ in range(2):
        assert sweeper([ReadRange(SHARD, "0", "1")], NUMBERS) == {SHARD: "after first"}
    assert spark.swept == ["first", "after first", "after first"]
    assert spark.renewals == ["first"]


def test_a_sweep_is_repeated_once_and_then_fails_with_one_sentence(
    spark: Spark, tmp_path: Path
) -> None:
    spark.gone.add("after first")
    sweeper = sweeper_of(spark, tmp_path, renewed=spark.renewed)
    with pytest.raises(SessionLost, match=r"The next run continues where this run stopped\.$"):
        sweeper([ReadRange(SHARD, "0", "1")], NUMBERS)
    assert spark.swept == ["first", "after first"]


def test_a_session_in_its_own_driver_is_not_renewed(spark: Spark, tmp_path: Path) -> None:
    with pytest.raises(SessionLost):
        sweeper_of(spark, tmp_path)([ReadRange(SHARD, "0", "1")], NUMBERS)
    assert spark.swept == ["first"]


def test_a_run_that_has_to_end_opens_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a call that was given up starts no server again when its own was ended."""
    spark = Spark({"first"})

    class Session:
        def addTag(self, tag: str) -> None:  # noqa: N802  # as Spark has it
            raise CLOSED

    monkeypatch.setattr(spark, "session", lambda: cast(Any, Session()))
    sweeper = sweeper_of(spark, tmp_path, renewed=spark.renewed, must_stop=lambda: True)
    with pytest.raises(SweepInterrupted):
        sweeper([ReadRange(SHARD, "0", "1")], NUMBERS)
    assert spark.renewals == []


def test_a_spark_that_answers_wrongly_is_no_lost_session() -> None:
    assert type(unavailable(CLOSED)) is SessionLost
    assert type(unavailable(RuntimeError("[UNRESOLVED_COLUMN] nope"))) is SparkUnavailable
