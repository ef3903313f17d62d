"""The time of a run from a sensor's request to its first commit, part by part, and of its end.

`python -m benchmarks.run_start [--rounds 3] [--json]` starts two deployments, one after the other:

* `embedded`: the daemon and its own code server, SQLite, Spark started by the first run;
* `node`: the daemon, `leasehold node`, whose agent keeps Spark warm, and a MariaDB.

The first run of each is `cold`; the node's is asked for once its agent says that Spark is warm.
Then one record is appended to each of 1, 16 and 128 shards at once, again and again, and the run
that the sensor asks for is taken apart: by Dagster's own events up to the first line of the op, and
by the calls of the package after that. A round whose records reached more than one run is left out,
and so is a run that failed. What the sensor's interval of 5 s adds is not part of it.

`op to commit s` is the part that is the package's own: from the first line of the op. `end s` is
from the moment at which a run lets go of its first shard, because it was idle, to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.figures import print_rows
from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.assets.spark.connect_server import stop as stop_spark
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.instance import create_instance, embedded_text, nodes_text
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.dagster_processes import (
    child_environment,
    daemon,
    opened_instance,
)
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests import mariadb
from tests.declared import declare, stream_text

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun

MODULE = "benchmarks.timed_runs.definitions"
ROOT = Path(__file__).parents[1]
KEY = GroupKey.parse("default", "demo")
SHARDS = 128
SIZES = (1, 16, 128)
PATIENCE_S = 300.0
IDLE_LIMIT_S = 1.0
ROUNDS_LOST_MAX = 5
AGENT_LOG = "agent.log"
PARTS = ("queue", "process", "step", "open", "session", "spark_job", "commit", "other")


@dataclass(frozen=True)
class Taken:
    """The parts of one run, all in seconds.

    Attributes:
        shards: how many shards it served.
        parts: how long each of `PARTS` took, up to the first commit.
        end_s: from letting go of the first shard to the end of the run.
    """

    shards: int
    parts: dict[str, float]
    end_s: float


class Deployment:
    """A deployment at work, whose runs note their parts."""

    def __init__(self, settings: Settings, instance: DagsterInstance, parts_file: Path) -> None:
        self.log = LocalLog(settings.log_folder(KEY.stream))
        self._settings = settings
        self._instance = instance
        self._parts_file = parts_file
        self._seen: set[str] = set()
        self._written = dict.fromkeys((row.shard for row in self.log.list_shards()), 0)

    def append(self, shards: int) -> None:
        """Append one record to each of the first shards."""
        for shard in sorted(self._written, key=int)[:shards]:
            self.log.append(shard, [b"a record of a few bytes"])
            self._written[shard] += 1

    def new_runs(self) -> list[DagsterRun]:
        """Return the runs since the last call, once all records are committed and they ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._idle():
            if time.monotonic() > deadline:
                raise RuntimeError(f"no run committed what was appended within {PATIENCE_S} s")
            time.sleep(0.5)
        runs = [run for run in self._instance.get_runs() if run.run_id not in self._seen]
        self._seen |= {run.run_id for run in runs}
        return [run for run in runs if run.is_success and run.job_name.startswith("consume")]

    def _idle(self) -> bool:
        if any(not run.is_finished for run in self._instance.get_runs(limit=10)):
            return False
        store = open_store(self._settings.store_url)
        try:
            if KEY not in {group.key for group in store.groups()}:
                return False
            rows = {row.shard: row.check_point for row in store.snapshot(KEY).shards}
        finally:
            store.close()
        return all(rows.get(shard) == str(count) for shard, count in self._written.items() if count)

    def taken_apart(self, run: DagsterRun) -> Taken:
        """Return the times of a run's parts."""
        at: dict[str, float] = {}
        for entry in self._instance.all_logs(run.run_id):
            if entry.dagster_event is not None:
                at.setdefault(entry.dagster_event.event_type_value, entry.timestamp)
        began, ended = at["STEP_START"], at["PIPELINE_SUCCESS"]
        calls = [
            call for call in self._calls() if began <= call["began"] and call["ended"] <= ended
        ]
        committed = min(call["ended"] for call in calls if call["part"] == "commit")
        intended = min(call["ended"] for call in calls if call["part"] == "record_intents")

        def spent(part: str) -> float:
            return sum(
                call["ended"] - call["began"]
                for call in calls
                if call["part"] == part and call["ended"] <= committed
            )

        parts = {
            "queue": at["PIPELINE_STARTING"] - at["PIPELINE_ENQUEUED"],
            "process": at["PIPELINE_START"] - at["PIPELINE_STARTING"],
            "step": began - at["PIPELINE_START"],
            "open": intended - began,
            "session": spent("session"),
            "spark_job": spent("job"),
            "commit": spent("commit"),
        }
        parts["other"] = committed - at["PIPELINE_ENQUEUED"] - sum(parts.values())
        shards = len(run.run_config["ops"]["consume__demo"]["config"]["shards"])
        let_go = min(call["began"] for call in calls if call["part"].startswith("close_tenure"))
        return Taken(shards, parts, ended - let_go)

    def _calls(self) -> Iterator[dict[str, Any]]:
        for line in self._parts_file.read_text("utf-8").splitlines():
            yield json.loads(line)


