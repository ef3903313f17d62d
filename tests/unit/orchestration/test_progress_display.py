"""Long work on a terminal and without one: counts, rate and remaining time."""

from __future__ import annotations

import sys
import time

import pytest

from dagster_leasehold.orchestration import progress_display
from dagster_leasehold.orchestration.progress_display import progress
from tests.manual_clock import ManualClock
from tests.unit.orchestration.terminal import Terminal

WAIT_S = 10.0


def lines_of(capsys: pytest.CaptureFixture[str], number: int) -> list[str]:
    """The first lines on standard error; standard output stays empty."""
    text, until_s = "", time.monotonic() + WAIT_S
    while text.count("\n") < number:
        assert time.monotonic() < until_s, text
        time.sleep(0.01)
        captured = capsys.readouterr()
        assert captured.out == ""
        text += captured.err
    return text.splitlines()


def test_without_a_terminal_lines_are_printed_by_a_timer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock(0.0)
    with progress("copying", "rows", clock=clock, line_every_s=0.05) as show:
        clock.now_s = 10.0
        show(3_000, 12_000)
        lines = lines_of(capsys, 2)
    assert set(lines) == {"copying: 3,000 of 12,000 rows, 300/s, 30 s left"}


def test_without_a_terminal_there_is_a_line_every_30_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Ended(progress_display.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return super().wait(0.05)

    monkeypatch.setattr(progress_display, "Event", Ended)
    with progress("replaying", "batches") as show:
        show(1)
        lines_of(capsys, 1)
    assert set(waits) == {30.0}


def test_short_work_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("copying", "rows", 10) as show:
        show(10)
    assert capsys.readouterr() == ("", "")


def test_work_without_counts_shows_that_it_is_running(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(0.0)
    with progress("upgrading the schema", clock=clock, line_every_s=0.05):
        clock.now_s = 90.0
        assert "upgrading the schema: 1 min" in lines_of(capsys, 3)


def test_the_lines_end_with_the_work_even_if_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), progress("copying", line_every_s=0.01):
        raise ValueError("broken")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr() == ("", "")


LIVE = """
import time
from dagster_leasehold.orchestration.progress_display import progress
with progress("copying", "rows", 500) as show:
    for done in range(500):
        time.sleep(0.01)
        show(done + 1)
print("copied")
"""


def test_a_terminal_shows_a_live_line_that_is_erased_at_the_end() -> None:
    with Terminal(program=[sys.executable, "-c", LIVE]) as terminal:
        terminal.waits_for(r"copying .*\d+ of 500 rows, \d+/s, \d s left")
        assert terminal.ended() == 0
        last = terminal.raw.rsplit("\x1b[2K", 1)[-1]
    assert "copied" in last
    assert "rows" not in last
