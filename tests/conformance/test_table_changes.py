"""Published output that is rewritten, withdrawn or expires, and the table that follows it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dagster_leasehold.lease_store.ledger_rows import (
    BatchRewrite,
    BatchStatistics,
    DataFile,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Changed, Settled, Stale, Unpublished
from dagster_leasehold.lease_store.publication_rows import ChangeKind, TableChange
from dagster_leasehold.lease_store.rules import publishing
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.conformance.published import Publisher, until
from tests.conformance.test_expired_output import expire
from tests.conformance.test_races import at_once
from tests.conformance.test_retention import deliver
from tests.conformance.world import A, World, X, Y

FAR = datetime(2200, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1999, 1, 1, tzinfo=UTC)
REPLAY, COMPACTION = RewriteKind.REPLAY, RewriteKind.COMPACTION


@pytest.fixture
def tenures(world: World) -> list[Tenure]:
    """Node a holds x and y, and three batches of x are committed."""
    world.group()
    world.join(A)
    world.add(X, Y)
    tenures = world.hold(A, X, Y)
    commit(world, tenures[0], 0, 1, 2)
    return tenures


@pytest.fixture
def publisher(world: World, tenures: list[Tenure]) -> Publisher:
    """These three are published."""
    publisher = Publisher(world)
    publisher.start()
    publisher.publish()
    return publisher


def commit(world: World, tenure: Tenure, *numbers: int, start: int | None = None) -> None:
    """Commit batches; the first one at its number, or at another cursor."""
    at = numbers[0] if start is None else start
    for place, n in enumerate(numbers):
        files = (DataFile(f"{tenure.shard}/{n}", 4, 50), DataFile(f"bad/{n}", 1, 2, True))
        world.consume(tenure, str(at + place), str(at + place + 1), n, files=files)


def swap(
    world: World, kind: RewriteKind, *rewrites: tuple[int, int, tuple[DataFile, ...]]
) -> Changed | Stale | Unpublished:
    """Claim the shard, rewrite these batches (number, generation and files of each), and release
    it.
    """
    store, run = world.store, "rewriter"
    assert store.claim_rewrite(world.key, X, run, kind) == Changed((X,))
    values = [
        BatchRewrite(number, generation, files, BatchStatistics(5, 50, 4, 1))
        for number, generation, files in rewrites
    ]
    outcome = store.rewrite_batches(world.key, X, run, values, reason="because")
    assert store.release_rewrite(world.key, X, run) == Changed((X,))
    return outcome


def changes(world: World) -> list[TableChange]:
    return world.store.pending_changes(world.key)


def shape(change: TableChange) -> tuple[ChangeKind, int, list[str], list[str]]:
    added = [file.path for file in change.added]
    return change.kind, change.first, list(change.removed), added


def go_back(world: World, cursor: str) -> Tenure:
    """Force the checkpoint back, and open the shard again."""
    world.store.force_checkpoint(world.key, X, cursor, observer="op", reason="again")
    return world.open(A, X, "run-2").tenure


# -- rewriting ------------------------------------------------------------------------------------


def test_a_replay_is_one_change(world: World, publisher: Publisher) -> None:
    version = world.store.heads(world.key)[X].version
    new = [(DataFile(f"new/{n}", 3, 30), DataFile(f"bad/new/{n}", 2, 3, True)) for n in range(2)]
    assert swap(world, REPLAY, (0, 0, new[0]), (1, 0, new[1])) == Changed((X,))
    (change,) = changes(world)
    assert shape(change) == (ChangeKind.REPLAY, 0, ["x/0", "x/1"], ["new/0", "new/1"])
    assert change.added == (new[0][0], new[1][0]), "with all that the ledger knows of them"
    assert change.shard == X
    row = world.store.publication(world.key)
    assert row is not None
    assert row.changes_pending
    assert world.store.heads(world.key)[X].version > version
    publisher.publish()
    assert changes(world) == []
    assert sorted(publisher.files) == sorted(publisher.committed())
    assert until(world, X) == 3


def test_a_compaction_names_its_files_once(world: World, publisher: Publisher) -> None:
    merged = (DataFile("merged", 12, 99, batches=3),)
    bad = tuple(DataFile(f"bad/{n}", 1, 2, True) for n in range(3))
    rewrites = [(0, 0, (*merged, bad[0])), (1, 0, (bad[1],)), (2, 0, (bad[2],))]
    assert swap(world, COMPACTION, *rewrites) == Changed((X,))
    (change,) = changes(world)
    assert shape(change) == (ChangeKind.COMPACTION, 0, ["x/0", "x/1", "x/2"], ["merged"])


def test_other_quarantine_files_change_no_table(world: World, publisher: Publisher) -> None:
    same = (DataFile("x/0", 4, 50), DataFile("bad/merged", 3, 6, True))
    assert swap(world, COMPACTION, (0, 0, same)) == Changed((X,))
    assert changes(world) == []


def test_only_published_batches_are_rewritten(
    world: World, tenures: list[Tenure], publisher: Publisher
) -> None:
    commit(world, tenures[0], 3, 4)
    before = world.store.batches(world.key, X)
    files = (DataFile("new", 4, 40),)
    assert swap(world, REPLAY, (2, 0, files), (3, 0, files)) == Unpublished(3)
    assert world.store.batches(world.key, X) == before
    assert changes(world) == []
    publisher.publish()
    assert swap(world, REPLAY, (2, 0, files), (3, 0, files)) == Changed((X,))


def test_without_publications_a_rewrite_leaves_no_table_change(
    world: World, tenures: list[Tenure]
) -> None:
    world.store.agree_columns(world.key, [{"name": "a"}], seen_version=0)
    assert swap(world, REPLAY, (2, 0, (DataFile("new", 4, 40),))) == Changed((X,))
    assert changes(world) == []
    go_back(world, "1")
    assert changes(world) == []
    publisher = Publisher(world)
    publisher.start()
    publisher.publish()
    assert publisher.files == publisher.committed() == ["x/0"]


def test_batches_rewritten_before_the_first_publication_are_published_rewritten(
    world: World, tenures: list[Tenure]
) -> None:
    assert swap(world, REPLAY, (0, 0, (DataFile("new", 4, 40),))) == Changed((X,))
    publisher = Publisher(world)
    publisher.start()
    assert changes(world) == []
    publisher.publish()
    assert publisher.files == publisher.committed() == ["new", "x/1", "x/2"]


# -- withdrawal -----------------------------------------------------------------------------------


def test_withdrawn_batches_are_removed_from_the_table(
    world: World, tenures: list[Tenure], publisher: Publisher
) -> None:
    commit(world, tenures[0], 3)
    tenure = go_back(world, "1")
    (change,) = changes(world)
    assert shape(change) == (ChangeKind.WITHDRAWAL, 1, ["x/1", "x/2"], []), "x/3 was not in it"
    assert world.store.unpublished(world.key) == [], "nothing is committed behind the cursor"
    assert world.store.publication_lag(world.key) == []
    commit(world, tenure, 4, 5, start=1)
    (backlog,) = world.store.unpublished(world.key)
    assert (backlog.start, [batch.sequence for batch in backlog.batches]) == (3, [4, 5])
    publisher.publish()
    assert publisher.files == publisher.committed() == ["x/0", "x/4", "x/5"]
    assert until(world, X) == 6
    assert verify(world.store, world.key) == []


def test_a_withdrawn_batch_is_never_published(world: World, tenures: list[Tenure]) -> None:
    """1. The publisher reads three batches; 2. two are withdrawn; 3. it commits."""
    publisher = Publisher(world)
    publisher.start()
    planned = publisher.plan()
    tenure = go_back(world, "1")
    assert publisher.commit(planned) == Stale()
    assert changes(world) == [], "none of them was published"
    commit(world, tenure, 3, start=1)
    assert publisher.commit(planned) == Stale()
    publisher.publish()
    assert publisher.files == publisher.committed() == ["x/0", "x/3"]


def test_a_batch_of_a_pending_publication_is_withdrawn_from_the_table(
    world: World, tenures: list[Tenure]
) -> None:
    """1. P is recorded, and in the table; 2. its batches are withdrawn; 3. P is settled."""
    publisher = Publisher(world)
    lock = publisher.take()
    planned = publisher.plan()
    assert world.store.record_publication(lock, planned) == Settled()
    tenure = go_back(world, "1")
    (change,) = changes(world)
    assert shape(change) == (ChangeKind.WITHDRAWAL, 1, ["x/1", "x/2"], [])
    commit(world, tenure, 3, start=1)
    assert world.store.commit_publication(lock, planned) == Settled()
    assert until(world, X) == 3
    (backlog,) = world.store.unpublished(world.key)
    assert (backlog.start, [batch.sequence for batch in backlog.batches]) == (3, [3])
    assert changes(world) == [change], "it is still to be carried out"


def test_a_change_is_published_with_the_batches_after_it_or_before(
    world: World, tenures: list[Tenure], publisher: Publisher
) -> None:
    """A snapshot with both the records read again and the withdrawn ones would have them twice."""
    tenure = go_back(world, "1")
    commit(world, tenure, 3, start=1)
    commit(world, tenures[1], 0)
    on_x, on_y = world.store.unpublished(world.key)
    (change,) = changes(world)
    assert publisher.commit(publisher.plan([on_x], [])) == Stale()
    assert world.store.record_publication(publisher.own, publisher.plan([on_x], [])) == Stale()
    assert publisher.commit(publisher.plan([on_y], [])) == Settled(), "another shard continues"
    assert publisher.commit(publisher.plan([], [change])) == Settled()
    assert publisher.commit(publisher.plan([], [change])) == Stale(), "it is published already"
    assert publisher.commit(publisher.plan([on_x], [])) == Settled()


def test_changes_of_a_shard_are_published_in_order(
    world: World, tenures: list[Tenure], publisher: Publisher
) -> None:
    assert swap(world, REPLAY, (2, 0, (DataFile("new/2", 4, 40),))) == Changed((X,))
    go_back(world, "1")
    first, second = changes(world)
    assert shape(second) == (ChangeKind.WITHDRAWAL, 1, ["x/1", "new/2"], [])
    assert world.store.pending_changes(world.key, limit=1) == [first]
    assert world.store.pending_changes(world.key, after=first.sequence) == [second]
    assert publisher.commit(publisher.plan([], [second])) == Stale()
    publisher.publish()
    assert publisher.files == publisher.committed() == ["x/0"]


def lock(publisher: Publisher):
    assert publisher.lock is not None
    return publisher.lock


def test_a_large_withdrawal_is_several_changes(
    world: World, tenures: list[Tenure], publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PATHS_PER_CHANGE", 2)
    go_back(world, "0")
    assert [shape(each) for each in changes(world)] == [
        (ChangeKind.WITHDRAWAL, 0, ["x/0", "x/1"], []),
        (ChangeKind.WITHDRAWAL, 2, ["x/2"], []),
    ]
    publisher.publish()
    assert publisher.files == publisher.committed() == []


def test_a_withdrawal_and_a_publication_are_serialized(world: World, tenures: list[Tenure]) -> None:
    """In either order, the table has the committed records once the change is published."""
    publisher = Publisher(world)
    publisher.start()
    backlog = world.store.unpublished(world.key)
    planned = publisher.plan(backlog)
    committed, _ = at_once(
        lambda: publisher.commit(planned),
        lambda: world.store.force_checkpoint(world.key, X, "1", observer="op", reason="again"),
    )
    if committed == Settled():
        publisher.files = ["x/0", "x/1", "x/2"]
    else:
        assert committed == Stale()
    publisher.publish()
    assert publisher.files == publisher.committed() == ["x/0"]


# -- expiry and retention -------------------------------------------------------------------------


def test_expired_output_is_removed_from_the_table(
    world: World, tenures: list[Tenure], publisher: Publisher
) -> None:
    commit(world, tenures[0], 3, 4)
    deliver(world)
    assert expire(world) == 4
    assert [shape(change) for change in changes(world)] == [
        (ChangeKind.EXPIRY, 0, ["x/0", "x/1", "x/2"], [])
    ]
    publisher.publish()
    assert publisher.files == publisher.committed() == ["x/4"]
    assert until(world, X) == 5


def test_only_published_rows_are_merged(world: World, tenures: list[Tenure]) -> None:
    for n in range(3, 6):
        world.consume(tenures[0], str(n), str(n + 1), n, files=())
    publisher = Publisher(world)
    publisher.start()
    deliver(world)
    assert fold(world) == 0, "nothing is published"
    assert publisher.commit(publisher.plan()) == Settled()
    world.consume(tenures[0], "6", "7", 6, files=())
    world.consume(tenures[0], "7", "8", 7, files=())
    deliver(world)
    assert fold(world) == 3
    rows = world.store.batches(world.key, X)
    assert [(row.sequence, row.last) for row in rows] == [(0, 0), (1, 1), (2, 5), (6, 6), (7, 7)]
    (backlog,) = world.store.unpublished(world.key)
    assert (backlog.start, [batch.sequence for batch in backlog.batches]) == (6, [6, 7])


def fold(world: World) -> int:
    gone = 0
    while (portion := world.store.prune_batches(world.key, X, before=FAR, keep=1)).more:
        gone += portion.rows
    return gone + portion.rows


def test_old_published_changes_are_deleted(
    world: World, tenures: list[Tenure], publisher: Publisher
) -> None:
    for generation in range(4):
        files = (DataFile(f"new/{generation}", 4, 40),)
        assert swap(world, REPLAY, (0, generation, files)) == Changed((X,))
        if generation < 3:
            publisher.publish()
    (pending,) = changes(world)

    def prune(before: datetime) -> int:
        return world.store.prune_changes(world.key, before=before, keep=1).rows

    assert prune(LONG_AGO) == 0
    assert prune(FAR) in (2, 0), "the newest one stays; in memory they go at once"
    assert prune(FAR) == 0
    assert changes(world) == [pending]
    publisher.publish()
    assert publisher.files == ["x/1", "x/2", "new/3"]
