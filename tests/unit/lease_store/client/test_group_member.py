"""Heartbeats: the content of a reply, the owners of shards, and the reports of losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.client import GroupMember
from dagster_leasehold.lease_store.errors import (
    LeaseLost,
    ModuloCountMismatch,
    ModuloIdOutOfRange,
    ModuloIdTaken,
    ModuloSettingMissing,
    NodeNameTaken,
    OutcomeUnknown,
    ShardNotOpen,
    StoreUnavailable,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, Intent
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import (
    BEAT_S,
    KEY,
    TIMEOUT_S,
    checkpoint,
    make_group,
    member,
    memory_store,
    moving_to,
    owner,
)

S0, S1 = ShardId("0"), ShardId("1")


def joined(store: MemoryStore, clock: ManualClock, name: str, **row: object) -> GroupMember:
    client = member(store, clock, name, **row)
    client.register()
    return client


def opened(client: GroupMember, shard: ShardId = S0) -> Opened:
    outcome = client.open(shard)
    assert isinstance(outcome, Opened)
    return outcome


def test_a_lone_member_is_confirmed_all_shards(clock: ManualClock):
    client = joined(memory_store(["0", "1"]), clock, "a")
    assert client.heartbeat(()) == (S0, S1)
    assert opened(client).check_point is None


def test_two_members_share_and_never_both_have_a_shard(clock: ManualClock):
    store = memory_store(["0", "1", "2"])
    a, b = joined(store, clock, "a"), joined(store, clock, "b")
    for _ in range(3):
        of_a, of_b = set(a.heartbeat(())), set(b.heartbeat(()))
    assert not of_a & of_b
    assert of_a | of_b == {"0", "1", "2"}
    assert abs(len(of_a) - len(of_b)) == 1


def test_a_shard_is_kept_until_the_member_stops_reporting_it(clock: ManualClock):
    store = memory_store(["0", "1"])
    a = joined(store, clock, "a")
    for shard in a.heartbeat(()):
        opened(a, shard)
        a.save_checkpoint(shard, "5", persist=False)
    assert a.heartbeat((S0, S1)) == (S0, S1)
    b = joined(store, clock, "b")
    moving = moving_to(store, "b")
    staying = S1 if moving == S0 else S0

    for _ in range(3):
        assert b.heartbeat(()) == ()
        assert a.heartbeat((S0, S1)) == (staying,)
        assert owner(store, moving) == "a"
    a.save_checkpoint(moving, "7", persist=True)
    assert checkpoint(store, moving) == "7"
    a.save_checkpoint(moving, "8", persist=False)
    assert checkpoint(store, moving) == "7"

    assert a.heartbeat((staying,)) == (staying,)
    assert owner(store, moving) == "b"
    assert checkpoint(store, moving) == "8", "what is in memory is persisted at hand-over"
    assert b.heartbeat(()) == (moving,)
    assert opened(b, moving).check_point == "8"
    with pytest.raises(ShardNotOpen):
        a.save_checkpoint(moving, "9")


def test_a_shard_opened_after_the_report_is_not_released(clock: ManualClock):
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    opened(a)
    a.heartbeat(())
    assert a.holds(S0)
    a.save_checkpoint(S0, "3", persist=True)
    assert checkpoint(store) == "3"


def test_checkpoints_in_memory_are_persisted_by_interval_and_at_shutdown(clock: ManualClock):
    store = memory_store(["0", "1"])
    a = joined(store, clock, "a")
    for shard in a.heartbeat(()):
        opened(a, shard)
    a.save_checkpoint(S0, "4")
    clock.pass_s(BEAT_S)
    a.heartbeat((S0, S1))
    assert checkpoint(store) is None
    clock.pass_s(BEAT_S)
    a.heartbeat((S0, S1))
    assert checkpoint(store) == "4"
    assert a.persisted(S0) == "4"
    a.save_checkpoint(S0, "6")
    a.save_checkpoint(S1, "2")
    a.shutdown()
    assert (checkpoint(store, "0"), checkpoint(store, "1")) == ("6", "2")
    assert {row.state for row in store.snapshot(KEY).shards} == {ShardState.NOT_ALLOC}


def test_a_silent_member_is_replaced_after_the_timeout_and_its_save_fails_once(clock: ManualClock):
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    tenure = opened(a).tenure
    a.save_checkpoint(S0, "3", persist=True)
    b = joined(store, clock, "b")
    waited_s = 0.0
    while owner(store) == "a":
        clock.pass_s(BEAT_S)
        waited_s += BEAT_S
        b.heartbeat(())
        assert waited_s <= TIMEOUT_S + BEAT_S
    assert waited_s > TIMEOUT_S
    assert b.heartbeat(()) == (S0,)
    assert opened(b).check_point == "3"
    b.save_checkpoint(S0, "9", persist=True)

    with pytest.raises(LeaseLost):
        a.save_checkpoint(S0, "4", persist=True)
    with pytest.raises(ShardNotOpen):
        a.save_checkpoint(S0, "4", persist=True)
    with pytest.raises(LeaseLost):
        store.save_checkpoint(tenure, "4")
    assert checkpoint(store) == "9"


def test_a_loss_that_only_the_store_knows_is_raised_once(clock: ManualClock):
    """The holder still trusts itself: the store has to refuse, by the tenure's epoch."""
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    opened(a)
    store.force_checkpoint(KEY, S0, "100", observer="operator", reason="test")
    assert a.trusted
    with pytest.raises(LeaseLost, match="tenure 1 is over"):
        a.save_checkpoint(S0, "4", persist=True)
    with pytest.raises(ShardNotOpen):
        a.save_checkpoint(S0, "5", persist=True)
    assert checkpoint(store) == "100"
    assert a.heartbeat(()) == (S0,), "it may be opened anew"
    assert opened(a).check_point == "100"


