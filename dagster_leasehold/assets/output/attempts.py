"""Folders of attempts: each is written by one try of one run, under a name that was never used.

Nothing in them is renamed or overwritten. A file counts if the ledger names it; vacuum removes the
others, once they are old enough.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Sequence

from dagster_leasehold.assets.errors import OutputUnwritable, SparkUnavailable
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import LogCorrupt, one_line
from dagster_leasehold.lease_store.ledger_rows import DataFile

ATTEMPTS_FOLDER = "attempts"
RUN_LENGTH_MAX = 40


def attempt_label(run: str) -> str:
    """Return the beginning of the names of a run's attempts: for people and for vacuum."""
    return re.sub(r"[^A-Za-z0-9-]", "-", run)[:RUN_LENGTH_MAX].lstrip("-") or "run"


def attempt_name(run: str) -> str:
    """Return a name for an attempt of a run that was never used."""
    return f"{attempt_label(run)}-{uuid.uuid4().hex}"


def attempts_of(runs: Collection[str], attempts: Collection[str]) -> set[str]:
    """Return the attempts that belong to one of these runs."""
    labels = tuple(f"{attempt_label(run)}-" for run in runs)
    return {attempt for attempt in attempts if attempt.startswith(labels)}


def check_shared(folder: OutputPlace, by_task: Iterable[Sequence[tuple[str, int]]]) -> None:
    """Refuse files that this process does not see as Spark's workers wrote them.

    An object store keeps every file that it has acknowledged. There, one file of each task tells
    whether the task wrote to the store that this process reads.

    Args:
        folder: the attempt's folder.
        by_task: the name and the bytes of each file, task by task.

    Raises:
        SparkUnavailable: one is missing or shorter.
    """
    files = [file for own in by_task for file in (own if folder.is_local else own[:1])]
    sizes = folder.sizes([name for name, _ in files])
    for (name, written), size in zip(files, sizes, strict=True):
        if size != written:
            raise SparkUnavailable(
                f"Spark reported that it wrote {name}, and it is not in {folder}: let Spark's "
                "workers and this process share the output folder."
            )


def touch_replaced(output_root: OutputPlace, files: Iterable[DataFile]) -> None:
    """Make files look new when they are swapped out: before, lest a crash forgets it, and after.

    A reader might have listed them a moment ago. What vacuum removes is as old as it is unnamed
    only if the age counts from the swap, not from when the file was written.

    Raises:
        OutputUnwritable: that cannot be noted; a swap that was not made yet must wait.
    """
    try:
        output_root.note_replaced([file.path for file in files])
    except OSError as error:
        raise OutputUnwritable(
            f"The files that are being replaced in {output_root} cannot be marked as such "
            f"({one_line(str(error))}): let this account write to the output folder."
        ) from error


def unreadable(path: OutputPlace, error: Exception, batch: str = "") -> LogCorrupt:
    """Return the error of a committed file that is missing or damaged."""
    of_batch = f" of batch {batch}" if batch else ""
    return LogCorrupt(
        f"The committed file {path}{of_batch} cannot be read ({one_line(str(error))}): restore it "
        "from a backup, or replay its batch."
    )
