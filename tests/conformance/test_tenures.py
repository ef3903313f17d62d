"""Tenures: opening, fencing, closing, checkpoints without batches, gaps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused, LeaseLost, UnknownShard
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.outcomes import Changed, NotHeld, OpenByOther, Opened, TenureView
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from tests.conformance.world import A, B, World, X, Y


@pytest.fixture
def ready(world: World) -> World:
    """Shard x held by node a, not open."""
    world.group()
    world.join(A, B)
    world.add(X, Y)
    world.claim(A, X)
    return world


def test_opening_starts_an_epoch(ready: World) -> None:
    before = ready.generation()
    opened = ready.store.open_tenure(ready.key, X, A, "run-1")
    assert opened == Opened(Tenure(ready.key, X, A, 1, "run-1"), None, 0, None)
    shard = ready.shard(X)
    assert (shard.consumer_epoch, shard.consumer_run) == (1, "run-1")
    assert ready.generation() == before
    entry = ready.journal(X)[-1]
    assert (entry.kind, entry.epoch, entry.run, entry.to_owner) == ("open", 1, "run-1", A)


def test_only_one_run_has_a_shard_open(ready: World) -> None:
    ready.open(A, X)
    assert ready.store.open_tenure(ready.key, X, A, "run-2") == OpenByOther("run-1")
    other = ready.store.open_tenure(ready.key, X, A, "run-2", replaces="run-0")
    assert other == OpenByOther("run-1")


def test_a_run_known_to_have_ended_is_replaced(ready: World) -> None:
    old = ready.open(A, X).tenure
    opened = ready.store.open_tenure(ready.key, X, A, "run-2", replaces="run-1")
    assert isinstance(opened, Opened)
    assert opened.tenure.epoch == 2
    assert ready.kinds(X)[-3:] == ["open", "close", "open"]
    with pytest.raises(LeaseLost, match="tenure 1"):
        ready.store.save_checkpoint(old, "1")


def test_tenures_close_together_except_ended_ones(world: World) -> None:
    z, w = X.__class__("z"), X.__class__("w")
    world.group()
    world.join(A, B)
    world.add(X, Y, z, w)
    for shard in (X, Y, z, w):
        world.claim(A, shard)
    tenures = [world.open(A, shard).tenure for shard in (X, Y, z, w)]
    world.store.close_tenure(tenures[1], reason="earlier")
    world.transfer(z, B)
    lost = replace(tenures[3], epoch=tenures[3].epoch + 1)
    before = world.generation()
    assert world.store.close_tenures([*tenures[:3], lost], reason="caught up") == {X, z}
    runs = {shard: world.shard(shard).consumer_run for shard in (X, Y, z, w)}
    assert runs == {X: "", Y: "", z: "", w: "run-1"}
    assert world.shard(z).consumer_owner == B
    assert world.generation() == before + 1
    entry = world.journal(X)[-1]
    assert (entry.kind, entry.epoch, entry.reason) == ("close", 1, "caught up")
    assert world.store.close_tenures(tenures[:1], reason="again") == set()
    assert world.store.close_tenures([], reason="none") == set()


def test_tenures_open_together_with_the_results_of_single_calls(world: World) -> None:
    """Goal: the same results and rows as single calls; an unknown shard is omitted.

    Method: x can be opened, another run has y open, z is replaced after its run ended and has an
    intent, b's shard belongs to another node; one shard is in transfer, and one is unknown.
    """
    z, w, t, none = (X.__class__(name) for name in ("z", "w", "t", "none"))
    world.group()
    world.join(A, B)
    world.add(X, Y, z, w, t)
    world.claim(A, X, Y, z, t)
    world.claim(B, w)
    world.open(A, Y, "run-0")
    world.intend(world.open(A, z, "run-1").tenure, "0", "5")
    world.store.open_tenure(world.key, t, A, "run-1")
    world.transfer(t, B)
    before = world.generation()
    outcomes = world.store.open_tenures(
        world.key, [X, Y, z, w, t, none], A, "run-2", replaces={z: "run-1", t: "run-1"}
    )
    assert set(outcomes) == {X, Y, z, w, t}
    assert outcomes[t] == NotHeld("transfer", B)
    assert outcomes[X] == Opened(Tenure(world.key, X, A, 1, "run-2"), None, 0, None)
    assert outcomes[Y] == OpenByOther("run-0")
    assert outcomes[w] == NotHeld("already_alloc", B)
    replacing = outcomes[z]
    assert isinstance(replacing, Opened)
    assert replacing.intent is not None
    assert (replacing.tenure.epoch, replacing.intent.end, replacing.next_sequence) == (2, "5", 0)
    runs = {shard: world.shard(shard).consumer_run for shard in (X, Y, z, w, t)}
    assert runs == {X: "run-2", Y: "run-0", z: "run-2", w: "", t: ""}
    assert world.shard(t).consumer_owner == B
    assert world.kinds(z)[-2:] == ["close", "open"]
    assert world.generation() == before + 1
    assert isinstance(world.consume(outcomes[X].tenure, "0", "5"), Changed)
    assert world.store.open_tenures(world.key, [], A, "run-2", replaces={}) == {}


def test_no_tenures_open_together_while_paused(ready: World) -> None:
    group = ready.store.pulse(ready.key).group
    ready.store.update_group(replace(group, paused=True), observer="ops")
    opened = ready.store.open_tenures(ready.key, [X], A, "run-1", replaces={})
    assert opened == {X: NotHeld("paused", A)}
    assert ready.shard(X).consumer_run == ""


def test_an_announcement_for_many_shards_skips_ended_tenures(world: World) -> None:
    z = X.__class__("z")
    world.group()
    world.join(A, B)
    world.add(X, Y, z)
    tenures = world.hold(A, X, Y, z)
    world.transfer(Y, B)
    lost = replace(tenures[2], epoch=tenures[2].epoch + 1)
    before = world.generation()
    assert world.store.announce_all([*tenures[:2], lost], handoff_eta_s=2.5) == {X, Y}
    announced = {shard: world.shard(shard).handoff_eta_s for shard in (X, Y, z)}
    assert announced == {X: 2.5, Y: 2.5, z: None}
    assert world.generation() == before + 1
    assert world.store.announce_all(tenures[:1], handoff_eta_s=2.5) == {X}
    assert world.store.announce_all([], handoff_eta_s=2.5) == set()


def test_only_the_consumer_owner_opens(ready: World) -> None:
    assert ready.store.open_tenure(ready.key, X, B, "run-1") == NotHeld("already_alloc", A)
    assert ready.store.open_tenure(ready.key, Y, A, "run-1") == NotHeld("not_alloc", None)
    with pytest.raises(UnknownShard):
        ready.store.open_tenure(ready.key, X.__class__("none"), A, "run-1")


def test_no_tenure_opens_while_paused(ready: World) -> None:
    group = ready.store.pulse(ready.key).group
    tenure = ready.open(A, X).tenure
    ready.store.update_group(replace(group, paused=True), observer="ops")
    assert ready.store.review([tenure]) == {X: TenureView(current=True, paused=True)}
    assert isinstance(ready.consume(tenure, "0", "5"), Changed)
    ready.store.close_tenure(tenure, reason="paused")
    assert ready.store.open_tenure(ready.key, X, A, "run-2") == NotHeld("paused", A)


def test_a_shard_that_its_source_closed_is_not_opened(ready: World) -> None:
    old = ready.open(A, X).tenure
    ready.store.sync_shards(ready.key, [ShardListing(X, subscribable=False)], observer="test")
    assert ready.store.open_tenure(ready.key, X, A, "run-2") == NotHeld("unsubscribable", A)
    together = ready.store.open_tenures(ready.key, [X], A, "run-2", replaces={})
    assert together == {X: NotHeld("unsubscribable", A)}
    # The tenure of a run that has ended can still be replaced, or it would never be closed.
    replaced = ready.store.open_tenure(ready.key, X, A, "run-2", replaces=old.run)
    assert isinstance(replaced, Opened)
    ready.store.close_tenure(replaced.tenure, reason="test")
    ready.store.sync_shards(ready.key, [ShardListing(X)], observer="test")
    assert isinstance(ready.store.open_tenure(ready.key, X, A, "run-3"), Opened)


def test_closing_keeps_the_shard(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    before = ready.shard(X)
    ready.store.close_tenure(tenure, reason="caught up")
    shard = ready.shard(X)
    assert shard == replace(before, consumer_run="", tries=0)
    entry = ready.journal(X)[-1]
    assert (entry.kind, entry.reason, entry.epoch, entry.run) == ("close", "caught up", 1, "run-1")
    with pytest.raises(LeaseLost):
        ready.store.close_tenure(tenure, reason="again")
    assert ready.open(A, X, "run-2").tenure.epoch == 2


def test_epochs_never_repeat_across_holders(ready: World) -> None:
    epochs = [ready.open(A, X).tenure.epoch]
    ready.store.leave(ready.key, A, "a-1")
    ready.claim(B, X)
    epochs.append(ready.open(B, X, "run-2").tenure.epoch)
    ready.store.force_checkpoint(ready.key, X, "0", observer="ops", reason="r")
    epochs.append(ready.open(B, X, "run-3").tenure.epoch)
    assert epochs == [1, 2, 4]


@pytest.mark.parametrize(
    "change",
    [{"epoch": 0}, {"epoch": 2}, {"run": "run-0"}, {"run": ""}, {"holder": B}, {"shard": Y}],
)
def test_every_part_of_the_token_is_checked(ready: World, change: dict[str, object]) -> None:
    tenure = replace(ready.open(A, X).tenure, **change)
    store = ready.store
    assert not store.review([tenure])[tenure.shard].current
    for write in (
        lambda: store.save_checkpoint(tenure, "1"),
        lambda: store.announce(tenure, handoff_eta_s=1),
        lambda: store.close_tenure(tenure, reason="r"),
        lambda: store.record_gap(tenure, start="0", end="1", reason="r"),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert ready.shard(X).check_point is None
    assert ready.shard(X).consumer_run == "run-1"


def test_review_covers_many_shards(ready: World) -> None:
    first = ready.open(A, X).tenure
    ready.claim(A, Y)
    second = ready.open(A, Y).tenure
    gone = Tenure(ready.key, X.__class__("none"), A, 1, "run-1")
    ready.store.close_tenure(second, reason="r")
    views = ready.store.review([first, second, gone])
    assert [views[t.shard].current for t in (first, second, gone)] == [True, False, False]
    assert ready.store.review([]) == {}


def test_only_a_force_moves_a_saved_checkpoint_back(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.store.save_checkpoint(tenure, "10")
    with pytest.raises(CheckpointRefused, match=r"is '10' and does not go back to '9'. .*by force"):
        ready.store.save_checkpoint(tenure, "9")
    assert ready.shard(X).check_point == "10"
    ready.store.close_tenure(tenure, reason="r")
    with pytest.raises(LeaseLost):
        ready.store.save_checkpoint(tenure, "8")


def test_a_checkpoint_is_saved_without_a_batch(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    before = ready.generation()
    ready.store.save_checkpoint(tenure, "41")
    ready.store.save_checkpoint(tenure, "41")
    assert ready.shard(X).check_point == "41"
    assert ready.generation() == before
    ready.store.close_tenure(tenure, reason="r")
    assert ready.open(A, X, "run-2").check_point == "41"


def test_a_gap_is_recorded_and_skipped(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.consume(tenure, "0", "5")
    ready.intend(tenure, "5", "7", 1)
    ready.store.record_gap(tenure, start="5", end="9", reason="retention removed the records")
    ready.store.record_gap(tenure, start="5", end="9", reason="retention removed the records")
    assert ready.shard(X).check_point == "9"
    (gap,) = ready.store.gaps(ready.key)
    assert (gap.shard, gap.start, gap.end, gap.acknowledged) == (X, "5", "9", False)
    assert gap.reason == "retention removed the records"
    states = [batch.state for batch in ready.store.batches(ready.key, X, state=None)]
    assert states == [BatchState.COMMITTED, BatchState.ABANDONED]
    assert isinstance(ready.consume(tenure, "9", "12", 2), Changed)


def test_a_gap_begins_at_the_checkpoint(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.consume(tenure, "0", "5")
    with pytest.raises(CheckpointRefused, match="'5'"):
        ready.store.record_gap(tenure, start="4", end="9", reason="r")
    assert ready.store.gaps(ready.key) == []
    assert ready.shard(X).check_point == "5"


def test_an_empty_shard_can_be_finished(ready: World) -> None:
    ready.add(ShardListing(X.__class__("child"), parents=(Y,)))
    ready.claim(A, Y)
    tenure = ready.open(A, Y).tenure
    outcome = ready.store.finish_empty(tenure, "0")
    assert outcome == Changed((X.__class__("child"),))
    shard = ready.shard(Y)
    assert (shard.state, shard.check_point) == (ShardState.OVER, "0")
    assert ready.edges(X.__class__("child")) == [1, 2]
    assert not ready.store.review([tenure])[Y].current


def test_finishing_needs_the_tenure_and_its_checkpoint(ready: World) -> None:
    from dagster_leasehold.lease_store.outcomes import Stale

    tenure = ready.open(A, X).tenure
    ready.consume(tenure, "0", "5")
    before = ready.generation()
    assert ready.store.finish_empty(tenure, "7") == Stale()
    assert ready.store.finish_empty(replace(tenure, epoch=9), "5") == Stale()
    assert ready.generation() == before
    assert ready.store.finish_empty(tenure, "5") == Changed()
    assert ready.store.finish_empty(tenure, "5") == Stale()
