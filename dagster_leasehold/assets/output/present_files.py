"""Checks that all files that the ledger names exist.

The folders are listed, which costs less than checking each file. Memory holds eight bytes for each
name. Consumption, rewriting and vacuum continue at the same time, which must not appear as a loss:

1. The folders are listed first. A file that is not listed may have been committed later.
2. Each such file is looked up by its name.
3. If it does not exist, it may have been replaced and removed. It counts as missing only if the
   ledger still names it after the lookup.
"""

from __future__ import annotations

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
    """The result of checking all committed files."""

    files: int
    missing: int
    sentences: tuple[str, ...]


def check_files(
    store: Ledger, key: GroupKey, folder: OutputPlace, progress: Report = lambda *_: None
) -> FilePresence:
    """Check that every file that the ledger of a group names exists in its output folder.

    `progress` receives the number of ledger rows so far, and of all rows.
    """
    files, missing = 0, 0
    sentences: list[str] = []
    try:
        existing = _Names(folder.names(ATTEMPTS_FOLDER))
        total = store.ledger_rows(key)
        for row, batch in enumerate(store.each_batch(key), 1):
            for file in batch.files:
                files += 1
                if file.path in existing or _exists(folder / file.path):
                    continue
                if not _named_by_ledger(store, key, batch, file.path):
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


def _exists(place: OutputPlace) -> bool:
    try:
        place.modified_ns()
    except FileNotFoundError:
        return False
    return True


def _named_by_ledger(store: Ledger, key: GroupKey, batch: Batch, path: str) -> bool:
    numbers = range(batch.sequence, batch.sequence + 1)
    rows = store.each_batch(key, batch.shard, numbers=numbers)
    return any(file.path == path for row in rows for file in row.files)


class _Names:
    """A set of file names as hashes; collisions are as rare as memory errors."""

    def __init__(self, names: Iterable[str]) -> None:
        import numpy as np

        self._hashes: Any = np.fromiter(map(hash, names), np.int64)
        self._hashes.sort()

    def __contains__(self, name: str) -> bool:
        at = int(self._hashes.searchsorted(hash(name)))
        return at < len(self._hashes) and self._hashes[at] == hash(name)
