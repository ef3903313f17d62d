"""Vacuum: removes old files that neither a ledger row nor the table names.

A file is named by neither if its attempt failed, if it was swapped out, or if its attempt is still
in progress. The age of a swapped-out file counts from the swap: on a disk, the swap sets its
modification time; in an object store, a list of replaced files has the time. The order of the reads
protects an attempt in progress:

1. An attempt begins: its intent, its rewrite claim or its window attempt is in the store before its
   first file.
2. Vacuum lists the files, then reads intents, claims and window attempts, then the ledger.
3. If the attempt is in progress at the second read, its folder has the name of its run, and stays.
4. If it has ended by then, the ledger names its output at the third read.

Vacuum reads a file's age a second time just before it removes the file. This protects readers:

1. Vacuum lists a file that was written long ago and that the ledger names.
2. A reader lists it, too.
3. A compaction records that the file is being replaced, and swaps it out.
4. Vacuum reads the ledger, and no row names the file. The second read of its age finds the time of
   step 3, so the file is young and stays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath

from dagster_leasehold.assets.errors import RewriteRefused
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER, attempts_of
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.table.publication import each_change
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER
from dagster_leasehold.assets.places.place import Entry, OutputPlace
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.store import LeaseStore


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The files that a vacuum removed, or would remove.

    Attributes:
        removed: the paths of the files below the output folder, in order.
        removed_bytes: the size of these files.
        committed: the number of files that the ledger or the table names.
        young: the number of other files that are not old enough.
        in_progress: the number of other files of attempts in progress.
    """

    removed: tuple[str, ...] = ()
    removed_bytes: int = 0
    committed: int = 0
    young: int = 0
    in_progress: int = 0


def vacuum(
    store: LeaseStore,
    key: GroupKey,
    output_root: OutputPlace,
    *,
    older_than: timedelta,
    dry_run: bool = False,
    catalog: CatalogSettings | None = None,
) -> VacuumReport:
    """Remove the files of attempts that are old enough and named by neither ledger nor table.

    The table is in `catalog`, by default in the lease database. Ages use the clock of the file
    system, so a host with a wrong clock does not remove files too early.

    Raises:
        OutputNotOwned: the folder belongs to another lease store.
        RewriteRefused: files cannot be listed or removed.
    """
    owned(store, output_root, again=True, claim=False)
    try:
        entries = sorted(output_root.entries(ATTEMPTS_FOLDER), key=lambda entry: entry.path)
    except OSError as error:
        raise RewriteRefused(
            f"The files in {output_root} cannot be listed ({one_line(str(error))}): allow this "
            "account to read the output folder."
        ) from error
    if not entries:
        return VacuumReport()
    owned(store, output_root, claim=not dry_run)
    limit_ns = output_root.now_ns() - int(older_than.total_seconds() * 1e9)
    files = [entry for entry in entries if not entry.folder]
    runs = {claim.run for claim in store.rewrites(key)}
    window_attempts = {each.attempt for each in store.window_attempts(key)}
    runs |= {head.intent for head in store.heads(key).values() if head.intent is not None}
    named = {file.path for batch in store.each_batch(key) for file in batch.files}
    named |= {file.path for window in store.windows(key) for file in window.files}
    named |= {path for change in each_change(store, key) for path in change.removed}
    named |= _named_by_table(store, key, output_root, catalog or CatalogSettings())
    busy = window_attempts | attempts_of(runs, {_attempt(entry) for entry in entries})
    others = [entry for entry in files if entry.path not in named]
    idle = [entry for entry in others if _attempt(entry) not in busy]
    old = [entry for entry in idle if entry.modified_ns < limit_ns]
    if old and not dry_run:
        failpoints.reach("before_vacuum")
    old = _recheck(output_root, old, limit_ns, remove=not dry_run)
    if not dry_run:
        # An object store deletes a folder with its content, so folders with named files are kept.
        in_use = busy | {PurePosixPath(path).parts[1] for path in named}
        output_root.remove_empty_folders(
            [
                entry.path
                for entry in entries
                if entry.folder and entry.modified_ns < limit_ns and _attempt(entry) not in in_use
            ]
        )
        output_root.drop_replaced(limit_ns)
    return VacuumReport(
        removed=tuple(entry.path for entry in old),
        removed_bytes=sum(entry.bytes for entry in old),
        committed=len(files) - len(others),
        young=len(idle) - len(old),
        in_progress=len(others) - len(idle),
    )


def _named_by_table(
    store: LeaseStore, key: GroupKey, output_root: OutputPlace, catalog: CatalogSettings
) -> set[str]:
    """Return the files that all snapshots of the group's table name."""
    publication = store.publication(key)
    published = publication is not None and publication.table is not None
    if not published and not any(output_root.names(METADATA_FOLDER)):
        return set()
    # It loads PyIceberg.
    from dagster_leasehold.assets.output.table.group_table import files_of_table

    return files_of_table(store, key, catalog, output_root)


def _attempt(entry: Entry) -> str:
    return PurePosixPath(entry.path).parts[1]


def _recheck(
    output_root: OutputPlace, old: Collection[Entry], limit_ns: int, *, remove: bool
) -> list[Entry]:
    """Return the files that are still old, after removing them if `remove` is True."""
    replaced_ns = output_root.replaced_ns() if old else {}
    old_files: list[Entry] = []
    for entry in old:
        place = output_root / entry.path
        try:
            # Compared with the limit of the listing: a later change can only make a file younger.
            changed_ns = max(place.modified_ns(), replaced_ns.get(entry.path, 0))
            if changed_ns >= limit_ns:
                continue
            if remove:
                place.remove()
        except FileNotFoundError:
            continue  # another vacuum was faster
        except OSError as error:
            raise RewriteRefused(
                f"{place} cannot be removed ({error.strerror or one_line(str(error))}): allow this "
                "account to write to the output folder."
            ) from error
        old_files.append(entry)
        if remove:
            failpoints.reach("during_vacuum")
    return old_files
