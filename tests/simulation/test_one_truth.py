"""The protocol with the table as the only record of published files keeps each record once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from tests.simulation.one_truth import rules
from tests.simulation.one_truth.rules import (
    Batch,
    Cut,
    Entry,
    Group,
    Ledger,
    Planned,
    PublishedShard,
    Rules,
    Shard,
    ShardPlan,
    Swap,
)
from tests.simulation.one_truth.world import State, Steps, World, failures

STEPS, SHORT_STEPS = 500, 200
SEEDS = range(300)
MUTANT_HISTORIES = 10_000


def test_each_record_is_published_once_while_all_fail_and_others_change_the_table() -> None:
    assert failures(SEEDS, STEPS) == {}


@pytest.mark.release
@pytest.mark.timeout(7_200)
def test_a_hundred_thousand_histories_break_no_promise() -> None:
    assert failures(range(100_000), SHORT_STEPS) == {}


def test_the_histories_reach_every_part_of_the_protocol() -> None:
    reached = Reached()
    for number in range(250):
        World(number, ledger_type=lambda own: CountingLedger(own, reached)).run(STEPS)
    assert min(vars(reached).values()) > 10, reached


@dataclass
class Reached:
    """The number of events in some histories."""

    cuts_recorded: int = 0
    cuts_during_pending: int = 0
    cuts_returned: int = 0
    pending_dropped: int = 0
    pending_settled: int = 0
    swaps_settled: int = 0
    merges_settled: int = 0
    expiries_settled: int = 0
    tables_accepted: int = 0
    ledgers_rolled_forward: int = 0


class CountingLedger(Ledger):
    """A ledger that counts its events."""

    def __init__(self, own: Rules, reached: Reached) -> None:
        super().__init__(own)
        self.reached = reached

    def record(self, epoch: int, planned: Planned) -> bool:
        recorded = super().record(epoch, planned)
        self.reached.cuts_recorded += recorded and any(p.cut for p in planned.shards.values())
        return recorded

    def force(self, name: ShardId, number: int) -> None:
        before = self.shards[name].cut
        super().force(name, number)
        changed = self.shards[name].cut != before and self.group.pending is not None
        self.reached.cuts_during_pending += changed

    def settle(self, epoch: int, planned: Planned) -> bool:
        settled = super().settle(epoch, planned)
        swap = planned.swap if settled else None
        self.reached.pending_settled += settled
        self.reached.swaps_settled += swap is not None
        self.reached.merges_settled += swap is not None and swap.merges
        self.reached.expiries_settled += swap is not None and swap.expires
        return settled

    def drop(self, epoch: int, planned: Planned) -> bool:
        dropped = super().drop(epoch, planned)
        self.reached.pending_dropped += dropped
        self.reached.cuts_returned += dropped and any(p.cut for p in planned.shards.values())
        return dropped

    def accept(self, epoch: int, planned: Planned, records: Mapping[ShardId, int]) -> bool:
        accepted = super().accept(epoch, planned, records)
        self.reached.tables_accepted += accepted
        return accepted

    def follow(
        self,
        epoch: int,
        planned: Planned,
        published: Mapping[ShardId, PublishedShard],
        entries: Sequence[Entry],
    ) -> bool:
        followed = super().follow(epoch, planned, published, entries)
        self.reached.ledgers_rolled_forward += followed
        return followed


# -- broken rules ---------------------------------------------------------------------------------


class SettlingClearsTheCut(Rules):
    """A cut stays with its shard while a publication is pending, and is cleared afterwards."""

    def recorded(self, shard: Shard) -> Shard:
        return shard

    def settled(self, shard: Shard, plan: ShardPlan) -> Shard:
        return replace(super().settled(shard, plan), cut=None)

    def dropped(self, shard: Shard, plan: ShardPlan) -> Shard:
        del plan
        return shard


class SettlingClearsAnEqualCut(SettlingClearsTheCut):
    """Afterwards, it is cleared if it is still the cut that the publication carried out."""

    def settled(self, shard: Shard, plan: ShardPlan) -> Shard:
        cut = None if shard.cut == plan.cut else shard.cut
        return replace(Rules.settled(self, shard, plan), cut=cut)


class DroppingForgetsTheCut(Rules):
    """Dropping a publication does not return its cuts."""

    def dropped(self, shard: Shard, plan: ShardPlan) -> Shard:
        del plan
        return shard


class DroppingReplacesTheCut(Rules):
    """Dropping a publication returns its cut in place of a new one."""

    def dropped(self, shard: Shard, plan: ShardPlan) -> Shard:
        return replace(shard, cut=plan.cut)


class DroppingPrefersTheNewCut(Rules):
    """Dropping a publication returns its cut only if there is no new one."""

    def dropped(self, shard: Shard, plan: ShardPlan) -> Shard:
        return replace(shard, cut=shard.cut or plan.cut)


class KeepsTheLastCut(Rules):
    """A later cut replaces an earlier one that contains more."""

    def smaller(self, one: Cut | None, other: Cut | None) -> Cut | None:
        return other or one


class PendingIsNotPublished(Rules):
    """A forced checkpoint cuts only batches of settled publications."""

    def possibly_published(self, shard: Shard, pending: ShardPlan | None) -> int:
        del pending
        return shard.published


class ComparesNothing(Rules):
    """A publication is recorded, although the ledger has changed since it was planned."""

    def may_follow(self, planned: Planned, shards: object) -> bool:
        del planned, shards
        return True


class IgnoresVersions(Rules):
    """The versions of shards are not compared."""

    def may_follow(self, planned: Planned, shards: object) -> bool:
        assert isinstance(shards, dict)
        return all(
            (shards[name].cut, shards[name].published) == (plan.cut, plan.start)
            for name, plan in planned.shards.items()
        )

    def is_current(self, swap: Swap, shard: Shard) -> bool:
        del swap, shard
        return True


class SwapsDoNotCount(Rules):
    """A settled swap does not change the version of its shard."""

    def swapped(self, shard: Shard) -> Shard:
        return shard


class SwapsMissingFiles(Rules):
    """A swap adds its files, although the files that it replaces are not in the table."""

    def is_possible(self, swap: Swap, paths: Collection[str]) -> bool:
        del swap, paths
        return True


class DividesFiles(Rules):
    """A checkpoint can be forced inside a merged file."""

    def forced(self, shard: Shard, batch: Batch, pending: Planned | None, name: ShardId) -> Shard:
        if pending and pending.swap:
            pending = replace(pending, swap=None)
        return super().forced(shard, replace(batch, starts_file=True), pending, name)


class ForgetsPendingMerges(Rules):
    """A checkpoint can be forced inside a file of the pending publication."""

    def forced(self, shard: Shard, batch: Batch, pending: Planned | None, name: ShardId) -> Shard:
        if pending and pending.swap:
            pending = replace(pending, swap=None)
        return super().forced(shard, batch, pending, name)


class WithoutEpochs(Ledger):
    """A publisher records and drops publications after it lost the lock."""

    def record(self, epoch: int, planned: Planned) -> bool:
        return super().record(self.group.epoch, planned)

    def drop(self, epoch: int, planned: Planned) -> bool:
        return super().drop(self.group.epoch, planned)


class SettlesAnything(Ledger):
    """A publication is settled, although another one is pending or none."""

    def settle(self, epoch: int, planned: Planned) -> bool:
        self._publish(planned)
        return True


class PrunesPendingBatches(Ledger):
    """Rows of the pending publication are pruned before it is settled."""

    def prune(self, name: ShardId) -> None:
        pending, own = self.group.pending, self.shards[name]
        if pending is not None:
            self.shards[name] = replace(own, published=pending.shards[name].end)
        super().prune(name)
        self.shards[name] = own


class LooksForNothing(World):
    """A publisher that settles a pending publication as if it were in the table."""

    def resume(self, epoch: int, pending: Planned, seen: State) -> Steps:
        del seen
        self.ledger.settle(epoch, pending)
        yield


class DropsAtOnce(World):
    """A publisher that drops a pending publication that can still arrive."""

    def resume(self, epoch: int, pending: Planned, seen: State) -> Steps:
        if seen.mark is not None and seen.mark.id == pending.id:
            yield from super().resume(epoch, pending, seen)
        else:
            self.ledger.drop(epoch, pending)
            planned = yield from self.plan(self.newest(), None)
            if planned is not None and self.ledger.record(epoch, planned):
                yield from self.send(epoch, planned)


class TakesAnything(World):
    """A catalog that commits a snapshot with any parent."""

    def arrive(self, planned: Planned) -> None:
        self.accept(planned)


class TrustsTheTable(World):
    """A publisher that ignores the changes of other programs."""

    def trouble(self, group: Group, seen: State) -> str:
        del group, seen
        return ""


class RewritesAnyTable(World):
    """A rewrite that begins with a table that another program has changed."""

    def is_changed(self, group: Group, seen: State) -> bool:
        del group, seen
        return False


class RemovesWithoutTheLock(World):
    """A vacuum that does not take the publish lock."""

    def fence(self) -> None:
        pass


class PublishesOldFiles(World):
    """A swap of files that a vacuum may have listed."""

    def is_fresh(self, swap: Swap) -> bool:
        del swap
        return True


class ReadsTheTableFirst(World):
    """A vacuum that reads the table before the ledger."""

    def vacuum(self, old: Sequence[str]) -> Steps:
        names = self.named_by_table()
        yield
        names |= self.named_by_ledger()
        for path in old:
            if path not in names:
                self.disk.pop(path, None)


class KeepsFilesOfOthersWhole(World):
    """A cut removes our files by their numbers, but no records from another program's files."""

    def cut(self, entries: Sequence[Entry], shards: dict[ShardId, Shard]):
        own = super().cut([each for each in entries if each.shard is not None], shards)
        return own + [each for each in entries if each.shard is None]


