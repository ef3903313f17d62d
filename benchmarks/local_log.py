"""Append and read rates of the local log, next to JSON lines, in one run.

python benchmarks/local_log.py [--records 1000000] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.json

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits, ReadRange

SHARD = ShardId("0")
PER_APPEND = 1000


def values(count: int) -> list[bytes]:
    """Records of about 190 bytes, each different."""
    return [
        b'{"id":%d,"user":"user-%d","path":"/items/%d","status":200,"agent":"%s","cost":%d.5}'
        % (
            n,
            n % 9973,
            n * 7919 % 100_003,
            b"Mozilla/5.0 (X11; Linux x86_64) %d" % (n % 17),
            n % 97,
        )
        + b" " * (n % 64)
        for n in range(count)
    ]


def groups(records: list[bytes], count: int = PER_APPEND) -> Iterator[list[bytes]]:
    for start in range(0, len(records), count):
        yield records[start : start + count]


def append_log(folder: Path, records: list[bytes], per_append: int) -> Path:
    log = LocalLog.create(folder, 1)
    with log.writer("0") as writer:
        for group in groups(records, per_append):
            writer.append(group)
    return folder


def append_json(path: Path, records: list[bytes], *, durable: bool) -> Path:
    with path.open("wb") as file:
        for group in groups(records):
            file.writelines(
                json.dumps({"value": record.decode()}).encode() + b"\n" for record in group
            )
            file.flush()
            if durable:
                os.fsync(file.fileno())
    return path


def read_log(folder: Path, start: int, end: int) -> int:
    range_ = ReadRange(SHARD, str(start), str(end))
    return sum(batch.num_rows for batch in LocalLog(folder).read(range_))


def read_json(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in file if json.loads(line)["value"])


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def size_of(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*")) if path.is_dir() else path.stat().st_size


def measure(folder: Path, count: int) -> list[dict[str, object]]:
    records = values(count)
    log, lines = folder / "log", folder / "lines.jsonl"
    input_ = folder / "input"
    input_.write_bytes(b"\n".join(records) + b"\n")
    rows: list[tuple[str, float, int | None]] = []

    def row(name: str, action: Callable[[], object], size: Callable[[], int] | None = None) -> None:
        taken = timed(action)
        rows.append((name, taken, size() if size else None))

    single = records[: count // 100]
    taken = timed(lambda: append_log(log, single, 1))
    rows.append(("append one record at a time, local log", taken * count / len(single), None))
    shutil.rmtree(log)
    row(
        "append, local log, each append on the disk",
        lambda: append_log(log, records, PER_APPEND),
        lambda: size_of(log),
    )
    for durable in (False, True):
        word = "each append on the disk" if durable else "flushed"
        row(
            f"append, JSON lines, {word}",
            lambda durable=durable: append_json(lines, records, durable=durable),
            lambda: size_of(lines),
        )
    row("load a file of lines into 8 shards", lambda: load(folder / "loaded", input_))
    row("read all, local log", lambda: read_log(log, 0, count))
    row("read all, JSON lines, json.loads", lambda: read_json(lines))
    row("read all, JSON lines, pyarrow.json", lambda: pa.json.read_json(lines))
    table = [
        {
            "measure": name,
            "seconds": round(taken, 4),
            "records_per_s": round(count / taken),
            "bytes_stored": size,
        }
        for name, taken, size in rows
    ]
    middle = count // 2
    for name, action in (
        ("read 1000 records in the middle", lambda: read_log(log, middle, middle + 1000)),
        ("plan a batch of 1000 records", lambda: LocalLog(log).plan(SHARD, "5", Limits(1000))),
        ("bounds of one shard", lambda: LocalLog(log).bounds([SHARD])),
    ):
        taken = min(timed(action) for _ in range(20))
        table.append({"measure": name, "milliseconds": round(taken * 1000, 3)})
    return table


def load(folder: Path, input_: Path) -> None:
    LocalLog.create(folder, 8).append_lines(input_)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = measure(Path(folder), arguments.records)
    if arguments.json:
        print(json.dumps({"records": arguments.records, "measures": table}, indent=1))
        return
    for row in table:
        if "milliseconds" in row:
            print(f"{row['measure']:<48}{row['milliseconds']:>14} ms")
        else:
            stored = f"{row['bytes_stored'] / 1e6:.0f} MB" if row["bytes_stored"] else ""
            print(f"{row['measure']:<48}{row['records_per_s']:>12} records/s {stored:>9}")


if __name__ == "__main__":
    main()
