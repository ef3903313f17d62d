"""Values that some reader of tables cannot read are found in every type, wherever they are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.output.readable_values import unreadable

DAY_US = 86_400_000_000
FIRST_US, LAST_US = -719_162 * DAY_US, 2_932_897 * DAY_US - 1
US = pa.timestamp("us", "UTC")
TEXTS = pa.map_(pa.string(), pa.int32())
TWICE = [("x", 1), ("y", 2), ("x", 3)]
TIMES = [0, FIRST_US, LAST_US, None, FIRST_US - 1, LAST_US + 1]
CASES: dict[str, tuple[pa.DataType, list[Any], list[int]]] = {
    "moments": (US, TIMES, [4, 5]),
    "local moments": (pa.timestamp("us"), TIMES, [4, 5]),
    "seconds": (pa.timestamp("s"), [0, LAST_US // 1_000_000, LAST_US // 1_000_000 + 1], [2]),
    "milliseconds": (pa.timestamp("ms", "UTC"), [-(2**60), None], [0]),
    "nanoseconds": (pa.timestamp("ns"), [-(2**63) + 1, 2**63 - 1], []),
    "days": (pa.date32(), [-719_163, -719_162, 2_932_896, 2_932_897], [0, 3]),
    "days in milliseconds": (pa.date64(), [2_932_896 * 86_400_000, 2_932_897 * 86_400_000], [1]),
    "maps": (TEXTS, [TWICE, [("x", 1)], None, [("x", 1), ("y", 2)], [], TWICE], [0, 5]),
    "maps of lists": (
        pa.map_(pa.int32(), pa.list_(pa.date32())),
        [[(1, [0]), (2, [3_000_000])], [(1, []), (1, None)], [(1, [0]), (2, None)]],
        [0, 1],
    ),
    "keys that are times": (pa.map_(US, pa.int32()), [[(LAST_US + 1, 1)], [(0, 1)]], [0]),
    "keys that are structs": (
        pa.map_(pa.struct([("a", pa.int32())]), pa.int32()),
        [[({"a": 1}, 1), ({"a": 1}, 2)], [({"a": 1}, 1), ({"a": 2}, 2)]],
        [0],
    ),
    "lists": (pa.list_(US), [[0, None], None, [], [0, LAST_US + 1], [0]], [3]),
    "large lists": (pa.large_list(TEXTS), [[TWICE], [[("x", 1)], None], None], [0]),
    "lists of one size": (pa.list_(pa.date32(), 2), [[0, 1], [0, 3_000_000], None], [1]),
    "structs": (
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", US)]))]),
        [{"a": 1, "b": {"c": LAST_US + 1}}, {"a": 1, "b": None}, None],
        [0],
    ),
    "dictionaries": (pa.dictionary(pa.int32(), US), [LAST_US + 1, 0, LAST_US + 1, None], [0, 2]),
    "others": (pa.list_(pa.int64()), [[2**62], None], []),
}


@pytest.mark.parametrize("name", CASES)
def test_values_that_some_readers_cannot_read_are_named(name: str) -> None:
    kind, values, expected = CASES[name]
    if isinstance(kind, pa.DictionaryType):
        array = pa.array(values, kind.value_type).dictionary_encode()
    else:
        array = pa.array(values, kind)
    for start in range(len(values) + 1):
        mask = unreadable(array.slice(start))
        marks = [] if mask is None else mask.to_pylist()
        assert not marks or len(marks) == len(values) - start
        named = [start + at for at, bad in enumerate(marks) if bad]
        assert named == [at for at in expected if at >= start]
        assert (mask is None) == (named == [])


def test_values_under_a_null_do_not_count() -> None:
    items = pa.array([LAST_US + 1, 0], US)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), items, mask=pa.array([True, False]))
    assert unreadable(lists) is None
    struct = pa.StructArray.from_arrays([items], ["a"], mask=pa.array([True, False]))
    assert unreadable(struct) is None
