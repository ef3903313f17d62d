"""Cursors of a Kinesis shard: places that are exact, and that tell when they have become unsure.

| text | place |
|---|---|
| `4959…` | at the record with this sequence number |
| `4959….7` | at the eighth record that a producer packed into that one |
| `4959…+1767225600` | after that record; nothing between it and that second was left out |
| `start+1767225600` | before the shard's first record, none of which had come by that second |
| `gone` | behind a shard that retention has removed as a whole |

The seconds are of the service's clock. A record that comes after them is kept for the retention
period from then on, so that for so long the place is sure even if its own record is removed; later
it is sure only while that record is still there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from dagster_leasehold.lease_store.errors import CursorInvalid, shown

# The service's own pattern allows 129 digits.
_GRAMMAR = re.compile(
    r"(?P<number>0|[1-9][0-9]{0,128})(?:\.(?P<part>[1-9][0-9]{0,8})|\+(?P<sure>[0-9]{1,12}))?"
    r"|start\+(?P<start>[0-9]{1,12})|(?P<gone>gone)",
    re.ASCII,
)
_PARTS_MAX = 10**9


class Side(StrEnum):
    """The side of a record, or of all records, where a place is."""

    START = "start"
    AT = "at"
    AFTER = "after"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a shard.

    Attributes:
        side: before all records, at one, after one, or behind the removed shard.
        number: the sequence number of that record.
        part: the number of the record among those packed into it.
        sure_s: no record after it was left out until this second of the service's clock.
    """

    side: Side
    number: int = 0
    part: int = 0
    sure_s: int = 0

    @classmethod
    def parse(cls, shard: str, text: str) -> Self:
        """Return the place that a cursor names; raise CursorInvalid for other text."""
        match = _GRAMMAR.fullmatch(text)
        if match is None:
            raise CursorInvalid(
                f"{shown(text)} is no cursor of shard {shown(shard)}: use begin, end, a time, or a "
                "cursor that was shown for this shard."
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
        """The key that orders places of one shard, however sure they are."""
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
        """The same place, sure for longer; one at a record needs no renewal."""
        if self.side in (Side.AT, Side.GONE):
            return self
        return replace(self, sure_s=max(self.sure_s, sure_s))


GONE = Place(Side.GONE)


def at(number: int, part: int = 0) -> Place:
    """At a record."""
    return Place(Side.AT, number, part)


def after(number: int, arrived_s: int) -> Place:
    """After a record that arrived in this second: what follows it arrived no earlier."""
    return Place(Side.AFTER, number, sure_s=arrived_s)


def start(sure_s: int) -> Place:
    """Before all records."""
    return Place(Side.START, sure_s=sure_s)


def created_s(starting_number: int) -> int | None:
    """The second when a shard was created, which its starting sequence number tells.

    Numbers of the present form have 186 bits: a 2, then 36 bits of seconds. The service does not
    document it, so that it is only used to rule out that records were removed from a young shard.
    None where the number has another form.
    """
    if starting_number.bit_length() != 186 or starting_number >> 184 != 2:
        return None
    seconds = (starting_number >> 148) & ((1 << 36) - 1)
    # From the service's first year to a time that no second of this form should reach.
    return seconds if 1_300_000_000 < seconds < 10_000_000_000 else None
