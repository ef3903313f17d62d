"""Races between threads: in every order, exactly one side wins."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep
from typing import TypeVar

from dagster_leasehold.lease_store.errors import AssignmentConflict, LeaseLost
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.outcomes import (
    Beaten,
    BeatRefused,
    Changed,
    NameTaken,
    Opened,
    Registered,
    Stale,
)
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.conformance.world import A, B, World, X, Y, a_commit

ROUNDS = 8
Answer = TypeVar("Answer")


def at_once(*calls: Callable[[], Answer]) -> list[Answer]:
    """Run calls in threads that start together; their answers in order."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], Answer]) -> Answer:
        barrier.wait(10)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(run, call) for call in calls]]


def test_one_of_two_claims_wins(world: World) -> None:
    world.group()
    nodes = [NodeName(f"n{number}") for number in range(4)]
    world.join(*nodes)
    shards = [ShardId(f"s{number}") for number in range(ROUNDS)]
    world.add(*shards)

    def claim_all(node: NodeName) -> dict[ShardId, Changed | Stale]:
        claims = dict.fromkeys(shards, (node, 0))
        return world.store.claim(world.key, claims, observer=node, reason="race")

    answers = at_once(*(lambda node=node: claim_all(node) for node in nodes))
    for shard in shards:
        winners = [
            node
            for node, answer in zip(nodes, answers, strict=True)
            if isinstance(answer[shard], Changed)
        ]
        assert winners == [world.shard(shard).consumer_owner]
        assert world.edges(shard) == [1, 3]


def test_crossing_claims_do_not_block_each_other(world: World) -> None:
    """Claims that name the same shards in opposite orders are taken in one order inside."""
    world.group()
    world.join(A, B)
    shards = [ShardId(f"s{number:02}") for number in range(20)]
    world.add(*shards)
    claims_a = dict.fromkeys(shards, (A, 0))
    claims_b = dict.fromkeys(reversed(shards), (B, 0))
    answers = at_once(
        lambda: world.store.claim(world.key, claims_a, observer="a", reason="r"),
        lambda: world.store.claim(world.key, claims_b, observer="b", reason="r"),
    )
    assert sum(isinstance(x, Changed) for answer in answers for x in answer.values()) == 20


def test_one_incarnation_gets_the_name(world: World) -> None:
    world.group()
    answers = at_once(*(lambda i=i: world.register(A, f"i{i}") for i in range(4)))
    (winner,) = [i for i, answer in enumerate(answers) if isinstance(answer, Registered)]
    assert world.node(A).incarnation == f"i{winner}"
    assert all(
        answer == NameTaken(f"i{winner}", 1) for i, answer in enumerate(answers) if i != winner
    )


def test_one_of_two_nodes_gets_a_remainder(world: World) -> None:
    """Both find the remainder free; under the group's lock, only one still does."""
    world.group(assignment=AssignmentMode.MODULO)

    def join(node: NodeName) -> str:
        try:
            world.register(node, f"{node}-1", source_count=2, node_id=0)
        except AssignmentConflict:
            return "refused"
        return "joined"

    answers = at_once(*(lambda i=i: join(NodeName(f"n{i}")) for i in range(4)))
    assert sorted(answers) == ["joined", "refused", "refused", "refused"]


def test_a_beat_and_an_eviction_never_both_succeed(world: World) -> None:
    world.group()
    for number in range(ROUNDS):
        node = NodeName(f"n{number}")
        world.join(node)
        evicted, beaten = at_once(
            lambda node=node: world.store.evict(world.key, node, 1, observer="t", reason="r"),
            lambda node=node: world.store.beat(world.key, node, f"{node}-1"),
        )
        assert (evicted, beaten) in [(Changed(), BeatRefused()), (Stale(), Beaten(2))]
        assert world.node(node).member == isinstance(beaten, Beaten)


def test_no_beat_is_lost(world: World) -> None:
    world.group()
    world.join(A)

    def beats() -> list[int]:
        answers = [world.store.beat(world.key, A, "a-1") for _ in range(25)]
        return [answer.lease_id for answer in answers if isinstance(answer, Beaten)]

    counters = [counter for answer in at_once(beats, beats) for counter in answer]
    assert len({*counters}) == 50
    assert world.node(A).lease_id >= 51, "one whose answer is lost counts twice"