@contextmanager
def _deployment(home: Path, *, node: bool) -> Generator[Deployment]:
    home.mkdir()
    # A run commits at once, and does not wait for the next round.
    pace = {"shards_per_run": SHARDS, "commit_interval_s": 0, "idle_limit_s": IDLE_LIMIT_S}
    declare(home, stream_text(KEY.stream, pace=f"Pace(**{pace})"))
    parts_file = home / "parts.jsonl"
    with ExitStack() as stack:
        if node:
            variables = stack.enter_context(mariadb.running()).of_deployment()
            stack.enter_context(patch.dict(os.environ, variables))
        settings = load_settings(home=home, agents=node)
        LocalLog.create(settings.log_folder(KEY.stream), SHARDS)
        open_store(settings.store_url, upgrade=True).close()
        create_instance(settings, nodes_text(mysql=True) if node else embedded_text())
        environment = child_environment(settings, os.environ) | {
            "BENCHMARK_PARTS": str(parts_file),
            "PYTHONPATH": str(ROOT),
            **({"LEASEHOLD_AGENTS": "true"} if node else {}),
        }
        # Without compiled files every process would compile the package anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        stack.callback(stop_spark, settings.spark_folder)
        instance = stack.enter_context(opened_instance(settings))
        ensure_instance_address(instance)
        opened = Deployment(settings, instance, parts_file)
        stack.enter_context(daemon(settings, environment, module=MODULE))
        if node:
            stack.enter_context(_agent(settings, environment))
            _wait_until_warm(settings.home / AGENT_LOG)
        opened.append(1)
        yield opened


def _agent(settings: Settings, environment: dict[str, str]) -> ChildProcess:
    arguments = ["node", "--name", "a", "--home", str(settings.home), "--module", MODULE]
    return ChildProcess(
        "the agent",
        [sys.executable, "-m", "dagster_leasehold.orchestration.command_line", *arguments],
        log=settings.home / AGENT_LOG,
        environment=environment,
        stop_timeout_s=120.0,
    )


def _wait_until_warm(log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while "Spark is warm" not in log.read_text("utf-8"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"Spark did not become warm within {PATIENCE_S} s")
        time.sleep(0.5)


def measure(name: str, home: Path, rounds: int) -> list[dict[str, Any]]:
    """Return one row for the first run, and one for each number of shards."""
    with _deployment(home, node=name == "node") as deployment:
        first = deployment.new_runs()
        # Everything is read once, so that no shard is new to the source or the lease store.
        deployment.append(SHARDS)
        deployment.new_runs()
        rows = [_row(name, "cold", [deployment.taken_apart(first[-1])])]
        for shards in SIZES:
            rows.append(_row(name, "warm", _rounds(deployment, shards, rounds)))
            print(rows[-1], file=sys.stderr)
    return rows


def _rounds(deployment: Deployment, shards: int, rounds: int) -> list[Taken]:
    taken: list[Taken] = []
    for _ in range(rounds + ROUNDS_LOST_MAX):
        deployment.append(shards)
        runs = deployment.new_runs()
        alone = [deployment.taken_apart(run) for run in runs] if len(runs) == 1 else []
        taken += [each for each in alone if each.shards == shards]
        if len(taken) == rounds:
            break
    if not taken:
        raise RuntimeError(f"no run took {shards} shards at once")
    return taken


def _row(name: str, start: str, taken: Sequence[Taken]) -> dict[str, Any]:
    def median(of: Callable[[Taken], float]) -> float:
        return statistics.median(of(each) for each in taken)

    total = median(lambda each: sum(each.parts.values()))
    op_start = median(lambda each: sum(each.parts[part] for part in PARTS[:3]))
    row: dict[str, Any] = {
        "set-up": name,
        "start": start,
        "shards": taken[0].shards,
        "runs": len(taken),
        "op start s": round(op_start, 2),
        "commit s": round(total, 2),
    }
    for part in PARTS:
        row[f"{part} %"] = round(100 * median(lambda each, part=part: each.parts[part]) / total)
    row["op to commit s"] = round(total - op_start, 2)
    return row | {"end s": round(median(lambda each: each.end_s), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("embedded", "node"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="leasehold-") as folder:
        for name in ("embedded", "node"):
            if arguments.only in (None, name):
                rows += measure(name, Path(folder) / name, arguments.rounds)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    note = f"{os.cpu_count()} cores, Python {platform.python_version()}, load {load}"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
