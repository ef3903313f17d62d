"""Places in a LogHub shard: the service's cursor of a LogGroup, and an index within the group.

The service's cursor is base64 text of a decimal number; a position in the service (of a consumer
group, in its console) is therefore a cursor here as it stands. The service cannot point into a
LogGroup, so a record that is not the first of its group adds `.` and its number in the group.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Self

from lease_store.errors import CursorInvalid, shown
from lease_store.identifiers import ShardId

_NUMBER_MAX = 2**63 - 1
_TEXT = re.compile(r"([A-Za-z0-9+/]{4,28}={0,2})(?:\.([1-9][0-9]{0,8}))?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class GroupCursor:
    """A place in a shard, in the order of the shard.

    Attributes:
        group: the number in the service's cursor: which LogGroup is next.
        index: the records of that group that lie before this place.
    """

    group: int
    index: int = 0

    @classmethod
    def parse(cls, shard: ShardId, text: str) -> Self:
        """A cursor as it is stored.

        Raises:
            CursorInvalid: it is not of the form, or not the form that the service writes.
        """
        found = _TEXT.fullmatch(text)
        if found is not None:
            try:
                digits = base64.b64decode(found[1], validate=True)
                cursor = cls(int(digits), int(found[2] or 0))
            except (binascii.Error, ValueError):
                pass
            else:
                # One place has one text: texts are compared when a batch follows another.
                if 0 <= cursor.group <= _NUMBER_MAX and str(cursor) == text:
                    return cursor
        raise CursorInvalid(f"{shown(text)} is not a cursor of LogHub shard {shard}.")

    @property
    def service(self) -> str:
        """The service's cursor of the group."""
        return base64.b64encode(str(self.group).encode()).decode()

    def __str__(self) -> str:
        return f"{self.service}.{self.index}" if self.index else self.service
