"""The owner of an output folder: only one lease store writes there and removes files.

A deployment removes files that the ledger of its lease store does not name. Two stores with one
folder would remove each other's output. So a store writes its mark into the folder first, and a
folder with the mark of another store is refused:

1. Two stores, A and B, read a folder without a mark.
2. Both try to write their marks. Only one of them is written.
3. The other store reads that mark, and refuses the folder.

A copy of a store has the identity of the original. An embedded store differs from its copy in the
path of its database file, which the mark has relative to the folder. So a home can be moved as a
whole, and of two copies with a common folder, one is refused. A store that moves into a database
server takes the folder over from its former file.
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
"""The name of the mark; Spark and Arrow ignore names that begin with an underscore."""

_own_folders: set[tuple[str, FolderOwner]] = set()
"""The folders whose marks this process has checked."""


@dataclass(frozen=True, slots=True)
class FolderOwner:
    """The content of a mark.

    Attributes:
        store: the identity of a lease store.
        file: the path of an embedded store, relative to a local folder; empty for a server.
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
        """Return the mark from JSON, or None if the content is no mark."""
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
    """Return a folder after checking that it belongs to a store.

    Args:
        again: read the mark even if this process has read it before.
        claim: write the mark of the store into a folder without a mark.

    Raises:
        OutputNotOwned: it belongs to another store.
    """
    own, mark = FolderOwner.of(store.identity(), folder), folder / MARK
    if not again and (str(folder), own) in _own_folders:
        return folder
    with _checked_access(mark):
        content = mark.content()
        if content is None and claim:
            # The slower of two stores reads the other's mark.
            content = own.content() if mark.put_first(own.content()) else mark.content()
        if content is not None:
            other = FolderOwner.parse(content)
            if other is None or other.store != own.store or (own.file and other != own):
                raise OutputNotOwned(_refusal(own, other, folder))
            if other != own:
                mark.put(own.content())
            _own_folders.add((str(folder), own))
    return folder


def _refusal(own: FolderOwner, other: FolderOwner | None, folder: OutputPlace) -> str:
    if other is None:
        finding = "has a mark that no lease store wrote"
    elif other.store == own.store:
        finding = f"belongs to another copy of this lease store, in {other.file or 'a server'}"
    else:
        finding = f"belongs to another lease store ({other.store})"
    return (
        f"The output folder {folder} {finding}, whose deployment would remove our files: choose "
        "another folder with the setting `output`. If the other store is gone for good, run "
        "`leasehold db take-over`."
    )


def take_over(store: Identity, folder: OutputPlace) -> tuple[FolderOwner | None, FolderOwner]:
    """Make a store the owner of a folder; return the former mark and the new one."""
    own, mark = FolderOwner.of(store.identity(), folder), folder / MARK
    with _checked_access(mark):
        before = mark.content()
        mark.put(own.content())
    return (None if before is None else FolderOwner.parse(before)), own


@contextmanager
def _checked_access(mark: OutputPlace) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise OutputUnwritable(
            f"The mark {mark}, which names the owner of the folder, cannot be read or written "
            f"({one_line(str(error))}): allow this account to write there, and try again."
        ) from error
