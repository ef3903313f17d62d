"""The journal's reasons are for people: no verdict and no code depends on their words."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.rules.verification import Violation, verify
from tests.conformance.test_histories import Player
from tests.histories import check_history

ROOT = Path(__file__).parents[3]
ROOMS = ("assets", "lease_store", "orchestration", "sensors", "shard_sources")
KEY = GroupKey.parse("group", "stream")
OTHER_WORDS = (
    "",
    "said otherwise",
    "ordered: True → False; continues although its parent s0 was reopened",
    "ordered: False → True; continues although its parent s1 was reopened",
)
SEEDS = (60, 73, 163, 173, 273, 311)
"""Histories with changes of the order, reopened parents and children that were accepted."""


def verdict(store: MemoryStore, journal: list[JournalEntry]) -> list[Violation]:
    snapshot = store.snapshot(KEY)
    batches, gaps = store.batches(KEY, state=None), store.gaps(KEY)
    ordered = snapshot.group.ordered
    return check_history(snapshot.shards, journal, batches, gaps, ordered=ordered)


@pytest.mark.parametrize("seed", SEEDS)
def test_rewording_every_reason_does_not_change_the_verdict(seed: int) -> None:
    store, chance = MemoryStore(), random.Random(seed)
    Player(store, KEY, seed).play(300)
    journal = store.journal(KEY)
    for shown in (journal, journal[: len(journal) // 2]):
        before = verdict(store, shown)
        for words in (*OTHER_WORDS, None):
            reworded = [
                replace(entry, reason=chance.choice(OTHER_WORDS) if words is None else words)
                for entry in shown
            ]
            assert verdict(store, reworded) == before


def test_the_histories_contain_facts_and_violations() -> None:
    """Whole histories are proven sound, half of their journals are not: both have to stay so."""
    kinds: set[str] = set()
    rules: set[str] = set()
    for seed in SEEDS:
        store = MemoryStore()
        Player(store, KEY, seed).play(300)
        journal = store.journal(KEY)
        kinds |= {entry.kind for entry in journal if entry.facts}
        kinds |= {"ordered" for entry in journal if "ordered" in entry.facts}
        rules |= {violation.rule for violation in verdict(store, journal[: len(journal) // 2])}
        assert {each.rule for each in verify(store, KEY)} <= {"order"}
    assert kinds == {"accept", "group", "ordered"}
    assert rules


def readers(tree: ast.AST) -> Iterator[tuple[ast.Attribute, ast.AST]]:
    """Each place that takes a `.reason`, with the expression that it is a part of."""
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            taken = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            if taken and node.attr == "reason":
                yield node, parent


def prints(parent: ast.AST) -> bool:
    """Return True if an expression passes a reason on unchanged: into a sentence, a row or a
    reason.
    """
    match parent:
        case ast.FormattedValue() | ast.Tuple() | ast.List() | ast.GeneratorExp():
            return True
        case ast.Dict() | ast.keyword(arg="reason"):
            return True
        case ast.Call(func=ast.Attribute(attr="hear")):
            return True  # the simulation searches all messages for its secret
        case _:
            return False


def test_code_only_prints_reasons() -> None:
    read = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ROOMS
        for path in sorted((ROOT / "dagster_leasehold" / room).rglob("*.py"))
        for node, parent in readers(ast.parse(path.read_text()))
        if not prints(parent)
    ]
    assert read == []


def test_the_check_finds_code_that_reads_a_reason() -> None:
    for code in (
        "re.search(pattern, entry.reason)",
        "entry.reason.startswith('x')",
        "'parent' in entry.reason",
        "entry.reason == 'x'",
        "words = entry.reason",
        "entry.reason[3:]",
    ):
        assert [prints(parent) for _, parent in readers(ast.parse(code))] == [False], code
