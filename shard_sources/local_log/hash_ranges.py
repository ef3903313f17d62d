"""Hash ranges of shards: `[begin, end)` over 128 bits, written as 32 hexadecimal digits.

The last range of a log ends at thirty-two `f`, and includes that last value itself.
"""

from __future__ import annotations

import hashlib
import re

from dagster_leasehold.lease_store.errors import ReshardingRefused, shown

HASH_BITS = 128
_LAST = (1 << HASH_BITS) - 1
_HEX = re.compile(r"[0-9a-fA-F]{1,32}", re.ASCII)


def hash_text(value: int) -> str:
    """A hash as 32 hexadecimal digits."""
    return f"{value:032x}"


def even_ranges(count: int) -> list[tuple[str, str]]:
    """`count` ranges that cover all hashes and differ in size by at most one."""
    edges = [(number << HASH_BITS) // count for number in range(count)] + [_LAST]
    return [(hash_text(edges[n]), hash_text(edges[n + 1])) for n in range(count)]


def parse_hash(text: str) -> int:
    """Return the hash that a person wrote in up to 32 hexadecimal digits.

    Raises:
        ReshardingRefused: it is not one.
    """
    if not _HEX.fullmatch(text):
        raise ReshardingRefused(f"{shown(text)} is not a hash: use 1 to 32 hexadecimal digits.")
    return int(text, 16)


def split_point(begin: str, end: str, at: str | None) -> str:
    """Return the hash at which to split `[begin, end)`: a given one, or the middle.

    Raises:
        ReshardingRefused: the range is too small, or the hash is not strictly inside it.
    """
    first, last = int(begin, 16), int(end, 16)
    middle = (first + last) // 2 if at is None else parse_hash(at)
    if not first < middle < last:
        raise ReshardingRefused(
            f"A range from {begin} to {end} cannot be split at {hash_text(middle)}: use a hash "
            "strictly between the two."
        )
    return hash_text(middle)


def hash_of(key: bytes) -> int:
    """The hash of a record's key, which decides its shard when a log is loaded by hash."""
    return int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest(), "big")