def is_found(world: Callable[[int], World], first: int) -> bool:
    """Return True if a history from a seed on shows a violation."""
    return any(world(seed).run(STEPS) for seed in range(first, first + MUTANT_HISTORIES))


# The second values are seeds just before histories that find the mutant, which saves minutes.


def _numbers_alone(batches: Sequence[Batch], published: PublishedShard) -> Cut | None:
    numbers = {number for number, _ in published.batches}
    ends = {each.number: each.end for each in batches if each.number in numbers}
    same = tuple((number, ends.get(number, end)) for number, end in published.batches)
    return _first_difference(batches, published._replace(batches=same))


_first_difference = rules.first_difference


@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        (SettlingClearsTheCut, 0),
        (SettlingClearsAnEqualCut, 20),
        (DroppingForgetsTheCut, 0),
        (DroppingReplacesTheCut, 0),
        (DroppingPrefersTheNewCut, 460),
        (KeepsTheLastCut, 340),
        (PendingIsNotPublished, 0),
        (ComparesNothing, 0),
        (IgnoresVersions, 0),
        (SwapsDoNotCount, 150),
        (SwapsMissingFiles, 20),
        (DividesFiles, 20),
        (ForgetsPendingMerges, 0),
    ],
)
def test_the_simulation_finds_each_broken_rule(mutant: type[Rules], first: int) -> None:
    assert is_found(lambda seed: World(seed, mutant()), first)


@pytest.mark.parametrize(
    ("mutant", "first"), [(SettlesAnything, 0), (PrunesPendingBatches, 0), (WithoutEpochs, 8_580)]
)
def test_the_simulation_finds_each_broken_transaction(mutant: type[Ledger], first: int) -> None:
    assert is_found(lambda seed: World(seed, ledger_type=mutant), first)


@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        (LooksForNothing, 0),
        (DropsAtOnce, 0),
        (TakesAnything, 0),
        (TrustsTheTable, 0),
        (KeepsFilesOfOthersWhole, 0),
        (RewritesAnyTable, 1600),
        (RemovesWithoutTheLock, 1220),
        (PublishesOldFiles, 970),
        (ReadsTheTableFirst, 1220),
    ],
)
def test_the_simulation_finds_each_broken_step(mutant: type[World], first: int) -> None:
    assert is_found(mutant, first)


def test_a_restored_ledger_is_not_compared_by_numbers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "first_difference", _numbers_alone)
    assert is_found(World, 0)
