"""Committed files are where the ledger says: each is looked for in its folder.

Folders are listed, which takes a store one request for all files of an attempt, and a disk less
than a look at each file. Of each name that was found, eight bytes are kept, so that memory is
bounded by them. Consumption, rewriting and vacuum continue meanwhile, which must not look like a
loss:

1. The folders are listed first: a file that was committed and is not listed might have come later.
2. Each such file is looked for by its name.
3. One that is not there might have been replaced and removed: it is missing if the ledger still has
   it after that look.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER
from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.lease_store.rules.progress import Report

if TYPE_CHECKING:
    from dagster_leasehold.assets.places.place import OutputPlace
    from dagster_leasehold.lease_store.identifiers import GroupKey
    from dagster_leasehold.lease_store.ledger_rows import Batch
    from dagster_leasehold.lease_store.roles.ledger import Ledger

MISSING_NAMED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class FilePresence:
    """The outcome of looking for all committed files.

    Attributes:
        files: the number of files that the ledger names.
        missing: the number of missing files.
        sentences: one for each of the first of them.
    """

    files: int
    missing: int
    sentences: tuple[str, ...]


def look_for_files(
    store: Ledger, key: GroupKey, folder: OutputPlace, progress: Report = lambda *_: None
) -> FilePresence:
    """Look for every file that the ledger of a group names.

    Args:
        store: has the ledger.
        key: the group.
        folder: of the group's output.
        progress: called with the number of ledger rows whose files are looked for, and of all.

    Raises:
        OutputUnreadable: the folder cannot be listed.
        StoreError: the lease store does not answer.
    """
    files, missing = 0, 0
    sentences: list[str] = []
    try:
        listed = _Names(folder.names(ATTEMPTS_FOLDER))
        total = store.ledger_rows(key)
        for row, batch in enumerate(store.each_batch(key), 1):
            for file in batch.files:
                files += 1
                if file.path in listed or _is_there(folder / file.path):
                    continue
                if not _named_still(store, key, batch, file.path):
                    continue
                missing += 1
                if len(sentences) < MISSING_NAMED_MAX:
                    sentences.append(
                        f"The file {file.path} of {file.records:,} records of batch "
                        f"{batch.batch_id} is not in {folder}: restore it from a backup, or replay "
                        "its batch."
                    )
            progress(row, max(row, total))
    except OSError as error:
        raise OutputUnreadable(
            f"The files in {folder} cannot be listed ({one_line(str(error))}): make sure that this "
            "account can read the output folder."
        ) from error
    return FilePresence(files, missing, tuple(sentences))


def _is_there(place: OutputPlace) -> bool:
    try:
        place.modified_ns()
    except FileNotFoundError:
        return False
    return True


def _named_still(store: Ledger, key: GroupKey, batch: Batch, path: str) -> bool:
    numbers = range(batch.sequence, batch.sequence + 1)
    rows = store.each_batch(key, batch.shard, numbers=numbers)
    return any(file.path == path for row in rows for file in row.files)


class _Names:
    """Names that were found, as hashes: two names with one hash are as rare as damaged memory."""

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = _sorted(array("q", map(hash, names)))

    def __contains__(self, name: str) -> bool:
        hashed = hash(name)
        at = bisect_left(self._hashes, hashed)
        return at < len(self._hashes) and self._hashes[at] == hashed


def _sorted(numbers: array[int]) -> memoryview[int]:
    """Return numbers in order, with no object for each."""
    import pyarrow as pa
    import pyarrow.compute

    # Its functions are made when it is imported, where a type checker cannot see them.
    pc: Any = pyarrow.compute

    column: Any = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    ordered: Any = pc.take(column, pc.array_sort_indices(column))
    values: memoryview[int] = memoryview(ordered.buffers()[1]).cast("b").cast("q")
    return values[: len(numbers)]
