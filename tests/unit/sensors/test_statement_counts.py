from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dagster_leasehold.sensors.statement_counts import Upkeep, UpkeepReport

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
IDLE = {"pulse": 1, "beat": 1, "progress": 1}


def test_only_the_newest_lease_term_counts() -> None:
    now = [0.0]
    upkeep = Upkeep(lambda: now[0])
    upkeep.add({"claim": 5})
    for now[0] in (5.0, 10.0, 15.0, 20.0):
        upkeep.add(IDLE)
    report = upkeep.report(term_s=20.0, nodes=1, at=NOON)
    assert (report.ticks, report.statements) == (4, {"beat": 4, "progress": 4, "pulse": 4})
    assert report.writes == {"beat": 4}
    now[0] = 100.0
    assert upkeep.report(term_s=20.0, nodes=1, at=NOON).ticks == 0


def test_a_report_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "upkeep" / "orders" / "default.json"
    report = UpkeepReport(NOON.isoformat(), 20.0, 2, 4, {"beat": 8, "claim": 1})
    report.save(path)
    report.save(path)
    assert UpkeepReport.load(path) == report
    assert [entry.name for entry in path.parent.iterdir()] == ["default.json"]


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"at": "x", "unknown": 1}'])
def test_an_unreadable_report_is_ignored(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    assert UpkeepReport.load(path) is None
