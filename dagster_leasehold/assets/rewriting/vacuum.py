"""Vacuum: files that no ledger row names go, once they are older than anybody could need them.

A file can be unnamed because its attempt failed, because it was swapped out (its age counts from
the swap: on a disk the file was made to look new, in an object store a note says when), or because
its attempt is still under way. What keeps the last kind, beside its age:

1. An attempt begins: its intent, its claim to rewrite, or its attempt to make an hour is in the
   store before its first file.
2. Vacuum lists the files, then reads intents, claims and attempts, then the ledger.
3. The attempt is under way at the second look: its folder bears its run's name, and is kept.
4. Or it has ended by then: the ledger names its output at the third look.

The age that counts is the one at the moment of removal, or a swap in between goes unseen:

1. Vacuum lists a file that was written long ago, and that the ledger names.
2. A reader lists it, too.
3. A compaction makes it look new, and swaps it out.
4. Vacuum reads the ledger: no row names the file. Looked at again, with the notes of what was
   replaced, it is new, and stays: the note was made before the swap.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath

from dagster_leasehold.assets.errors import RewriteRefused
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER, attempts_of
from dagster_leasehold.assets.output.folder_owner import owned
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


def vacuum(
    store: LeaseStore,
    key: GroupKey,
    output_root: OutputPlace,
    *,
    older_than: timedelta,
    dry_run: bool = False,
    catalog: CatalogSettings | None = None,
) -> VacuumReport:
    """Remove the files of attempts that neither ledger nor table names and that are old enough.

    The table is looked up in `catalog`, by default the lease database.

    Ages are taken by the clock of the file system, so that a host whose clock is wrong removes
    nothing too early.

    Raises:
        OutputNotOwned: the folder belongs to another lease store.
        RewriteRefused: a file cannot be removed.
        TableUnavailable: the table or its catalog cannot be reached.
    """
    owned(store, output_root, again=True, claim=False)
    entries = sorted(output_root.entries(ATTEMPTS_FOLDER), key=lambda entry: entry.path)
    if not entries:
        return VacuumReport()
    owned(store, output_root, claim=not dry_run)
    limit_ns = output_root.now_ns() - int(older_than.total_seconds() * 1e9)
    files = [entry for entry in entries if not entry.folder]
    working = {claim.run for claim in store.rewrites(key)}
    making = {each.attempt for each in store.window_attempts(key)}
    working |= {head.intent for head in store.heads(key).values() if head.intent is not None}
    named = {file.path for batch in store.each_batch(key) for file in batch.files}
    named |= {file.path for window in store.windows(key) for file in window.files}
    named |= _published_still(store, key)
    named |= _named_by_table(store, key, output_root, catalog or CatalogSettings())
    busy = making | attempts_of(working, {_attempt(entry) for entry in entries})
    others = [entry for entry in files if entry.path not in named]
    idle = [entry for entry in others if _attempt(entry) not in busy]
    old = [entry for entry in idle if entry.modified_ns < limit_ns]
    if old and not dry_run:
        failpoints.reach("before_vacuum")
    old = _still_old(output_root, old, limit_ns, remove=not dry_run)
    if not dry_run:
        # On a store, what is written into a folder would go with it: what was committed stays.
        in_use = busy | {PurePosixPath(path).parts[1] for path in named}
        output_root.remove_empty_folders(
            [
                entry.path
                for entry in entries
                if entry.folder and entry.modified_ns < limit_ns and _attempt(entry) not in in_use
            ]
        )
        output_root.forget_replaced(limit_ns)
    return VacuumReport(
        removed=tuple(entry.path for entry in old),
        removed_bytes=sum(entry.bytes for entry in old),
        committed=len(files) - len(others),
        young=len(idle) - len(old),
        in_progress=len(others) - len(idle),
    )


def _published_still(store: LeaseStore, key: GroupKey) -> set[str]:
    """Return the files that the ledger no longer names and that the table still has."""
    paths: set[str] = set()
    changes = store.pending_changes(key)
    while changes:
        paths.update(path for change in changes for path in change.removed)
        changes = store.pending_changes(key, after=changes[-1].sequence)
    return paths


def _named_by_table(
    store: LeaseStore, key: GroupKey, output_root: OutputPlace, catalog: CatalogSettings
) -> set[str]:
    """Return the files that snapshots of the group's table name: earlier ones stay readable."""
    publication = store.publication(key)
    published = publication is not None and publication.table is not None
    if not published and not any(output_root.names(METADATA_FOLDER)):
        return set()
    # It loads PyIceberg.
    from dagster_leasehold.assets.output.table.group_table import files_of_table

    return files_of_table(store, key, catalog, output_root)


def _attempt(entry: Entry) -> str:
    return PurePosixPath(entry.path).parts[1]


def _still_old(
    output_root: OutputPlace, old: Collection[Entry], limit_ns: int, *, remove: bool
) -> list[Entry]:
    """Return the files that are still old when their turn comes; remove them, or not.

    Raises:
        RewriteRefused: a file cannot be removed.
    """
    replaced_ns = output_root.replaced_ns() if old else {}
    still: list[Entry] = []
    for entry in old:
        place = output_root / entry.path
        try:
            # By the time of the listing: all that happened to the file since makes it younger.
            changed_ns = max(place.modified_ns(), replaced_ns.get(entry.path, 0))
            if changed_ns >= limit_ns:
                continue
            if remove:
                place.remove()
        except FileNotFoundError:
            continue  # another vacuum was faster
        except OSError as error:
            raise RewriteRefused(
                f"{place} cannot be removed ({error.strerror or one_line(str(error))}): let this "
                "account write to the output folder."
            ) from error
        still.append(entry)
        if remove:
            failpoints.reach("during_vacuum")
    return still
