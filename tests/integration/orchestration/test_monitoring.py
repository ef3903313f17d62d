"""A real Prometheus that scrapes a deployment: alerts in time, and panels with data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_metrics import exporter
from tests.freezing import freeze
from tests.ports import free_port
from tests.unit.deploy.test_monitoring import RULES, queries
from tests.unit.orchestration.consumed_home import ConsumedHome

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]
SCRAPE_S, LIMIT_S = 1, 4
CONSUMES = """
import sys, time
from pathlib import Path
from tests.unit.orchestration.consumed_home import ConsumedHome
home = ConsumedHome(Path(sys.argv[1]))
for number in range(10_000):
    home.consume(f"run-{number}")
    print("consumed", flush=True)
    time.sleep(0.2)
"""


@contextmanager
def ended(command: list[str], **given: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed in the end, frozen or not."""
    process = subprocess.Popen(command, text=True, **given)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


class Prometheus:
    """A Prometheus on the loopback, queried over HTTP."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **arguments: str) -> Any:
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"{self._url}/{path}?{query}", timeout=30) as reply:
            answer: Any = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def result(self, query: str) -> list[Any]:
        return self.get("query", query=query)["result"]

    def firing(self, alert: str) -> list[Any]:
        return self.result(f'ALERTS{{alertname="{alert}",alertstate="firing"}}')


@contextmanager
def prometheus(folder: Path, metrics: str) -> Iterator[Prometheus]:
    """One that scrapes every second, with the alerts; a shard is stalled after some seconds."""
    folder.mkdir()
    rules = RULES.read_text("utf-8")
    assert rules.count("standing_seconds > 120") == 1
    rules = rules.replace("standing_seconds > 120", f"standing_seconds > {LIMIT_S}")
    (folder / "leasehold.rules.yml").write_text(rules, "utf-8")
    target = urllib.parse.urlsplit(metrics).netloc
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {SCRAPE_S}s, evaluation_interval: {SCRAPE_S}s}}\n"
        f"scrape_configs: [{{job_name: leasehold, static_configs: [{{targets: ['{target}']}}]}}]\n"
        "rule_files: [leasehold.rules.yml]\n",
        "utf-8",
    )
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, ended(command, stdout=log, stderr=log):
        yield Prometheus(port)


def until(ready: Callable[[], object], *, limit_s: float = 40.0) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if ready():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, "it has not come true in time"
        time.sleep(0.1)


def test_a_frozen_consumer_alerts_within_two_scrapes_and_every_panel_has_data(
    tmp_path: Path,
) -> None:
    """Method: a process consumes the records of this one; it is frozen, and more records are
    appended.
    """
    home = ConsumedHome(tmp_path / "home")
    consumes = [sys.executable, "-c", CONSUMES, str(tmp_path / "home")]
    with ExitStack() as stack:
        metrics = stack.enter_context(exporter(tmp_path / "home"))
        asked = stack.enter_context(prometheus(tmp_path / "prometheus", metrics))
        # What comes into the journal is counted from the first scrape on.
        until(lambda: bool(asked.result("leasehold_up == 1")))
        consumer = stack.enter_context(ended(consumes, stdout=subprocess.PIPE))
        assert consumer.stdout is not None
        assert consumer.stdout.readline()

        def both_are_consumed() -> bool:
            home.append(1)
            return len(asked.result("rate(leasehold_committed_records_total[5s]) > 0")) == 2

        until(both_are_consumed)
        assert not asked.firing("LeaseholdShardStalled")
        freeze(consumer.pid)
        home.append(3)
        crossed = f"leasehold_shard_standing_seconds > {LIMIT_S}"
        until(lambda: len(asked.result(crossed)) == 2)
        seen_s = time.monotonic()
        until(lambda: len(asked.firing("LeaseholdShardStalled")) == 2)
        assert time.monotonic() - seen_s <= 2 * SCRAPE_S
        replaced = {"$stream": ".*", "$group": ".*", "$__rate_interval": "1m"}
        without_data: list[str] = []
        for query in queries():
            for name, value in replaced.items():
                query = query.replace(name, value)  # noqa: PLW2901 - a panel's variables
            if not asked.result(query):
                without_data.append(query)
        # No process rebalances here, and no record has an event time.
        unused = ("upkeep_statements", "watermark")
        assert [query for query in without_data if not any(each in query for each in unused)] == []