def test_a_loss_seen_by_a_heartbeat_is_raised_by_the_next_save(clock: ManualClock):
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    opened(a)
    a.save_checkpoint(S0, "4")
    store.force_checkpoint(KEY, S0, "100", observer="operator", reason="test")
    assert a.heartbeat((S0,)) == ()
    with pytest.raises(LeaseLost):
        a.save_checkpoint(S0, "5")
    assert a.heartbeat(()) == (S0,)
    assert checkpoint(store) == "100"


def test_a_loss_found_by_the_interval_flush_reaches_the_caller(clock: ManualClock):
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    opened(a)
    a.save_checkpoint(S0, "4")
    forced_in_between = store.progress

    def force_after_reading(*args: object):
        rows = forced_in_between(*args)  # pyright: ignore
        store.force_checkpoint(KEY, S0, "100", observer="operator", reason="test")
        return rows

    store.progress = force_after_reading  # pyright: ignore
    clock.pass_s(10)
    a.heartbeat((S0,))
    store.progress = forced_in_between
    with pytest.raises(LeaseLost):
        a.release(S0)
    with pytest.raises(ShardNotOpen):
        a.release(S0)
    assert checkpoint(store) == "100"


def test_a_replaced_consumer_cannot_save_for_its_successor_in_the_same_process(clock: ManualClock):
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    first = opened(a).tenure
    a.release(S0)
    second = opened(a).tenure
    with pytest.raises(LeaseLost):
        a.save_checkpoint(S0, "1", persist=True, tenure=first)
    a.save_checkpoint(S0, "2", persist=True, tenure=second)
    assert checkpoint(store) == "2"


def test_a_member_can_open_a_shard_after_a_lost_reply(clock: ManualClock):
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    real = store.open_tenure

    def reply_lost(*args: object, **kwargs: object):
        real(*args, **kwargs)  # pyright: ignore
        raise StoreUnavailable("the reply was lost")

    store.open_tenure = reply_lost  # pyright: ignore
    with pytest.raises(StoreUnavailable):
        a.open(S0)
    store.open_tenure = real
    assert opened(a).tenure.epoch == 2


def test_an_unanswered_save_is_repeated_after_the_interval(clock: ManualClock):
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    opened(a)
    real = store.save_checkpoint

    def away(*_: object):
        raise StoreUnavailable("away")

    store.save_checkpoint = away  # pyright: ignore
    with pytest.raises(StoreUnavailable):
        a.save_checkpoint(S0, "4", persist=True)
    clock.pass_s(10)
    a.heartbeat((S0,))
    store.save_checkpoint = real
    a.heartbeat((S0,))
    assert checkpoint(store) == "4"


