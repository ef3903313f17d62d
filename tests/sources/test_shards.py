"""The shard list, bounds, and the life of shards."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import CursorExpired, CursorInvalid, UnknownShard
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import Limits, PlannedRange, Position, identity_of_log
from tests.sources.world import START, STEP, VALUES, NewRecord, Notion, SourceWorld


def test_new_shards_are_writable_and_have_no_parents(world: SourceWorld) -> None:
    listed = world.source.list_shards()
    assert len(listed) >= 2
    assert len({entry.shard for entry in listed}) == len(listed)
    assert all(isinstance(entry.shard, ShardId) for entry in listed)
    assert all(not entry.parents and not entry.read_only for entry in listed)
    assert all(entry.subscribable for entry in listed)
    assert world.source.list_shards() == listed


@pytest.mark.needs(Notion.LINEAGE)
def test_shards_share_the_hash_range(world: SourceWorld) -> None:
    listed = world.source.list_shards()
    assert all(entry.hash_begin < entry.hash_end for entry in listed)


def test_bounds_contain_only_the_requested_shards(world: SourceWorld) -> None:
    first, second = (entry.shard for entry in world.source.list_shards()[:2])
    world.fill(first, VALUES[:3])
    bounds = world.source.bounds([first, second])
    assert set(bounds) == {first, second}
    assert bounds[first].begin != bounds[first].end
    assert bounds[second].begin == bounds[second].end
    assert world.source.bounds([]) == {}


def test_an_empty_shard_begins_where_it_ends(world: SourceWorld) -> None:
    shard = world.source.list_shards()[1].shard
    bounds = world.source.bounds([shard])[shard]
    assert bounds.begin == bounds.end
    assert not bounds.finished
    plan = world.source.plan(shard, bounds.begin, Limits())
    assert (plan.end, plan.records, plan.last) == (bounds.end, 0, False)
    assert world.source.lag(shard, bounds.begin, bounds) in (0, None)
    assert world.rows(shard, bounds.begin, bounds.end) == []


def test_the_end_of_an_empty_shard_is_the_cursor_of_its_first_record(world: SourceWorld) -> None:
    """Goal: a start that was chosen before the shard's first record loses none."""
    shard = world.source.list_shards()[1].shard
    ends = [world.source.cursor_at(shard, position) for position in Position]
    world.fill(shard, VALUES[:4])
    for end in ends:
        assert [row["value"] for row in world.rest(shard, end)] == list(VALUES[:4])


@pytest.mark.needs(Notion.GROWTH)
def test_a_new_shard_is_listed_beside_the_others(world: SourceWorld) -> None:
    before = world.source.list_shards()
    added = world.grow()
    after = {entry.shard: entry for entry in world.source.list_shards()}
    assert set(after) - {entry.shard for entry in before} == {added}
    assert not after[added].parents
    world.fill(added, VALUES[:2])
    assert [row["value"] for row in world.all_rows(added)] == list(VALUES[:2])


@pytest.mark.needs(Notion.LINEAGE)
def test_a_split_shard_ends_and_its_children_name_it(world: SourceWorld, shard: ShardId) -> None:
    source, children = world.source, world.split(shard)
    listed = {entry.shard: entry for entry in source.list_shards()}
    assert listed[shard].read_only
    assert all(listed[child].parents == (shard,) for child in children)
    bounds = source.bounds([shard, *children])
    assert bounds[shard].finished
    assert not any(bounds[child].finished for child in children)
    plan = source.plan(shard, bounds[shard].begin, Limits(records_max=3))
    assert not plan.last
    rest = source.plan(shard, plan.end, Limits())
    assert rest.last
    assert source.plan(shard, rest.end, Limits()).last
    read = world.rows(shard, bounds[shard].begin, plan.end) + world.rows(shard, plan.end, rest.end)
    assert [row["value"] for row in read] == list(VALUES)
    assert world.rest(children[0], bounds[children[0]].begin) == []


@pytest.mark.needs(Notion.LINEAGE)
def test_an_empty_shard_that_was_split_is_finished(world: SourceWorld) -> None:
    shard = world.source.list_shards()[1].shard
    world.split(shard)
    bounds = world.source.bounds([shard])[shard]
    assert bounds.finished
    plan = world.source.plan(shard, bounds.begin, Limits())
    assert plan.last
    assert plan.records == 0


@pytest.mark.needs(Notion.LINEAGE)
def test_a_merged_shard_names_both_parents(world: SourceWorld, shard: ShardId) -> None:
    other = world.source.list_shards()[1].shard
    child = world.merge(shard, other)
    listed = {entry.shard: entry for entry in world.source.list_shards()}
    assert set(listed[child].parents) == {shard, other}
    assert listed[shard].read_only
    assert listed[other].read_only
    assert not listed[child].read_only
    world.put(child, [NewRecord(b"after", at=START + 100 * STEP)])
    assert [row["value"] for row in world.all_rows(child)] == [b"after"]
    assert [row["value"] for row in world.all_rows(shard)] == list(VALUES)


@pytest.mark.needs(Notion.LINEAGE, Notion.REMOVAL)
def test_a_removed_shard_is_a_gap_with_an_end(world: SourceWorld, shard: ShardId) -> None:
    source = world.source
    begin = source.cursor_at(shard, Position.BEGIN)
    middle, end = (
        source.plan(shard, begin, Limits(records_max=3)).end,
        source.cursor_at(shard, Position.END),
    )
    children = world.split(shard)
    world.forget(shard)
    assert shard not in {listed.shard for listed in source.list_shards()}
    for listed in source.list_shards():
        assert set(listed.parents) == set(listed.gone_parents), "nobody waits for it"
    bounds = source.bounds([shard, *children])
    gone = bounds[shard]
    assert (gone.removed, gone.finished, gone.begin) == (True, True, gone.end)
    assert gone.origin not in (None, gone.begin), "nobody knows of how much was lost"
    assert not any(bounds[child].removed for child in children)
    for position in (Position.BEGIN, Position.END, START):
        assert source.cursor_at(shard, position) == gone.begin
    for cursor in (begin, middle):
        with pytest.raises(CursorExpired, match="as a whole"):
            source.plan(shard, cursor, Limits())
        with pytest.raises(CursorExpired):
            world.rows(shard, cursor, end)
        assert source.lag(shard, cursor, gone) is None
    assert source.plan(shard, gone.begin, Limits()) == PlannedRange(gone.begin, 0, last=True)
    assert world.rows(shard, gone.begin, gone.end) == []
    assert source.lag(shard, gone.begin, gone) == 0


@pytest.mark.needs(Notion.LINEAGE, Notion.REMOVAL)
def test_a_shard_that_never_existed_is_not_removed(world: SourceWorld, shard: ShardId) -> None:
    world.split(shard)
    for unknown in (ShardId("99"), ShardId("a-shard-of-another-log")):
        with pytest.raises(UnknownShard):
            world.source.bounds([unknown])
        with pytest.raises(UnknownShard):
            world.source.plan(unknown, "0", Limits())
    with pytest.raises(CursorInvalid):
        world.source.plan(shard, "gone", Limits())


def test_the_id_of_a_log_does_not_change_with_its_records(world: SourceWorld) -> None:
    """Goal: its id, if the source has one, does not change with its records."""
    before = identity_of_log(world.source)
    world.fill(world.source.list_shards()[0].shard)
    assert identity_of_log(world.source) == before
    assert before is None or 0 < len(before.encode()) <= 255
