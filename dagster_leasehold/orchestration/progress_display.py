"""Progress of long work, as a live line in a terminal, otherwise as a line every 30 s."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread

from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.progress import LINE_EVERY_S, Progress, Report, duration

BAR_COLUMNS = 24
JOIN_S = 5.0


@contextmanager
def progress(
    work: str,
    unit: str = "",
    total: int | None = None,
    *,
    clock: Clock = time.monotonic,
    line_every_s: float = LINE_EVERY_S,
) -> Generator[Report]:
    """Show progress, rate and remaining time on standard error within the block.

    A terminal shows a live line, which is removed at the end.

    Args:
        work: the name of the work, in a word or two.
        unit: what is counted, in the plural; empty if nothing is.
        total: the number of units; None if it is reported later or unknown.
        line_every_s: the time between two lines without a terminal, in seconds.

    Returns:
        A function that takes the number of completed units, and the total once it is known.
    """
    state = Progress(clock, total)
    lines = partial(_lines, every_s=line_every_s)
    with (_live_line if sys.stderr.isatty() else lines)(work, unit, state) as report:
        yield report


@contextmanager
def _live_line(work: str, unit: str, state: Progress) -> Generator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.text import Text
    from typing_extensions import override

    class Counts(ProgressColumn):
        """The text of `Progress`: counts, rate and remaining time."""

        @override
        def render(self, task: Task) -> Text:
            return Text(state.text(unit))

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_COLUMNS),
        Counts(),
        TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    task = bar.add_task(work, total=state.total)

    def report(done: int, total: int | None = None, /) -> None:
        state(done, total)
        bar.update(task, completed=done, total=state.total)

    with bar:
        yield report


@contextmanager
def _lines(work: str, unit: str, state: Progress, every_s: float) -> Generator[Report]:
    over, began_s = Event(), state.clock()

    def show() -> None:
        while not over.wait(every_s):
            counts = state.text(unit) or duration(state.clock() - began_s)
            sys.stderr.write(f"{work}: {counts}\n")
            sys.stderr.flush()

    lines = Thread(target=show, name="progress", daemon=True)
    lines.start()
    try:
        yield state
    finally:
        over.set()
        lines.join(JOIN_S)
