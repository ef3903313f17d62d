"""The catalog of a local log: its shards, replaced as a whole by one rename.

A split or merge becomes visible at that rename and at no other moment: before it the parents are
writable and the children unknown, after it the parents are read-only and the children listed.
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
    shown,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.positions import was_removed

CATALOG_FILE = "catalog.json"
_FORMAT = "leasehold-local-log"
_VERSION = 3
_LOCK_WAIT_S = 30.0
_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SHARDS_NAMED_MAX = 20


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
        """Return a shard from its stored form; raise ValueError if it has another."""
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
    """All shards of a log, in order of creation.

    Attributes:
        log: the identity of the log.
    """

    shards: tuple[CatalogShard, ...] = ()
    log: str = ""
    _by_id: dict[str, CatalogShard] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {entry.shard: entry for entry in self.shards})

    def find(self, shard: str) -> CatalogShard:
        """Return the shard of this id; raise UnknownShard if the log has none."""
        entry = self._by_id.get(shard)
        if entry is not None:
            return entry
        names = ", ".join(entry.shard for entry in self.shards[:_SHARDS_NAMED_MAX])
        more = ", …" if len(self.shards) > _SHARDS_NAMED_MAX else ""
        raise UnknownShard(f"The log has no shard {shown(shard)}: it has {names}{more}.")

    def removed(self, shard: str) -> bool:
        """Return True if the log once had a shard that is not listed: ids are rising numbers."""
        # Asked for each shard of a tick: only one that is not listed is compared with all others.
        if shard in self._by_id or not shard.isdecimal():
            return False
        return was_removed(int(shard), (int(entry.shard) for entry in self.shards))

    @property
    def writable(self) -> list[CatalogShard]:
        """The shards that take records."""
        return [entry for entry in self.shards if not entry.read_only]

    def next_ids(self, count: int) -> list[ShardId]:
        """`count` ids that no shard ever had."""
        last = max((int(entry.shard) for entry in self.shards), default=-1)
        return [ShardId(str(last + step)) for step in range(1, count + 1)]

    def resharded(self, parents: list[CatalogShard], children: list[CatalogShard]) -> Catalog:
        """The catalog after `parents` became read-only and `children` were added."""
        closed = {parent.shard for parent in parents}
        shards = (
            replace(entry, read_only=True) if entry.shard in closed else entry
            for entry in self.shards
        )
        return replace(self, shards=(*shards, *children))


def catalog_lock(root: Path) -> FileLock:
    """The lock for replacing the catalog; reading needs none."""
    return FileLock(root / "catalog.lock", timeout=_LOCK_WAIT_S)


def load_catalog(root: Path) -> Catalog:
    """Read the catalog.

    Raises:
        LogNotFound: there is no log in `root`.
        LogCorrupt: the catalog does not have its form, or is missing while there are records.
        SourceUnavailable: the file cannot be read.
    """
    path = root / CATALOG_FILE
    try:
        status = path.stat()
        # Every change is a new file that is longer than the one before, so these three tell
        # all versions apart; a log of many shards is parsed once per version, not per call.
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
    stored = json.loads(path.read_bytes())
    if (stored["format"], stored["version"]) != (_FORMAT, _VERSION):
        raise ValueError(f"it is of format {stored['format']!r} version {stored['version']!r}")
    if stored.get("checksum") != _checksum(stored["shards"]):
        raise ValueError("its checksum is another")
    shards = tuple(CatalogShard.parse(row) for row in stored["shards"])
    if len({entry.shard for entry in shards}) != len(shards):
        raise ValueError("a shard is listed twice")
    if not all(entry.shard.isdecimal() for entry in shards):
        raise ValueError("a shard's id is not a number")
    return Catalog(shards, str(stored["log"]))


def _checksum(shards: object) -> int:
    return zlib.crc32(json.dumps(shards, sort_keys=True).encode())


def refuse_remains(root: Path) -> None:
    """Raise LogCorrupt for a folder that holds log files, but no catalog: a log has been there."""
    if next(root.glob("shards/*/*.arrow"), None):
        raise LogCorrupt(
            f"The catalog {root / CATALOG_FILE} is missing, and there are log files below "
            f"{root / 'shards'}: restore it from a backup."
        )


def save_catalog(root: Path, catalog: Catalog) -> None:
    """Replace the catalog; call it under `catalog_lock`. Durable when it returns.

    The file of heads is there by then, with a record for each shard.
    """
    shards = [asdict(entry) for entry in catalog.shards]
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "log": catalog.log,
        "shards": shards,
        "checksum": _checksum(shards),
    }
    replace_file(root / CATALOG_FILE, json.dumps(document, indent=1), durable=True)
