"""Starts the embedded Spark server in the background, so that the first run does not wait.

As a program (`python -m` this module, with a folder and the user's Spark configuration as JSON), it
starts the server of that folder and runs a small job.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dagster_leasehold.assets.spark.connect_watch import register_keeper
from dagster_leasehold.assets.spark.spark_settings import CONNECT
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess, RestartWaits
from dagster_leasehold.shard_sources.source import ReadRange

START_TIMEOUT_S = 150.0
LOG_FILE = "warm-up.log"
WAIT_FIRST_S = 2.0
WAIT_MAX_S = 60.0


class SparkKeeper:
    """Starts the embedded Spark server of a folder before the first run.

    It starts the server once. If the server ends later, the next run starts it under the same lock.
    With another Spark in the settings, it does nothing.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str], clock: Clock) -> None:
        self._folder = settings.spark_folder
        self._environment = dict(environment)
        self._clock = clock
        self._conf = settings.spark.whole_conf
        self._active = settings.spark.engine == CONNECT
        self._warm = False
        self._start: ChildProcess | None = None
        self._started_at = 0.0
        self._begin_at = clock()
        self._waits = RestartWaits(WAIT_FIRST_S, WAIT_MAX_S)
        if self._active:
            register_keeper(self._folder)

    @property
    def cold(self) -> bool:
        """True until the first job has ended; a server that is already running is warm."""
        return self._active and not self._warm

    def check(self) -> None:
        """Start the server, or retry a failed start; to be called about once a second."""
        if not self._active or self._warm:
            return
        now = self._clock()
        if self._start is not None:
            self._end_start(now)
            return
        from dagster_leasehold.assets.spark.connect_server import running

        if running(self._folder) is not None:
            self._warm = True
            return
        if now < self._begin_at:
            return
        self._start = _start_in(self._folder, self._environment, self._conf).__enter__()
        self._started_at = now

    def _end_start(self, now: float) -> None:
        assert self._start is not None
        code = self._start.exit_code()
        if code is None and now - self._started_at < START_TIMEOUT_S:
            return
        reason = self._start.last_line() if code else f"no answer within {START_TIMEOUT_S:.0f} s."
        self._start.stop()
        self._start = None
        self._begin_at = now + self._waits.next_s()
        self._warm = code == 0
        say(f"Spark did not start: {reason}" if code != 0 else "Spark is warm.")

    def stop(self) -> None:
        """Stop the server."""
        from dagster_leasehold.assets.spark.connect_server import stop

        if self._start is not None:
            self._start.stop()
        if self._active:
            stop(self._folder)
        self._start = None


def _start_in(
    folder: Path, environment: Mapping[str, str], conf: Mapping[str, str]
) -> ChildProcess:
    """Return the process that starts the server of a folder.

    A Spark client in this process would outlive the server, and try to reach it for minutes when
    the process ends.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return ChildProcess(
        "the start of Spark",
        [sys.executable, "-m", __name__, str(folder), json.dumps(dict(conf))],
        log=folder / LOG_FILE,
        environment=environment,
    )


def run_first_job(address: str, folder: Path) -> int:
    """Consume one record in the Spark session that all runs share, and delete the output.

    It is the job of a run without a transform, because each part of that job is slow the
    first time: planning in Python, forking workers, importing the modules that read and write. It
    does not load the parts of Spark that only transforms of DataFrames need.
    """
    from pyspark.sql import SparkSession

    from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
    from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
    from dagster_leasehold.assets.places.local_place import local_place
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.assets.spark.spark_session import configure_session
    from dagster_leasehold.shard_sources.local_log import LocalLog

    spark = SparkSession.builder.remote(address).getOrCreate()
    configure_session(spark)
    with tempfile.TemporaryDirectory(prefix="warm-up-", dir=folder) as scratch:
        log = LocalLog.create(Path(scratch) / "log", 1)
        [shard] = [row.shard for row in log.list_shards()]
        log.append(shard, [b"warm"])
        sweep = SparkSweeper(
            stream=ShardStream("warm-up", log),
            spark=RunOnSpark(session=lambda: spark, run="warm-up", work="the warm-up"),
            output_root=local_place(Path(scratch) / "output"),
        )
        bounds = log.bounds([shard])[shard]
        range_ = ReadRange(shard, bounds.begin, bounds.end)
        result = sweep([range_], {shard: range(1)})[shard]
    if isinstance(result, LeaseholdError):
        raise result
    return result.statistics.written


def warm_up(folder: Path, conf: Mapping[str, str]) -> None:
    """Start the server of a folder if none is running, and run a first job on it."""
    from dagster_leasehold.assets.spark.spark_session import connect_address

    address = connect_address(folder, conf)
    # Only the start must succeed: if the job fails, the first run has a better error message.
    with suppress(Exception):
        run_first_job(address, folder)


if __name__ == "__main__":
    try:
        warm_up(Path(sys.argv[1]), json.loads(sys.argv[2]))
    except LeaseholdError as mistake:
        sys.stderr.write(f"{mistake}\n")
        sys.exit(2)
    # Exit without the client's cleanup, which would close the session that all runs share.
    os._exit(0)
