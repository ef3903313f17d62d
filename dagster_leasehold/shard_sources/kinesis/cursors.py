"""Cursors of a Kinesis shard: exact positions with the time until which they are certain.

| text | position |
|---|---|
| `4959…` | at the record with this sequence number |
| `4959….7` | at the eighth record that a producer packed into it |
| `4959…+1767225600` | after that record; complete up to that second |
| `start+1767225600` | before the shard's first record; none had arrived by that second |
| `gone` | the only cursor of a shard that retention has removed as a whole |

The seconds are the service's. A record that arrives later is kept for the retention period. For
that long the position is certain even if its own record is removed; afterwards it is certain only
while that record exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from dagster_leasehold.lease_store.errors import CursorInvalid, shown

# The service allows 129 digits.
_GRAMMAR = re.compile(
    r"(?P<number>0|[1-9][0-9]{0,128})(?:\.(?P<part>[1-9][0-9]{0,8})|\+(?P<sure>[0-9]{1,12}))?"
    r"|start\+(?P<start>[0-9]{1,12})|(?P<gone>gone)",
    re.ASCII,
)
_PARTS_MAX = 10**9


class Side(StrEnum):
    """Where a position is: before all records, at or after one, or in a removed shard."""

    START = "start"
    AT = "at"
    AFTER = "after"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a shard.

    Attributes:
        side: where it is.
        number: the sequence number of its record.
        part: the index within a packed record.
        sure_s: the second of the service's clock up to which no record after it was removed.
    """

    side: Side
    number: int = 0
    part: int = 0
    sure_s: int = 0

    @classmethod
    def parse(cls, shard: str, text: str) -> Self:
        """Return the position of a cursor; raise CursorInvalid for other text."""
        match = _GRAMMAR.fullmatch(text)
        if match is None:
            raise CursorInvalid(
                f"{shown(text)} is not a cursor of shard {shown(shard)}: use begin, end, a time, "
                "or a cursor that Leasehold has shown for this shard."
            )
        if match["gone"]:
            return cls(Side.GONE)
        if match["start"]:
            return cls(Side.START, sure_s=int(match["start"]))
        number = int(match["number"])
        if match["sure"]:
            return cls(Side.AFTER, number, sure_s=int(match["sure"]))
        return cls(Side.AT, number, int(match["part"] or 0))

    def __str__(self) -> str:
        match self.side:
            case Side.GONE:
                return "gone"
            case Side.START:
                return f"start+{self.sure_s}"
            case Side.AFTER:
                return f"{self.number}+{self.sure_s}"
            case Side.AT:
                return f"{self.number}.{self.part}" if self.part else str(self.number)

    @property
    def order(self) -> tuple[int, int, int]:
        """The key that orders positions of one shard, regardless of their certainty."""
        match self.side:
            case Side.START:
                return (0, 0, 0)
            case Side.GONE:
                return (2, 0, 0)
            case Side.AFTER:
                return (1, self.number, _PARTS_MAX)
            case Side.AT:
                return (1, self.number, self.part)

    def renewed(self, sure_s: int) -> Place:
        """Return the same position, certain for longer; one at a record needs no renewal."""
        if self.side in (Side.AT, Side.GONE):
            return self
        return replace(self, sure_s=max(self.sure_s, sure_s))


GONE = Place(Side.GONE)


def at(number: int, part: int = 0) -> Place:
    """Return the position at a record."""
    return Place(Side.AT, number, part)


def after(number: int, arrived_s: int) -> Place:
    """Return the position after a record that arrived in this second."""
    return Place(Side.AFTER, number, sure_s=arrived_s)


def start(sure_s: int) -> Place:
    """Return the position before all records."""
    return Place(Side.START, sure_s=sure_s)


def created_s(starting_number: int) -> int | None:
    """Return the second when a shard was created, from its starting sequence number.

    A number has 186 bits: a 2, then 36 bits of seconds; other numbers return None. The service does
    not document this form, so it only proves that no record of a young shard was removed.
    """
    if starting_number.bit_length() != 186 or starting_number >> 184 != 2:
        return None
    seconds = (starting_number >> 148) & ((1 << 36) - 1)
    # Between the service's first year and the year 2286.
    return seconds if 1_300_000_000 < seconds < 10_000_000_000 else None
