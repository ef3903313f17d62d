"""Rates of decoding one kind of order in each format, next to `parse_json` and fastavro.

python -m benchmarks.decode [--records 400000] [--processes 2] [--json]

Each row decodes the same orders of ten fields, in portions as large as those of a Spark worker, and
includes everything that a worker does between reading and writing. Processes run side by side.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dagster_leasehold.assets.consuming.exact_records import PORTION_RECORDS
from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.decoding.stream_decoding import decoding
from dagster_leasehold.assets.parsing import parse_json
from dagster_leasehold.shard_sources.source import record_schema
from tests.schema_registry import SchemaRegistryServer

DDL = (
    "id bigint, customer string, amount decimal(12, 2), at timestamp, note string, status string, "
    "quantity int, price double, gift boolean, country string"
)
STATUSES = ("NEW", "PAID", "SENT")
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": [*STATUSES]}},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": "double"},
        {"name": "gift", "type": "boolean"},
        {"name": "country", "type": "string"},
    ],
}
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "quantity": {"type": "integer"},
        "price": {"type": "number"},
        "gift": {"type": "boolean"},
        **{
            name: {"type": ["null", "string"]}
            for name in ("customer", "amount", "note", "status", "country")
        },
    },
}
_KINDS = descriptor_pb2.FieldDescriptorProto
PROTOBUF = {
    "id": _KINDS.TYPE_INT64,
    "customer": _KINDS.TYPE_STRING,
    "amount": _KINDS.TYPE_STRING,
    "at": _KINDS.TYPE_INT64,
    "note": _KINDS.TYPE_STRING,
    "status": _KINDS.TYPE_STRING,
    "quantity": _KINDS.TYPE_INT32,
    "price": _KINDS.TYPE_DOUBLE,
    "gift": _KINDS.TYPE_BOOL,
    "country": _KINDS.TYPE_STRING,
}


def orders(count: int) -> list[dict[str, Any]]:
    """Return orders, the same in each run."""
    draw, begin = random.Random(1), datetime(2026, 1, 1, tzinfo=UTC)
    return [
        {
            "id": draw.getrandbits(40),
            "customer": f"customer-{draw.randrange(1_000_000)}",
            "amount": Decimal(draw.randrange(10**8)).scaleb(-2),
            "at": begin + timedelta(microseconds=draw.randrange(10**13)),
            "note": None if number % 2 else "as soon as possible",
            "status": draw.choice(STATUSES),
            "quantity": draw.randrange(1, 200),
            "price": draw.random() * 100,
            "gift": number % 3 == 0,
            "country": draw.choice(("DE", "FR", "NL")),
        }
        for number in range(count)
    ]


def in_avro(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    schema, values = fastavro.parse_schema(AVRO), list[bytes]()
    for row in rows:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, schema, row)
        values.append(target.getvalue())
    return values


def in_json(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    return [msgspec.json.encode(row) for row in rows]


def in_message_pack(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    return [msgspec.msgpack.encode(row) for row in rows]


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptor of the message type."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(PROTOBUF.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=_KINDS.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file])


def in_protobuf(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(descriptors().file[0].SerializeToString())
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))
    values: list[bytes] = []
    for row in rows:
        at = int(row["at"].timestamp() * 1_000_000)
        plain = row | {"amount": str(row["amount"]), "at": at, "note": row["note"] or ""}
        values.append(order(**plain).SerializeToString())
    return values


def framed(number: int, values: Sequence[bytes]) -> list[bytes]:
    header = b"\0" + number.to_bytes(4, "big")
    return [header + value for value in values]


def portion(values: Sequence[bytes]) -> pa.Table:
    """Return records as a worker reads them."""
    schema, count = record_schema(), len(values)
    plain = {"shard_id": pa.array(["0"] * count), "cursor": pa.array(map(str, range(count)))}
    columns = {
        field.name: plain.get(field.name, pa.nulls(count, field.type)) for field in schema
    } | {"value": pa.array(values, pa.binary())}
    return pa.table(columns, schema=schema)


def fastavro_rows(records: pa.Table) -> pa.Table:
    """Decode value by value, as a transform without this package would."""
    schema = fastavro.parse_schema(AVRO)
    rows = [
        fastavro.schemaless_reader(io.BytesIO(value), schema, None)
        for value in records.column("value").to_pylist()
    ]
    return pa.Table.from_pylist(rows)


def rate(
    make: Callable[[], Callable[[pa.Table], pa.Table]], values: Sequence[bytes], begin_s: float
) -> float:
    """Return the records per second of this process."""
    transform = make()
    tables = [
        portion(values[start : start + PORTION_RECORDS])
        for start in range(0, len(values), PORTION_RECORDS)
    ]
    transform(tables[0].slice(0, 1000))
    time.sleep(max(0.0, begin_s - time.time()))
    began = time.perf_counter()
    for table in tables:
        output = transform(table)
        if "quarantine_error" in output.schema.names:
            assert output.column("quarantine_error").null_count == output.num_rows
    return len(values) / (time.perf_counter() - began)


@contextmanager
def cases(
    rows: Sequence[dict[str, Any]],
) -> Iterator[list[tuple[str, Callable[[], Any], list[bytes]]]]:
    """Yield the name of each case, the maker of its transform, and its values."""
    avro, texts = in_avro(rows), in_json(rows)
    with tempfile.TemporaryDirectory() as folder, SchemaRegistryServer() as registry:
        schema, descriptor = Path(folder, "order.avsc"), Path(folder, "order.desc")
        schema.write_text(json.dumps(AVRO), "utf-8")
        descriptor.write_bytes(descriptors().SerializeToString())
        other = AVRO | {"fields": [*AVRO["fields"], {"name": "more", "type": ["null", "string"]}]}
        one, two = (registry.register("orders-value", each) for each in (AVRO, other))
        mixed = framed(one, avro)
        mixed[1::2] = [value + b"\0" for value in framed(two, avro[1::2])]
        objects = registry.register("objects-value", JSON_SCHEMA, "JSON")
        registered = partial(Decode, registry=registry.url)
        yield [
            ("avro, one schema", partial(decoding, registered("avro")), framed(one, avro)),
            ("avro, two schemas in turn", partial(decoding, registered("avro")), mixed),
            ("avro, schema file", partial(decoding, Decode("avro", schema=str(schema))), avro),
            ("avro, fastavro row by row", _fastavro, avro),
            (
                "protobuf",
                partial(decoding, Decode("protobuf", schema=str(descriptor))),
                in_protobuf(rows),
            ),
            ("json-schema", partial(decoding, registered("json-schema")), framed(objects, texts)),
            ("msgpack", partial(decoding, Decode("msgpack", schema=DDL)), in_message_pack(rows)),
            ("text", partial(decoding, Decode("text")), texts),
            ("parse_json", _parse_json, texts),
        ]


def _fastavro() -> Callable[[pa.Table], pa.Table]:
    return fastavro_rows


def _parse_json() -> Callable[[pa.Table], pa.Table]:
    return partial(parse_json, schema=DDL)


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000, help="for each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.processes) as pool, cases(orders(options.records)) as each:
        for name, make, values in each:
            begin_s = time.time() + 2 + len(values) / 200_000
            jobs = [pool.submit(rate, make, values, begin_s) for _ in range(options.processes)]
            rates = [job.result() for job in jobs]
            size = sum(map(len, values)) / len(values)
            results.append({"case": name, "records_per_s": round(sum(rates)), "bytes": round(size)})
    if options.json:
        print(json.dumps({"processes": options.processes, "cases": results}))
        return
    print(f"{'case':28} {'bytes':>6} {'records/s':>12}   of {options.processes} processes")
    for row in results:
        print(f"{row['case']:28} {row['bytes']:6} {row['records_per_s']:12,}")


if __name__ == "__main__":
    main()
