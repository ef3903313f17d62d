"""`leasehold top`: keys, the layout in the terminal, and the command in a real one."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands.top import Page, keys_in, rendered
from dagster_leasehold.orchestration.group_view import GroupReader, GroupView, ShardRow, node_rows
from tests.unit.docs.recorded_output import assert_printed
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome
from tests.unit.orchestration.terminal import Terminal
from tests.unit.orchestration.test_group_view import A, B, Node, shard_row, snapshot_of


def view_of(rows: list[ShardRow], *, silent: int = 0) -> GroupView:
    snapshot = snapshot_of(Node(A, 7, "a-1"), Node(B, 9, "b-1"))
    ages = {A: 600.0 if silent else 1.0, B: 600.0 if silent > 1 else 1.0}
    return GroupView(snapshot, node_rows(snapshot, ages), tuple(rows))


def text_of(page: Page, view: GroupView | None, trouble: str = "", height: int = 24) -> list[str]:
    console = Console(file=StringIO(), width=120, height=height, highlight=False)
    console.print(rendered(page, view, trouble, height)[1])
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def shards_in(page: Page, rows: list[ShardRow]) -> list[str]:
    return [str(row.shard) for _, row in page.visible_rows(rows)]


def pressed(*keys: str, page: Page | None = None) -> Page:
    page = page or Page()
    for key in keys:
        page = page.after(key, 10)
    return page


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[6~s", ["up", "page down", "s"]),
        ("\x1bOB", ["down"]),
        ("\x1b", ["escape"]),
        ("/ab\r", ["/", "a", "b", "\r"]),
    ],
)
def test_a_terminal_sends_characters_and_escapes(sent: str, keys: list[str]) -> None:
    assert keys_in(sent) == keys


def test_keys_sort_by_each_column_and_reverse_the_order() -> None:
    rows = [
        replace(shard_row("10"), lag=5, lag_seconds=1.0, rate=2.0, consumer_owner=B),
        replace(shard_row("2"), lag=None, lag_seconds=None, rate=None, consumer_owner=None),
        replace(shard_row("1"), lag=7, lag_seconds=0.5, rate=9.0, state=ShardState.OVER),
    ]
    orders = {}
    page = Page()
    for _ in range(6):
        orders[page.order] = shards_in(page, rows)
        page = page.after("s", 10)
    assert orders == {
        "shard": ["1", "2", "10"],
        "state": ["2", "10", "1"],
        "node": ["2", "1", "10"],
        "lag": ["1", "10", "2"],
        "age": ["10", "1", "2"],
        "rate": ["1", "10", "2"],
    }
    assert page.order == "shard"
    assert shards_in(pressed("r"), rows) == ["10", "2", "1"]


def test_a_filter_can_be_typed_kept_and_removed() -> None:
    rows = [shard_row("12"), shard_row("21"), replace(shard_row("3"), consumer_owner=B)]
    assert shards_in(pressed(*"/2"), rows) == ["12", "21"]
    assert shards_in(pressed(*"/21", "\x7f", "\r"), rows) == ["12", "21"]
    assert shards_in(pressed(*"/b\r"), rows) == ["3"]
    # While it is typed, no letter is a command.
    assert not pressed(*"/q").ended
    assert pressed(*"/q\rq").ended
    assert shards_in(pressed(*"/2\r", "escape"), rows) == ["3", "12", "21"]


def test_the_page_scrolls_and_stays_within_the_rows() -> None:
    view = view_of([shard_row(str(n)) for n in range(100)])
    page, _ = rendered(pressed("end"), view, "", 24)
    lines = text_of(page, view)
    assert len(lines) <= 24
    assert lines[-2].startswith("99 ")
    assert re.match("shards 8[0-9] to 100 of 100 ", lines[-1])
    assert rendered(pressed("up"), view, "", 24)[0].offset == 0
    assert any(line.startswith("12 ") for line in text_of(pressed("page down"), view))


def test_ten_thousand_shards_cost_a_page_of_rows() -> None:
    """Method: the time of a page with 10,000 shards against the one of a page with 100."""
    small = view_of([shard_row(str(n)) for n in range(100)])
    large = view_of([shard_row(str(n)) for n in range(10_000)])

    def cost_s(view: GroupView) -> float:
        began_s = time.perf_counter()
        text_of(Page(), view)
        return time.perf_counter() - began_s

    small_s = min(cost_s(small) for _ in range(5))
    assert min(cost_s(large) for _ in range(5)) < 50 * small_s
    assert len(text_of(Page(), large)) <= 24


@pytest.mark.parametrize("height", [8, 12, 24, 50])
def test_the_page_fits_the_terminal_in_every_state(height: int) -> None:
    rows = [shard_row(str(n)) for n in range(100)]
    view = replace(view_of(rows, silent=2), trouble="The log cannot be read.")
    lines = text_of(Page(), view, "The database does not answer.", height)
    assert len(lines) <= max(height, 13)
    assert "The database does not answer." in lines[1]
    assert any("No node of stream/group is alive" in line for line in lines)


def test_the_tree_of_splits_is_indented() -> None:
    view = view_of([shard_row("0"), shard_row("1"), shard_row("4", "0"), shard_row("5", "0", "1")])
    lines = text_of(pressed("t"), view)
    assert [line.split()[0:2] for line in lines if "└" in line] == [["└", "4"], ["└", "5"]]
    assert next(line for line in lines if "└ 5" in line).rstrip().endswith("0, 1")


def test_a_name_with_markup_is_shown_as_it_is() -> None:
    odd = replace(shard_row("0"), shard=ShardId("a-b"), run="[bold]")
    assert any("[bold]" in line for line in text_of(Page(), view_of([odd])))


def test_the_page_says_that_nothing_was_read_yet() -> None:
    assert text_of(Page(), None) == ["Reading …"]
    assert text_of(Page(), None, "The database does not answer.") == [
        "The database does not answer."
    ]


def test_without_a_terminal_top_names_the_command_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["top"]) == 2
    assert "Use `leasehold status`" in capsys.readouterr().err


def test_top_follows_the_log_and_restores_the_terminal(tmp_path: Path) -> None:
    """Method: a pseudo-terminal; records arrive while the page is open."""
    home = ConsumedHome(tmp_path / "home", records_max=100)
    home.append(12)
    with Terminal("top", "--home", str(tmp_path / "home"), "--interval", "0.2") as terminal:
        terminal.waits_for(r"demo/default · 1 node alive · 2 shards · lag 24")
        home.append(38)
        terminal.waits_for(r"lag 100\b")
        home.consume("run-1")
        terminal.waits_for(r"lag 0\b")
        terminal.sends("/1")
        terminal.waits_for(r"filter: 1")
        terminal.sends("\r")
        terminal.waits_for(r"shards 1 to 1 of 1")
        terminal.sends("q")
        assert terminal.ended() == 0
    assert not re.search("Traceback|Error", terminal.text)
    home.store.close()


def test_top_prints_what_the_reference_shows(tmp_path: Path) -> None:
    home = ConsumedHome(tmp_path / "home")
    home.append(3)
    home.consume("run-1")
    view = GroupReader(home.store, KEY, home.log, clock=lambda: 0.0).read()
    shards = tuple(replace(row, rate=0.0) for row in view.shards)
    lines = text_of(Page(), replace(view, shards=shards))
    assert_printed(("top",), "\n".join(line.rstrip() for line in lines))
    home.store.close()


def test_ctrl_c_ends_top_without_an_error(tmp_path: Path) -> None:
    home = ConsumedHome(tmp_path / "home")
    with Terminal("top", "--home", str(tmp_path / "home")) as terminal:
        terminal.waits_for("demo/default")
        terminal.sends("\x03")
        assert terminal.ended() in (0, 130)
    assert "Traceback" not in terminal.text
    home.store.close()
