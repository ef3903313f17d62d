"""The demo's course: load, start Dagster, split and merge while it consumes, stop, prove, query."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.spark.spark_settings import SparkSettings
from dagster_leasehold.orchestration.declared_streams import stream_of
from dagster_leasehold.orchestration.demo import report
from dagster_leasehold.orchestration.demo.home import begin_home, demo_settings
from dagster_leasehold.orchestration.demo.input import DemoInput, Loader
from dagster_leasehold.orchestration.demo.query import publish_rest, query_table
from dagster_leasehold.orchestration.demo.watch import StageDisplay, Watch
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.dagster_processes import (
    child_environment,
    count_runs,
    daemon,
    materialize_lease_table,
)
from dagster_leasehold.orchestration.supervision.leftovers import running_alone
from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkWarmUp
from dagster_leasehold.shard_sources.local_log.lines import check_readable

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.roles.groups import Groups
    from dagster_leasehold.lease_store.store import LeaseStore
    from dagster_leasehold.shard_sources.local_log import LocalLog

SHARDS = 8
FIRST_PART = 0.6
"""The share of the input that is loaded before the start; the rest follows the split and merge."""


def run_demo(home: Path, spark: SparkSettings, source: DemoInput, timeout_s: float) -> bool:
    """Run the demo in `home` from beginning to end; return True if its proof holds.

    Raises:
        UserMistake: the home or the input cannot be used; nothing was changed.
        DemoFailed: it did not come to its end within `timeout_s` seconds.
    """
    check_readable(source.files)
    settings = demo_settings(home, spark)
    with running_alone(settings.home):
        begin_home(settings)
        return Demo(settings, source, timeout_s).run()


class Demo:
    """One demo in a home of its own.

    Args:
        settings: of the demo's home.
        source: its input.
        timeout_s: the longest time until everything is consumed, in seconds.
    """

    def __init__(self, settings: Settings, source: DemoInput, timeout_s: float) -> None:
        self._settings = settings
        self._source = source
        self._timeout_s = timeout_s
        self._environment = child_environment(settings, os.environ, settings_of_home_only=True)
        self._times: dict[str, float] = {}

    def run(self) -> bool:
        """Run the demo to its end, leaving no process; return True if the proof holds.

        Raises:
            DemoFailed: it did not come to its end.
        """
        from dagster_leasehold.lease_store import open_store

        settings = self._settings
        store = open_store(settings.store_url)
        stream = stream_of(settings.streams[0], settings)
        expected = self._source.count
        begin = time.monotonic()
        with StageDisplay(time.monotonic, expected) as display, ExitStack() as ending:
            spark = ending.enter_context(SparkWarmUp(settings, self._environment))
            loader = self._consume(expected, store, stream, spark, display)
            with self._timed("stop"):
                ending.close()
        with self._timed("publication"):
            publish_rest(settings, stream)
        with self._timed("proof"):
            proven = self._prove(store, stream, loader)
        with self._timed("query"):
            proven = query_table(store, settings, stream, loader.digest.records) and proven
        with self._timed("lease table"):
            # The UI opens with the table and its pictures in place.
            proven = materialize_lease_table(settings, stream) and proven
        report.show_runs(
            count_runs(settings, "SUCCESS"), count_runs(settings, "FAILURE"), settings.dagster_home
        )
        report.show_times(self._times, time.monotonic() - begin)
        say(
            f"To print its records: leasehold cat {stream.name} --home {settings.home}\n"
            f"To see its runs and shards in a browser: leasehold dev --home {settings.home}"
        )
        return proven

    def _consume(
        self,
        expected: int,
        store: Groups,
        stream: ShardStream,
        spark: SparkWarmUp,
        display: StageDisplay,
    ) -> Loader:
        from dagster_leasehold.orchestration.instance import create_instance
        from dagster_leasehold.shard_sources.local_log import LocalLog

        settings = self._settings
        with self._timed("set-up"):
            log = LocalLog.create(settings.log_folder(stream.key.stream), SHARDS)
            create_instance(settings)
        display.stage(f"starting Dagster and Spark with {' and '.join(settings.nodes)}")
        # Where the home is also the working directory, no other settings file is in reach.
        with daemon(settings, self._environment, folder=settings.home) as dagster:
            watch = Watch(settings, store, stream, dagster, spark, display, self._timeout_s)
            with self._timed("start to first commit"):
                loader = self._source.loader(log)
                loaded = loader.load(round(expected * FIRST_PART))
                display.stage(f"loaded {loaded:,} of {expected:,} records into {SHARDS} shards")
                watch.until(lambda now: now.consumed > 0 or (loaded == 0 and now.owned))
            with self._timed("consumption"):
                display.stage(reshard(log))
                loader.load(expected)
                watch.until(lambda now: now.complete)
            with self._timed("last runs"):
                watch.drain()
            display.stage("everything is consumed; stopping Dagster and Spark")
        return loader

    def _prove(self, store: LeaseStore, stream: ShardStream, loader: Loader) -> bool:
        from dagster_leasehold.lease_store.rules.verification import verify

        report.show_shards(store, stream.key, stream.source)
        committed = report.committed_digest(store, stream, self._settings)
        violations = [str(violation) for violation in verify(store, stream.key)]
        return report.show_proof(loader.digest, committed, violations)

    @contextmanager
    def _timed(self, name: str) -> Generator[None]:
        begin = time.monotonic()
        yield
        self._times[name] = time.monotonic() - begin


def reshard(log: LocalLog) -> str:
    """Split one shard and merge two others; return a sentence about it."""
    by_hash = sorted(
        (entry for entry in log.list_shards() if not entry.read_only),
        key=lambda entry: entry.hash_begin,
    )
    middle = len(by_hash) // 2
    split, first, second = by_hash[0].shard, by_hash[middle].shard, by_hash[middle + 1].shard
    low, high = log.split(split)
    merged = log.merge(first, second)
    return f"split shard {split} into {low} and {high}, merged {first} and {second} into {merged}"
