"""Compaction on the model store, real files, and random ledgers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.assets.output.units import each_unit, units
from dagster_leasehold.assets.rewriting import compaction
from dagster_leasehold.assets.rewriting.compaction import CompactionReport, Compactor
from dagster_leasehold.assets.rewriting.merges import MERGED_ROWS_MAX, each_merge
from dagster_leasehold.assets.shard_stream import Retention
from dagster_leasehold.lease_store.errors import CheckpointRefused
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchRewrite,
    BatchState,
    DataFile,
    RewriteKind,
)
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.rules.verification import verify
from tests.conformance.published import publish_batches
from tests.ledger_output import ledger_files, ledger_paths, ledger_records
from tests.synced import synced
from tests.unit.assets.consumption_world import NODE, World

TARGET_BYTES = Retention().compact_target_bytes
ZERO, ONE = ShardId("0"), ShardId("1")
FAR = datetime(2200, 1, 1, tzinfo=UTC)


class Scene(World):
    """Two shards of ten records, consumed in batches of four, and a way to compact them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.consume()
        self.names = 0

    def compactor(self, run: str = "compact-1", **arguments: object) -> Compactor:
        def name() -> str:
            self.names += 1
            return f"{run}-{self.names}"

        given: dict[str, object] = {
            "store": self.store,
            "key": self.key,
            "output_root": self.place,
            "run": run,
            "new_attempt": name,
        }
        return Compactor(**(given | arguments))  # type: ignore[arg-type]

    def compact(self, *shards: ShardId, **arguments: object) -> dict[ShardId, CompactionReport]:
        return self.compactor(**arguments).compact(shards or (ZERO, ONE))

    def ledger(self, shard: ShardId = ZERO) -> list[Batch]:
        return self.store.batches(self.key, shard)

    def files(self, shard: ShardId = ZERO) -> int:
        return len(ledger_paths(self.store, self.key, self.place, shard))

    def prune(self) -> None:
        """Fold the rows that compaction has merged away, as if all of them were old."""
        pending = self.store.pending_events(self.key)
        self.store.mark_delivered(self.key, [event.sequence for event in pending])
        for shard in (ZERO, ONE):
            while self.store.prune_batches(self.key, shard, before=FAR, keep=1).more:
                pass
            self.store.prune_batches(self.key, shard, before=FAR, keep=1)
            self.store.prune_journal(self.key, shard, before=FAR, keep=1)

    def put(self, batch: Batch) -> None:
        """Change a row of the ledger past the store's operations."""
        self.store._groups[self.key].batches[batch.shard, batch.sequence] = batch

    def rewrite_file(self, sequence: int, change: Callable[[pa.Table], pa.Table]) -> None:
        """Give a batch of shard 0 another file, as another transform would have made it."""
        batch = self.ledger()[sequence]
        (file,) = batch.files
        table = change(pq.read_table(self.output / file.path))
        path = f"{file.path}.other.parquet"
        pq.write_table(table, self.output / path)
        size = (self.output / path).stat().st_size
        self.put(replace(batch, files=(DataFile(path, table.num_rows, size),)))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_progress_counts_batches_up_to_all_of_them(scene: Scene) -> None:
    reports: list[tuple[int, int | None]] = []
    scene.compactor().compact((ZERO, ONE), lambda *seen: reports.append(seen))
    assert [done for done, _ in reports] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert {total for _, total in reports} == {6}


def test_many_files_become_one_with_the_same_records_in_order(scene: Scene) -> None:
    before = scene.ledger()
    report = scene.compact()[ZERO]
    assert (report.batches, report.files_before, report.files_after, report.error) == (3, 3, 1, "")
    assert (scene.files(ZERO), scene.files(ONE)) == (1, 1)
    after = scene.ledger()
    (merged,) = after[0].files
    assert (merged.records, merged.batches) == (10, 3)
    assert (scene.output / merged.path).stat().st_size == merged.bytes == report.bytes_after
    assert [batch.files for batch in after[1:]] == [(), ()]
    assert [replace(batch, files=(), generation=0) for batch in after] == [
        replace(batch, files=()) for batch in before
    ]
    assert [batch.generation for batch in after] == [1, 1, 1]
    assert scene.committed(ZERO) == scene.expected("0", 10)
    assert scene.committed(ONE) == scene.expected("1", 10)
    assert verify(scene.store, scene.key) == []
    assert scene.store.rewrites(scene.key) == []


def test_records_after_a_full_row_group_are_merged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "ROW_GROUP_BYTES", 1)
    scene.compact()
    (merged,) = scene.ledger()[0].files
    metadata = pq.ParquetFile(scene.output / merged.path).metadata
    assert metadata.num_row_groups > 1
    assert metadata.num_rows == merged.records == 10
    assert scene.committed(ZERO) == scene.expected("0", 10)


