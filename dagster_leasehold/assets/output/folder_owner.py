"""The lease store that owns a folder of output: it alone writes there, and removes files.

Each store removes files that its own ledger does not name. Two of them in one folder would remove
each other's output, so the first one that writes leaves a mark there, before anything else, and
every other one is refused.

1. A and B, two stores, look into a folder without a mark.
2. Both try to write theirs. A place lets one of two different contents through.
3. The store that was refused reads the mark of the other one.

A copy of a store has the identity of the original. An embedded one is told from its copy by the
file that it is in, which the mark names relative to the folder: a home can be moved as a whole, and
of two copies whose output lies elsewhere one is refused. A store that was moved into a database
server takes the folder over from the file that it was copied from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Self

from dagster_leasehold.assets.errors import OutputNotOwned, OutputUnwritable
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.lease_store.roles.identity import Identity, StoreIdentity

MARK = "_owner.json"
"""The mark's name; Spark and Arrow take a file with this first letter for none of the data's."""

_own_folders: set[tuple[str, FolderOwner]] = set()
"""The folders that this process has found to be a store's own."""


@dataclass(frozen=True, slots=True)
class FolderOwner:
    """The content of a mark.

    Attributes:
        store: the identity of a lease store.
        file: the file of an embedded one, from the folder on a disk; empty for a database server.
    """

    store: str
    file: str = ""

    @classmethod
    def of(cls, identity: StoreIdentity, folder: OutputPlace) -> Self:
        """Return the mark of a store in a folder."""
        if identity.file is None:
            return cls(identity.id)
        if not folder.is_local:
            return cls(identity.id, str(identity.file))
        return cls(identity.id, os.path.relpath(identity.file, os.path.realpath(folder.address)))

    @classmethod
    def parse(cls, content: bytes) -> Self | None:
        """Return the mark that `content` was made of; None if it is none."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return None

    def content(self) -> bytes:
        """Return the mark as JSON."""
        return json.dumps(asdict(self)).encode()


def owned(
    store: Identity, folder: OutputPlace, *, again: bool = False, claim: bool = True
) -> OutputPlace:
    """Return a folder of output that the store can write to and remove files from.

    A folder without a mark becomes the store's.

    Args:
        store: of the group whose output it is.
        folder: of one group.
        again: look at the mark although this process has seen it.
        claim: give a folder without a mark to the store; otherwise it stays as it is.

    Raises:
        OutputNotOwned: it is another store's.
        OutputUnwritable: the mark cannot be read or written.
        StoreError: the lease store does not answer.
    """
    own, mark = FolderOwner.of(store.identity(), folder), folder / MARK
    if not again and (str(folder), own) in _own_folders:
        return folder
    with _reached(mark):
        content = mark.content()
        if content is None and claim:
            # The slower of two stores reads the mark of the other.
            content = own.content() if mark.put_first(own.content()) else mark.content()
        if content is not None:
            _agree(own, content, folder)
            _own_folders.add((str(folder), own))
    return folder


def _agree(own: FolderOwner, content: bytes, folder: OutputPlace) -> None:
    """Refuse a folder with the mark of another store.

    Raises:
        OutputNotOwned: it is.
    """
    other = FolderOwner.parse(content)
    if other == own:
        return
    if other is None or other.store != own.store or own.file:
        raise OutputNotOwned(_refusal(own, other, folder))
    (folder / MARK).put(own.content())


def _refusal(own: FolderOwner, other: FolderOwner | None, folder: OutputPlace) -> str:
    if other is None:
        whose = "has a mark that is not one of a lease store"
    elif other.store == own.store:
        whose = f"belongs to another copy of this lease store, in {other.file or 'a server'}"
    else:
        whose = f"belongs to another lease store ({other.store})"
    return (
        f"The output folder {folder} {whose}, which would remove files of this one: choose another "
        "folder with the setting `output`. If the other one is gone for good, run `leasehold db "
        "take-over`."
    )


def take_over(store: Identity, folder: OutputPlace) -> tuple[FolderOwner | None, FolderOwner]:
    """Make a folder the store's, and no other's; return the former mark and the new one.

    Raises:
        OutputUnwritable: the mark cannot be read or written.
        StoreError: the lease store does not answer.
    """
    own, mark = FolderOwner.of(store.identity(), folder), folder / MARK
    with _reached(mark):
        before = mark.content()
        mark.put(own.content())
    return (None if before is None else FolderOwner.parse(before)), own


@contextmanager
def _reached(mark: OutputPlace) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise OutputUnwritable(
            f"The mark {mark}, which names the owner of the folder, cannot be read or written "
            f"({one_line(str(error))}): let this account write there, and try again."
        ) from error
