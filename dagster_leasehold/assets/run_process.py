"""The tag that identifies the process of a run, so that other processes can detect its end.

If a run's process dies together with the code server that watched it, Dagster keeps the run as
"started" forever, and its shards would stay open. So each run writes the identity of its process
into a tag. The janitor and the node agent check whether that process is gone, which is possible on
the same host, since the same boot and in the same PID namespace.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress

import dagster as dg

from dagster_leasehold.assets.partitions import PROCESS_TAG, RECORDS_TAG, STREAM_TAG, shards_tag
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.process_identity import Existence, ProcessIdentity

PART_ENDED = "ended"
"""The value of the tag, instead of a process, while the run continues with other assets."""
_OF = " of run "


def process_note() -> str:
    """Return the identity of this process, as the tag holds it."""
    return str(ProcessIdentity.of(os.getpid()))


def tag_run(
    instance: dg.DagsterInstance, run: str, stream: ShardStream, note: str | None = None
) -> None:
    """Set a run's tags for its stream and its process; `note` replaces this process."""
    note = note or process_note()
    instance.add_run_tags(run, {STREAM_TAG: stream.name, PROCESS_TAG: f"{note}{_OF}{run}"})


def tag_shards(
    instance: dg.DagsterInstance, run: str, shards: Sequence[str], records: str = ""
) -> None:
    """Set a run's tags for its shards and its number of records.

    The tags are only shown, so an error of Dagster's storage is ignored.
    """
    tags = shards_tag(shards) | ({RECORDS_TAG: records} if records else {})
    with suppress(Exception):
        instance.add_run_tags(run, tags)


@contextmanager
def part_of_run(instance: dg.DagsterInstance, run: str, stream: ShardStream) -> Generator[None]:
    """Tag a run with stream and process within the block, and with `PART_ENDED` afterwards.

    Without the last tag, the janitor would end a run that is still at work:

    1. A run materializes a partition of a stream, and then another asset, which takes an hour.
    2. The first step ends. Its shards are released, and its process ends if the project's executor
       starts one process per step.
    3. The janitor finds that the process is gone and fails the run, or finds that the run holds no
       shard and ends it. If it did neither, no other run would be launched for the shard for an
       hour.
    """
    tag_run(instance, run, stream)
    try:
        yield
    finally:
        tag_run(instance, run, stream, PART_ENDED)


def recorded_process(run: dg.DagsterRun) -> str:
    """Return the process from a run's tag; empty if the run has not tagged itself yet.

    The tag of a retry can name the process of another run, so the tag also holds the run's id:

    1. A run dies, and Dagster or a person retries it.
    2. The retry has all tags of the dead run, with the process that is gone.
    3. The janitor checks the retry before it has tagged itself. If the janitor used the copied
       tag, it would fail the retry before it starts.
    """
    note, _, tagged_run = run.tags.get(PROCESS_TAG, "").partition(_OF)
    return note if tagged_run in ("", run.run_id) else ""


def process_ended(note: str) -> bool:
    """Return True if the process has certainly ended, False if it runs or this is unknown."""
    process = ProcessIdentity.parse(note)
    return process is not None and process.existence() is Existence.GONE


def ended_runs(instance: dg.DagsterInstance, run_ids: Collection[str]) -> set[str]:
    """Return the ids of runs that have ended or that the instance does not store."""
    if not run_ids:
        return set()
    runs = instance.get_runs(filters=dg.RunsFilter(run_ids=list(run_ids)))
    return set(run_ids) - {run.run_id for run in runs if not run.is_finished}


def run_ended(instance: dg.DagsterInstance, run: str) -> bool:
    """Return True if another run has certainly ended.

    False for a run that the command line started, because Dagster's instance does not store it.
    """
    stored = instance.get_run_by_id(run)
    if stored is None:
        return False
    return process_ended(recorded_process(stored)) or run in ended_runs(instance, [run])
