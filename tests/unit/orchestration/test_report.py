"""`leasehold report`: one self-contained page, for any number of shards."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.group_history import Holding, Move, Point
from dagster_leasehold.orchestration.group_view import GroupView, node_rows
from dagster_leasehold.orchestration.report_page import ROWS_MAX, Report, page
from tests.unit.orchestration.consumed_home import ConsumedHome
from tests.unit.orchestration.test_group_view import A, B, Node, shard_row, snapshot_of

BEGIN = datetime(2026, 1, 2, tzinfo=UTC)


def report_of(shards: int, **changes: object) -> Report:
    """A page of shards that all moved once, an hour after the beginning."""
    snapshot = snapshot_of(Node(A, 7, "a-1"), Node(B, 9, "b-1"))
    rows = tuple(shard_row(str(n)) for n in range(shards))
    later, end = BEGIN + timedelta(hours=1), BEGIN + timedelta(hours=2)
    holdings = [
        Holding(row.shard, node, *span)
        for row in rows
        for node, span in ((A, (BEGIN, later)), (B, (later, end)))
    ]
    moved = [Move(row.shard, later, later, A, B, planned=True) for row in rows]
    points = [Point(BEGIN + timedelta(seconds=n), 5, 5.0, 1.0) for n in range(20)]
    view = GroupView(snapshot, node_rows(snapshot, {A: 1.0, B: 1.0}), rows)
    return replace(Report(end, view, holdings, moved, [], points, [], []), **changes)


class Outline(HTMLParser):
    """The tags of a page, which must be closed in order, and its addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        if self.open[-1:] == [tag]:
            self.open.pop()


@pytest.mark.parametrize("shards", [0, 1, 10, 1_000, 10_000])
def test_the_report_is_self_contained(shards: int) -> None:
    text = page(report_of(shards))
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.addresses == []
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)
    assert len(text) < 20_000 + 600 * shards


def test_names_and_reasons_cannot_become_markup() -> None:
    hostile = "<script>alert(1)</script>&\"'"
    gap = Gap(ShardId("0"), "1", "2", hostile, BEGIN)
    row = replace(shard_row("0"), run=hostile[:8], check_point=hostile)
    report = report_of(1, gaps=[gap], violations=[hostile], notes=[hostile])
    view = replace(report.view, shards=(row,), trouble=hostile)
    node = NodeName("a-b")
    holdings = [Holding(ShardId("0"), node, BEGIN, BEGIN + timedelta(hours=1))]
    text = page(replace(report, view=view, holdings=holdings))
    assert text.count("<script>") == 1
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("changes", "good", "bad"),
    [
        ({}, ["Verified", "2 nodes alive"], []),
        ({"violations": ["batch 3 overlaps batch 2"]}, ["2 nodes"], ["batch 3 overlaps batch 2"]),
        ({"violations": None}, ["2 nodes"], ["were not verified"]),
        ({"gaps": [Gap(ShardId("0"), "1", "2", "trimmed", BEGIN)]}, ["Verified"], ["1 gap not"]),
    ],
    ids=["sound", "violated", "not verified", "gap"],
)
def test_the_page_begins_with_its_verdicts(
    changes: dict[str, object], good: list[str], bad: list[str]
) -> None:
    text = page(report_of(2, **changes))
    for kind, words in (("good", good), ("bad", bad)):
        lines = re.findall(f'<p class="{kind}">(.*?)</p>', text)
        assert len(lines) == len(words) or kind == "good"
        assert all(any(word in each for each in lines) for word in words)


def test_a_dead_deployment_is_the_first_verdict() -> None:
    report = report_of(1)
    nodes = node_rows(report.view.snapshot, {A: 999.0, B: 999.0})
    text = page(replace(report, view=replace(report.view, nodes=nodes)))
    assert "No node of stream/group is alive" in text.split("<section>")[0]


def test_only_the_newest_moves_are_listed() -> None:
    text = page(report_of(ROWS_MAX + 7))
    assert f"The newest {ROWS_MAX:,} of {ROWS_MAX + 7:,}." in text
    assert text.count("<td>transfer</td>") == ROWS_MAX


def test_the_command_writes_a_page_of_a_consumed_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    html = tmp_path / "report.html"
    html.write_text("an older page", "utf-8")
    assert main(["report", "demo", "--html", str(html), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == 2
    text = html.read_text("utf-8")
    assert "Verified: each record was committed once" in text
    assert "<b>20</b>records" in text
    assert [path.name for path in tmp_path.iterdir() if "report" in path.name] == ["report.html"]
    assert main(["report", "demo", "--html", str(html), "--no-verify"]) == 0
    assert "were not verified" in html.read_text("utf-8")
    assert main(["report", "demo", "--html", str(tmp_path / "nowhere" / "r.html")]) == 2
    home.store.close()
