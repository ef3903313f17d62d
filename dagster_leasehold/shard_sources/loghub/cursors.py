"""Cursors of a LogHub shard: the number of a LogGroup, and an index within the group.

The service's cursor is the base64 text of a number. Here it is the number itself, so that cursors
can be compared and read by people. The service cannot point into a LogGroup, so for any record
except the group's first the cursor adds `.` and the record's index.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Self

from dagster_leasehold.lease_store.errors import CursorInvalid, shown
from dagster_leasehold.lease_store.identifiers import ShardId

_NUMBER_MAX = 2**63 - 1
_TEXT = re.compile(r"(0|[1-9][0-9]{0,18})(?:\.([1-9][0-9]{0,8}))?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class GroupCursor:
    """A position in a shard; positions have the order of the shard.

    Attributes:
        group: the number of the next LogGroup, from the service's cursor.
        index: the number of records of that group before this position.
    """

    group: int
    index: int = 0

    @classmethod
    def parse(cls, shard: ShardId, text: str) -> Self:
        """Return the position of a stored cursor; raise CursorInvalid for other text."""
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) > _NUMBER_MAX:
            raise CursorInvalid(f"{shown(text)} is not a cursor of LogHub shard {shard}.")
        return cls(int(match[1]), int(match[2] or 0))

    @classmethod
    def from_service(cls, shard: ShardId, text: str) -> Self:
        """Return the position of a service's cursor; raise CursorInvalid for other text."""
        try:
            cursor = cls.parse(shard, base64.b64decode(text, validate=True).decode("ascii"))
        except (binascii.Error, ValueError, CursorInvalid):
            cursor = None
        if cursor is None or cursor.service != text:
            raise CursorInvalid(f"{shown(text)} is not the service's cursor of shard {shard}.")
        return cursor

    @property
    def service(self) -> str:
        """The service's cursor of the group."""
        return base64.b64encode(str(self.group).encode()).decode()

    def __str__(self) -> str:
        return f"{self.group}.{self.index}" if self.index else str(self.group)
