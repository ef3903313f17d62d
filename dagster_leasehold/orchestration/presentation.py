"""The output of commands: sentences and tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_MAX = 100


def console() -> Console:
    """Return a Rich console on standard output, at most 100 columns wide."""
    from rich.console import Console

    wide = Console(highlight=False)
    return Console(
        highlight=False, width=min(wide.width, WIDTH_MAX) if wide.is_terminal else WIDTH_MAX
    )


def say(text: str = "") -> None:
    """Print one line as it is, without markup or folding."""
    sys.stdout.write(text + "\n")


def plain(value: object) -> Any:
    """Convert a value to JSON types, and types that JSON lacks to text.

    Times become ISO 8601 in UTC, and bytes other than UTF-8 base64.
    """
    if isinstance(value, Mapping):
        return {plain_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return _single(value)


def _single(value: object) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, bytes):
        return value.decode() if is_text(value) else b64encode(value).decode("ascii")
    finite = isinstance(value, float) and math.isfinite(value)
    return value if finite or value is None or isinstance(value, str | int) else str(value)


def plain_key(key: object) -> str:
    """Return a key of a mapping as text; keys that are not texts become JSON."""
    text = plain(key)
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def is_text(value: bytes) -> bool:
    """Return True if bytes are UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def iso(at: datetime) -> str:
    """Return a time in ISO 8601, in UTC, to the microsecond, with a `Z`."""
    import pendulum

    aware = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return pendulum.instance(aware).in_timezone("UTC").format("YYYY-MM-DDTHH:mm:ss.SSSSSS[Z]")


def show_json(value: object) -> None:
    """Print a JSON document."""
    say(json.dumps(plain(value), indent=2, ensure_ascii=False))


def show_result(facts: Mapping[str, object], *sentences: str, as_json: bool) -> None:
    """Print a command's result: sentences for people, or the facts as one JSON document."""
    if as_json:
        show_json(facts)
        return
    for sentence in sentences:
        say(sentence)


def show_table(title: str, columns: str, rows: Iterable[Sequence[object]]) -> None:
    """Print a table with columns such as `shard, >lag, ~last error`.

    A column with `>` is right-aligned. If the table is too wide, columns with `~` are folded. Cells
    are text, not markup, so an identifier cannot add colours.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns.split(", "):
        table.add_column(
            column.removeprefix(">").removeprefix("~"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
            no_wrap="~" in columns and not column.startswith("~"),
        )
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    # Not the table's own `title`, which Rich folds to the width of a narrow table.
    console().print(Text(title, overflow="fold"))
    console().print(table)


def cell(value: object) -> str:
    """Return the text of a table cell: `-` for None or an empty text, `1,000`, `yes`."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, datetime):
        return iso(value)[:19] + "Z"
    return str(value)