def test_compacting_again_changes_nothing(scene: Scene) -> None:
    scene.compact()
    before = scene.ledger()
    assert scene.compact(run="compact-2")[ZERO] == CompactionReport(ZERO, 0, 1, 1)
    assert scene.ledger() == before


def test_merged_files_are_merged_with_later_ones(scene: Scene) -> None:
    scene.compact()
    scene.append(ZERO, 6)
    scene.consume("run-2")
    assert [len(unit) for unit in units(scene.ledger())] == [3, 1, 1]
    scene.compact(run="compact-2")
    assert [len(unit) for unit in units(scene.ledger())] == [5]
    assert scene.committed(ZERO) == scene.expected("0", 16)
    assert verify(scene.store, scene.key) == []


def test_only_published_batches_are_merged(scene: Scene) -> None:
    publish_batches(scene.store, scene.key, NODE, ZERO, 2)
    report = scene.compact()[ZERO]
    assert (report.batches, report.files_before, report.files_after, report.error) == (2, 2, 1, "")
    assert [len(unit) for unit in units(scene.ledger())] == [2, 1]
    assert scene.compact(run="compact-2")[ONE] == CompactionReport(ONE), "nothing is published"
    (change,) = scene.store.pending_changes(scene.key)
    assert (change.shard, change.kind, len(change.removed)) == (ZERO, ChangeKind.COMPACTION, 2)


def test_a_reader_that_began_before_the_swap_finishes(scene: Scene) -> None:
    reading = ledger_records(scene.store, scene.key, scene.place)
    seen = next(reading).column("value").to_pylist()
    scene.compact()
    for batch in reading:
        seen += batch.column("value").to_pylist()
    assert seen == scene.expected("0", 10) + scene.expected("1", 10)


def test_duckdb_reads_merged_files_in_order(scene: Scene) -> None:
    duckdb = pytest.importorskip("duckdb")
    scene.compact()
    paths = ledger_paths(scene.store, scene.key, scene.place, ZERO)
    rows = duckdb.sql(f"SELECT value FROM read_parquet({paths!r})").fetchall()
    assert [value for (value,) in rows] == scene.expected("0", 10)


def test_batches_committed_during_a_compaction_are_unchanged(scene: Scene) -> None:
    scene.append(ZERO, 3)

    def name() -> str:
        scene.consume("run-2")
        return "attempt"

    report = scene.compact(ZERO, new_attempt=name)[ZERO]
    assert (report.batches, report.error) == (3, "")
    assert [len(batch.files) for batch in scene.ledger()] == [1, 0, 0, 1]
    assert scene.committed(ZERO) == scene.expected("0", 13)


def test_quarantined_records_are_merged_apart(scene: Scene) -> None:
    batches = scene.ledger()
    for batch in batches[:2]:
        (file,) = batch.files
        path = f"{file.path}.quarantine.parquet"
        table = pq.read_table(scene.output / file.path).slice(0, 1)
        pq.write_table(table, scene.output / path)
        scene.put(replace(batch, files=(file, DataFile(path, 1, 9, quarantine=True))))
    assert scene.compact(ZERO)[ZERO].files_after == 2
    (bad,) = ledger_files(scene.store, scene.key, scene.place, ZERO, quarantine=True)
    assert pq.read_table(str(bad.path)).column("value").to_pylist() == [b"0:0", b"0:4"]
    assert (bad.file.records, bad.file.batches) == (2, 3)
    assert scene.committed(ZERO) == scene.expected("0", 10)


def test_files_with_different_types_are_not_merged(scene: Scene) -> None:
    scene.append(ZERO, 6)
    scene.consume("run-2")
    for sequence, value in enumerate((1, 1, 1, "one", "one")):
        scene.rewrite_file(
            sequence, lambda rows, value=value: rows.append_column("n", [[value] * rows.num_rows])
        )
    scene.compact(ZERO)
    assert [len(unit) for unit in units(scene.ledger())] == [3, 2]


def test_files_with_a_missing_column_are_merged(scene: Scene) -> None:
    """Method: a column, a part of one, and a wider type come and go from batch to batch."""
    narrow = pa.struct([("a", pa.int32())])
    wide = pa.struct([("b", pa.string()), ("a", pa.int64())])
    scene.append(ZERO, 6)
    scene.consume("run-2")
    for sequence in (0, 4):
        scene.rewrite_file(
            sequence, lambda rows: rows.append_column("s", pa.array([{"a": 1}] * len(rows), narrow))
        )
    last = {"a": 2**40, "b": "x"}
    scene.rewrite_file(
        2,
        lambda rows: rows.append_column("s", pa.array([None, last], wide)).append_column(
            "more", pa.array([None, 0.5])
        ),
    )
    scene.compact(ZERO)
    (path,) = ledger_paths(scene.store, scene.key, scene.place, ZERO)
    merged = pq.read_table(path)
    assert merged.column("value").to_pylist() == scene.expected("0", 16)
    first = {"a": 1, "b": None}
    structs = [first] * 4 + [None] * 5 + [last] + [None] * 4 + [first] * 2
    assert merged.column("s").to_pylist() == structs
    assert merged.column("more").to_pylist() == [None] * 9 + [0.5] + [None] * 6


