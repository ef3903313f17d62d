"""Settings of a node: a separate error for each mistake, before anything runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dagster_leasehold.assets.node_settings import (
    SOURCE_COUNT_MAX,
    Modulo,
    NodeSettings,
    Pinned,
    check_served,
    check_settings,
    node_row,
)
from dagster_leasehold.lease_store.errors import (
    InvalidIdentifier,
    InvalidSetting,
    LeaseholdError,
    ModuloCountMismatch,
    ModuloIdOutOfRange,
    ModuloIdTaken,
    ModuloSettingMissing,
    ShardOccupied,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import NodeName

BALANCED, MODULO, PINNED = AssignmentMode.BALANCED, AssignmentMode.MODULO, AssignmentMode.PINNED
A, B = NodeName("a"), NodeName("b")


def sentence(error: LeaseholdError) -> str:
    text = str(error)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.mark.parametrize(
    ("count", "node_id", "error"),
    [
        (2, None, ModuloSettingMissing),
        (0, None, ModuloSettingMissing),
        (0, 0, ModuloIdOutOfRange),
        (2, 2, ModuloIdOutOfRange),
        (2, -1, ModuloIdOutOfRange),
        (SOURCE_COUNT_MAX + 1, 0, ModuloIdOutOfRange),
        (-SOURCE_COUNT_MAX - 1, 0, ModuloIdOutOfRange),
    ],
)
def test_impossible_modulo_numbers_are_refused(
    count: int, node_id: int | None, error: type[LeaseholdError]
) -> None:
    with pytest.raises(error) as caught:
        Modulo(count, node_id)
    sentence(caught.value)


def test_valid_settings_become_the_row_of_the_node() -> None:
    row = node_row(A, Modulo(3, 2), address="here")
    assert (row.source_count, row.node_id, row.pinned, row.address) == (3, 2, None, "here")
    assert node_row(A, Modulo(-1)).source_count == -1
    row = node_row(A, Pinned({"0": -1, "1": "-1", "2": 7, "3": "x/y"}))
    assert row.pinned == {"0": None, "1": None, "2": "7", "3": "x/y"}
    assert (row.source_count, row.node_id) == (None, None)
    assert node_row(A, None).pinned is None


@pytest.mark.parametrize(
    ("shards", "error", "says"),
    [
        ({"a/b": -1}, InvalidIdentifier, "'a/b' is not a valid shard name"),
        ({"0": -2}, InvalidSetting, "'-2' of shard '0' is negative"),
        ({"0": ""}, InvalidSetting, "is not of 1 to 512 bytes"),
        ({"0": "9" * 513}, InvalidSetting, "is not of 1 to 512 bytes"),
        ({"0": True}, InvalidSetting, "neither text nor a whole number"),
        ({"0": 1.5}, InvalidSetting, "neither text nor a whole number"),
        ({"0": None}, InvalidSetting, "neither text nor a whole number"),
    ],
)
def test_invalid_pinned_shards_and_cursors_are_refused(
    shards: dict[str, Any], error: type[LeaseholdError], says: str
) -> None:
    with pytest.raises(error) as caught:
        Pinned(shards)
    assert says in sentence(caught.value)


@pytest.mark.parametrize(
    ("assignment", "nodes", "error"),
    [
        (BALANCED, [Modulo(2, 0)], InvalidSetting),
        (BALANCED, [Pinned({"0": -1})], InvalidSetting),
        (PINNED, [Modulo(2, 0)], InvalidSetting),
        (MODULO, [Pinned({"0": -1})], InvalidSetting),
        (MODULO, [Modulo(2, 0), Modulo(3, 1)], ModuloCountMismatch),
        (MODULO, [Modulo(2, 0), Modulo(-1)], ModuloCountMismatch),
        (MODULO, [Modulo(2, 0), Modulo(2, 0)], ModuloIdTaken),
        (PINNED, [Pinned({"0": -1}), Pinned({"1": 3, "0": 5})], ShardOccupied),
    ],
)
def test_settings_that_contradict_the_mode_or_each_other_are_refused(
    assignment: AssignmentMode, nodes: list[NodeSettings], error: type[LeaseholdError]
) -> None:
    for order in itertools.permutations(nodes):
        with pytest.raises(error) as caught:
            check_settings(assignment, dict(zip("ab", order, strict=False)))
        sentence(caught.value)


def test_settings_that_agree_are_accepted() -> None:
    check_settings(BALANCED, {})
    check_settings(MODULO, {"a": Modulo(2, 0), "b": Modulo(2, 1)})
    check_settings(MODULO, {"a": Modulo(-1), "b": Modulo(-1)})
    check_settings(PINNED, {"a": Pinned({"0": -1}), "b": Pinned({})})
    with pytest.raises(InvalidIdentifier):
        check_settings(MODULO, {"../a": Modulo(1, 0)})


def test_settings_must_match_the_served_nodes() -> None:
    check_served("s", MODULO, {"a": Modulo(2, 0), "b": Modulo(2, 1)}, [A, B])
    check_served("s", PINNED, {"a": Pinned({"0": -1})}, [A, B])
    with pytest.raises(InvalidSetting, match="'b', which this deployment does not serve"):
        check_served("s", MODULO, {"a": Modulo(2, 0), "b": Modulo(2, 1)}, [A])
    with pytest.raises(ModuloSettingMissing, match="of node 'b'"):
        check_served("s", MODULO, {"a": Modulo(2, 0)}, [A, B])
