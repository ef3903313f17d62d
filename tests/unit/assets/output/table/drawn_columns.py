"""Columns as chance draws them: names, Arrow types, values, and changes between two batches."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

RARE = 0.02  # so that most of the records are in the table
EVENT_TIME = "event_time"
FIELDS = ["x", "y z", "Ü", "0", "more"]
LETTERS = [
    "a",
    "B",
    "é",
    "☃",
    " ",
    ".",
    "-",
    "/",
    "%",
    '"',
    "'",
    "`",
    "\\",
    "0",
    "_",
    "$",
    "=",
    "\n",
]
NAMES = ["select", "value_", "a b", "a.b", "Ä", "x" * 200, "1st", "element", "_", "-", "#", "日付"]


def drawn_name(draw: random.Random) -> str:
    if draw.random() < 0.4:
        return draw.choice(NAMES)
    return "".join(draw.choices(LETTERS, k=draw.randint(1, 6)))


PLAIN: list[pa.DataType] = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(3),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
    pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us"),
    pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), pa.decimal128(38, 0),
    pa.decimal128(5, 2), pa.decimal128(38, 38), pa.duration("us"), pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()), pa.null(),
]  # fmt: skip
UNTYPED: list[pa.DataType] = [
    pa.null(), pa.list_(pa.null()), pa.struct([]), pa.map_(pa.string(), pa.null()),
    pa.list_(pa.struct([])),
]  # fmt: skip
TIMES: list[pa.DataType] = [
    pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("s", "Europe/Berlin"),
    pa.timestamp("ms"), pa.timestamp("ns", "UTC"), pa.date32(), pa.string(), pa.int64(),
    pa.list_(pa.timestamp("us")), pa.null(),
]  # fmt: skip
WIDER: dict[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int64(), pa.int16(): pa.int32(), pa.int32(): pa.int64(),
    pa.uint8(): pa.int64(), pa.uint32(): pa.int64(), pa.float16(): pa.float64(),
    pa.float32(): pa.float64(), pa.decimal128(5, 2): pa.decimal128(12, 2),
    pa.string(): pa.large_string(),
}  # fmt: skip
S = 1_000_000
RECORD_TIMES = [
    None, 0, -1, 1_769_846_400 * S, 1_769_846_400 * S + 1, -62_135_596_800 * S,
    253_402_300_800 * S - 1, 253_402_300_800 * S, -62_135_596_801 * S, 2**63 - 1, -(2**63),
]  # fmt: skip


def drawn_type(draw: random.Random, depth: int = 0) -> pa.DataType:
    if depth == 2 or draw.random() < 0.7:
        # A nested type without a type in it is stored as null: tests of columns hold that.
        return draw.choice(PLAIN[:-1] if depth else PLAIN)
    inner = drawn_type(draw, depth + 1)
    match draw.randint(0, 4):
        case 0:
            return pa.list_(inner)
        case 1:
            return pa.large_list(inner)
        case 2:
            return pa.list_(inner, 2)
        case 3:
            return pa.map_(draw.choice(PLAIN[:-1]), inner)
        case _:
            fields = draw.sample(FIELDS[:-1], draw.randint(1, 3))
            return pa.struct([(name, drawn_type(draw, depth + 1)) for name in fields])


def wider(kind: Any) -> pa.DataType:
    """Return the type with each part widened that a table can widen, and a field more."""
    of = pa.types
    if of.is_struct(kind):
        return pa.struct(
            [*((each.name, wider(each.type)) for each in kind), (FIELDS[-1], pa.int32())]
        )
    if of.is_map(kind):
        return pa.map_(kind.key_type, wider(kind.item_type))
    return pa.list_(wider(kind.value_type)) if of.is_list(kind) else WIDER.get(kind, kind)


def drawn_kinds(draw: random.Random, kind: Any) -> tuple[Any, Any]:
    """Return the types of a column in two batches; None where it is not there."""
    later: Any = kind
    match draw.randint(0, 9):
        case 0 | 1:
            later = wider(kind)
        case 2:
            later = draw.choice(UNTYPED)
        case 3:
            later = None
        case 4:
            later = drawn_type(draw)
        case 5 if pa.types.is_struct(kind):
            later = pa.struct([*kind][::-1])
        case _:
            pass
    return draw.choice([(kind, later), (later, kind)])


def has_no_type(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return has_no_type(kind.key_type) or has_no_type(kind.item_type)
    if pa.types.is_nested(kind):
        parts = [kind.field(at).type for at in range(kind.num_fields)]
        every = all if pa.types.is_struct(kind) else any
        return every(has_no_type(part) for part in parts)
    return pa.types.is_null(kind)


def drawn_value(draw: random.Random, kind: Any, nulls: bool = True) -> Any:
    of = pa.types
    if of.is_null(kind) or (nulls and draw.random() < 0.2):
        return None
    if of.is_dictionary(kind):
        return drawn_value(draw, kind.value_type, nulls)
    if of.is_map(kind):
        keys = [drawn_value(draw, kind.key_type, False) for _ in range(draw.randint(0, 3))]
        keys = keys if draw.random() < RARE else [*dict.fromkeys(keys)]
        return [(key, drawn_value(draw, kind.item_type)) for key in keys if key is not None]
    if of.is_struct(kind):
        return {field.name: drawn_value(draw, field.type) for field in kind}
    if of.is_nested(kind):
        size = kind.list_size if of.is_fixed_size_list(kind) else draw.randint(0, 3)
        return [drawn_value(draw, kind.value_type) for _ in range(size)]
    if of.is_boolean(kind):
        return draw.random() < 0.5
    if of.is_floating(kind):
        return draw.choice([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])
    if of.is_decimal(kind):
        digits = draw.choice([0, 1, 10 ** (kind.precision - 1), 10**kind.precision - 1])
        return Decimal((0, tuple(map(int, str(digits))), -kind.scale))
    if of.is_binary(kind) or of.is_large_binary(kind):
        return draw.choice([b"", b"a", b"\xff\x00", b"long" * 50])
    if of.is_fixed_size_binary(kind):
        return draw.choice([b"abc", b"\xff\x00\x01"])
    if of.is_time(kind):
        seconds = draw.choice([0, 1, 86_399])
        per_s = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
        return seconds * per_s + (kind.unit == "ns" and draw.random() < 0.02)
    if of.is_date32(kind):
        outside = [-719_163, 2_932_897, 2**31 - 1]
        return draw.choice(outside if draw.random() < RARE else [0, 20_000, -719_162, 2_932_896])
    if of.is_date64(kind):
        outside = [2_932_897, -(2**30)]
        return 86_400_000 * draw.choice(
            outside if draw.random() < RARE else [0, 20_000, -719_162, 2_932_896]
        )
    if of.is_timestamp(kind) and kind.unit == "ns":
        lost = draw.random() < 0.02
        return draw.choice([0, -1_000, 1_769_846_400_000_001_000, -(2**62) // 1_000 * 1_000]) + lost
    if of.is_timestamp(kind):
        per_s = {"s": 1, "ms": 1_000, "us": 1_000_000}[kind.unit]
        outside = [253_402_300_800, -62_135_596_801]
        inside = [0, 1_769_846_400, -1, -62_135_596_800, 253_402_300_799]
        return draw.choice(outside if draw.random() < RARE else inside) * per_s
    if of.is_integer(kind) or of.is_duration(kind):
        bits = kind.bit_width
        signed = not of.is_unsigned_integer(kind)
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return draw.choice([0, 1, low, high])
    return draw.choice(["", "a", "é☃😀", "\n\t\"'\\", "NaN", "x" * 300, "\x00"])
