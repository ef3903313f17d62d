"""How far long work is: a bar on standard error while it lasts, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

BAR_COLUMNS = 24


@contextmanager
def progress(
    what: str, unit: str = "", total: int | None = None
) -> Generator[Callable[[int], None]]:
    """Show how far some work is, to be entered with `with`; it leaves nothing behind.

    Where standard error is no terminal, nothing is shown, so that logs stay readable. Standard
    output is never touched.

    Args:
        what: the work, in a word or two.
        unit: what is counted, as a plural.
        total: how many there are, or None where that is not known before.

    Returns:
        What is to be told the number that is done so far.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if not unit:
        count = ""
    elif total is None:
        count = f"{{task.completed:,}} {unit}"
    else:
        count = f"{{task.completed:,}} of {{task.total:,}} {unit}"
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_COLUMNS),
        TextColumn(count),
        TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    task = bar.add_task(what, total=total)
    with bar:
        yield lambda done: bar.update(task, completed=done)
