"""`leasehold top`: a live page in the terminal with a group's nodes and shards."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError, counted
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.progress import duration
from dagster_leasehold.orchestration.commands.options import AnyStream, GroupName, Home, Module
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.group_view import (
    GroupReader,
    GroupView,
    Liveness,
    NodeRow,
    ShardRow,
    total,
    tree,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

REFRESH_S = 1.0
REST_PER_READING = 1.0
"""The shortest pause after a reading, as a multiple of its duration; 1 uses at most half a core."""
KEY_WAIT_S = 0.2
NODES_SHARE = 0.3
"""The largest share of the lines for nodes."""
OBSTACLES_SHOWN = 2
"""The most sentences about shards without progress; `leasehold status` shows all."""
KEYS = "q quit · / filter · s sort · r reverse · t tree · ↑ ↓ PgUp PgDn Home End scroll"
ESCAPES = {
    "[A": "up",
    "[B": "down",
    "[5~": "page up",
    "[6~": "page down",
    "[H": "home",
    "[F": "end",
    "OA": "up",
    "OB": "down",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
}
ORDERS = {
    "shard": lambda row: rank_key(row.shard),
    "state": lambda row: (row.state, rank_key(row.shard)),
    "node": lambda row: (row.consumer_owner or "", rank_key(row.shard)),
    "lag": lambda row: -1 if row.lag is None else row.lag,
    "age": lambda row: -1.0 if row.lag_seconds is None else row.lag_seconds,
    "rate": lambda row: row.rate or 0.0,
}
"""The sort key of shards for each order."""
DESCENDING = frozenset({"lag", "age", "rate"})
"""The orders that start with the largest value."""


@dataclass(frozen=True, slots=True)
class Page:
    """The state of the page.

    Attributes:
        pattern: the filter; the name, state or node of each visible shard contains this text.
        offset: the number of shards above the first visible one.
    """

    order: str = "shard"
    reverse: bool = False
    tree: bool = False
    pattern: str = ""
    typing: bool = False
    offset: int = 0
    ended: bool = False

    def after(self, key: str, lines: int) -> Page:
        """Return the page after a key.

        Args:
            lines: the number of shards that fit in the terminal.
        """
        if self.typing:
            return self._typed(key)
        moves = {"up": -1, "down": 1, "page up": -lines, "page down": lines, "home": -(10**9)}
        moves["end"] = 10**9
        if key in moves:
            return replace(self, offset=max(self.offset + moves[key], 0))
        names = list(ORDERS)
        following = names[(names.index(self.order) + 1) % len(names)]
        changes: dict[str, dict[str, Any]] = {
            "q": {"ended": True},
            "\x03": {"ended": True},
            "/": {"typing": True, "pattern": ""},
            "s": {"order": following, "reverse": False, "tree": False, "offset": 0},
            "r": {"reverse": not self.reverse},
            "t": {"tree": not self.tree, "offset": 0},
            "escape": {"pattern": "", "offset": 0},
        }
        return replace(self, **changes.get(key, {}))

    def _typed(self, key: str) -> Page:
        if key == "\x03":
            return replace(self, ended=True)
        if key == "escape":
            return replace(self, typing=False, pattern="")
        if key in ("\r", "\n"):
            return replace(self, typing=False)
        if key in ("\x7f", "\b"):
            return replace(self, pattern=self.pattern[:-1], offset=0)
        return replace(self, pattern=self.pattern + key, offset=0) if key.isprintable() else self

    def visible_rows(self, rows: Sequence[ShardRow]) -> list[tuple[int, ShardRow]]:
        """Return the shards that match the pattern, in order, with their depths in the tree."""
        words = self.pattern.lower()
        matching = [
            row
            for row in rows
            if words in f"{row.shard} {row.state} {row.consumer_owner or ''}".lower()
        ]
        if self.tree:
            return tree(matching)
        down = (self.order in DESCENDING) != self.reverse
        return [(0, row) for row in sorted(matching, key=ORDERS[self.order], reverse=down)]


def top(
    stream: AnyStream = None,
    *,
    group: GroupName = None,
    module: Module = None,
    home: Home = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, help="Seconds between updates.")
    ] = REFRESH_S,
) -> None:
    """Watch a stream's nodes and shards live; q quits."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidSetting(
            "`leasehold top` needs a terminal. Use `leasehold status` to print the group once."
        )
    target = Target.at(home, module)
    key = target.group(stream, group).key
    reader = GroupReader(target.store, key, target.streams.usable(key.stream).source)
    watch = _Watch(reader, interval)
    with watch.running():
        _show(watch)


