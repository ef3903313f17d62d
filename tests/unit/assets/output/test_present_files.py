"""Missing committed files are named, and no other files are reported."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.present_files import FilePresence, check_files
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.local_place import LocalPlace, local_place
from dagster_leasehold.lease_store.identifiers import ShardId
from tests.ledger_output import ledger_paths
from tests.object_store import ENVIRONMENT, new_bucket
from tests.unit.assets.rewriting.test_compaction import Scene

ZERO = ShardId("0")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def look(scene: Scene) -> FilePresence:
    return check_files(scene.store, scene.key, scene.place)


def test_every_missing_file_is_named_with_its_batch(scene: Scene) -> None:
    """Method: any subset of the committed files is removed, beside a file that no row names."""
    paths = [Path(path) for path in ledger_paths(scene.store, scene.key, scene.place)]
    orphan = scene.output / "attempts" / "dead" / "x.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"")
    assert look(scene) == FilePresence(len(paths), 0, ())
    gone = random.Random(7).sample(paths, len(paths) // 2)
    for path in gone:
        path.unlink()
    presence = look(scene)
    assert (presence.files, presence.missing) == (len(paths), len(gone))
    for path in gone:
        relative = path.relative_to(scene.output).as_posix()
        [sentence] = [each for each in presence.sentences if relative in each]
        assert "of batch" in sentence


def test_progress_counts_ledger_rows_up_to_all_of_them(scene: Scene) -> None:
    reports: list[tuple[int, int | None]] = []
    check_files(scene.store, scene.key, scene.place, lambda *seen: reports.append(seen))
    assert reports == [(row, 6) for row in range(1, 7)]


def test_a_file_that_is_committed_while_the_folder_is_listed_is_not_missing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = look(scene).files
    listed = LocalPlace.names

    def names(place: LocalPlace, below: str) -> list[str]:
        seen = list(listed(place, below))
        scene.append(ZERO, 4)
        scene.consume("meanwhile")
        return seen

    monkeypatch.setattr(LocalPlace, "names", names)
    presence = look(scene)
    assert (presence.files > before, presence.missing) == (True, 0)


def test_a_file_that_was_replaced_and_removed_during_the_check_is_not_missing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the ledger's page was read; then all files are merged, and the old ones removed."""
    old = [Path(path) for path in ledger_paths(scene.store, scene.key, scene.place)]
    listed = LocalPlace.names
    rows = scene.store.batches(scene.key)

    def names(place: LocalPlace, below: str) -> list[str]:
        monkeypatch.undo()
        scene.compact(ZERO)
        for path in old:
            path.unlink()
        return list(listed(place, below))

    monkeypatch.setattr(LocalPlace, "names", names)
    each_batch = type(scene.store).each_batch

    def stale_page(store: object, *arguments: object, **options: object):
        whole = not options and arguments == (scene.key,)
        return iter(rows) if whole else each_batch(store, *arguments, **options)

    monkeypatch.setattr(type(scene.store), "each_batch", stale_page)
    shards = {row.shard for row in rows}
    presence = look(scene)
    others = sum(len(row.files) for row in rows if row.shard != ZERO)
    assert len(shards) > 1
    assert presence.missing == others, "only those of shards that were not merged are really gone"


def test_the_names_of_a_store_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    root = output_place(f"s3://{new_bucket()}/orders/default")
    assert list(root.names("attempts")) == []
    paths = {f"attempts/{number}/{name}" for number in range(40) for name in ("a", "b.parquet")}
    paths.add("attempts/loose")
    for path in paths:
        (root / path).put(b"1")
    (root / "metadata/x").put(b"1")
    assert sorted(root.names("attempts")) == sorted(paths)


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert list(local_place(tmp_path / "none").names("attempts")) == []


def test_a_folder_that_cannot_be_listed_is_an_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalPlace, "names", refuse)
    with pytest.raises(OutputUnreadable, match="cannot be listed"):
        look(scene)


def test_memory_grows_by_a_few_bytes_per_file(tmp_path: Path) -> None:
    """Goal: no object is kept for each file. Method: 20,000 names, and their hashes alone."""
    from dagster_leasehold.assets.output import present_files

    names = (f"attempts/{number:08}/0.parquet" for number in range(20_000))
    tracemalloc.start()
    presence = present_files._Names(names)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "attempts/00019999/0.parquet" in presence
    assert "attempts/00020000/0.parquet" not in presence
    assert peak < 20_000 * 40
