"""Names of committed files: the folder of an attempt, and the files in it.

Each attempt of a run writes into a new folder, where no file is renamed or overwritten. A file is
part of the output if the ledger names it; vacuum removes the others once they are old enough.

For readers without the ledger, the name of a data file contains its batches:
`<shard>.<first batch>-<last batch>.<rest>[.quarantine].parquet`. The rest orders the files of one
batch, and is unique.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager

from dagster_leasehold.assets.errors import OutputUnwritable, SparkUnavailable
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.routes import route_suffix
from dagster_leasehold.lease_store.errors import LogCorrupt, one_line
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile

ATTEMPTS_FOLDER = "attempts"
RUN_LENGTH_MAX = 40
_NUMBERED = re.compile(r"(.+)\.([0-9]+)-([0-9]+)\.[^.]+(?:\.quarantine)?\.parquet")


def attempt_label(run: str) -> str:
    """Return the prefix of the names of a run's attempts, for people and vacuum."""
    return re.sub(r"[^A-Za-z0-9-]", "-", run)[:RUN_LENGTH_MAX].lstrip("-") or "run"


def attempt_name(run: str) -> str:
    """Return a new name for an attempt of a run."""
    return f"{attempt_label(run)}-{uuid.uuid4().hex}"


def attempts_of(runs: Collection[str], attempts: Collection[str]) -> set[str]:
    """Return the attempts that belong to one of these runs."""
    labels = tuple(f"{attempt_label(run)}-" for run in runs)
    return {attempt for attempt in attempts if attempt.startswith(labels)}


def check_shared(folder: OutputPlace, by_task: Iterable[Sequence[tuple[str, int]]]) -> None:
    """Check that this process finds the files that Spark's workers wrote.

    An object store keeps every file that it has acknowledged. There, one file of each task shows
    that the task wrote to the store that this process reads.

    Args:
        by_task: the name and the size of each file, task by task.

    Raises:
        SparkUnavailable: a file is missing or has another size.
    """
    files = [file for own in by_task for file in (own if folder.is_local else own[:1])]
    sizes = folder.sizes([name for name, _ in files])
    for (name, written), size in zip(files, sizes, strict=True):
        if size != written:
            raise SparkUnavailable(
                f"Spark reported that it wrote {name}, which is not in {folder}: make Spark's "
                "workers and this process share the output folder."
            )


def touch_replaced(output_root: OutputPlace, files: Iterable[DataFile]) -> None:
    """Set the time of replaced files to now, so that vacuum counts their age from the swap.

    A reader may have listed them just before the swap. Call this before the swap, in case the
    process crashes after it, and again after the swap.

    Raises:
        OutputUnwritable: the time cannot be set. The swap must wait then.
    """
    try:
        output_root.record_replaced([file.path for file in files])
    except OSError as error:
        raise OutputUnwritable(
            f"The files that are being replaced in {output_root} cannot be marked as such "
            f"({one_line(str(error))}): allow this account to write to the output folder."
        ) from error


@contextmanager
def reading(path: OutputPlace, batch: str = "") -> Generator[None]:
    """Read a committed Parquet file in the block.

    Raises:
        LogCorrupt: it is missing or damaged.
    """
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        of_batch = f" of batch {batch}" if batch else ""
        raise LogCorrupt(
            f"The committed file {path}{of_batch} cannot be read ({one_line(str(error))}): restore "
            "it from a backup, or replay its batch."
        ) from error


def file_name(
    shard: ShardId,
    numbers: range,
    rest: str,
    *,
    quarantine: bool = False,
    part: int = 0,
    route: str = "",
) -> str:
    """Return the name of a file of records of some batches; `rest` has no dots.

    `part` numbers the files of divided rows, from 1 on. `route` is the route of the records, which
    `routes.route_of` finds in the name.
    """
    kind = ".quarantine" if quarantine else ""
    rest = (f"{rest}-p{part:04d}" if part else rest) + route_suffix(route)
    return f"{shard}.{numbers.start}-{numbers.stop - 1}.{rest}{kind}.parquet"


def shard_and_batches(name: str) -> tuple[ShardId, range] | None:
    """Return the shard and the batch numbers from the name of a file, or None."""
    match = _NUMBERED.fullmatch(name)
    return (ShardId(match[1]), range(int(match[2]), int(match[3]) + 1)) if match else None
