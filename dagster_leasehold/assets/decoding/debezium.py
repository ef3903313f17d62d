"""Debezium's envelope: the row after a change as columns, or the row before a deletion.

The added columns have the names that Debezium's own transform gives them: `__op` is `c`, `u`, `d`
or `r`, `__deleted` is true for a deletion, and `__source_ts_ms` is the time of the change.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute

from dagster_leasehold.assets.decoding.payloads import Decoder, Mask, Payloads
from dagster_leasehold.assets.errors import SchemaUnusable

_pc: Any = pyarrow.compute

ADDED = (
    pa.field("__op", pa.string()),
    pa.field("__deleted", pa.bool_()),
    pa.field("__source_ts_ms", pa.int64()),
)


class DebeziumDecoder:
    """Decodes envelopes to their rows.

    Args:
        envelopes: decodes values to envelopes, with the columns `before`, `after` and `op`.
        name: the name of the schema for messages.

    Raises:
        SchemaUnusable: the schema does not describe an envelope.
    """

    def __init__(self, envelopes: Decoder, name: str) -> None:
        self._envelopes = envelopes
        self._fields = envelopes.fields
        kinds = {field.name: field.type for field in envelopes.fields}
        row: Any = kinds.get("after")
        if not isinstance(row, pa.StructType) or "op" not in kinds or kinds.get("before") != row:
            raise SchemaUnusable(
                f"The {name} is not Debezium's envelope, which has `before`, `after` and `op`: "
                "remove `envelope` from decode."
            )
        self._source: Any = kinds.get("source")
        self.fields = pa.schema([*row, *ADDED])
        self.complaint = envelopes.complaint

    def decode(self, payloads: Payloads) -> tuple[list[pa.Array], Mask]:
        """Return the columns, and a mask of the values that do not conform to the schema."""
        columns, bad = self._envelopes.decode(payloads)
        by_name = dict(zip(self._fields.names, columns, strict=True))
        operation = by_name["op"]
        deleted = _pc.equal(operation, "d")
        is_deleted = _pc.fill_null(deleted, False)
        before, after = by_name["before"].flatten(), by_name["after"].flatten()
        row = [_pc.if_else(is_deleted, old, new) for old, new in zip(before, after, strict=True)]
        bad = bad | operation.is_null().to_numpy(zero_copy_only=False)
        return [*row, operation, deleted, self._times(by_name)], bad

    def _times(self, by_name: dict[str, pa.Array]) -> pa.Array:
        source = self._source
        at = source.get_field_index("ts_ms") if isinstance(source, pa.StructType) else -1
        if at < 0:
            return pa.nulls(len(by_name["op"]), pa.int64())
        return by_name["source"].flatten()[at].cast(pa.int64())


class PayloadDecoder:
    """Decodes JSON envelopes, with or without the schema that Kafka Connect writes around them."""

    def __init__(self, outer: Decoder) -> None:
        self._outer = outer
        kind: Any = outer.fields.field("payload").type
        self.fields = pa.schema([*kind])
        self.complaint = outer.complaint

    def decode(self, payloads: Payloads) -> tuple[list[pa.Array], Mask]:
        """Return the columns, and a mask of the values that do not conform to the schema."""
        columns, bad = self._outer.decode(payloads)
        *plain, payload = columns
        inner = payload.flatten()
        within = payload.is_valid()
        return [_pc.if_else(within, one, two) for one, two in zip(inner, plain, strict=True)], bad


def json_envelope(row: pa.Schema) -> pa.Schema:
    """Return the fields of a JSON envelope around rows, at the top and below `payload`."""
    kind = pa.struct([*row])
    fields = [
        pa.field("before", kind),
        pa.field("after", kind),
        pa.field("op", pa.string()),
        pa.field("source", pa.struct([pa.field("ts_ms", pa.int64())])),
    ]
    return pa.schema([*fields, pa.field("payload", pa.struct(fields))])
