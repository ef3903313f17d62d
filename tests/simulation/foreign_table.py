"""A table in a catalog that other programs use: what they do to its snapshots."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_leasehold.lease_store.identifiers import ShardId

Steps = Generator[None]
"""A participant that stops after each of its steps."""

THEIR_SHARD = ShardId("x")


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the table: its id, its parent, its publication, and its files in order.

    Attributes:
        sequence: its number in the table's history, for any parent.
    """

    id: int
    publication: str
    files: tuple[str, ...]
    parent: int | None = None
    sequence: int = 0


@dataclass(frozen=True)
class View:
    """Another catalog's table as it was seen, and the mark: a publication, and its sequence."""

    newest: Snapshot
    ids: frozenset[int]
    mark: tuple[str, int]


class ForeignTable:
    """The table, and the changes of other programs.

    Attributes:
        chance: decides about the changes.
        current: its newest snapshot.
        history: the sequence number of the last snapshot that was ever the newest.
        staged: all snapshots by their ids.
        there: the ids of snapshots that have not expired.
        records: the records of each file, which begin with their shard.
        actors: the participants at work; each continues to its next step.
        frozen: the participants that do not continue for now.
    """

    chance: random.Random
    current: Snapshot
    history: int
    staged: dict[int, Snapshot]
    there: set[int]
    records: dict[str, list[tuple[Any, ...]]]
    names: int
    actors: list[Steps]
    frozen: list[Steps]

    def continue_one(self, *, freezing: float, waking: float, dying: float) -> None:
        """Continue one participant, which can die or freeze instead; a frozen one can continue."""
        if self.frozen and self.chance.random() < waking:
            self.actors.append(self.frozen.pop(self.chance.randrange(len(self.frozen))))
        if not self.actors:
            return
        actor = self.chance.choice(self.actors)
        fate = self.chance.random()
        if fate < freezing:
            self.frozen.append(actor)
        if fate < freezing + dying or next(actor, self) is self:
            self.actors = [each for each in self.actors if each is not actor]

    def name(self, kind: str) -> str:
        """Return a name that was never used."""
        self.names += 1
        return f"{kind}-{self.names}"

    def records_of(self, files: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the records of some files."""
        return [record for path in files for record in self.records[path]]

    def _enter(self, files: Sequence[str]) -> None:
        """Commit a snapshot as another program does: the properties stay."""
        snapshot = len(self.staged)
        self.history += 1
        self.staged[snapshot] = Snapshot(snapshot, "", tuple(files), self.current.id, self.history)
        self.current = self.staged[snapshot]
        self.there.add(snapshot)

    def rewritten(self) -> None:
        """Another program compacts some files: the same records in one file."""
        files = list(self.current.files)
        some = self.chance.sample(files, min(len(files), 2))
        if some:
            merged = self.name("theirs")
            self.records[merged] = self.records_of(some)
            self._enter([path for path in files if path not in some] + [merged])

    def more(self) -> None:
        """Another program adds more records than others delete meanwhile.

        Equal numbers of added and deleted records look like a rewrite.
        """
        path = self.name("theirs")
        self.records[path] = [(THEIR_SHARD, f"{path}-{number}") for number in range(41)]
        self._enter([*self.current.files, path])

    def less(self) -> None:
        """Another program deletes the records of a file."""
        if self.current.files:
            self._enter(self.current.files[1:])

    def rolled_back(self) -> None:
        """Another program makes an earlier snapshot the newest."""
        parent = self.current.parent
        if parent in self.there:
            self.current = self.staged[parent]

    def expired(self) -> None:
        """Another program expires all snapshots but the newest."""
        self.there = {self.current.id}