@dataclass(slots=True)
class _Watch:
    """Reads a group repeatedly in its own thread, so that keys are handled at once."""

    reader: GroupReader
    interval_s: float
    view: GroupView | None = None
    trouble: str = ""
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Generator[None]:
        """Keep reading until the context ends."""
        thread = threading.Thread(target=self._read, name="leasehold-top", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(timeout=self.interval_s)

    def _read(self) -> None:
        while not self._ended.is_set():
            began_s = time.monotonic()
            try:
                self.view, self.trouble = self.reader.read(), ""
            except LeaseholdError as error:
                self.trouble = str(error)
            took_s = time.monotonic() - began_s
            self._ended.wait(max(self.interval_s - took_s, REST_PER_READING * took_s))


def _show(watch: _Watch) -> None:
    from rich.console import Console
    from rich.live import Live

    console, page = Console(highlight=False), Page()
    with _raw_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while not page.ended:
            height = console.size.height
            page, content = rendered(page, watch.view, watch.trouble, height)
            live.update(content, refresh=True)
            for key in _keys():
                page = page.after(key, max(height // 2, 1))


def rendered(
    page: Page, view: GroupView | None, trouble: str, height: int
) -> tuple[Page, RenderableType]:
    """Return the page with a valid offset, and its visible content.

    Args:
        trouble: a sentence if the newest reading failed.
    """
    from rich.console import Group
    from rich.text import Text

    if view is None:
        return page, Text(trouble or "Reading …")
    nodes_max = max(int(height * NODES_SHARE) - 2, 1)
    nodes = sorted(view.nodes, key=lambda row: (row.liveness is not Liveness.SILENT, row.node))
    obstacles = view.obstacles()[:OBSTACLES_SHOWN]
    alerts = [line for line in (trouble, view.death(), *obstacles, view.lag_trouble) if line]
    rows = page.visible_rows(view.shards)
    # A line each for the title, the keys and both table heads, and up to two for an alert.
    fitting = max(height - 6 - 2 * len(alerts) - min(len(nodes), nodes_max), 1)
    page = replace(page, offset=min(page.offset, max(len(rows) - fitting, 0)))
    visible_rows = rows[page.offset : page.offset + fitting]
    parts: list[RenderableType] = [Text(_title(view), style="bold", no_wrap=True)]
    parts += [Text(line, style="bold red") for line in alerts]
    parts += [_nodes_table(nodes[:nodes_max]), _shards_table(page, visible_rows)]
    last = (
        f"{page.offset + 1} to {page.offset + len(visible_rows)} of {len(rows):,}"
        if visible_rows
        else "none"
    )
    parts.append(Text(f"shards {last} · {_prompt(page)}", style="reverse", no_wrap=True))
    return page, Group(*parts)


def _title(view: GroupView) -> str:
    group = view.snapshot.group
    lag, rate = total(row.lag for row in view.shards), total(row.rate for row in view.shards)
    parts = [
        str(group.key) + (" (paused)" if group.paused else ""),
        f"{counted(view.alive, 'node')} alive",
        counted(len(view.shards), "shard"),
        f"lag {_number(lag)}",
        f"{_number(rate)} records/s",
    ]
    return " · ".join(parts)


def _prompt(page: Page) -> str:
    if page.typing:
        return f"filter: {page.pattern}▏ (Enter keeps it, Esc removes it)"
    order = "tree" if page.tree else page.order + (" reversed" if page.reverse else "")
    pattern = f" · filter {page.pattern}" if page.pattern else ""
    return f"by {order}{pattern} · {KEYS}"


def _table(columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold cyan", padding=(0, 2, 0, 0))
    for column in columns.split(", "):
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if right else "left", no_wrap=True
        )
    return table


def _nodes_table(rows: Sequence[NodeRow]) -> Table:
    from rich.text import Text

    table = _table("node, state, >last heartbeat, takes runs, >shards, release")
    styles = {Liveness.ALIVE: "green", Liveness.SILENT: "bold red", Liveness.LEFT: "dim"}
    for row in rows:
        ago = "" if row.last_beat_s is None else f"{duration(row.last_beat_s)} ago"
        runs = "yes" if row.accepts_runs else "no"
        cells = (row.node, row.liveness, ago, runs, f"{row.shards:,}", row.release)
        table.add_row(*(Text(str(cell)) for cell in cells), style=styles[row.liveness])
    return table


def _shards_table(page: Page, rows: Sequence[tuple[int, ShardRow]]) -> Table:
    from rich.text import Text

    table = _table(
        "shard, state, node, >lag, >age, >records/s, >caught up in, >epoch, run, parents"
    )
    for depth, row in rows:
        name = "  " * depth + ("└ " if depth and page.tree else "") + row.shard
        node = row.consumer_owner or "-"
        cells = (
            name,
            row.state,
            f"{node} → {row.next_owner}" if row.next_owner else node,
            _number(row.lag),
            "" if row.lag_seconds is None else duration(row.lag_seconds),
            _number(row.rate),
            "-" if row.caught_up_s is None else duration(row.caught_up_s),
            f"{row.epoch:,}",
            row.run[:8],
            ", ".join(row.parents),
        )
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


@contextmanager
def _raw_keys() -> Generator[None]:
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _keys() -> list[str]:
    descriptor = sys.stdin.fileno()
    if not select.select([descriptor], [], [], KEY_WAIT_S)[0]:
        return []
    return keys_in(os.read(descriptor, 1024).decode(errors="replace"))


def keys_in(text: str) -> list[str]:
    """Split a terminal's input into keys: characters, and the names of `ESCAPES`."""
    keys: list[str] = []
    while text:
        if not text.startswith("\x1b"):
            keys.append(text[0])
            text = text[1:]
            continue
        code = next((each for each in ESCAPES if text.startswith("\x1b" + each)), "")
        keys.append(ESCAPES.get(code, "escape"))
        text = text[1 + len(code) :]
    return keys
