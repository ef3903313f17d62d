"""Sweeps on the embedded Spark Connect server."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.errors import SweepInterrupted
from dagster_leasehold.assets.guarding.run_on_spark import run_tag
from dagster_leasehold.assets.spark.spark_session import tasks_at_once
from tests.integration.assets.arrow_sweeping import CASES, ArrowSweeping
from tests.integration.assets.runs import PROJECT, consume, store_of, stream_of
from tests.integration.assets.sweeping import Sweeping

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, connect_session: Any, tmp_path: Path) -> None:
    getattr(ArrowSweeping(connect_session, tmp_path), case)()


def test_a_later_sweep_sends_only_its_job_to_the_server(
    connect_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further question costs a small commit some milliseconds of CPU time."""
    sweeping = Sweeping(connect_session, tmp_path)

    def sweep() -> None:
        assert tasks_at_once(connect_session) > 0
        sweeping.run(None)

    sweep()
    asked: list[str] = []
    for name in ("_analyze", "config"):
        monkeypatch.setattr(connect_session.client, name, lambda *_, n=name, **__: asked.append(n))
    sweep()
    assert asked == []


def test_code_that_no_worker_can_import_is_sent(
    connect_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a warm server runs today's code. Method: a module that appears and is then edited."""
    sweeping = Sweeping(connect_session, tmp_path)
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    text = (
        "from pyspark.sql import functions\n"
        "def mark(value):\n    return 'VERSION'\n"
        "def transform(rows):\n"
        "    return rows.withColumn('mark', functions.udf(mark, 'string')('value'))\n"
        "def of_tables(table):\n"
        "    return table.append_column('mark', [[mark(each) for each in table['value']]])\n"
    )
    for version in ("one", "two!"):
        (folder / "users_transform.py").write_text(text.replace("VERSION", version))
        importlib.invalidate_caches()
        sys.modules.pop("users_transform", None)
        module = importlib.import_module("users_transform")
        for transform in (module.transform, arrow_transform(module.of_tables)):
            [outcome] = sweeping.run(transform, sweeping.ranges("1")).values()
            assert set(sweeping.table(outcome).column("mark").to_pylist()) == {version}


def test_an_interrupted_run_releases_its_shards_and_ends_its_job(
    home: Path, spark_folder: Path, connect_session: Any
) -> None:
    """Goal: SIGINT, as Dagster and a terminal send it, in the middle of a slow job."""
    run = subprocess.Popen(
        [sys.executable, "-m", __name__, str(home), str(spark_folder)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    try:
        assert run.stdout.readline() == "sweeping\n"
        deadline = time.monotonic() + 60
        while not list((home / "output").rglob("*.running")):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) != 0
    finally:
        run.kill()
        run.wait()
        run.stdout.close()
    store, stream = store_of(home), stream_of(home)
    assert {lease.consumer_run for lease in store.snapshot(stream.key).shards} == {""}
    assert store.batches(stream.key) == []
    # Nothing that carries the run's tag is left to interrupt.
    assert connect_session.interruptTag(run_tag("run-1")) == []


def slow(rows: Any) -> Any:
    from pyspark.sql import functions

    @functions.udf("string")
    def wait(value: bytes) -> str:
        time.sleep(0.5)
        return ""

    return rows.withColumn("slow", wait("value"))


def slow_tables(records: pa.Table) -> pa.Table:
    time.sleep(0.5 * records.num_rows)
    return records


@pytest.mark.parametrize("transform", [slow, arrow_transform(slow_tables)], ids=["frames", "arrow"])
def test_a_lost_lease_interrupts_the_job(
    transform: Any, connect_session: Any, tmp_path: Path
) -> None:
    """Goal: a stale run must not burn cores. Method: half a second a record, stopped after one."""
    sweeping = Sweeping(connect_session, tmp_path)
    must_stop = threading.Event()
    timer = threading.Timer(1.0, must_stop.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(SweepInterrupted, match="interrupted"):
        sweeping.run(transform, must_stop=must_stop.is_set)
    assert time.monotonic() - began < 30, "all records would take minutes"
    assert connect_session.getTags() == set()
    sweeping.check_records_come_out_as_they_went_in()


def main(home: Path, spark_folder: Path) -> None:
    """A run whose records take half a second each, after telling that it has begun."""
    from pyspark.sql import functions

    marks = home / "output"
    marks.mkdir()

    def slowly(rows: Any) -> Any:
        def wait(value: bytes) -> str:
            (marks / f"{value.hex()}.running").touch()
            time.sleep(0.5)
            return ""

        return rows.withColumn("slow", functions.udf(wait, "string")("value"))

    print("sweeping", flush=True)  # noqa: T201
    consume(home, spark_folder, "run-1", transform=slowly)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
