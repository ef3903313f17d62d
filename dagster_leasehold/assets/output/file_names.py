"""Names of data files: they say which batches a file holds, for readers without the ledger.

`<shard>.<first batch>-<last batch>.<rest>[.quarantine].parquet`, where the rest puts the files of
one batch in order and tells this attempt's file from all others. Names of older versions have no
numbers.
"""

from __future__ import annotations

import re
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import ShardId

_NUMBERED = re.compile(r"(.+)\.([0-9]+)-([0-9]+)\.[^.]+(?:\.quarantine)?\.parquet")


class FileNames(Protocol):
    """Gives the name of a file of records, or that of the file of those in quarantine."""

    def __call__(self, *, quarantine: bool) -> str:
        """Return the name."""
        ...


def file_name(shard: ShardId, numbers: range, rest: str, *, quarantine: bool = False) -> str:
    """Return the name of a file that holds records of some batches of a shard.

    Args:
        shard: the shard.
        numbers: of the batches.
        rest: without dots; sorts after the names of the files before it.
        quarantine: True if it holds records that could not be parsed.
    """
    kind = ".quarantine" if quarantine else ""
    return f"{shard}.{numbers.start}-{numbers.stop - 1}.{rest}{kind}.parquet"


def shard_and_batches(name: str) -> tuple[ShardId, range] | None:
    """Return the shard and the numbers of the batches in a file; None for a name without them."""
    match = _NUMBERED.fullmatch(name)
    return (ShardId(match[1]), range(int(match[2]), int(match[3]) + 1)) if match else None
