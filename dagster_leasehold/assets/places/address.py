"""The address of output: a folder, or the URI of an object store."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.places.store_place import StorePlace
from dagster_leasehold.lease_store.errors import InvalidSetting, shown

STORES = ("s3", "gs", "abfss", "hdfs")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SLASHES_MISSING = re.compile(rf"(?i)({'|'.join((*STORES, 'file'))}):(?!//)")
# In Azure's URIs, an @ separates the container and the host of the account.
_ROOTS = {
    "s3": r"[A-Za-z0-9][A-Za-z0-9._-]+",
    "gs": r"[A-Za-z0-9][A-Za-z0-9._-]+",
    "abfss": r"[A-Za-z0-9$][A-Za-z0-9-]*@[A-Za-z0-9.-]+",
    "hdfs": r"([A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?)?",
}
_FORMS = {
    "s3": "s3://BUCKET/FOLDER",
    "gs": "gs://BUCKET/FOLDER",
    "abfss": "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER",
    "hdfs": "hdfs://HOST:PORT/FOLDER",
}

Output = OutputPlace | Path | str
"""The folder of a group's output: a place, a path, or a URI."""


def output_place(address: Output) -> OutputPlace:
    """Return the place of an address; a place stays as it is.

    Raises:
        InvalidSetting: its form is not supported, or it has a password or another part that belongs
            in the environment. The message does not repeat that part.
    """
    if isinstance(address, OutputPlace):
        return address
    if isinstance(address, str) and (prefix := _SLASHES_MISSING.match(address)):
        raise InvalidSetting(
            f"The output begins with {prefix[0]} without two slashes: write {prefix[0]}// for a "
            f"URI, or ./{prefix[0]} for a folder of that name."
        )
    if isinstance(address, Path) or not _SCHEME.match(address):
        return _folder(Path(address))
    parts = urlsplit(address)
    if parts.scheme == "file":
        if parts.netloc:
            raise InvalidSetting(
                "The URI of the output names a host: use file:///FOLDER, with three slashes."
            )
        if parts.query or parts.fragment:
            raise InvalidSetting(
                "The URI of the output has a ? or a #, which end the path of a file: URI: choose "
                "a folder without them."
            )
        return _folder(Path(unquote(parts.path)))
    if parts.scheme not in STORES:
        raise InvalidSetting(
            f"Output cannot be stored in {parts.scheme}://: use a folder, or a URI that begins "
            f"with file://, {', '.join(f'{store}://' for store in STORES[:-1])} or {STORES[-1]}://."
        )
    if parts.query or parts.fragment or not re.fullmatch(_ROOTS[parts.scheme], parts.netloc):
        raise InvalidSetting(
            f"The URI of the output is not of the form {_FORMS[parts.scheme]}: remove all other "
            "parts. Credentials and options come from the environment or the platform."
        )
    return StorePlace(parts.scheme, parts.netloc, parts.path.strip("/"))


def _folder(path: Path) -> OutputPlace:
    if reason := unaddressable(path):
        raise InvalidSetting(
            f"The output folder {shown(path)} {reason}, so readers would not find the files of a "
            "table there: choose another folder."
        )
    return local_place(path)


def unaddressable(path: Path) -> str:
    """Return a clause on why a path cannot be the address of a table; empty if it can.

    A table names its files by URIs that engines do not unescape.
    """
    text = str(path.absolute())
    try:
        text.encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    if control := re.search(r"[\x00-\x1f\x7f]", text):
        return f"has the control character {control[0]!r} in its path"
    mark = re.search(r"[?#]", text)
    return f"has a {mark[0]} in its path" if mark else ""


def location_of(place: OutputPlace) -> str:
    """Return the URI of a place, which for a local folder begins with `file://`."""
    text = str(place).rstrip("/")
    return text if "://" in text else f"file://{text}"