@pytest.mark.parametrize("damage", ["missing", "cut", "short"])
def test_damaged_output_is_one_sentence_and_stays(scene: Scene, damage: str) -> None:
    (file,) = scene.ledger()[1].files
    path = scene.output / file.path
    if damage == "short":
        pq.write_table(pq.read_table(path).slice(1), path)
    else:
        content = path.read_bytes()
        path.unlink()
        if damage == "cut":
            path.write_bytes(content[: len(content) // 2])
    before = scene.ledger()
    reports = scene.compact()
    assert str(path) in reports[ZERO].error
    assert "\n" not in reports[ZERO].error
    assert reports[ONE].error == "", "the other shard continues"
    assert scene.ledger() == before
    assert [*scene.output.rglob("0.merged*")] == [], "nothing is left behind"


def test_a_shard_that_another_run_rewrites_is_skipped(scene: Scene) -> None:
    scene.store.claim_rewrite(scene.key, ZERO, "replay-1", RewriteKind.REPLAY)
    reports = scene.compact()
    assert "Run replay-1 is replaying shard 0" in reports[ZERO].error
    assert reports[ONE].files_after == 1
    assert scene.compact(run="compact-2", ended=lambda run: run == "replay-1")[ZERO].error == ""


def test_output_that_changed_during_a_compaction_is_not_swapped(scene: Scene) -> None:
    """1. compaction merges; 2. it is taken for dead, and a replay swaps; 3. it swaps."""

    def name() -> str:
        scene.store.claim_rewrite(
            scene.key, ZERO, "replay-1", RewriteKind.REPLAY, replaces="compact-1"
        )
        batch = scene.ledger()[1]
        rewrite = BatchRewrite(1, batch.generation, batch.files, batch.statistics)
        scene.store.rewrite_batches(scene.key, ZERO, "replay-1", [rewrite], reason="test")
        return "late"

    report = scene.compact(ZERO, new_attempt=name)[ZERO]
    assert "changed while its files were merged" in report.error
    assert [batch.generation for batch in scene.ledger()] == [0, 1, 0]
    assert not (scene.output / "attempts" / "late").exists()
    assert scene.committed(ZERO) == scene.expected("0", 10)


# -- which files --------------------------------------------------------------------------------


def batch(number: int, *sizes: int, together: int = 1) -> Batch:
    files = tuple(
        DataFile(f"{number}-{at}", 1, size, batches=together) for at, size in enumerate(sizes)
    )
    return Batch(
        ZERO, number, str(number), str(number + 1), BatchState.COMMITTED, 1, "r", NodeName("a"),
        files=files,
    )  # fmt: skip


def chosen(batches: list[Batch], target: int = 100) -> list[list[int]]:
    merges = list(each_merge(units(batches), target_bytes=target))
    return [[each.sequence for unit in merge for each in unit] for merge in merges]


def test_a_merge_ends_at_the_target() -> None:
    assert chosen([batch(n, 40) for n in range(7)]) == [[0, 1, 2], [3, 4, 5]]


def test_large_files_are_not_merged() -> None:
    sizes = [10, 10, 60, 10, 99, 10, 10]
    assert chosen([batch(n, size) for n, size in enumerate(sizes)]) == [[0, 1], [5, 6]]


def test_a_batch_of_many_files_is_merged() -> None:
    assert chosen([batch(0, 30, 30, 30)]) == [[0]]
    assert chosen([batch(0, 30)]) == chosen([]) == []


def test_batches_without_output_cost_nothing() -> None:
    assert chosen([batch(0), batch(1, 5), batch(2), batch(3)]) == []
    assert chosen([batch(0), batch(1, 5), batch(2), batch(3, 5)]) == [[0, 1, 2, 3]]


def test_columns_are_compared_past_batches_without_files() -> None:
    """Goal: a batch without files between two transforms does not merge different columns."""
    batches = [batch(0, 5), batch(1), batch(2, 5), batch(3, 5)]
    text, number = ([{"name": "n", "type": kind}] for kind in ("string", "long"))
    columns = {0: text, 1: None, 2: number, 3: number}
    merges = each_merge(
        units(batches), target_bytes=100, columns=lambda unit: (columns[unit[0].sequence], None)
    )
    assert [[each.sequence for unit in merge for each in unit] for merge in merges] == [[2, 3]]


@settings(max_examples=300)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 4), st.lists(st.integers(1, 150), max_size=3)), max_size=12
    ),
    target=st.integers(1, 300),
)
def test_merges_keep_order_and_never_split_a_unit(
    shapes: list[tuple[int, list[int]]], target: int
) -> None:
    """Property: merges are disjoint runs of consecutive units, each of them saves files."""
    batches: list[Batch] = []
    for together, sizes in shapes:
        batches.append(batch(len(batches), *sizes, together=together if sizes else 1))
        batches += [batch(len(batches) + n) for n in range(together - 1 if sizes else 0)]
    every = units(batches)
    places = {unit[0].sequence: place for place, unit in enumerate(every)}
    reached = 0
    for merge in each_merge(every, target_bytes=target):
        first = places[merge[0][0].sequence]
        assert merge == every[first : first + len(merge)]
        assert first >= reached
        reached = first + len(merge)
        assert sum(len(each.files) for unit in merge for each in unit) > 1


