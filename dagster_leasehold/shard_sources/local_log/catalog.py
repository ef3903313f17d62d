"""The catalog of a local log: its shards, replaced as a whole by one rename.

A split or merge becomes visible by that rename alone. Before it the parents are writable and the
children unknown; after it the parents are read-only and the children listed.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from filelock import FileLock

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import (
    InvalidIdentifier,
    LogCorrupt,
    LogNotFound,
    SourceUnavailable,
    UnknownShard,
    listed,
    shown,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.positions import was_removed

CATALOG_FILE = "catalog.json"
_FORMAT = "leasehold-local-log"
_VERSION = 3
_LOCK_WAIT_S = 30.0
_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CatalogShard:
    """One shard of the catalog."""

    shard: ShardId
    parents: tuple[ShardId, ...]
    hash_begin: str
    hash_end: str
    read_only: bool = False

    @classmethod
    def parse(cls, row: object) -> Self:
        """Return a shard from its stored form; raise ValueError if that is invalid."""
        if not isinstance(row, dict) or set(row) != {
            "shard", "parents", "hash_begin", "hash_end", "read_only",
        }:  # fmt: skip
            raise ValueError("a shard has other fields than expected")
        parents, read_only = row["parents"], row["read_only"]
        hashes = (str(row["hash_begin"]), str(row["hash_end"]))
        if not isinstance(parents, list) or not isinstance(read_only, bool):
            raise ValueError("a shard has fields of other types than expected")
        if not all(_HASH.fullmatch(text) for text in hashes):
            raise ValueError("a shard has no valid hash range")
        return cls(
            shard=ShardId(str(row["shard"])),
            parents=tuple(ShardId(str(parent)) for parent in parents),
            hash_begin=hashes[0],
            hash_end=hashes[1],
            read_only=read_only,
        )


@dataclass(frozen=True, slots=True)
class Catalog:
    """All shards of a log in order of creation, and the log's id."""

    shards: tuple[CatalogShard, ...] = ()
    log: str = ""
    _by_id: dict[str, CatalogShard] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {entry.shard: entry for entry in self.shards})

    def find(self, shard: str) -> CatalogShard:
        """Return the shard with this id; raise UnknownShard if it is not listed."""
        entry = self._by_id.get(shard)
        if entry is not None:
            return entry
        names = listed(entry.shard for entry in self.shards)
        raise UnknownShard(f"The log has no shard {shown(shard)}: it has {names}.")

    def removed(self, shard: str) -> bool:
        """Return True if a shard existed and is no longer listed; ids are rising numbers."""
        # Every tick calls this for every shard, so the common case must be fast.
        if shard in self._by_id or not shard.isdecimal():
            return False
        return was_removed(int(shard), (int(entry.shard) for entry in self.shards))

    @property
    def writable(self) -> list[CatalogShard]:
        """The shards that accept records."""
        return [entry for entry in self.shards if not entry.read_only]

    def next_ids(self, count: int) -> list[ShardId]:
        """Return `count` new ids."""
        last = max((int(entry.shard) for entry in self.shards), default=-1)
        return [ShardId(str(last + step)) for step in range(1, count + 1)]

    def resharded(self, parents: list[CatalogShard], children: list[CatalogShard]) -> Catalog:
        """Return the catalog with read-only `parents` and new `children`."""
        parent_ids = {parent.shard for parent in parents}
        shards = (
            replace(entry, read_only=True) if entry.shard in parent_ids else entry
            for entry in self.shards
        )
        return replace(self, shards=(*shards, *children))


def catalog_lock(root: Path) -> FileLock:
    """Return the lock for replacing the catalog; reading needs none."""
    return FileLock(root / "catalog.lock", timeout=_LOCK_WAIT_S)


def load_catalog(root: Path) -> Catalog:
    """Return the catalog of a log.

    Raises:
        LogNotFound: there is no log in `root`.
        LogCorrupt: the catalog is damaged, or is missing although there are records.
        SourceUnavailable: the file cannot be read.
    """
    path = root / CATALOG_FILE
    try:
        status = path.stat()
        # Each change writes a new and longer file, so these three numbers identify a version. Each
        # version is parsed once, because a log can have many shards.
        return _parsed(path, (status.st_ino, status.st_mtime_ns, status.st_size))
    except (FileNotFoundError, NotADirectoryError):
        refuse_remains(root)
        raise LogNotFound(
            f"There is no log in {root}: create it, or load a file into it, first."
        ) from None
    except OSError as error:
        raise SourceUnavailable(f"The catalog {path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, InvalidIdentifier, RecursionError) as error:
        raise LogCorrupt(
            f"The catalog {path} is damaged ({shown(error)}): restore it from a backup."
        ) from None


@lru_cache(maxsize=64)
def _parsed(path: Path, version: tuple[int, int, int]) -> Catalog:
    del version
    document = json.loads(path.read_bytes())
    if (document["format"], document["version"]) != (_FORMAT, _VERSION):
        raise ValueError(f"it is of format {document['format']!r} version {document['version']!r}")
    if document.get("checksum") != _checksum(document["shards"]):
        raise ValueError("its checksum is wrong")
    shards = tuple(CatalogShard.parse(row) for row in document["shards"])
    if len({entry.shard for entry in shards}) != len(shards):
        raise ValueError("a shard is listed twice")
    if not all(entry.shard.isdecimal() for entry in shards):
        raise ValueError("a shard's id is not a number")
    return Catalog(shards, str(document["log"]))


def _checksum(shards: object) -> int:
    return zlib.crc32(json.dumps(shards, sort_keys=True).encode())


def refuse_remains(root: Path) -> None:
    """Raise LogCorrupt if a folder without a catalog has a log's files."""
    if next(root.glob("shards/*/*.arrow"), None):
        raise LogCorrupt(
            f"The catalog {root / CATALOG_FILE} is missing, and there are log files below "
            f"{root / 'shards'}: restore it from a backup."
        )


def save_catalog(root: Path, catalog: Catalog) -> None:
    """Replace the catalog durably; the caller holds `catalog_lock` and has written the heads."""
    shards = [asdict(entry) for entry in catalog.shards]
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "log": catalog.log,
        "shards": shards,
        "checksum": _checksum(shards),
    }
    replace_file(root / CATALOG_FILE, json.dumps(document, indent=1), durable=True)
