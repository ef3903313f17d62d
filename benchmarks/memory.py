"""The processes and the memory of `leasehold dev`, while runs follow their shards and at rest.

`python -m benchmarks.memory [--nodes 1 2] [--json]` starts a deployment over a log of eight shards,
has it commit a record of each, and looks at all of its processes

* while a run of each node follows its shards;
* at rest: when the runs have ended, and ten minutes later Spark as well.

The memory is the sum of the proportional sizes, in MiB. It takes a quarter of an hour for each
number of nodes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import print_rows
from benchmarks.figures.live_deployment import LiveDeployment
from benchmarks.figures.process_tree import (
    MEBIBYTE,
    adopt_orphans,
    memory_bytes,
    part_of,
    wait_for_orphans,
)

SHARDS = 8
IDLE_LIMIT_S = 20.0
REST_MAX_S = 900.0


def processes_below() -> list[psutil.Process]:
    """Return all processes of the deployment, with the server of Spark, which its starter left."""
    return psutil.Process().children(recursive=True)


def rows_at(state: str, nodes: int, deployment: LiveDeployment) -> Iterator[dict[str, Any]]:
    """Yield a row for each part of the deployment, and one for all."""
    wait_for_orphans([deployment.process.pid])  # processes that have ended would count
    processes, memory = Counter[str](), Counter[str]()
    for process in processes_below():
        part = part_of(process)
        processes[part] += 1
        memory[part] += memory_bytes([process])
    processes["all"], memory["all"] = processes.total(), memory.total()
    for part, number in memory.most_common():
        yield {
            "nodes": nodes,
            "state": state,
            "part": part,
            "processes": processes[part],
            "MiB": round(number / MEBIBYTE),
        }


def measure(home: Path, nodes: int) -> list[dict[str, Any]]:
    """Return the rows of a deployment."""
    deployment = LiveDeployment(home, interval_s=1.0, idle_limit_s=IDLE_LIMIT_S, nodes=nodes)
    with deployment:
        for shard in range(SHARDS):
            deployment.log.append(str(shard), [b"a record"])
        deployment.catch_up()
        rows = [*rows_at("following", nodes, deployment)]
        deployment.settle()
        deadline = time.monotonic() + REST_MAX_S
        while any(part_of(each) == "Spark" for each in processes_below()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Spark has not ended after {REST_MAX_S:.0f} s")
            time.sleep(5)
        return [*rows, *rows_at("at rest", nodes, deployment)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    adopt_orphans()
    rows: list[dict[str, Any]] = []
    for nodes in arguments.nodes:
        folder = Path(tempfile.mkdtemp(prefix="leasehold-memory-"))
        try:
            rows += measure(folder / "home", nodes)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{nodes} nodes measured", file=sys.stderr)
    print_rows(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
