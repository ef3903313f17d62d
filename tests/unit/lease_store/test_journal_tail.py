"""Following the end of the journal loses no entry that appears after a newer one."""

from __future__ import annotations

from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.journal_tail import SETTLED_AFTER_S, JournalTail
from dagster_leasehold.lease_store.memory_store import MemoryStore

KEY = GroupKey.parse("group", "stream")


class Scene:
    """A journal whose entries can be held back, as by a transaction that continues."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.store = MemoryStore()
        self.store.create_group(Group(KEY))
        self.tail = JournalTail(lambda: self.now_s)

    def write(self, reason: str) -> None:
        note = Note("group", reason)
        self.store._writing("note", KEY, lambda rows: rows.journal([note], "test"))

    @property
    def rows(self):  # type: ignore[no-untyped-def]
        return self.store._groups[KEY]

    def read(self) -> list[str]:
        return [entry.reason for entry in self.tail.read(self.store, KEY)]


def test_an_entry_that_appears_after_a_newer_one_is_read_once() -> None:
    scene = Scene()
    scene.write("before")
    assert scene.read() == [], "what was there before is not new"
    scene.write("slow")
    newest = list(scene.rows.journal)[-1]
    slow = scene.rows.journal.pop(newest)
    scene.write("fast")
    assert scene.read() == ["fast"]
    scene.rows.journal[newest] = slow
    assert scene.read() == ["slow"]
    assert scene.read() == []
    scene.write("later")
    assert scene.read() == ["later"]


def test_settled_entries_are_not_read_again() -> None:
    scene = Scene()
    scene.read()
    asked: list[int] = []
    original = scene.store.each_entry

    def watched(key: GroupKey, *, after: int):  # type: ignore[no-untyped-def]
        asked.append(after)
        return original(key, after=after)

    scene.store.each_entry = watched  # type: ignore[method-assign,assignment]
    for number in range(5):
        scene.write(str(number))
        assert scene.read() == [str(number)]
        scene.now_s += SETTLED_AFTER_S / 2
    assert asked == [0, 0, 1, 2, 3]
    assert len(scene.tail._seen) <= 3
