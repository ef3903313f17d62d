"""The choice of shards to compact: pure."""

from __future__ import annotations

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Compacted, LedgerHead
from dagster_leasehold.sensors.compaction import (
    BATCHES_MIN,
    BATCHES_MIN_FINISHED,
    BATCHES_MIN_QUIET,
    MANY_BATCHES,
    PATIENCE_S,
    PAUSE_OF_MANY_S,
    PAUSE_S,
    SHARDS_PER_RUN,
    VACUUM_MARGIN_S,
    Candidate,
    CompactionPace,
    launches_of,
    worthwhile,
)
from dagster_leasehold.sensors.launch_choice import RUNS_PER_NODE_MAX, Launch

A, B = NodeName("a"), NodeName("b")
X, Y, Z = ShardId("x"), ShardId("y"), ShardId("z")
LONG = {A: PAUSE_S, B: PAUSE_S}


def heads(**numbers: int) -> dict[ShardId, LedgerHead]:
    return {
        ShardId(name): LedgerHead(ShardId(name), None, number, None, 0)
        for name, number in numbers.items()
    }


def test_a_shard_is_worth_a_run_once_it_has_enough_new_batches():
    """Goal: batches that a compaction has read do not count, for any number of them."""
    keepers = {X: A, Y: A, Z: B}
    ends = heads(x=10_000 + BATCHES_MIN, y=10_000 + BATCHES_MIN - 1, z=BATCHES_MIN)
    progress = {shard: Compacted(0, 10_000) for shard in (X, Y)}
    assert worthwhile(keepers, ends, progress, LONG) == [
        Candidate(X, A, BATCHES_MIN, 10_000 + BATCHES_MIN - 1),
        Candidate(Z, B, BATCHES_MIN, BATCHES_MIN - 1),
    ]


def test_the_pause_between_compactions_is_shorter_with_more_work():
    ends = heads(x=MANY_BATCHES, y=MANY_BATCHES - 1)
    keepers = {X: A, Y: A}
    assert worthwhile(keepers, ends, {}, {A: PAUSE_OF_MANY_S - 1}) == []
    assert [each.shard for each in worthwhile(keepers, ends, {}, {A: PAUSE_OF_MANY_S})] == [X]
    assert [each.shard for each in worthwhile(keepers, ends, {}, LONG)] == [X, Y]


def test_a_shard_that_is_over_is_compacted_once():
    ends = heads(x=3)
    finished = {X: BATCHES_MIN_FINISHED}
    assert worthwhile({X: A}, ends, {}, LONG, finished) == [Candidate(X, A, 3, None)]
    assert worthwhile({X: A}, ends, {X: Compacted(0, 3)}, LONG, finished) == []


def test_a_few_last_batches_are_worth_a_run():
    ends = heads(x=BATCHES_MIN_QUIET, y=BATCHES_MIN_QUIET - 1)
    still = dict.fromkeys((X, Y), BATCHES_MIN_QUIET)
    assert worthwhile({X: A, Y: A}, ends, {}, LONG, still) == [
        Candidate(X, A, BATCHES_MIN_QUIET, None)
    ]


def test_the_last_vacuum_waits_until_all_replaced_files_are_old():
    """Goal: a memory that was lost counts from its beginning, and removes nothing too early."""
    pace, age_s = CompactionPace(began_s=100.0), 86_400.0
    whole_s = age_s + VACUUM_MARGIN_S
    assert not pace.vacuum_due(age_s, 99.0 + whole_s)
    assert pace.vacuum_due(age_s, 100.0 + whole_s)
    pace.note(A, 200.0)
    pace.note(B, 300.0)
    assert not pace.vacuum_due(age_s, 299.0 + whole_s)
    assert pace.vacuum_due(age_s, 300.0 + whole_s)


def test_nodes_of_other_deployments_are_not_compacted():
    assert worthwhile({X: NodeName("theirs")}, heads(x=BATCHES_MIN), {}, LONG) == []


def test_a_run_compacts_the_shards_with_the_most_work_up_to_its_limit():
    shards = {ShardId(f"{number:03}"): A for number in range(SHARDS_PER_RUN + 1)}
    ends = heads(**{shard: BATCHES_MIN + place for place, shard in enumerate(shards)})
    (launch,) = launches_of(worthwhile(shards, ends, {}, LONG))
    assert launch.node == A
    assert set(launch.shards) == set(list(shards)[1:])
    assert launches_of([]) == []
    assert launches_of([Candidate(X, A, 9, 1), Candidate(Y, B, 9, 1)]) == [
        Launch(A, (X,)),
        Launch(B, (Y,)),
    ]


def test_a_compaction_waits_for_a_free_slot_for_a_limited_time():
    pace = CompactionPace()
    assert pace.can_launch(A, RUNS_PER_NODE_MAX - 1, 0.0, queued=False)
    assert not pace.can_launch(A, 1, 0.0, queued=True)
    assert not pace.can_launch(A, RUNS_PER_NODE_MAX, PATIENCE_S - 1, queued=False)
    assert pace.can_launch(A, RUNS_PER_NODE_MAX, PATIENCE_S, queued=False)
    pace.note(A, PATIENCE_S)
    assert not pace.can_launch(A, RUNS_PER_NODE_MAX, PATIENCE_S + 1, queued=False)


def test_pauses_count_from_a_nodes_last_launch():
    pace = CompactionPace()
    assert pace.pauses([A], 5.0) == {A: float("inf")}
    pace.note(A, 5.0)
    assert pace.pauses([A, B], 65.0) == {A: 60.0, B: float("inf")}
