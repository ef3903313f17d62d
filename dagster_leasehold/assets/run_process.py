"""The process of a run: noted in a tag, so that others can see that it is gone.

Dagster's launcher cannot tell: a run whose process died together with the code server that watched
it stays "started" for ever, and would keep its shards open. A run therefore notes its process in a
tag, and a process that looks from the same place (one boot of one host, one namespace of process
numbers) can see that it is gone.
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
"""Noted in place of a process: the run continues with assets that are not the stream's."""
_OF = " of run "


def process_note() -> str:
    """Return the identity of this process, for a tag."""
    return str(ProcessIdentity.of(os.getpid()))


def tag_run(
    instance: dg.DagsterInstance, run: str, stream: ShardStream, note: str | None = None
) -> None:
    """Note on a run the stream that it works on and the process that carries it out."""
    note = note or process_note()
    instance.add_run_tags(run, {STREAM_TAG: stream.name, PROCESS_TAG: f"{note}{_OF}{run}"})


def show_on_run(
    instance: dg.DagsterInstance, run: str, shards: Sequence[str], records: str = ""
) -> None:
    """Show in a run's tags its shards and how many records it has read.

    Tags are for people only, so that no error of Dagster's storage ends the run.
    """
    tags = shards_tag(shards) | ({RECORDS_TAG: records} if records else {})
    with suppress(Exception):
        instance.add_run_tags(run, tags)


@contextmanager
def part_of_run(instance: dg.DagsterInstance, run: str, stream: ShardStream) -> Generator[None]:
    """Note the stream and the process on a run, and at the end of the block that it is over.

    1. A run makes a partition of a stream, and then an asset of the project, which takes an hour.
    2. The first step's process ends, if the project's executor has one for each step; its shards
       are released.
    3. The janitor would fail the run, whose process is gone, or end it, since it holds no shard;
       and no other run would be launched for the shard within that hour.
    """
    tag_run(instance, run, stream)
    try:
        yield
    finally:
        tag_run(instance, run, stream, PART_ENDED)


def noted_process(run: dg.DagsterRun) -> str:
    """Return the process that a run has noted; empty if it has not begun.

    1. A run dies, and is executed again, by a person or by Dagster.
    2. The new run has all tags of the old one, its process included, which is gone.
    3. The janitor looks before it has noted its own: failed for that, it would never begin.
    """
    note, _, of = run.tags.get(PROCESS_TAG, "").partition(_OF)
    return note if of in ("", run.run_id) else ""


def process_gone(note: str) -> bool:
    """Return True if the noted process has certainly ended; False if that cannot be known here."""
    process = ProcessIdentity.parse(note)
    return process is not None and process.existence() is Existence.GONE


def ended_runs(instance: dg.DagsterInstance, run_ids: Collection[str]) -> set[str]:
    """Return the ids of runs that have ended, or that the instance does not know."""
    if not run_ids:
        return set()
    runs = instance.get_runs(filters=dg.RunsFilter(run_ids=list(run_ids)))
    return set(run_ids) - {run.run_id for run in runs if not run.is_finished}


def run_ended(instance: dg.DagsterInstance, run: str) -> bool:
    """Return True if another run is known to have ended.

    The instance knows no run of the command line: only the person who started it can say so.
    """
    stored = instance.get_run_by_id(run)
    if stored is None:
        return False
    return process_gone(noted_process(stored)) or run in ended_runs(instance, [run])
