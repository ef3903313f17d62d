"""The price of a stream that never ends, next to Spark Structured Streaming on the same records.

`python -m benchmarks.live [--minutes 10] [--rates 300 20000] [--intervals 0 1 10] [--json]` starts
`leasehold dev` with two nodes over a log of 8 shards for each commit interval, measures it at rest,
and then at each rate of records for so many minutes; then a query of Structured Streaming, whose
trigger has the same interval, over files of the same records, one a second.

`above idle` are the cores that are used beyond those of the same deployment at rest; the query has
no rest. The age is that of the oldest record of a batch when the batch was committed; for the
query, that of the oldest file; `visible` is its age when the table showed it. Numbers per hour are
of these minutes, multiplied.

`--arrivals 10` measures something else: so many single records, at random moments, come to the idle
deployment of each interval, and their ages at commit are those of the table. They find a run that
has their shard open, or one that has other shards of the node, or none.

What was measured is printed if it is ended before, and `--output` names a file that is written anew
after each measurement.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.figures.live_arrivals import IDLE_LIMIT_S, Arrivals
from benchmarks.figures.live_deployment import LiveDeployment, Stretch, row_of
from benchmarks.figures.live_records import age_figures, file_flow, log_flow
from benchmarks.figures.live_streaming import LiveStreaming
from benchmarks.figures.process_tree import adopt_orphans

IDLE_MINUTES = 2.0
WARM_UP_S = 30.0
OURS, RIVAL = "leasehold", "streaming"
Noted = Callable[[dict[str, Any]], None]


def measure_ours(
    home: Path, interval_s: float | None, rates: Sequence[int], minutes: float, noted: Noted
) -> None:
    """Measure a deployment at rest and at each rate."""
    interval = "default" if interval_s is None else interval_s
    with LiveDeployment(home, interval_s=interval_s) as deployment:
        with log_flow(deployment.log, 8):
            time.sleep(WARM_UP_S)
        deployment.settle()
        rest = deployment.measure(60 * min(minutes, IDLE_MINUTES))
        idle = rest.cores
        noted(_row(rest, OURS, interval, 0, idle))
        for rate in rates:
            with log_flow(deployment.log, rate):
                time.sleep(min(WARM_UP_S, 60 * minutes))
                stretch = deployment.measure(60 * minutes)
                unread = deployment.unread()
            noted(_row(stretch, OURS, interval, rate, idle) | {"unread at end": unread})
            if rate != rates[-1]:
                deployment.catch_up()


def measure_arrivals(home: Path, interval_s: float, count: int, noted: Noted) -> None:
    """Measure how soon single records are committed."""
    with LiveDeployment(home, interval_s=interval_s, idle_limit_s=IDLE_LIMIT_S) as deployment:
        with log_flow(deployment.log, 8):
            time.sleep(WARM_UP_S)
        deployment.settle()
        for row in Arrivals(deployment, interval_s=interval_s, count=count, seed=1).rows():
            noted(row)


def measure_rival(folder: Path, interval_s: float, rate: int, minutes: float, noted: Noted) -> None:
    """Measure a query at one rate."""
    folder.mkdir()
    flow = file_flow(folder / "input", rate)
    with LiveStreaming(folder, interval_s) as query, flow:
        time.sleep(min(WARM_UP_S, 60 * minutes))
        stretch = query.measure(60 * minutes)
    noted(_row(stretch, RIVAL, interval_s, rate, 0.0))


def _row(stretch: Stretch, system: str, interval: Any, rate: int, idle: float) -> dict[str, Any]:
    visible = age_figures(stretch.visible_ages)
    ages = age_figures(stretch.ages) | {f"visible: {name}": age for name, age in visible.items()}
    return row_of(stretch, system, interval, rate, idle) | ages | {"unread at end": ""}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rates", type=int, nargs="+", default=[300, 20_000])
    parser.add_argument("--intervals", type=float, nargs="+", default=[0.0, 1.0, 10.0])
    parser.add_argument("--arrivals", type=int, default=0, help="single records, and nothing else")
    parser.add_argument("--only", choices=(OURS, RIVAL))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    note = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"

    def noted(row: dict[str, Any]) -> None:
        rows.append(row)
        print(row, file=sys.stderr)
        if arguments.output is not None:
            part = arguments.output.with_suffix(".part")
            part.write_text(json.dumps({"note": note, "rows": rows}, indent=2))
            part.replace(arguments.output)

    def measure(folder: Path) -> None:
        if arguments.arrivals:
            for number, interval_s in enumerate(arguments.intervals):
                home = folder / f"home-{number}"
                measure_arrivals(home, interval_s, arguments.arrivals, noted)
                shutil.rmtree(home, ignore_errors=True)
            return
        # A declaration without a commit interval has one pace, whatever is asked for.
        ours = arguments.intervals
        for number, interval_s in enumerate(ours if arguments.only != RIVAL else []):
            home, minutes = folder / f"home-{number}", arguments.minutes
            measure_ours(home, interval_s, arguments.rates, minutes, noted)
            shutil.rmtree(home, ignore_errors=True)
        for interval_s in arguments.intervals if arguments.only != OURS else []:
            for rate in arguments.rates:
                place = folder / f"streaming-{interval_s}-{rate}"
                measure_rival(place, interval_s, rate, arguments.minutes, noted)
                shutil.rmtree(place, ignore_errors=True)

    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with (
        tempfile.TemporaryDirectory(prefix="leasehold-live-", ignore_cleanup_errors=True) as folder,
        suppress(KeyboardInterrupt),
    ):
        measure(Path(folder))
    if rows:
        print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
