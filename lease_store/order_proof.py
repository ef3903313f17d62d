"""Proof that an ordered group read no shard before all that it comes from was finished.

The journal says when a shard was over, when it was reopened, and when another one was free to
start, was claimed or was opened. A shard that became free while the group was unordered may go
on; so may one whose parent was reopened while the group was unordered, or whose parent was
reopened by somebody who accepted just that.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lease_store.assignment_plan import rank_key
from lease_store.identifiers import ShardId
from lease_store.records import JournalEntry
from lease_store.states import ShardState

_ORDER_CHANGED = re.compile(r"\bordered: (True|False) → (True|False)\b")
_ACCEPTED = re.compile(r"\bits parent (\S+) was reopened\b")


@dataclass(slots=True)
class _Life:
    """When a shard was first seen, over and reopened, and what its accepted reopenings are."""

    seen: int | None = None
    over: list[int] = field(default_factory=list[int])
    reopened: list[int] = field(default_factory=list[int])
    entries: list[JournalEntry] = field(default_factory=list[JournalEntry])

    def over_at(self, sequence: int) -> bool:
        """Whether it was over at an entry, and had not been reopened since."""
        return self.newest(self.over, sequence) > self.newest(self.reopened, sequence)

    @staticmethod
    def newest(sequences: list[int], until: int) -> int:
        """The newest of some entries up to one; -1 where there is none."""
        place = bisect_right(sequences, until)
        return sequences[place - 1] if place else -1


class _Order:
    """Since which entry the group was ordered or not."""

    def __init__(self, journal: Sequence[JournalEntry], *, ordered: bool) -> None:
        changes: list[tuple[int, bool, bool]] = []
        for entry in journal:
            found = _ORDER_CHANGED.search(entry.reason) if entry.kind == "group" else None
            if found:
                changes.append((entry.sequence, found[1] == "True", found[2] == "True"))
        self._first = changes[0][1] if changes else ordered
        self._since = [sequence for sequence, _, _ in changes]
        self._then = [after for _, _, after in changes]

    def at(self, sequence: int) -> bool:
        # An unordered group frees its waiting shards right after the entry of the change.
        place = bisect_right(self._since, sequence)
        return self._then[place - 1] if place else self._first


def check_order(
    parents: Mapping[ShardId, Sequence[ShardId]], journal: Sequence[JournalEntry], *, ordered: bool
) -> list[tuple[ShardId, str]]:
    """Every shard that could start, was claimed or was opened too early, once, and how.

    Args:
        parents: of every shard of the group.
        journal: all entries.
        ordered: the group's setting now; what it was before is read from the journal.
    """
    entries = sorted(journal, key=lambda entry: entry.sequence)
    order = _Order(entries, ordered=ordered)
    lives = _lives(entries)
    found: list[tuple[ShardId, str]] = []
    for shard in sorted(parents, key=rank_key):
        life = lives.get(shard)
        if life is None or not parents[shard]:
            continue
        if too_early := _first_too_early(life, parents[shard], lives, order):
            found.append((shard, too_early))
    return found


def _lives(entries: Sequence[JournalEntry]) -> dict[ShardId, _Life]:
    lives: dict[ShardId, _Life] = {}
    for entry in entries:
        if entry.shard is None:
            continue
        life = lives.setdefault(entry.shard, _Life())
        life.entries.append(entry)
        if entry.kind != "edge":
            continue
        if entry.from_state is None:
            life.seen = entry.sequence
        if entry.to_state is ShardState.OVER:
            life.over.append(entry.sequence)
        if entry.from_state is ShardState.OVER:
            life.reopened.append(entry.sequence)
    return lives


def _first_too_early(
    life: _Life, parents: Sequence[ShardId], lives: Mapping[ShardId, _Life], order: _Order
) -> str:
    free_since: int | None = None
    accepted: dict[str, int] = {}
    for entry in life.entries:
        if entry.kind == "accept" and (named := _ACCEPTED.search(entry.reason)):
            accepted[named[1]] = entry.sequence
        if entry.to_state is ShardState.WAIT:
            free_since = None
        # Edges 1 and 2 are where a shard becomes free to start.
        freed = entry.to_state is ShardState.NOT_ALLOC and entry.from_state in (
            None,
            ShardState.WAIT,
        )
        if freed:
            free_since = entry.sequence
        if not freed and entry.kind != "open" and entry.to_state is not ShardState.ALREADY_ALLOC:
            continue
        began = entry.sequence if free_since is None else free_since
        if not order.at(began):
            continue
        for parent in parents:
            before = lives.get(parent)
            # A parent that was seen later was not known to have to be waited for.
            if before is None or before.seen is None or before.seen > began:
                continue
            if not before.over_at(entry.sequence) and not _excused(
                before, accepted.get(parent), entry.sequence, order
            ):
                return (
                    f"it could start at entry {entry.sequence}, before its parent {parent} was over"
                )
    return ""


def _excused(parent: _Life, accepted: int | None, sequence: int, order: _Order) -> bool:
    """Whether a parent that is not over was reopened while that was nobody's concern.

    The choice to accept is recorded just before the reopening that it is about.
    """
    reopened = parent.newest(parent.reopened, sequence)
    if reopened < 0:
        return False
    if not order.at(reopened):
        return True
    return accepted is not None and accepted > parent.newest(parent.over, sequence)
