"""Doubles in the places where the code under soak meets processes, Spark and time."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.output.table.reading import EventSpan, PlannedFile, TablePlan
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.shard_sources.source import record_schema
from tests.simulation.soak.dagster_double import DEAD, DEAD_ON_A_HOST
from tests.simulation.soak.run_double import SweeperDouble
from tests.simulation.soak.virtual_time import VirtualQueue, VirtualTime
from tests.simulation.soak.world import Shape, World


def plan_of_ledger(
    store: Ledger,
    key: GroupKey,
    place: OutputPlace,
    *,
    shards: Collection[ShardId],
    span: EventSpan,
    **_: Any,
) -> TablePlan:
    """Plan a table that shows all that is committed; files are left out by their bounds."""
    assert span.since is not None
    assert span.until is not None
    files = [
        PlannedFile(
            batch.shard, range(batch.sequence, batch.last + 1), place / file.path, file.records
        )
        for shard in sorted(shards)
        for batch in store.each_batch(key, shard)
        for file in batch.files
        if file.first_event_time is not None
        and file.last_event_time is not None
        and file.first_event_time < span.until
        and file.last_event_time >= span.since
    ]
    return TablePlan(tuple(files), record_schema())


SIDE_BY_SIDE = "dagster_leasehold.assets.guarding.side_by_side"


@contextmanager
def world(shape: Shape, **options: Any) -> Generator[World]:
    """Make a world whose code sees virtual time and doubles of processes and of Spark."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        virtual = VirtualTime()
        worlds: list[World] = []

        def sweeper(
            *,
            stream: ShardStream,
            spark: RunOnSpark,
            must_stop: Any,
            output_root: OutputPlace,
            **_: object,
        ):
            made, run = worlds[0], spark.run
            deployment = next(each for each in made.deployments if run in each.runs)
            log, moods = made.logs[stream.name], made.moods(stream.name)
            return SweeperDouble(
                deployment, run, log, moods, Path(output_root.address),
                lambda: spark.watch.must_stop() or must_stop(),
            )  # fmt: skip

        doubles = {
            "dagster_leasehold.orchestration.supervision.node_agent.threading": virtual.threading(),
            "dagster_leasehold.orchestration.supervision.node_agent.say": lambda _: None,
            "dagster_leasehold.orchestration.supervision.node_runs.say": lambda _: None,
            "dagster_leasehold.orchestration.supervision.node_runs.process_ended": lambda note: (
                note in (DEAD, DEAD_ON_A_HOST)
            ),
            "dagster_leasehold.sensors.run_cleaning.process_ended": lambda note: note == DEAD,
            "dagster_leasehold.lease_store.member.threading": virtual.threading(),
            "dagster_leasehold.assets.guarding.stall_guard.threading": virtual.threading(),
            "dagster_leasehold.assets.guarding.stall_guard.SimpleQueue": partial(
                VirtualQueue, virtual
            ),
            f"{SIDE_BY_SIDE}.threading": virtual.threading(),
            f"{SIDE_BY_SIDE}.SimpleQueue": partial(VirtualQueue, virtual),
            "dagster_leasehold.assets.consuming.node_consumption.steady_clock": virtual.clock,
            "dagster_leasehold.assets.consuming.node_consumption.SparkSweeper": sweeper,
            "dagster_leasehold.assets.consuming.node_consumption.time": virtual.time(),
            "dagster_leasehold.assets.consume_job.time": virtual.time(),
            "dagster_leasehold.assets.run_process.process_note": lambda: "a strand of the soak",
            # There is no publisher; commits count as published at once.
            # A thread of its own would publish in real time, and outlive the world's folder.
            "dagster_leasehold.assets.output.table.publish_rounds.Thread": mock.MagicMock(),
            "dagster_leasehold.sensors.late_records.plan_table": plan_of_ledger,
            "dagster_leasehold.sensors.late_records.LateRecords._published": lambda *_: True,
        }
        for place, double in doubles.items():
            stack.enter_context(mock.patch(place, double))
        worlds.append(World(shape, folder, virtual, **options))
        yield worlds[0]


@contextmanager
def quiet() -> Generator[None]:
    """Suppress logs and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
