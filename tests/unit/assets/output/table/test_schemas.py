"""A field keeps its id for every change beside it and inside it."""

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, MapType, NestedField, StringType

from dagster_leasehold.assets.output.table.columns import columns_of, stored_schema
from dagster_leasehold.assets.output.table.schemas import evolved


def columns(**types: pa.DataType):
    return columns_of(stored_schema(pa.schema(list(types.items()))))


def ids(schema: Schema) -> dict[str, int]:
    """The ids of all fields, nested ones by their paths."""
    return {name: schema.find_field(name).field_id for name in schema.column_names}


def test_fields_are_added_at_any_depth_with_ids_of_their_own() -> None:
    inner = pa.struct([("a", pa.int32())])
    before = evolved(None, columns(s=inner, l=pa.list_(inner), m=pa.map_(pa.string(), inner)), 0)
    more = pa.struct([("b", pa.string()), ("a", pa.int32())])
    wanted = columns(
        new=pa.list_(pa.date32()), m=pa.map_(pa.string(), more), l=pa.list_(more), s=more
    )
    after = evolved(before, wanted, before.highest_field_id)
    assert ids(after).items() >= ids(before).items()
    added = ids(after).keys() - ids(before).keys()
    assert added == {"s.b", "l.element.b", "m.value.b", "new", "new.element"}
    numbers = sorted(ids(after)[name] for name in added)
    assert numbers == [before.highest_field_id + at for at in range(1, 6)]
    assert evolved(after, wanted, after.highest_field_id) is after


def test_a_widened_field_keeps_its_id() -> None:
    def nested(number: pa.DataType, float_: pa.DataType):
        return columns(
            s=pa.struct([("a", number)]), l=pa.list_(float_), m=pa.map_(pa.string(), number)
        )

    before = evolved(None, nested(pa.int32(), pa.float32()), 0)
    after = evolved(before, nested(pa.int64(), pa.float64()), before.highest_field_id)
    assert ids(after) == ids(before)
    assert after.find_type("s.a") == LongType()
    assert after.find_type("l.element") == DoubleType()
    assert after.find_type("m.value") == LongType()
    assert isinstance(after.find_type("l"), ListType)
    assert isinstance(after.find_type("m"), MapType)


def test_fields_that_another_writer_added_or_widened_stay() -> None:
    theirs = NestedField(7, "theirs", StringType(), required=False)
    wide = NestedField(8, "n", LongType(), required=False)
    after = evolved(Schema(theirs, wide), columns(n=pa.int32(), new=pa.bool_()), 9)
    assert after.fields[:2] == (theirs, wide)
    assert ids(after) == {"theirs": 7, "n": 8, "new": 10}


def test_a_table_without_columns_gets_the_column_of_every_file() -> None:
    assert ids(evolved(None, [], 0)) == {"shard_id": 1}
    assert ids(evolved(Schema(), [], 0)) == {"shard_id": 1}
    theirs = Schema(NestedField(7, "theirs", StringType(), required=False))
    assert evolved(theirs, [], 7) is theirs
