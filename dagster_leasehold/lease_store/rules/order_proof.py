"""Proof that an ordered group read no shard before all that it comes from was finished.

The journal says when a shard was over, when it was reopened, and when another one was free to
start, was claimed or was opened. A shard that became free while the group was unordered may go
on; so may one whose parent was reopened while the group was unordered, or whose parent was
reopened by somebody who accepted just that. A shard that was rolled forward to its table was not
read by that: the journal of its reading is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.states import ShardState


@dataclass(slots=True)
class Life:
    """The life of a shard up to one of its journal's entries, by the entries' sequences.

    Attributes:
        seen: the entry that first lists it.
        over: the last entry that finishes it; -1 for none.
        reopened: the last entry that reopens it; -1 for none.
        reopened_in_order: True if the group was ordered then.
        free: the entry since which it may start, if there is one.
        free_in_order: True if the group was ordered then.
        accepted: for each parent, the last entry that accepts its reopening.
        without: for each parent that was not listed yet when it started, the entry of its start.
    """

    seen: int | None = None
    over: int = -1
    reopened: int = -1
    reopened_in_order: bool = True
    free: int | None = None
    free_in_order: bool = True
    accepted: dict[str, int] = field(default_factory=dict[str, int])
    without: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class _Course:
    """The entries in order, read under one belief about the group's setting at the beginning."""

    parents: Mapping[ShardId, Sequence[ShardId]]
    children: Mapping[ShardId, Sequence[ShardId]]
    ordered: bool
    lives: dict[ShardId, Life] = field(default_factory=dict[ShardId, Life])
    early: dict[ShardId, str] = field(default_factory=dict[ShardId, str])

    def take(self, entry: JournalEntry, shard: ShardId) -> None:
        """Take the next entry that concerns a shard."""
        life = self.lives.setdefault(shard, Life())
        if entry.kind == "edge":
            self._note_edge(entry, shard, life)
        if entry.kind == "accept":
            life.accepted[entry.facts.get("parent", "")] = entry.sequence
        if entry.to_state is ShardState.WAIT:
            life.free = None
            life.without.clear()
        # Edges 1 and 2 are where a shard becomes free to start.
        began = (None, ShardState.WAIT)
        freed = entry.to_state is ShardState.NOT_ALLOC and entry.from_state in began
        if freed:
            life.free, life.free_in_order = entry.sequence, self.ordered
        read = entry.kind == "open" and "rolled_forward" not in entry.facts
        starts = read or entry.to_state is ShardState.ALREADY_ALLOC
        if shard not in self.early and (freed or starts):
            self._check(entry, shard, life)

    def _note_edge(self, entry: JournalEntry, shard: ShardId, life: Life) -> None:
        if entry.from_state is None:
            life.seen = entry.sequence
            for child in self.children.get(shard, ()):
                # It came late: whatever its child has read since then was read out of order.
                started = self.lives.get(child)
                if started is not None and shard in started.without:
                    self._blame(child, started.without[shard], shard)
        if entry.to_state is ShardState.OVER:
            life.over = entry.sequence
        if entry.from_state is ShardState.OVER:
            life.reopened, life.reopened_in_order = entry.sequence, self.ordered

    def _check(self, entry: JournalEntry, shard: ShardId, life: Life) -> None:
        if not (self.ordered if life.free is None else life.free_in_order):
            return
        for parent in self.parents.get(shard, ()):
            before = self.lives.get(parent)
            if before is None or before.seen is None:
                # One that never comes is read by nobody: nothing was out of order.
                life.without.setdefault(parent, entry.sequence)
                continue
            accepted = life.accepted.get(parent)
            if before.over <= before.reopened and not _excused(before, accepted):
                self._blame(shard, entry.sequence, parent)
                return

    def _blame(self, shard: ShardId, started: int, parent: ShardId) -> None:
        sentence = f"it could start at entry {started}, before its parent {parent} was over"
        self.early.setdefault(shard, sentence)


class OrderProof:
    """Takes the entries of a group's journal in order, and finds shards that started too early.

    What the group's setting was before its first change is known only at that change, so that
    the entries are read under both beliefs until then.

    Args:
        parents: of every shard of the group.
    """

    def __init__(self, parents: Mapping[ShardId, Sequence[ShardId]]) -> None:
        children: dict[ShardId, list[ShardId]] = {}
        for child, named in parents.items():
            for parent in named:
                children.setdefault(parent, []).append(child)
        self._courses = {ordered: _Course(parents, children, ordered) for ordered in (True, False)}

    def take(self, entry: JournalEntry) -> None:
        """Take the next entry of the group."""
        if entry.kind == "group" and "ordered" in entry.facts:
            before, after = entry.facts["ordered"]
            course = self._course(before)
            course.ordered = after
            self._courses = {after: course}
        if entry.shard is not None:
            for course in self._courses.values():
                course.take(entry, entry.shard)

    def violations(self, *, ordered: bool) -> list[tuple[ShardId, str]]:
        """List every shard that could start, was claimed or was opened too early, once, and how.

        `ordered` is the group's setting now.
        """
        early = self._course(ordered).early
        return [(shard, early[shard]) for shard in sorted(early, key=rank_key)]

    def _course(self, ordered: bool) -> _Course:
        return self._courses.get(ordered) or next(iter(self._courses.values()))


def _excused(parent: Life, accepted: int | None) -> bool:
    """Return True if a parent that is not over was reopened while that was nobody's concern.

    The choice to accept is recorded just before the reopening that it is about.
    """
    if parent.reopened < 0:
        return False
    return not parent.reopened_in_order or (accepted is not None and accepted > parent.over)


def check_order(
    parents: Mapping[ShardId, Sequence[ShardId]], journal: Iterable[JournalEntry], *, ordered: bool
) -> list[tuple[ShardId, str]]:
    """List every shard that could start, was claimed or was opened too early, once, and how.

    Args:
        parents: of every shard of the group.
        journal: all entries.
        ordered: the group's setting now; what it was before is read from the journal.
    """
    proof = OrderProof(parents)
    for entry in sorted(journal, key=lambda entry: entry.sequence):
        proof.take(entry)
    return proof.violations(ordered=ordered)
