"""Publishers that are frozen, die and come back: each committed batch is published exactly once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.memory_store import table_changes
from dagster_leasehold.lease_store.publication_rows import PlannedPublication, PublishTurn
from dagster_leasehold.lease_store.rules import publishing as rules
from tests.simulation.publishing import Seed, Snapshot, Steps

STEPS = 400
SEEDS = range(120)


def failures(seeds: range) -> dict[int, list[str]]:
    violations = {seed: Seed(seed).run(STEPS) for seed in seeds}
    return {seed: each for seed, each in violations.items() if each}


def test_each_committed_batch_is_published_once_and_none_that_was_withdrawn() -> None:
    assert failures(SEEDS) == {}


@pytest.mark.long
def test_a_thousand_seeds_more() -> None:
    assert failures(range(1_000, 2_000)) == {}


def test_the_same_on_sqlite(tmp_path: Path) -> None:
    for seed in range(2):
        store = open_store(f"sqlite:///{tmp_path}/{seed}.db")
        assert Seed(seed, store).run(40) == []
        store.close()


class LooksForNothing(Seed):
    """A publisher that settles what was recorded as if it were in the table."""

    def settle(
        self, turn: PublishTurn, recorded: Sequence[PlannedPublication], seen: Sequence[Snapshot]
    ) -> Steps:
        del seen
        for planned in recorded:
            self.store.commit_publication(turn, planned)
            yield


class LooksTwice(Seed):
    """A publisher that looks at the table again before it stages."""

    def plan(self, base: Snapshot) -> Generator[None, None, PlannedPublication | None]:
        del base
        yield
        return (yield from super().plan(self.newest()))


class TakesAnything(Seed):
    """A catalog that commits a snapshot whatever it follows."""

    def take(self, planned: PlannedPublication) -> None:
        self.catalog.append(self.staged[planned.snapshot])


def _without_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "may_follow", rules.may_settle)


def _out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "in_turn", lambda *_: True)


def _recorded_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def border_of(shard: object, cursor: int, recorded: object) -> rules.Border:
        del shard, recorded
        return rules.Border(cursor, cursor)

    monkeypatch.setattr(table_changes, "border_of", border_of)


def _all_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def border_of(shard: object, cursor: int, recorded: object) -> rules.Border:
        del shard, cursor, recorded
        return rules.Border(2**62, 2**62)

    monkeypatch.setattr(table_changes, "border_of", border_of)


def _nothing_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_changes, "border_of", lambda *_: None)


def _is(seed: type[Seed]) -> Callable[[pytest.MonkeyPatch], type[Seed]]:
    return lambda _: seed


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(_is(LooksForNothing), id="settles without looking"),
        pytest.param(_is(LooksTwice), id="looks at the table twice"),
        pytest.param(_is(TakesAnything), id="a catalog without a requirement"),
        pytest.param(_without_versions, id="versions are not compared"),
        pytest.param(_out_of_order, id="changes in any order"),
        pytest.param(_recorded_is_not_published, id="what is recorded is not published"),
        pytest.param(_nothing_is_published, id="changes are not recorded"),
        pytest.param(_all_is_published, id="what waits is rewritten"),
    ],
)
def test_a_broken_rule_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], type[Seed] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = mutant(monkeypatch) or Seed
    assert any(seed(number).run(STEPS) for number in SEEDS)