def test_a_paused_group_confirms_nothing_and_continues_when_resumed(clock: ManualClock):
    store = memory_store(["0"])
    a = joined(store, clock, "a")
    a.heartbeat(())
    opened(a)
    a.heartbeat((S0,))
    a.save_checkpoint(S0, "4")
    group = store.groups()[0]
    store.update_group(replace(group, paused=True), observer="operator")
    assert a.heartbeat((S0,)) == ()
    assert a.heartbeat(()) == ()
    assert checkpoint(store) == "4", "stopping persists"
    store.update_group(replace(group, paused=False), observer="operator")
    assert a.heartbeat(()) == (S0,)


def test_a_second_process_of_one_name_is_refused_until_the_first_is_silent(clock: ManualClock):
    store = memory_store(["0"])
    joined(store, clock, "a", incarnation="first").heartbeat(())
    second = member(store, clock, "a", incarnation="second")
    with pytest.raises(NodeNameTaken):
        second.register()
    for _ in range(2):
        clock.pass_s(TIMEOUT_S / 2)
        with pytest.raises(NodeNameTaken):
            second.register()
    clock.pass_s(0.1)
    second.register()
    assert second.heartbeat(()) == (S0,)


def test_a_replaced_member_raises_an_error_and_loses_its_shards(clock: ManualClock):
    store = memory_store(["0"])
    first = joined(store, clock, "a", incarnation="first")
    first.heartbeat(())
    opened(first)
    second = member(store, clock, "a", incarnation="second")
    for _ in range(2):
        with pytest.raises(NodeNameTaken):
            second.register()
        clock.pass_s(TIMEOUT_S / 2 + 1)
    second.register()
    with pytest.raises(NodeNameTaken):
        first.heartbeat((S0,))
    with pytest.raises(LeaseLost):
        first.save_checkpoint(S0, "4", persist=True)
    assert not first.trusted


@pytest.mark.parametrize("committed", [True, False], ids=["with a batch", "with an intent only"])
def test_a_shard_moves_from_a_run_to_a_client_and_back(clock: ManualClock, committed: bool):
    """Records that a plain client reads are missing from the ledger: a gap, not a dead end."""
    store = memory_store(["0"])
    run = joined(store, clock, "run")
    run.heartbeat(())
    tenure = opened(run).tenure
    start, sequence = "0", 0
    if committed:
        store.record_intents([Intent(tenure, 0, "0", "5")])
        store.commit([BatchCommit(tenure, 0, "0", "5", "attempt", (), BatchStatistics(records=5))])
        start, sequence = "5", 1
    store.record_intents([Intent(tenure, sequence, start, "8")])
    store.leave(KEY, NodeName("run"), "run-process")

    plain = joined(store, clock, "plain")
    plain.heartbeat(())
    opened(plain)
    plain.save_checkpoint(S0, "7", persist=True)
    plain.save_checkpoint(S0, "9")
    plain.shutdown()
    assert [(gap.start, gap.end) for gap in store.gaps(KEY)] == [(start, "7"), ("7", "9")]

    later = joined(store, clock, "run")
    later.heartbeat(())
    resumed = opened(later)
    assert (resumed.check_point, resumed.intent) == ("9", None)
    following = Intent(resumed.tenure, resumed.next_sequence, "9", "10")
    assert isinstance(store.record_intents([following])[S0], Changed)
    assert verify(store, KEY) == []


class LosesAReply(MemoryStore):
    """One gap is recorded, but the reply is lost."""

    loses = False

    def record_gap(self, tenure: Tenure, **gap: object) -> None:  # pyright: ignore
        super().record_gap(tenure, **gap)  # pyright: ignore
        if self.loses:
            self.loses = False
            raise OutcomeUnknown("the reply was lost")


def with_a_ledger(store: MemoryStore, clock: ManualClock) -> GroupMember:
    """A client on a shard whose runs keep a ledger; the store has its checkpoint at 5."""
    plain = joined(store, clock, "plain")
    plain.heartbeat(())
    tenure = opened(plain).tenure
    store.record_intents([Intent(tenure, 0, "0", "5")])
    store.commit([BatchCommit(tenure, 0, "0", "5", "attempt", (), BatchStatistics(records=5))])
    plain.release(S0)
    opened(plain)
    plain.heartbeat((S0,))
    return plain


