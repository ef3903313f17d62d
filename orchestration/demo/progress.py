"""How a demo shows that it works: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from dagster_leasehold.orchestration.demo.standing import Standing
from dagster_leasehold.orchestration.presentation import console, say

LINE_EVERY_S = 3.0


class Progress:
    """Shows stages and standings, to be entered with `with`.

    Args:
        clock: monotonic seconds.
        expected: the records that will have been loaded at the end.
    """

    def __init__(self, clock: Callable[[], float], expected: int) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._clock = clock
        self._begin = clock()
        self._expected = expected
        self._last_line = float("-inf")
        self._bar: Bar | None = None
        if sys.stdout.isatty():
            self._bar = Bar(
                TimeElapsedColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
                console=console(),
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=max(expected, 1))

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, text: str) -> None:
        """Say what happens now; stays on the screen."""
        line = f"{self._clock() - self._begin:6.1f} s  {text}"
        if self._bar is not None:
            self._bar.console.print(line, markup=False)
        else:
            say(line)
            sys.stdout.flush()

    def show(self, now: Standing) -> None:
        """Show how far it is."""
        states = ", ".join(f"{number} {state}" for state, number in now.states.items())
        text = f"consumed {now.consumed:,} of {self._expected:,}, lag {now.lag:,}; shards: {states}"
        if self._bar is not None:
            self._bar.update(self._task, completed=now.consumed, description=text)
        elif self._clock() - self._last_line >= LINE_EVERY_S:
            self._last_line = self._clock()
            self.stage(text)
