"""Records a second from a log to committed Parquet, next to Spark's own readers and plain Python.

`python -m benchmarks.throughput [--records 3000000] [--rounds 3] [--json] [--output FILE]` makes a
log of JSON records of about 190 bytes for each number of shards, and the same records as Parquet
and as lines of text, and turns each into Parquet (zstd):

* `leasehold`: the batch loop of a run, with leases, intents and commits in a SQLite store;
* `leasehold parse_json`, `leasehold arrow parse_json`: the same with a transform that makes six
  columns of each record, on Spark's DataFrames and on Arrow tables;
* `parquet`, `parquet from_json`: Spark reads Parquet, parses it or not, and writes it;
* `json lines`: Spark parses lines and writes them;
* `streaming`: Spark Structured Streaming takes all that is available of the same Parquet;
* `python`: one Python process reads the same log and writes one file per shard, with neither
  leases nor a ledger.

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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import print_rows
from benchmarks.figures.parquet_input import make_input
from benchmarks.figures.parquet_ways import (
    NATIVE,
    NATIVE_JSON,
    NATIVE_PARSING,
    OURS,
    OURS_ARROW,
    OURS_FRAME,
    PYTHON,
    STREAMING,
    Worker,
    arrow_parsing,
    spark_folder,
)
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.spark_session import cores as usable_cores

GROWTH = (OURS, NATIVE)
"""The ways that are measured with each number of shards and cores; the others with one of each."""
OTHERS = (NATIVE_JSON, PYTHON, STREAMING, OURS_FRAME, NATIVE_PARSING, OURS_ARROW)
SHARDS, SHARDS_OF_OTHERS = (1, 16, 128), 16


class Case(NamedTuple):
    """One way, with a number of shards and of cores."""

    way: str
    shards: int
    cores: int


class Target(NamedTuple):
    """A ratio that is wanted: records a second of one case to those of another."""

    case: Case
    to: Case
    wanted: float


@dataclass(slots=True)
class Figures:
    """The measurements so far: seconds and MiB of each case, round by round.

    Attributes:
        records: of each number of shards.
        size: bytes of the values, likewise.
        load: the load of the machine before it began.
    """

    records: dict[int, int] = field(default_factory=dict[int, int])
    size: dict[int, int] = field(default_factory=dict[int, int])
    measured: dict[Case, list[tuple[float, float]]] = field(
        default_factory=dict[Case, list[tuple[float, float]]]
    )
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    def rate(self, case: Case) -> float | None:
        """Return the median of a case's records a second; None if it was never measured."""
        if case not in self.measured:
            return None
        seconds = statistics.median(seconds for seconds, _ in self.measured[case])
        return self.records[case.shards] / seconds

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each case."""
        return [self._row(case) for case in self.measured]

    def _row(self, case: Case) -> dict[str, Any]:
        seconds = [seconds for seconds, _ in self.measured[case]]
        middle = statistics.median(seconds)
        native, rate = self.rate(case._replace(way=NATIVE)), self.rate(case) or 0.0
        return {
            "way": case.way,
            "shards": case.shards,
            "cores": case.cores,
            "rounds": len(seconds),
            "seconds": round(middle, 2),
            "fastest": round(min(seconds), 2),
            "slowest": round(max(seconds), 2),
            "records/s": round(rate),
            "MB/s": round(self.size[case.shards] / middle / 1e6, 1),
            "memory MiB": round(max(memory for _, memory in self.measured[case])),
            "to parquet": round(rate / native, 2) if native else "",
        }

    def ratios(self, targets: Iterable[Target]) -> list[dict[str, Any]]:
        """Return one row for each target of which both cases were measured."""
        rows: list[dict[str, Any]] = []
        for case, to, wanted in targets:
            rate, other = self.rate(case), self.rate(to)
            if rate is not None and other is not None:
                ratio = rate / other
                rows.append(
                    {
                        "ratio of": _named(case),
                        "to": _named(to),
                        "ratio": round(ratio, 2),
                        "wanted": wanted,
                        "reached": "yes" if ratio >= wanted else "no",
                    }
                )
        return rows


def _named(case: Case) -> str:
    shards = "1 shard" if case.shards == 1 else f"{case.shards} shards"
    return f"{case.way}, {shards}, {'1 core' if case.cores == 1 else f'{case.cores} cores'}"


def cases(shards: Sequence[int], cores: Sequence[int]) -> list[Case]:
    """Return all cases of one round: growth with shards on all cores, and with cores."""
    most, middle = max(cores), SHARDS_OF_OTHERS if SHARDS_OF_OTHERS in shards else shards[0]
    every = [Case(way, count, most) for count in shards for way in GROWTH]
    every += [Case(way, middle, count) for count in cores if count != most for way in GROWTH]
    others = [way for way in OTHERS if way != OURS_ARROW or arrow_parsing() is not None]
    return every + [Case(way, middle, most) for way in others]


def targets(shards: Sequence[int], cores: Sequence[int]) -> list[Target]:
    """Return the wanted ratios between these cases."""
    most, middle = max(cores), SHARDS_OF_OTHERS if SHARDS_OF_OTHERS in shards else shards[0]
    wanted = {1: 1.0, 16: 1.5, 128: 1.3}
    rows = [
        Target(Case(OURS, count, most), Case(NATIVE, count, most), wanted[count])
        for count in shards
        if count in wanted
    ]
    parsing = Case(NATIVE_PARSING, middle, most)
    rows.append(Target(Case(OURS_ARROW, middle, most), parsing, 1.5))
    rows.append(Target(Case(OURS_FRAME, middle, most), parsing, 0.7))
    if most == 2:
        rows.append(Target(Case(OURS, middle, 2), Case(OURS, middle, 1), 1.7))
    return rows


_worker: list[Worker] = []
"""The worker of this process, which is one of a pool of one."""


def _begin(cores: int, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.sched_setaffinity(0, range(cores))
    assert usable_cores() == cores, "this machine has fewer cores"
    _worker.append(Worker(cores, folder))


def _warm_up() -> None:
    _worker[0].warm_up()


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
    time_left: Callable[[], bool],
    noted: Callable[[], None],
) -> None:
    """Measure all cases, round by round, into `figures`; call `noted` after each."""
    for count in shards:
        figures.records[count] = records // count * count
        (folder / str(count)).mkdir()
        figures.size[count] = make_input(folder / str(count), records, count)
        print(f"made the input of {count} shards", file=sys.stderr)
    with ExitStack() as stack:
        pools: dict[int, ProcessPoolExecutor] = {}
        for count in cores:
            pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (count, folder))
            pools[count] = stack.enter_context(pool)
            # From here, since a way that is under way fails at once without its Spark.
            stack.callback(connect_server.stop, folder / spark_folder(count))
            pool.submit(_warm_up).result()
        for turn in range(rounds):
            for case in cases(shards, cores):
                if not time_left():
                    return
                task = partial(_run, folder / str(case.shards), case.way)
                result = pools[case.cores].submit(task, figures.records[case.shards]).result()
                figures.measured.setdefault(case, []).append(result)
                noted()
                print(f"round {turn + 1}: {_named(case)}: {result[0]:.2f} s", file=sys.stderr)


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
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.time_limit
    figures = Figures()
    wanted = targets(arguments.shards, arguments.cores)
    note = f"{arguments.records:,} records of about 190 bytes, load {figures.load:.1f} before"

    def save() -> None:
        if arguments.output is not None:
            whole = {"note": note, "rows": figures.rows(), "targets": figures.ratios(wanted)}
            part = arguments.output.with_suffix(".part")
            part.write_text(json.dumps(whole, indent=2))
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
                time_left=lambda: time.monotonic() < deadline,
                noted=save,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows, ratios = figures.rows(), figures.ratios(wanted)
    if arguments.json:
        json.dump({"note": note, "rows": rows, "targets": ratios}, sys.stdout, indent=2)
        print()
        return
    for table, about in ((rows, note), (ratios, "")):
        if table:
            print_rows(table, as_json=False, note=about)
            print()


if __name__ == "__main__":
    main()
