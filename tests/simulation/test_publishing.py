"""Publishers that are frozen, die and come back: each committed batch is published exactly once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_leasehold.assets.output.table import publication
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    Publication,
    PublishLock,
    TableChange,
)
from dagster_leasehold.lease_store.roles import operations
from dagster_leasehold.lease_store.rules import publishing as rules
from tests.simulation.foreign_table import View
from tests.simulation.publishing import Seed, Steps

STEPS = 400
SEEDS = range(120)


def failures(seeds: range) -> dict[int, list[str]]:
    violations = {seed: Seed(seed).run(STEPS) for seed in seeds}
    return {seed: each for seed, each in violations.items() if each}


def test_each_committed_batch_is_published_once_and_none_that_was_withdrawn() -> None:
    assert failures(SEEDS) == {}


@pytest.mark.release
def test_a_thousand_more_seeds_break_no_promise() -> None:
    assert failures(range(1_000, 2_000)) == {}


def test_each_committed_batch_is_published_once_on_sqlite(tmp_path: Path) -> None:
    for seed in range(2):
        store = open_store(f"sqlite:///{tmp_path}/{seed}.db")
        assert Seed(seed, store).run(40) == []
        store.close()


class LooksForNothing(Seed):
    """A publisher that settles a pending publication as if it were in the table."""

    def resume(self, lock: PublishLock, pending: PlannedPublication, seen: View) -> Steps:
        del seen
        self.store.commit_publication(lock, pending)
        yield


class DropsAtOnce(Seed):
    """A publisher that drops a pending publication that can still arrive, and plans again."""

    def resume(self, lock: PublishLock, pending: PlannedPublication, seen: View) -> Steps:
        self.store.drop_publication(lock, pending)
        planned = yield from self.plan(self.newest())
        if planned is not None:
            yield from self.commit_elsewhere(lock, planned)


class TakesAnything(Seed):
    """A catalog that commits a snapshot with any parent."""

    def take(self, planned: PlannedPublication) -> None:
        self.accept(planned)


class TrustsTheTable(Seed):
    """A publisher that ignores the changes of other programs."""

    def trouble(self, row: Publication, seen: View) -> bool:
        del row, seen
        return False


class CountsNothing(Seed):
    """A publisher that compares the mark alone, and no records."""

    def trouble(self, row: Publication, seen: View) -> bool:
        return seen.mark[0] != (row.last or "")


def _without_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "may_follow", rules.may_settle)


def _out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "in_turn", lambda *_: True)


def _pending_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def border_of(shard: object, cursor: int, pending: object) -> rules.Border:
        del shard, pending
        return rules.Border(cursor, cursor)

    monkeypatch.setattr(operations, "border_of", border_of)


def _all_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def border_of(shard: object, cursor: int, pending: object) -> rules.Border:
        del shard, cursor, pending
        return rules.Border(2**62, 2**62)

    monkeypatch.setattr(operations, "border_of", border_of)


def _nothing_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "border_of", lambda *_: None)


def _missing_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        publication, "_possible", lambda changes, missing: (without(changes, missing), [])
    )


def without(changes: Sequence[TableChange], missing: Collection[str]) -> list[TableChange]:
    """Return changes that skip the removal of files and add the new ones."""
    return [
        replace(change, removed=tuple(path for path in change.removed if path not in missing))
        for change in changes
    ]


def _is(seed: type[Seed]) -> Callable[[pytest.MonkeyPatch], type[Seed]]:
    return lambda _: seed


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(_is(LooksForNothing), id="settles without looking"),
        pytest.param(_is(DropsAtOnce), id="drops what may arrive"),
        pytest.param(_is(TrustsTheTable), id="trusts the table"),
        pytest.param(_is(CountsNothing), id="counts no records"),
        pytest.param(_missing_is_no_matter, id="a file that is missing needs no removal"),
        pytest.param(_is(TakesAnything), id="a catalog without a requirement"),
        pytest.param(_without_versions, id="versions are not compared"),
        pytest.param(_out_of_order, id="changes in any order"),
        pytest.param(_pending_is_not_published, id="what is pending is not published"),
        pytest.param(_nothing_is_published, id="changes are not recorded"),
        pytest.param(_all_is_published, id="what waits is rewritten"),
    ],
)
def test_the_simulation_finds_each_broken_rule(
    mutant: Callable[[pytest.MonkeyPatch], type[Seed] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = mutant(monkeypatch) or Seed
    assert any(seed(number).run(STEPS) for number in SEEDS)