def test_one_of_two_runs_opens_a_shard(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    answers = at_once(
        *(lambda i=i: world.store.open_tenure(world.key, X, A, f"run-{i}") for i in range(4))
    )
    (opened,) = [answer for answer in answers if isinstance(answer, Opened)]
    assert opened.tenure.epoch == 1
    assert world.shard(X).consumer_run == opened.tenure.run


def test_one_of_two_runs_begins_a_pinned_shard(world: World) -> None:
    """The other must not go back to the cursor: the first may have read on from it."""
    world.group(assignment=AssignmentMode.PINNED)
    world.join(A)
    shards = [ShardId(f"s{number}") for number in range(ROUNDS)]
    world.add(*shards)
    world.claim(A, *shards)
    for shard in shards:
        answers = at_once(
            *(
                lambda i=i, shard=shard: world.store.bootstrap(
                    world.key, shard, A, "5", run=f"run-{i}"
                )
                for i in range(2)
            )
        )
        assert sorted(answers, key=repr) == [Changed((shard,)), Stale()]
        assert (world.shard(shard).check_point, world.shard(shard).consumer_epoch) == ("5", 1)
        assert world.kinds(shard).count("force") == 1


def test_a_bootstrap_and_the_opening_of_a_tenure_are_serialized(world: World) -> None:
    """Either the run begins at the cursor, or the cursor comes too late: never under its feet."""
    world.group(assignment=AssignmentMode.PINNED)
    world.join(A)
    shards = [ShardId(f"s{number}") for number in range(ROUNDS)]
    world.add(*shards)
    world.claim(A, *shards)
    for shard in shards:

        def bootstrap(shard=shard) -> Changed | Stale:
            return world.store.bootstrap(world.key, shard, A, "5", run="other")

        started, opened = at_once(bootstrap, lambda shard=shard: world.open(A, shard))
        assert isinstance(opened, Opened)
        begin = "5" if isinstance(started, Changed) else None
        assert opened.check_point == world.shard(shard).check_point == begin
        assert world.store.review([opened.tenure])[shard].current


def test_a_modulo_group_is_resized_by_all_its_nodes_at_once(world: World) -> None:
    """Each node leaves, while others still have the old count, and joins with the new count."""
    world.group(assignment=AssignmentMode.MODULO)
    world.add(X, Y)
    for number, (node, shard) in enumerate([(A, X), (B, Y)]):
        world.register(node, f"{node}-1", source_count=2, node_id=number)
        world.claim(node, shard)

    def resize(node: NodeName, number: int) -> None:
        for _ in range(3_000):
            try:
                world.register(node, f"{node}-1", source_count=3, node_id=number)
            except AssignmentConflict:
                world.store.leave(world.key, node, f"{node}-1")
                sleep(0.01)  # The other's turn.
            else:
                return
        raise AssertionError(f"{node} never joined again")

    at_once(lambda: resize(A, 0), lambda: resize(B, 1))
    assert [(world.node(node).member, world.node(node).source_count) for node in (A, B)] == [
        (True, 3),
        (True, 3),
    ]
    # The node that registered first of the last two never left with its settings.
    assert all(world.edges(shard) in ([1, 3], [1, 3, 4]) for shard in (X, Y))


def test_a_commit_and_an_eviction_are_serialized(world: World) -> None:
    """Either the batch was committed before the eviction, or nothing of it is seen."""
    world.group()
    shards = [ShardId(f"s{number}") for number in range(ROUNDS)]
    world.add(*shards)
    for number, shard in enumerate(shards):
        node = NodeName(f"n{number}")
        world.join(node)
        (tenure,) = world.hold(node, shard)
        world.intend(tenure, "0", "5")
        committed, evicted = at_once(
            lambda tenure=tenure: world.store.commit([a_commit(tenure, "0", "5")]),
            lambda node=node: world.store.evict(world.key, node, 1, observer="t", reason="r"),
        )
        assert evicted == Changed((shard,))
        won = committed[shard] == Changed()
        assert world.shard(shard).check_point == ("5" if won else None)
        assert len(world.store.batches(world.key, shard)) == won
        assert len(world.store.batches(world.key, shard, BatchState.INTENT)) == (not won)


def test_parents_that_end_together_free_the_child_once(world: World) -> None:
    """Two runs finish the two parents of a merge at the same time: edge 2 is neither lost nor
    taken twice."""
    world.group()
    world.join(A)
    for number in range(ROUNDS):
        left, right, child = (ShardId(f"{side}{number}") for side in ("l", "r", "c"))
        world.add(left, right, ShardListing(child, parents=(left, right)))
        tenures = world.hold(A, left, right)
        for tenure in tenures:
            world.intend(tenure, "0", "5")
        outcomes = at_once(
            *(
                lambda tenure=tenure: world.store.commit(
                    [a_commit(tenure, "0", "5", finished=True)]
                )[tenure.shard]
                for tenure in tenures
            )
        )
        assert sorted(outcomes, key=repr) == [Changed((child,)), Changed()]
        assert world.shard(child).state is ShardState.NOT_ALLOC
        assert world.edges(child) == [1, 2]


def test_a_release_and_the_return_of_a_transfer_are_serialized(world: World) -> None:
    world.group()
    world.join(A, B)
    shards = [ShardId(f"s{number}") for number in range(ROUNDS)]
    world.add(*shards)
    for shard in shards:
        (tenure,) = world.hold(A, shard)
        world.transfer(shard, B)
        lease_id = world.shard(shard).lease_id

        def let_go(tenure=tenure) -> None:
            world.store.close_tenure(tenure, reason="boundary")

        def take_back(shard=shard, lease_id=lease_id) -> Changed | Stale:
            return world.store.cancel_transfer(world.key, shard, lease_id, observer="t", reason="r")

        _, cancelled = at_once(let_go, take_back)
        row = world.shard(shard)
        assert row.state is ShardState.ALREADY_ALLOC
        assert row.consumer_run == ""
        assert row.consumer_owner == (A if isinstance(cancelled, Changed) else B)


def test_a_release_and_the_deadline_of_a_transfer_are_serialized(world: World) -> None:
    world.group()
    world.join(A, B)
    shards = [ShardId(f"s{number}") for number in range(ROUNDS)]
    world.add(*shards)
    for shard in shards:
        (tenure,) = world.hold(A, shard)
        world.transfer(shard, B)
        lease_id = world.shard(shard).lease_id

        def let_go(tenure=tenure) -> str:
            try:
                world.store.close_tenure(tenure, reason="boundary")
            except LeaseLost:
                return "lost"
            return "let go"

        def deadline(shard=shard, lease_id=lease_id) -> Changed | Stale:
            return world.store.complete_transfer(
                world.key, shard, lease_id, observer="b", reason="deadline"
            )

        left, completed = at_once(let_go, deadline)
        assert (left, isinstance(completed, Changed)) in [("let go", False), ("lost", True)]
        assert world.shard(shard).consumer_owner == B
        assert world.kinds(shard).count("close") == 1


def test_the_same_list_from_two_sensors_adds_each_shard_once(world: World) -> None:
    world.group()
    listing = [ShardListing(ShardId(f"s{number}")) for number in range(30)]
    answers = at_once(
        *(lambda: world.store.sync_shards(world.key, listing, observer="t") for _ in range(3))
    )
    assert sorted(shard for answer in answers for shard in answer.added) == sorted(
        entry.shard for entry in listing
    )
    assert len(world.journal()) == 30


def test_a_name_can_be_registered_while_its_node_is_evicted(world: World) -> None:
    world.group()
    for number in range(ROUNDS):
        node = NodeName(f"n{number}")
        world.join(node)
        evicted, registered = at_once(
            lambda node=node: world.store.evict(world.key, node, 1, observer="t", reason="r"),
            lambda node=node: world.store.register(
                world.key, Node(node, 0, f"{node}-1"), observer="t"
            ),
        )
        assert registered == Registered(2)
        assert evicted in (Changed(), Stale())
        assert world.node(node).member


def test_a_snapshot_shows_one_moment(world: World) -> None:
    """While shards x and y change owner together, no snapshot shows them apart."""
    world.group()
    world.join(A, B)
    world.add(X, Y)
    world.claim(A, X, Y)
    done = False

    def swap() -> int:
        nonlocal done
        for number in range(12):
            node = (A, B)[number % 2]
            other = (B, A)[number % 2]
            world.store.leave(world.key, node, world.incarnations[node])
            world.claim(other, X, Y)
            world.join(node)
        done = True
        return 0

    def look() -> int:
        looks = 0
        while not done or not looks:
            snapshot = world.store.snapshot(world.key)
            first, second = snapshot.shards
            assert first.consumer_owner == second.consumer_owner
            assert first.consumer_owner is None or any(
                node.name == first.consumer_owner and node.member for node in snapshot.nodes
            )
            looks += 1
        return looks

    _, looks = at_once(swap, look)
    assert looks > 0
