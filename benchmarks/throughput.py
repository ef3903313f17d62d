"""Records a second from a log to committed Parquet, next to Spark's own readers and plain Python.

`python -m benchmarks.throughput [--records 3000000] [--rounds 3] [--main] [--json] [--output FILE]`
makes a log of JSON records of about 190 bytes for each number of shards, and the same records as
Parquet and as lines of text, and turns each into Parquet (zstd):

* `leasehold`: the batch loop of a run, with leases, intents and commits in a SQLite store;
* `leasehold parse_json`, `leasehold arrow parse_json`: the same with a transform that makes six
  columns of each record, on Spark's DataFrames and on Arrow tables;
* `parquet`, `parquet from_json`: Spark reads Parquet, parses it or not, and writes it;
* `json lines`: Spark parses lines and writes them;
* `streaming`: Spark Structured Streaming takes all that is available of the same Parquet;
* `python`: one Python process reads the same log and writes one file per shard, with neither
  leases nor a ledger.

With `--main` it is the first of these and `parquet` alone. Ten million records need 7 GB of disk.

The rounds are interleaved, so that what disturbs the machine disturbs all ways; medians are shown.
Each number of cores has a process, and a Spark, of its own that may use no more of them. The memory
is the highest sum of the proportional sizes of that process and of Spark with its Python workers.

After `--time-limit` seconds no further measurement is begun, and Ctrl-C or SIGTERM ends it at once:
what was measured is printed. `--output` names a file that is written anew after each measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.figures.parquet_input import make_input
from benchmarks.figures.parquet_ways import NATIVE_JSON, Worker, spark_folder
from benchmarks.figures.throughput_cases import OTHERS, SHARDS, Figures, cases, named, targets
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.spark_session import cores as usable_cores

_worker: list[Worker] = []
"""The worker of this process, which is one of a pool of one."""


def _begin(cores: int, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.sched_setaffinity(0, range(cores))
    assert usable_cores() == cores, "this machine has fewer cores"
    _worker.append(Worker(cores, folder))


def _warm_up(ways: Collection[str]) -> dict[str, str]:
    return _worker[0].warm_up(ways)


def _run(folder: Path, way: str, records: int) -> tuple[float, float]:
    return _worker[0].run(folder, way, records)


def measure(
    figures: Figures,
    *,
    folder: Path,
    shards: Sequence[int],
    cores: Sequence[int],
    records: int,
    rounds: int,
    others: Sequence[str],
    time_left: Callable[[], bool],
    noted: Callable[[], None],
) -> None:
    """Measure all cases, round by round, into `figures`; call `noted` after each."""
    every = cases(shards, cores, others)
    with_lines = {case.shards for case in every if case.way == NATIVE_JSON}
    for count in shards:
        figures.records[count] = records // count * count
        (folder / str(count)).mkdir()
        figures.size[count] = make_input(
            folder / str(count), records, count, lines=count in with_lines
        )
        print(f"made the input of {count} shards", file=sys.stderr)
    with ExitStack() as stack:
        pools: dict[int, ProcessPoolExecutor] = {}
        for count in cores:
            pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (count, folder))
            pools[count] = stack.enter_context(pool)
            # From here, since a way that is under way fails at once without its Spark.
            stack.callback(connect_server.stop, folder / spark_folder(count))
            ways = list(dict.fromkeys(case.way for case in every if case.cores == count))
            for way, error in pool.submit(_warm_up, ways).result().items():
                figures.failed[way] = error
                print(f"{way} fails: {error}", file=sys.stderr)
        for turn in range(rounds):
            for case in every:
                if not time_left():
                    return
                if case.way in figures.failed:
                    continue
                task = partial(_run, folder / str(case.shards), case.way)
                try:
                    result = pools[case.cores].submit(task, figures.records[case.shards]).result()
                except Exception as error:
                    figures.failed[case.way] = str(error)
                    print(f"{named(case)} fails: {error}", file=sys.stderr)
                    continue
                figures.measured.setdefault(case, []).append(result)
                noted()
                print(f"round {turn + 1}: {named(case)}: {result[0]:.2f} s", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--shards", type=int, nargs="+", default=list(SHARDS))
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=3600.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--main", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.time_limit
    figures = Figures()
    wanted = targets(arguments.shards, arguments.cores)
    note = f"{arguments.records:,} records of about 190 bytes, load {figures.load:.1f} before"

    def whole() -> dict[str, Any]:
        rows, ratios = figures.rows(), figures.ratios(wanted)
        return {"note": note, "rows": rows, "targets": ratios, "failed": figures.failed}

    def save() -> None:
        if arguments.output is not None:
            part = arguments.output.with_suffix(".part")
            part.write_text(json.dumps(whole(), indent=2))
            part.replace(arguments.output)

    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    folder = Path(tempfile.mkdtemp(prefix="leasehold-throughput-"))
    try:
        with suppress(KeyboardInterrupt):
            measure(
                figures,
                folder=folder,
                shards=arguments.shards,
                cores=arguments.cores,
                records=arguments.records,
                rounds=arguments.rounds,
                others=() if arguments.main else OTHERS,
                time_left=lambda: time.monotonic() < deadline,
                noted=save,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    save()
    if arguments.json:
        json.dump(whole(), sys.stdout, indent=2)
        print()
        return
    for table, about in ((figures.rows(), note), (figures.ratios(wanted), "")):
        if table:
            print_rows(table, as_json=False, note=about)
            print()
    for way, error in figures.failed.items():
        print(f"{way} failed: {error}")


if __name__ == "__main__":
    main()
