"""Parents, derived from hash ranges and numbers alone."""

from __future__ import annotations

import random

from dagster_leasehold.shard_sources.loghub.lineage import ListedShard, with_parents

QUARTERS = ["0" * 32, "4" + "0" * 31, "8" + "0" * 31, "c" + "0" * 31, "f" * 32]


def shard(number: int, begin: int, end: int, *, read_only: bool = False) -> ListedShard:
    return ListedShard(number, QUARTERS[begin], QUARTERS[end], read_only)


def parents(*shards: ListedShard) -> dict[str, tuple[str, ...]]:
    return {str(row.shard): tuple(map(str, row.parents)) for row in with_parents(shards)}


def test_first_shards_have_no_parents() -> None:
    assert parents(shard(0, 0, 2), shard(1, 2, 4)) == {"0": (), "1": ()}


def test_a_split_s_children_name_the_shard_and_not_each_other() -> None:
    lineage = parents(
        shard(0, 0, 2, read_only=True), shard(1, 2, 4), shard(2, 0, 1), shard(3, 1, 2)
    )
    assert lineage == {"0": (), "1": (), "2": ("0",), "3": ("0",)}


def test_a_merge_names_both_and_a_later_split_the_merged_one() -> None:
    lineage = parents(
        shard(0, 0, 2, read_only=True),
        shard(1, 2, 4, read_only=True),
        shard(2, 0, 4, read_only=True),
        shard(3, 0, 3),
        shard(4, 3, 4),
    )
    assert lineage == {"0": (), "1": (), "2": ("0", "1"), "3": ("2",), "4": ("2",)}


def test_a_removed_parent_is_not_listed() -> None:
    assert parents(shard(1, 2, 4), shard(2, 0, 1), shard(3, 1, 2)) == {"1": (), "2": (), "3": ()}


def test_any_order_of_the_list_gives_the_same_and_numbers_count_as_numbers() -> None:
    shards = [shard(9, 0, 2, read_only=True), shard(1, 2, 4), shard(10, 0, 1), shard(11, 1, 2)]
    random.Random(1).shuffle(shards)
    listing = with_parents(shards)
    assert [row.shard for row in listing] == ["1", "9", "10", "11"]
    assert [row.read_only for row in listing] == [False, True, False, False]
    assert listing[2].parents == ("9",)
