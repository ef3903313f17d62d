"""A restored ledger follows its table: no record is lost or duplicated.

Records that the source has trimmed since the backup are only in the table. Afterwards they are
committed output again, and consumption continues after them.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.lease_store.errors import UnknownShard
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.verification import verify
from tests.unit.assets.output.table.restored_scene import (
    KINDS,
    SHARDS,
    Restored,
    clean,
    compact,
    grown,
    restored_in_a_service,
    restored_scene,
)
from tests.unit.orchestration.consumed_home import AT_ONCE, KEY, NODE

pytestmark = pytest.mark.long


@pytest.fixture(params=[*KINDS, "service"])
def scene(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Generator[Restored]:
    if request.param != "service":
        yield restored_scene(tmp_path, request.param)
        return
    with restored_in_a_service(tmp_path, monkeypatch) as scene:
        yield scene


def test_records_that_the_source_has_trimmed_survive(scene: Restored) -> None:
    scene.restore(grown(scene))
    sentences: list[str] = []
    scene.publish("adopt", sentences.append)
    assert [line.partition(" is ")[0] for line in sentences] == ["Shard 0", "Shard 1"]
    assert "8 records in 2 files, from 8 up to 16, come from the table" in sentences[0]
    scene.check(16)
    scene.consume(4)
    scene.publish()
    scene.check(20)


def test_batches_consumed_again_are_withdrawn(scene: Restored) -> None:
    """The restored deployment was up for a while, and is not beyond the table yet."""
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    scene.consume(8)
    scene.publish()
    scene.restore(dump)
    scene.consume_once()
    scene.trim()
    scene.publish("adopt")
    scene.check(16)
    scene.consume(4)
    scene.publish()
    scene.check(20)


def test_a_run_that_was_open_in_the_backup_is_fenced(scene: Restored) -> None:
    scene.consume(8)
    scene.publish()
    opened = scene.home.store.open_tenure(KEY, SHARDS[0], NODE, "before")
    assert isinstance(opened, Opened)
    dump = scene.dump()
    scene.home.store.close_tenure(opened.tenure, reason="it ended")
    scene.consume(8)
    scene.publish()
    scene.restore(dump)
    scene.publish("adopt")
    assert not scene.home.store.review([opened.tenure])[SHARDS[0]].current
    scene.check(16)
    scene.consume(4)
    scene.publish()
    scene.check(20)


def test_files_that_were_merged_since_the_backup_are_followed(scene: Restored) -> None:
    """The files that the restored ledger names are gone."""
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    compact(scene)
    scene.consume(4)
    scene.publish()
    compact(scene)
    scene.publish()
    for _ in range(100):
        scene.consume(0)
    scene.restore(dump)
    scene.publish("adopt")
    scene.check(12)
    clean(scene)
    scene.check(12)
    scene.consume(4)
    scene.publish()
    compact(scene)
    scene.publish()
    scene.check(16)


def test_vacuum_before_the_adoption_leaves_what_the_table_needs(scene: Restored) -> None:
    scene.restore(grown(scene))
    clean(scene)
    scene.publish("adopt")
    scene.check(16)


def test_quarantine_files_of_the_ledger_stay(scene: Restored) -> None:
    scene.home.sweeper.refuses = lambda value: value.endswith(b":5")
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    scene.home.sweeper.refuses = lambda _: False
    scene.consume(8)
    scene.publish()
    compact(scene)
    scene.publish()
    scene.trim()
    scene.restore(dump)
    scene.publish("adopt")
    assert verify(scene.home.store, KEY) == []
    assert len(scene.published()) == 2 * 15
    files = [file for batch in scene.home.store.each_batch(KEY) for file in batch.files]
    assert sum(file.records for file in files if file.quarantine) == 2
    scene.consume(4)
    scene.publish()
    assert len(scene.published()) == 2 * 19


def test_a_checkpoint_that_was_forced_back_moves_to_the_end_of_the_table(scene: Restored) -> None:
    """The state of the table goes back with it, published again or not."""
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    scene.consume(8)
    scene.publish()
    scene.home.store.force_checkpoint(KEY, SHARDS[0], "12", observer="test", reason="again")
    scene.publish()
    scene.restore(dump)
    scene.publish("adopt")
    heads = scene.home.store.heads(KEY)
    assert [heads[shard].check_point for shard in SHARDS] == ["12", "16"]
    assert verify(scene.home.store, KEY) == []
    scene.consume(4)
    scene.publish()
    scene.check(20)


def test_a_backup_that_is_restored_twice_is_rolled_forward_to_the_newest_table(
    scene: Restored,
) -> None:
    dump = grown(scene)
    scene.restore(dump)
    scene.publish("adopt")
    scene.consume(4)
    scene.publish()
    scene.trim()
    scene.restore(dump)
    scene.publish("adopt")
    scene.check(20)
    scene.consume(4)
    scene.publish()
    scene.check(24)


def test_a_deployment_that_continued_after_its_restore_is_not_rolled_back(tmp_path: Path) -> None:
    """Its output of before the restoration is newer than the backup, and not than its own."""
    scene = restored_scene(tmp_path, "leasehold")
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    scene.consume(8)
    scene.publish()
    scene.restore(dump)
    scene.consume(4)
    scene.publish()
    before = scene.published()
    sentences: list[str] = []
    scene.publish("adopt", sentences.append)
    assert sentences == []
    assert scene.published() == before


def test_a_backup_from_before_the_first_publication_is_rolled_forward(scene: Restored) -> None:
    dump = scene.dump()
    scene.consume(8)
    scene.publish()
    scene.trim()
    scene.restore(dump)
    if not scene.catalog.properties:
        clean(scene)
    else:
        with pytest.raises(TableUnavailable, match="that its ledger does not name"):
            clean(scene)
    scene.publish("adopt")
    scene.check(8)
    scene.consume(4)
    scene.publish()
    scene.check(12)


def split(scene: Restored) -> list[ShardId]:
    """Split a shard, and append 4 records to each of its children."""
    children = list(scene.home.log.split(SHARDS[0]))
    write(scene, children, 4)
    return children


def write(scene: Restored, shards: list[ShardId], records: int) -> None:
    for shard in shards:
        begin = int(scene.home.log.bounds([shard])[shard].end)
        values = [b"%s:%d" % (shard.encode(), begin + n) for n in range(records)]
        scene.home.log.append(shard, values)


def test_shards_that_the_restored_ledger_lacks_are_added(scene: Restored) -> None:
    scene.home.store.update_group(Group(KEY, ordered=False), observer="test")
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    children = split(scene)
    scene.read()
    scene.publish()
    before = scene.published()
    assert len(before) == 16 + 8
    scene.trim(*children)
    scene.restore(dump)
    scene.publish("adopt")
    assert scene.published() == scene.committed() == before
    assert verify(scene.home.store, KEY) == []
    write(scene, children, 2)
    scene.read()
    scene.publish()
    assert len(scene.published()) == len(before) + 2 * 2
    assert verify(scene.home.store, KEY) == []


def test_an_ordered_group_refuses_shards_that_the_ledger_lacks(scene: Restored) -> None:
    """They have to be listed first, so that none is read before its parents."""
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    children = split(scene)
    scene.read()
    scene.read()
    scene.publish()
    before = scene.published()
    assert len(before) == 16 + 8
    scene.restore(dump)
    with pytest.raises(UnknownShard, match=f"records of shard '{children[0]}'"):
        scene.publish("adopt")
    scene.home.store.sync_shards(KEY, scene.home.log.list_shards(), observer="test")
    scene.publish("adopt")
    assert scene.published() == scene.committed() == before
    assert verify(scene.home.store, KEY) == []
    scene.read()
    scene.read()
    scene.publish()
    assert scene.published() == scene.committed() == before
    assert verify(scene.home.store, KEY) == []


def test_only_the_newest_state_files_stay(scene: Restored) -> None:
    for _ in range(4):
        scene.consume(4)
        scene.publish()
    (name,) = scene.state_files()
    assert scene.mark().states.endswith(f"/metadata/{name}")
    orphan = scene.home.output / "metadata" / "killed.shards.json.gz"
    orphan.write_bytes(b"")
    scene.publisher().remove_orphans(scene.lock(), older_than=AT_ONCE)
    assert scene.state_files() == [name]
    scene.check(16)


def test_missing_state_files_are_written_again(scene: Restored) -> None:
    scene.consume(8)
    scene.publish()
    (scene.home.output / "metadata" / scene.state_files()[0]).unlink()
    dump = scene.dump()
    scene.consume(8)
    scene.publish()
    scene.trim()
    scene.restore(dump)
    scene.publish("adopt")
    scene.check(16)


def test_damaged_state_files_are_named_and_the_ledger_is_unchanged(scene: Restored) -> None:
    dump = grown(scene)
    (scene.home.output / "metadata" / scene.state_files()[0]).write_bytes(b"{}")
    scene.restore(dump)
    with pytest.raises(Exception, match="the published part of each shard, is damaged"):
        scene.publish("adopt")
    assert [batch.last for batch in scene.home.store.each_batch(KEY)] == [0, 1, 0, 1]


def test_a_missing_data_file_leaves_the_ledger_unchanged(scene: Restored) -> None:
    dump = grown(scene)
    before = set(scene.home.output.glob("attempts/*/*.parquet"))
    scene.restore(dump)
    named = {file.path for batch in scene.home.store.each_batch(KEY) for file in batch.files}
    lost = next(path for path in before if str(path.relative_to(scene.home.output)) not in named)
    lost.unlink()
    with pytest.raises(TableUnavailable, match=f"table names do not .*{lost.name}"):
        scene.publish("adopt")
    heads = scene.home.store.heads(KEY)
    assert {head.check_point for head in heads.values()} == {"8"}
