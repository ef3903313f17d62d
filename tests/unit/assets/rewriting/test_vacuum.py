"""Vacuum removes files that no reader can need; committed, young and active files stay."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import OutputNotOwned
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.table import group_table
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.rewriting.vacuum import VacuumReport, vacuum
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Intent, RewriteClaim, RewriteKind
from dagster_leasehold.lease_store.outcomes import Changed, Opened, Settled
from tests.conformance.published import publish_batches
from tests.failpoints import Failpoint
from tests.ledger_output import ledger_paths, ledger_records
from tests.unit.assets.consumption_world import NODE
from tests.unit.assets.rewriting.test_compaction import Scene

ZERO = ShardId("0")
HOUR = timedelta(hours=1)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def age(path: Path, by: timedelta = 2 * HOUR) -> None:
    then = time.time() - by.total_seconds()
    os.utime(path, (then, then))


def age_all(scene: Scene) -> None:
    for path in sorted(scene.output.rglob("*"), reverse=True):
        age(path)


def orphan(scene: Scene, attempt: str, name: str = "0.00000-0-0.parquet") -> Path:
    path = scene.output / "attempts" / attempt / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"12345")
    return path


def run(scene: Scene, *, dry_run: bool = False) -> VacuumReport:
    return vacuum(scene.store, scene.key, scene.place, older_than=HOUR, dry_run=dry_run)


def test_old_orphans_are_removed_and_committed_files_never(scene: Scene) -> None:
    first, second = orphan(scene, "dead-1"), orphan(scene, "dead-1", "other")
    committed = ledger_paths(scene.store, scene.key, scene.place)
    age_all(scene)
    planned = run(scene, dry_run=True)
    assert first.exists()
    report = run(scene)
    assert report == planned
    assert report == VacuumReport(
        ("attempts/dead-1/0.00000-0-0.parquet", "attempts/dead-1/other"), 10, len(committed)
    )
    assert not first.parent.exists()
    assert not second.exists()
    assert all(Path(path).exists() for path in committed)
    assert scene.committed(ZERO) == scene.expected("0", 10)
    assert run(scene).removed == ()


def test_replaced_files_stay_until_the_table_drops_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The table names two files; 2. a compaction merges them; 3. the table follows."""
    monkeypatch.setattr(group_table, "files_of_table", lambda *_: set[str]())
    publisher = publish_batches(scene.store, scene.key, NODE, ZERO, 2)
    paths = [file.path for batch in scene.ledger()[:2] for file in batch.files]
    scene.compact(ZERO)
    age_all(scene)
    assert run(scene).removed == ()
    assert publisher.commit(publisher.plan(backlog=[])) == Settled()
    assert run(scene).removed == tuple(sorted(paths))


def test_young_orphans_stay(scene: Scene) -> None:
    path = orphan(scene, "attempt")
    age_all(scene)
    age(path, timedelta(minutes=59))
    report = run(scene)
    assert (report.removed, report.young) == ((), 1)
    assert path.exists()


def test_files_of_attempts_in_progress_stay(scene: Scene) -> None:
    """Method: one run has an intent, another a claim to rewrite; a third one has neither."""
    scene.append(ZERO, 4)
    opened = scene.store.open_tenure(scene.key, ZERO, NODE, "slow:run")
    assert isinstance(opened, Opened)
    recorded = scene.store.record_intents([Intent(opened.tenure, 3, "10", "14")])
    assert recorded[ZERO] == Changed((ZERO,))
    scene.store.claim_rewrite(scene.key, ZERO, "replay-1", RewriteKind.REPLAY)
    busy = [orphan(scene, "slow-run-1"), orphan(scene, "replay-1-2")]
    gone = [orphan(scene, "slow-runner-1"), orphan(scene, "replay-10-2")]
    empty = scene.output / "attempts" / "replay-1-3"
    empty.mkdir()
    age_all(scene)
    report = run(scene)
    assert (len(report.removed), report.in_progress) == (2, 2)
    assert all(path.exists() for path in busy)
    assert not any(path.exists() for path in gone)
    assert empty.exists(), "its run is about to write into it"
    scene.store.release_rewrite(scene.key, ZERO, "replay-1")
    assert run(scene).in_progress == 1


def test_files_of_an_hour_in_progress_stay(scene: Scene) -> None:
    """Its row names no file yet; once the attempt is given up, they are like any others."""
    scene.store.begin_window(scene.key, "run-7", "run")
    path = orphan(scene, "run-7", "part-0.parquet")
    other = orphan(scene, "run-71", "part-0.parquet")
    age_all(scene)
    report = run(scene)
    assert (report.removed, report.in_progress) == (("attempts/run-71/part-0.parquet",), 1)
    assert path.exists()
    assert not other.exists()
    scene.store.end_window(scene.key, "run-7")
    assert run(scene).removed == ("attempts/run-7/part-0.parquet",)