def test_merged_rows_are_compacted_replayed_and_forced_like_others(scene: Scene) -> None:
    from dagster_leasehold.assets.rewriting.replay import Replayer
    from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan

    scene.compact()
    scene.append(ZERO, 6)
    scene.consume("run-2")
    scene.prune()
    folded, *following = scene.ledger()
    assert (folded.start, folded.end, folded.last, folded.batches) == ("0", "10", 2, 3)
    assert following
    scene.compact(run="compact-2")
    assert scene.committed(ZERO) == scene.expected(ZERO, 16)
    scene.prune()
    replayer = Replayer(
        stream=scene.stream,
        store=scene.store,
        output_root=scene.place,
        sweeper=scene.sweeper,
        run="replay-1",
    )
    (report,) = replayer.replay([ZERO], ReplaySpan.parse("1", "2")).values()
    assert (report.error, report.records) == ("", 16), "its one file holds all of them"
    assert scene.committed(ZERO) == scene.expected(ZERO, 16)
    with pytest.raises(CheckpointRefused):
        scene.store.force_checkpoint(scene.key, ZERO, "5", observer="ops", reason="inside")
    scene.store.force_checkpoint(scene.key, ZERO, "0", observer="ops", reason="all of it")
    scene.consume("run-3")
    assert scene.committed(ZERO) == scene.expected(ZERO, 16)
    assert verify(scene.store, scene.key) == []


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_consuming_replaying_and_compacting_reads_the_same(
    tmp_path: Path, seed: int
) -> None:
    """Property: after any work in any order, the output is the records, each once, in order."""
    from dagster_leasehold.assets.rewriting.replay import Replayer
    from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan

    rng = random.Random(seed)
    scene = Scene(tmp_path)
    total = {ZERO: 10, ONE: 10}
    for step in range(12):
        run = f"{step}-{seed}"
        action = rng.choice(["consume", "consume", "replay", "compact", "compact", "prune"])
        if action == "consume":
            shard = rng.choice((ZERO, ONE))
            count = rng.randint(1, 9)
            scene.append(shard, count)
            total[shard] += count
            scene.consume(run)
        elif action == "replay":
            start = str(rng.randint(0, total[ZERO]))
            replayer = Replayer(
                stream=scene.stream,
                store=scene.store,
                output_root=scene.place,
                sweeper=scene.sweeper,
                run=run,
            )
            reports = replayer.replay([ZERO, ONE], ReplaySpan.parse(start, None))
            assert not any(report.error for report in reports.values())
        elif action == "prune":
            scene.prune()
        else:
            target = rng.choice([TARGET_BYTES, 4_000, 10_000])
            reports = scene.compact(run=run, target_bytes=target)
            assert not any(report.error for report in reports.values())
        for shard in (ZERO, ONE):
            assert scene.committed(shard) == scene.expected(shard, total[shard]), (step, action)
        assert verify(scene.store, scene.key) == []


def test_merged_files_are_synced_before_the_ledger_names_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = scene.output / "attempts"
    with synced(monkeypatch) as paths:
        scene.compact(ZERO)
    (file,) = [Path(path) for path in ledger_paths(scene.store, scene.key, scene.place, ZERO)]
    assert paths == [attempts, file, file.parent]


def test_a_file_is_merged_before_the_rest_of_the_ledger_is_read() -> None:
    """Property of size: a ledger is not held in memory, neither is a merge of very many rows."""
    taken: list[int] = []

    def ledger() -> Iterator[Batch]:
        for number in range(3 * MERGED_ROWS_MAX):
            taken.append(number)
            yield batch(number, 1)

    merges = each_merge(each_unit(ledger()), target_bytes=10)
    assert [each[0].sequence for each in next(merges)] == list(range(10))
    assert len(taken) == 11
    first = next(each_merge(each_unit(ledger()), target_bytes=TARGET_BYTES))
    assert len(first) == MERGED_ROWS_MAX