def test_saves_continue_after_a_lost_reply(clock: ManualClock):
    store = LosesAReply()
    make_group(store)
    plain = with_a_ledger(store, clock)
    store.loses = True
    with pytest.raises(OutcomeUnknown):
        plain.save_checkpoint(S0, "7", persist=True)
    plain.save_checkpoint(S0, "9", persist=True)
    assert checkpoint(store) == "9"
    assert verify(store, KEY) == []


def test_a_client_reads_again_from_the_checkpoint_of_a_store_that_lost_its_save(clock: ManualClock):
    """Otherwise every later heartbeat would be refused, and the shard stall for good."""
    store = memory_store()
    plain = with_a_ledger(store, clock)
    backup = store.backup()
    plain.save_checkpoint(S0, "7", persist=True)
    store.restore(backup)
    plain.save_checkpoint(S0, "9")
    clock.pass_s(BEAT_S * 2.1)
    assert plain.heartbeat((S0,)) == ()
    with pytest.raises(LeaseLost, match="'5'"):
        plain.save_checkpoint(S0, "9", persist=True)
    assert plain.heartbeat(()) == (S0,)
    assert opened(plain).check_point == "5"
    plain.save_checkpoint(S0, "9", persist=True)
    assert checkpoint(store) == "9"


def test_a_client_without_unsaved_cursors_notices_a_lost_checkpoint(clock: ManualClock):
    store = memory_store()
    plain = joined(store, clock, "plain")
    plain.heartbeat(())
    opened(plain)
    backup = store.backup()
    plain.save_checkpoint(S0, "7", persist=True)
    assert plain.heartbeat((S0,)) == (S0,)
    store.restore(backup)
    assert plain.heartbeat((S0,)) == ()
    with pytest.raises(LeaseLost, match="confirmed the checkpoint '7', and now has none"):
        plain.require(S0)
    assert plain.heartbeat(()) == (S0,)
    assert opened(plain).check_point is None


MODULO_REFUSALS = [
    ({}, ModuloSettingMissing),
    ({"source_count": 2}, ModuloSettingMissing),
    ({"source_count": 2, "node_id": 2}, ModuloIdOutOfRange),
    ({"source_count": 2, "node_id": -1}, ModuloIdOutOfRange),
    ({"source_count": 0, "node_id": 0}, ModuloIdOutOfRange),
    ({"source_count": 3, "node_id": 1}, ModuloCountMismatch),
    ({"source_count": 2, "node_id": 0}, ModuloIdTaken),
    ({"source_count": -1, "node_id": 1}, ModuloCountMismatch),
]


@pytest.mark.parametrize(("settings", "error"), MODULO_REFUSALS)
@pytest.mark.parametrize("name", ["a", "z"])
def test_modulo_settings_that_do_not_fit_are_refused(
    clock: ManualClock, settings: dict[str, int], error: type[Exception], name: str
):
    """The order of the newcomer's name and the member's makes no difference."""
    store = memory_store(["0", "1", "2", "3"], assignment=AssignmentMode.MODULO)
    first = joined(store, clock, "m", source_count=2, node_id=0)
    assert first.heartbeat(()) == ("0", "2")
    with pytest.raises(error):
        joined(store, clock, name, **settings)
    assert first.heartbeat(()) == ("0", "2")
    second = joined(store, clock, name, source_count=2, node_id=1)
    assert second.heartbeat(()) == ("1", "3")


def test_an_idle_heartbeat_costs_three_statements_for_any_number_of_shards(clock: ManualClock):
    for count in (1, 300):
        store = memory_store([str(number) for number in range(count)])
        a = joined(store, clock, "a")
        held = a.heartbeat(())
        for shard in held:
            opened(a, shard)
        clock.pass_s(BEAT_S)
        a.heartbeat(held)
        clock.pass_s(BEAT_S * 2)
        before = store.statements.copy()
        assert len(a.heartbeat(held)) == count
        spent = store.statements - before
        assert spent.total() <= 3
        assert spent["beat"] == 1
