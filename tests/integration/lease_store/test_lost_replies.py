"""A connection that breaks at COMMIT: losses before its arrival and after its effect look alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import OutcomeUnknown
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.ledger_rows import (
    BatchRewrite,
    BatchStatistics,
    DataFile,
    Intent,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Beaten, Changed, Opened, Registered, Settled
from dagster_leasehold.lease_store.publication_rows import Publication, PublishLock
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.conformance.published import Publisher, until
from tests.conformance.world import A, B, C, World, X, Y, Z, a_commit
from tests.database_server import DatabaseServer
from tests.integration.lease_store.commit_proxy import CommitProxy, Cut

pytestmark = pytest.mark.servers("mariadb", "mysql")


@dataclass(frozen=True)
class Case:
    """An operation, its expected result, and the expected state after it."""

    name: str
    verb: Callable[[World], Any]
    answer: Any
    holds: Callable[[World], bool]


def tenure(world: World):
    from dagster_leasehold.lease_store.shard_rows import Tenure

    row = world.shard(X)
    assert row.consumer_owner is not None
    return Tenure(world.key, X, row.consumer_owner, row.consumer_epoch, row.consumer_run)


def lease(world: World) -> int:
    return world.shard(X).lease_id


def intend_and_commit(world: World) -> Any:
    return world.store.commit([a_commit(tenure(world), "0", "5", finished=True)])


def held_gap(world: World) -> None:
    world.store.record_gap(tenure(world), start="0", end="5", reason="r", skip=False)


def rewrite(world: World) -> Any:
    statistics = BatchStatistics(5, 50, 5)
    made = BatchRewrite(0, 0, (DataFile("new", 5, 50),), statistics)
    return world.store.rewrite_batches(world.key, X, "replay-1", [made], reason="r")


def something_to_publish(world: World) -> None:
    world.consume(tenure(world), "0", "5")
    Publisher(world).start()


def record(world: World) -> Any:
    publisher = Publisher(world)
    return world.store.record_publication(PublishLock(world.key, A, 1), publisher.plan(base=7))


def publish(world: World) -> Any:
    publisher = Publisher(world)
    publisher.lock = PublishLock(world.key, A, 1)
    return publisher.commit(publisher.plan())


def publication(world: World) -> Publication:
    row = world.store.publication(world.key)
    assert row is not None
    return row


# The state that an operation finds before its reply is lost.
PREPARATIONS: dict[str, Callable[[World], object]] = {
    "record_publication": something_to_publish,
    "commit_publication": something_to_publish,
    "commit": lambda world: world.intend(tenure(world), "0", "5"),
    "acknowledge_gap": held_gap,
    "release_rewrite": lambda world: world.store.claim_rewrite(
        world.key, X, "replay-1", RewriteKind.REPLAY
    ),
    "rewrite_batches": lambda world: (
        world.consume(tenure(world), "0", "5"),
        world.store.claim_rewrite(world.key, X, "replay-1", RewriteKind.REPLAY),
    ),
}

CASES = [
    Case(
        "record_gap",
        lambda world: world.store.record_gap(tenure(world), start="0", end="5", reason="r"),
        None,
        lambda world: world.kinds(X).count("gap") == len(world.store.gaps(world.key)) == 1,
    ),
    Case(
        "acknowledge_gap",
        lambda world: world.store.acknowledge_gap(
            world.key, world.store.gaps(world.key)[0], observer="ops"
        ),
        Changed((X,)),
        lambda world: world.kinds(X).count("ack") == 1,
    ),
    Case(
        "claim_rewrite",
        lambda world: world.store.claim_rewrite(world.key, X, "replay-1", RewriteKind.REPLAY),
        Changed((X,)),
        lambda world: [claim.run for claim in world.store.rewrites(world.key)] == ["replay-1"],
    ),
    Case(
        "release_rewrite",
        lambda world: world.store.release_rewrite(world.key, X, "replay-1"),
        Changed((X,)),
        lambda world: world.store.rewrites(world.key) == [],
    ),
    Case(
        "rewrite_batches",
        rewrite,
        Changed((X,)),
        lambda world: (
            world.kinds(X).count("rewrite") == 1
            and [batch.generation for batch in world.store.batches(world.key, X)] == [1]
        ),
    ),
    Case(
        "register",
        lambda world: world.register(C, "c-1"),
        Registered(1),
        lambda world: world.kinds().count("join") == 3,
    ),
    Case(
        "leave",
        lambda world: world.store.leave(world.key, A, "a-1"),
        Changed((X,)),
        lambda world: world.kinds().count("leave") == 1,
    ),
    Case(
        "evict",
        lambda world: world.store.evict(world.key, A, 1, observer="t", reason="silent"),
        Changed((X,)),
        lambda world: world.kinds().count("evict") == 1,
    ),
    Case(
        "claim",
        lambda world: world.store.claim(world.key, {Y: (B, 0)}, observer="t", reason="r"),
        {Y: Changed((Y,))},
        lambda world: world.edges(Y) == [1, 3],
    ),
    Case(
        "begin_transfer",
        lambda world: world.transfer(X, B),
        Changed((X,)),
        lambda world: world.edges(X) == [1, 3, 5],
    ),
    Case(
        "close_tenure",
        lambda world: world.store.close_tenure(tenure(world), reason="r"),
        None,
        lambda world: world.kinds(X).count("close") == 1,
    ),
    Case(
        "open_tenure",
        lambda world: isinstance(
            world.store.open_tenure(world.key, X, A, "run-2", replaces="run-1"), Opened
        ),
        True,
        lambda world: world.shard(X).consumer_epoch == 2,
    ),
    Case(
        "commit",
        intend_and_commit,
        {X: Changed((Z,))},
        lambda world: (
            world.edges(X) == [1, 3, 8] and len(world.store.pending_events(world.key)) == 1
        ),
    ),
    Case(
        "force_checkpoint",
        lambda world: world.store.force_checkpoint(world.key, X, "9", observer="t", reason="r"),
        Changed((X,)),
        lambda world: world.shard(X).consumer_epoch == 2,
    ),
    Case(
        "bootstrap",
        lambda world: world.store.bootstrap(world.key, X, A, "9", run="run-1"),
        Changed((X,)),
        lambda world: (world.shard(X).bootstrap, world.shard(X).consumer_epoch) == ("9", 2),
    ),
    Case(
        "sync_shards",
        lambda world: (
            world.store.sync_shards(
                world.key, [ShardListing(X.__class__("new"))], observer="t"
            ).added
        ),
        ("new",),
        lambda world: len(world.journal(X.__class__("new"))) == 1,
    ),
    Case(
        "record_intents",
        lambda world: world.store.record_intents([Intent(tenure(world), 0, "0", "5")]),
        {X: Changed((X,))},
        lambda world: len(world.store.batches(world.key, state=None)) == 1,
    ),
    Case(
        "create_group",
        lambda world: world.store.create_group(
            Group(world.key.__class__.parse("other", world.key.stream))
        ),
        None,
        lambda world: len(world.store.groups()) == 2,
    ),
    Case(
        "delete_group",
        lambda world: world.store.delete_group(world.key, force=True),
        None,
        lambda world: world.store.groups() == [],
    ),
    Case(
        "record_publication",
        record,
        Settled(),
        lambda world: publication(world).pending is not None,
    ),
    Case(
        "commit_publication",
        publish,
        Settled(),
        lambda world: (
            publication(world).number == until(world, X) == 1
            and publication(world).last is not None
        ),
    ),
    Case(
        "finish_empty",
        lambda world: world.store.finish_empty(tenure(world), "0"),
        Changed((Z,)),
        lambda world: world.edges(X) == [1, 3, 8],
    ),
]


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_with_a_lost_reply_takes_effect_once(
    through_proxy: World, proxy: CommitProxy, case: Case, cut: Cut
) -> None:
    world = through_proxy
    world.group()
    world.join(A, B)
    world.add(X, Y, ShardListing(Z, parents=(X,)))
    world.hold(A, X)
    PREPARATIONS.get(case.name, lambda _: None)(world)
    proxy.arm(cut)
    assert case.verb(world) == case.answer
    assert proxy.done == [cut]
    assert case.holds(world)


@pytest.mark.parametrize("cut", Cut)
def test_a_beat_with_a_lost_reply_counts_once_or_twice(
    through_proxy: World, proxy: CommitProxy, cut: Cut
) -> None:
    world = through_proxy
    world.group()
    world.join(A)
    proxy.arm(cut)
    answer = world.store.beat(world.key, A, "a-1")
    assert isinstance(answer, Beaten)
    assert world.node(A).lease_id == answer.lease_id >= 2


def test_two_lost_replies_in_a_row_are_settled(through_proxy: World, proxy: CommitProxy) -> None:
    world = through_proxy
    world.group()
    world.join(A)
    world.add(X)
    proxy.arm(Cut.BEFORE, Cut.AFTER)
    world.claim(A, X)
    assert proxy.done == [Cut.BEFORE, Cut.AFTER]
    assert world.edges(X) == [1, 3]


@pytest.mark.parametrize("cut", Cut)
def test_an_earlier_batch_does_not_prove_another_commit(
    through_proxy: World, proxy: CommitProxy, cut: Cut
) -> None:
    """One shard's batch was committed earlier and is sent again beside another shard's."""
    world = through_proxy
    world.group()
    world.join(A)
    world.add(X, Y)
    first, second = world.hold(A, X, Y)
    world.intend(first, "0", "5")
    world.intend(second, "0", "7")
    earlier = a_commit(first, "0", "5")
    world.store.commit([earlier])
    proxy.arm(cut)
    answer = world.store.commit([earlier, a_commit(second, "0", "7")])
    assert proxy.done == [cut]
    assert answer == {X: Changed(), Y: Changed()}
    assert (world.shard(X).check_point, world.shard(Y).check_point) == ("5", "7")


def test_a_lost_reply_cannot_be_settled_on_a_replica(
    server: DatabaseServer,
    through_proxy: World,
    proxy: CommitProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a fail-over, no server can say whether the transaction was committed."""
    world = through_proxy
    world.group()
    world.join(A)
    world.add(X)

    def fail_over(_: float) -> None:
        server.execute("SET GLOBAL read_only = 1")

    monkeypatch.setattr(world.store._transactions, "_sleep", fail_over)
    proxy.arm(Cut.AFTER)
    try:
        with pytest.raises(OutcomeUnknown, match="it is unknown if"):
            world.store.claim(world.key, {X: (A, 0)}, observer="t", reason="r")
    finally:
        server.execute("SET GLOBAL read_only = 0")
    assert world.edges(X) == [1, 3]
