"""`leasehold metrics` as a user starts it, scraped over HTTP."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.outcomes import Changed
from tests.acceptance.leasehold_process import COMMAND, environment
from tests.dagster_deployment import ROOT
from tests.unit.docs.recorded_output import assert_printed
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

Samples = dict[tuple[str, ...], float]


@contextmanager
def exporter(home: Path) -> Iterator[str]:
    """The address of a running exporter; it ends by SIGTERM, and well."""
    process = subprocess.Popen(
        [*COMMAND, "metrics", "--port", "0", "--home", str(home)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert_printed(("metrics",), line)
        match = re.search(r"http://127\.0\.0\.1:\d+/metrics", line)
        assert match, line or process.communicate(timeout=60)
        yield match[0]
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err


def scrape(address: str) -> Samples:
    with urllib.request.urlopen(address, timeout=60) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain")
        text = reply.read().decode()
    return {
        (sample.name.removeprefix("leasehold_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_matches_the_lease_store(tmp_path: Path) -> None:
    """Goal: totals grow with commits, and a take-over and a lag are shown."""
    home = ConsumedHome(tmp_path)
    home.append(10)
    home.consume("run-1")
    home.append(3)
    with exporter(tmp_path) as address:
        first = scrape(address)
        assert first["up",] == 1
        assert first["lag_records", "0", "default", "demo"] == 3
        assert first["committed_records_total", "1", "default", "demo"] == 10
        assert first["node_shards", "a", "default", "demo"] == 2
        assert first["shards", "already_alloc", "default", "demo"] == 2
        assert first["takeovers_total", "default", "demo"] == 0
        assert first["gaps", "default", "demo", "no"] == 0
        (last,) = home.store.journal(KEY, limit=1, newest=True)
        home.consume("run-2")
        seen = home.store.snapshot(KEY).nodes[0].lease_id
        outcome = home.store.evict(KEY, NODE, seen, observer="test", reason="test")
        assert isinstance(outcome, Changed)
        second = scrape(address)
        assert second["lag_records", "0", "default", "demo"] == 0
        assert second["committed_records_total", "1", "default", "demo"] == 13
        assert second["takeovers_total", "default", "demo"] == 2
        assert second["node_member", "a", "default", "demo"] == 0
        entries: list[JournalEntry] = home.store.journal(KEY, after=last.sequence)
        counted = [value for name, value in second.items() if name[0] == "journal_entries_total"]
        assert sum(counted) == len(entries)


def test_leasehold_up_is_zero_until_the_store_exists(tmp_path: Path) -> None:
    with exporter(tmp_path) as address:
        assert scrape(address) == {("up",): 0}
        ConsumedHome(tmp_path)
        assert scrape(address)["up",] == 1
