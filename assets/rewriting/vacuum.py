"""Vacuum: files that no ledger row names go, once they are older than anybody could need them.

A file may be unnamed because its attempt failed, because it was swapped out (its age counts from
the swap), or because its attempt is still under way. What keeps the last kind, beside its age:

1. An attempt begins: its intent, its claim to rewrite, or its attempt to make an hour is in the
   store before its first file.
2. Vacuum lists the files, then reads intents, claims and attempts, then the ledger.
3. The attempt is under way at the second look: its folder bears its run's name, and is kept.
4. Or it has ended by then: what it committed is named by the ledger at the third look.

The age that counts is the one at the moment of removal, or a swap in between goes unseen:

1. Vacuum lists a file that was written long ago, and that the ledger names.
2. A reader lists it, too.
3. A compaction makes it look new, and swaps it out.
4. Vacuum reads the ledger: nobody names the file. Looked at again, it is new, and stays.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dagster_leasehold.assets.errors import RewriteRefused
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER, attempts_of
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.store import LeaseStore


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The files that a vacuum removed, or would remove.

    Attributes:
        removed: files, relative to the output folder, in order.
        removed_bytes: their size together.
        committed: files that the ledger names.
        young: other files that are not old enough yet.
        in_progress: other files of attempts that are under way.
    """

    removed: tuple[str, ...] = ()
    removed_bytes: int = 0
    committed: int = 0
    young: int = 0
    in_progress: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    age: timedelta
    bytes: int


def vacuum(
    store: LeaseStore,
    key: GroupKey,
    output_root: Path,
    *,
    older_than: timedelta,
    dry_run: bool = False,
) -> VacuumReport:
    """Remove the files of attempts that the ledger does not name and that are old enough.

    Ages are taken by the clock of the file system, so that a host whose clock is wrong removes
    nothing too early.

    Raises:
        RewriteRefused: a file cannot be removed.
    """
    if not (output_root / ATTEMPTS_FOLDER).is_dir():
        return VacuumReport()
    now_ns = _file_system_time_ns(output_root)
    files, folders = _listed(output_root, now_ns)
    working = {claim.run for claim in store.rewrites(key)}
    making = {each.attempt for each in store.window_attempts(key)}
    working |= {head.intent for head in store.heads(key).values() if head.intent is not None}
    named = {file.path for batch in store.each_batch(key) for file in batch.files}
    named |= {file.path for window in store.windows(key) for file in window.files}
    busy = attempts_of(working, {Path(entry.path).parts[1] for entry in (*files, *folders)})
    busy |= making
    others = [entry for entry in files if entry.path not in named]
    idle = [entry for entry in others if Path(entry.path).parts[1] not in busy]
    old = [entry for entry in idle if entry.age > older_than]
    if old and not dry_run:
        failpoints.reach(Failpoint.BEFORE_VACUUM)
    old = _still_old(output_root, old, now_ns, older_than, remove=not dry_run)
    if not dry_run:
        _remove_empty(
            output_root,
            [
                entry
                for entry in folders
                if entry.age > older_than and Path(entry.path).parts[1] not in busy
            ],
        )
    return VacuumReport(
        removed=tuple(entry.path for entry in old),
        removed_bytes=sum(entry.bytes for entry in old),
        committed=len(files) - len(others),
        young=len(idle) - len(old),
        in_progress=len(others) - len(idle),
    )


def _file_system_time_ns(folder: Path) -> int:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".vacuum-") as probe:
        return os.stat(probe.name).st_mtime_ns


def _listed(output_root: Path, now_ns: int) -> tuple[list[_Entry], list[_Entry]]:
    """Return regular files in the attempts' folders, and these folders; links are not followed."""
    files: list[_Entry] = []
    folders: list[_Entry] = []
    top = output_root / ATTEMPTS_FOLDER
    for at, names, entries in os.walk(top, followlinks=False):
        for kind, entries_of_kind in ((names, folders), (entries, files)):
            for name in kind:
                path = Path(at) / name
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue  # its attempt has tidied up meanwhile
                if path.is_symlink():
                    continue
                relative = path.relative_to(output_root).as_posix()
                entries_of_kind.append(_Entry(relative, _age(status, now_ns), status.st_size))
    return sorted(files, key=_path), sorted(folders, key=_path)


def _path(entry: _Entry) -> str:
    return entry.path


def _still_old(
    output_root: Path, old: Collection[_Entry], now_ns: int, older_than: timedelta, *, remove: bool
) -> list[_Entry]:
    """Return those of these files that are still old when their turn comes; remove them, or not.

    Raises:
        RewriteRefused: a file cannot be removed.
    """
    still: list[_Entry] = []
    for entry in old:
        path = output_root / entry.path
        try:
            # By the time of the listing: whatever happened to the file since makes it younger.
            if _age(path.lstat(), now_ns) <= older_than:
                continue
            if remove:
                path.unlink()
        except FileNotFoundError:
            continue  # another vacuum was faster
        except OSError as error:
            raise RewriteRefused(
                f"{path} cannot be removed ({error.strerror}): let this account write to the "
                "output folder."
            ) from error
        still.append(entry)
        if remove:
            failpoints.reach(Failpoint.DURING_VACUUM)
    return still


def _age(status: os.stat_result, now_ns: int) -> timedelta:
    return timedelta(microseconds=(now_ns - status.st_mtime_ns) // 1_000)


def _remove_empty(output_root: Path, folders: Collection[_Entry]) -> None:
    """Remove folders, the deepest first; one that is not empty stays."""
    for entry in sorted(folders, key=_path, reverse=True):
        try:
            (output_root / entry.path).rmdir()
        except OSError:
            continue
