"""Leasehold next to other consumers that write files, under the same kills and freezes.

`python -m benchmarks.head_to_head [--only NAME …] [--strikes 4] [--seed 1] [--quick] [--json]` lets
each contestant consume the same records, written at the same moments into four shards, and strikes
its workers: with SIGKILL, or with SIGSTOP until three seconds after others may take over. Each
strike comes into the middle of a write, or of the wait for the next one. A supervisor starts again
what is dead. The contestants are in `benchmarks/rivals`:

* `leasehold`: two nodes, each with a Spark of its own, on the topic of a Kafka mock broker;
* `streaming append`, `streaming batch-id`: Structured Streaming with `foreachBatch` in the two ways
  of its documentation, on files; a query that has been silent is replaced by another one;
* `confluent-kafka`: a group of two consumers on such a topic; offsets follow the file;
* `loghub sdk`: two `ConsumerWorker`s on a logstore of the tests' server; checkpoints follow files.

`lost` and `doubled` count records of the output at the end. `kill s` and `freeze s` are the seconds
from a strike until all that was in the log right after it was readable, median and highest.
`age s`, `cores`, `MiB` and `processes` are from before the first strike; brokers are not counted,
and Leasehold's daemon and MariaDB are.

With `--quick`, there are two strikes, and three contestants at the same time.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.figures import print_rows
from benchmarks.rivals.contestants import CONTESTANTS
from benchmarks.rivals.match import FREEZE_BEYOND_S, Match, Result
from benchmarks.rivals.strikes import Schedule

TIMEOUT_S = 6.0
QUICK = ("leasehold", "confluent-kafka", "loghub sdk")
TOGETHER = (("leasehold",), ("streaming append", "streaming batch-id"), QUICK[1:])
"""Those that share the machine: only the lightest do."""


def played(name: str, folder: Path, schedule: Schedule) -> tuple[Result, str]:
    """Let one contestant play; return the outcome, and the versions of what took part."""
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} {name}: {text}", file=sys.stderr)

    with CONTESTANTS[name](name, folder / name.replace(" ", "-"), TIMEOUT_S) as contestant:
        return Match(contestant, schedule, say).play(), contestant.versions()


def measure(
    names: Sequence[str], folder: Path, schedule: Schedule
) -> dict[str, tuple[Result, str]]:
    """Let some contestants play at the same time; return results and versions by name."""
    with ThreadPoolExecutor(len(names)) as pool:
        games = {name: pool.submit(played, name, folder, schedule) for name in names}
        return {name: game.result() for name, game in games.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--strikes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the folder, with all logs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    groups = [QUICK] if arguments.quick else TOGETHER
    schedule = Schedule(arguments.seed, arguments.strikes)
    if arguments.quick:
        schedule = Schedule(arguments.seed, 2, calm_s=3.0, slot_s=18.0)
    results: dict[str, tuple[Result, str]] = {}
    note = (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, Python "
        f"{platform.python_version()}, silence of {TIMEOUT_S:.0f} s allowed, freezes of "
        f"{TIMEOUT_S + FREEZE_BEYOND_S:.0f} s, seed {arguments.seed}"
    )
    folder = Path(tempfile.mkdtemp(prefix="leasehold-rivals-"))
    try:
        for group in groups:
            names = [name for name in group if name in arguments.only]
            if names:
                results |= measure(names, folder, schedule)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    rows = [result.row(name) for name, (result, _) in results.items()]
    versions = "\n".join(f"{name}: {text}" for name, (_, text) in results.items())
    print_rows(rows, as_json=arguments.json, note=f"{note}\n{versions}")


if __name__ == "__main__":
    main()