def test_swapped_files_are_kept_for_readers_that_began_before(scene: Scene) -> None:
    """1. a reader lists old files; 2. compaction swaps; 3. vacuum runs; 4. the reader continues."""
    age_all(scene)
    reading = ledger_records(scene.store, scene.key, scene.place)
    seen = next(reading).column("value").to_pylist()
    scene.compact()
    report = run(scene)
    assert (report.removed, report.young, report.committed) == ((), 6, 2)
    for batch in reading:
        seen += batch.column("value").to_pylist()
    assert seen == scene.expected("0", 10) + scene.expected("1", 10)
    age_all(scene)
    assert len(run(scene).removed) == 6
    assert scene.committed(ZERO) == scene.expected("0", 10)


def test_files_swapped_during_a_vacuum_stay_for_their_readers(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. vacuum lists; 2. a reader lists; 3. compaction swaps; 4. vacuum asks who is named."""
    age_all(scene)
    reading = ledger_records(scene.store, scene.key, scene.place)
    seen = next(reading).column("value").to_pylist()
    rewrites = scene.store.rewrites

    def swapped_before(key: GroupKey) -> list[RewriteClaim]:
        monkeypatch.undo()
        scene.compact()
        return rewrites(key)

    monkeypatch.setattr(scene.store, "rewrites", swapped_before)
    report = run(scene)
    assert (report.removed, report.young, report.committed) == ((), 6, 0)
    for batch in reading:
        seen += batch.column("value").to_pylist()
    assert seen == scene.expected("0", 10) + scene.expected("1", 10)


def test_a_delayed_swap_sets_the_age_of_files_when_it_happens(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: two hours pass between the moment before the swap and the swap itself."""
    old = ledger_paths(scene.store, scene.key, scene.place)
    rewrite_batches = scene.store.rewrite_batches

    def late(*arguments: object, **options: object) -> object:
        age_all(scene)
        return rewrite_batches(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(scene.store, "rewrite_batches", late)
    scene.compact(ZERO)
    assert run(scene).removed == ()
    assert all(Path(path).exists() for path in old)


def test_a_file_that_another_vacuum_removed_is_not_counted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [orphan(scene, "dead-1"), orphan(scene, "dead-1", "other")]
    age_all(scene)

    def faster(place: str) -> None:
        if place == Failpoint.BEFORE_VACUUM.label:
            paths[0].unlink()

    monkeypatch.setattr(failpoints, "reach", faster)
    assert run(scene).removed == ("attempts/dead-1/other",)


def test_files_outside_of_attempts_are_never_removed(scene: Scene) -> None:
    outside = scene.output / "notes.txt"
    outside.write_text("mine")
    foreign = scene.folder / "foreign"
    foreign.mkdir()
    (foreign / "file").write_text("mine")
    (scene.output / "attempts" / "link").symlink_to(foreign, target_is_directory=True)
    (orphan(scene, "dead-1").parent / "link").symlink_to(foreign / "file")
    age_all(scene)
    age(foreign / "file")
    assert run(scene).removed == ("attempts/dead-1/0.00000-0-0.parquet",)
    assert outside.exists()
    assert (foreign / "file").exists()


def test_a_group_that_never_wrote_has_nothing_to_remove(scene: Scene) -> None:
    nowhere = scene.folder / "nowhere"
    assert vacuum(scene.store, scene.key, local_place(nowhere), older_than=HOUR) == VacuumReport()
    assert not nowhere.exists()


@pytest.mark.parametrize("seed", range(5))
def test_vacuum_at_any_time_removes_no_record(tmp_path: Path, seed: int) -> None:
    """Property: consumption, compaction, orphans and an impatient vacuum in any order."""
    rng = random.Random(seed)
    scene = Scene(tmp_path)
    total = 10
    for step in range(15):
        match rng.choice(["consume", "compact", "orphan", "vacuum"]):
            case "consume":
                scene.append(ZERO, 3)
                total += 3
                scene.consume(f"run-{step}")
            case "compact":
                scene.compact(run=f"compact-{step}")
            case "orphan":
                orphan(scene, f"dead-{step}")
            case _:
                age_all(scene)
                run(scene)
        assert scene.committed(ZERO) == scene.expected("0", total)
    age_all(scene)
    run(scene)
    left = {str(path) for path in (scene.output / "attempts").rglob("*") if path.is_file()}
    assert left == set(ledger_paths(scene.store, scene.key, scene.place))


def test_two_stores_with_one_folder_never_remove_each_others_files(tmp_path: Path) -> None:
    """Method: each is a deployment with the same output folder and stream; the later one comes."""
    first = Scene(tmp_path / "first")
    owned(first.store, first.place)
    committed = ledger_paths(first.store, first.key, first.place)
    age_all(first)
    second = Scene(tmp_path / "second")
    for dry_run in (True, False):
        with pytest.raises(OutputNotOwned):
            vacuum(second.store, second.key, first.place, older_than=HOUR, dry_run=dry_run)
    assert all(Path(path).exists() for path in committed)
    assert run(first).committed == len(committed)
