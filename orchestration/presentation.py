"""How results are shown: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store.errors import LeaseholdError

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_MAX = 100


def console() -> Console:
    """Standard output as a Rich console of at most 100 columns, colourless when piped."""
    from rich.console import Console

    wide = Console(highlight=False)
    return Console(
        highlight=False, width=min(wide.width, WIDTH_MAX) if wide.is_terminal else WIDTH_MAX
    )


def say(text: str = "") -> None:
    """One line on standard output, as it is."""
    sys.stdout.write(text + "\n")


def plain(value: object) -> Any:
    """A record as JSON knows it: times in ISO 8601 UTC, tuples as lists, enums as values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path | LeaseholdError) else value


def iso(at: datetime) -> str:
    """A time in ISO 8601, in UTC, to the microsecond, with a `Z`."""
    aware = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return aware.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def show_json(value: object) -> None:
    """One JSON document on standard output."""
    say(json.dumps(plain(value), indent=2, ensure_ascii=False))


def tell(record: Mapping[str, object], *sentences: str, as_json: bool) -> None:
    """What a command did: sentences for people, or the same as one JSON document."""
    if as_json:
        show_json(record)
        return
    for sentence in sentences:
        say(sentence)


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numeric: Sequence[str] = (),
) -> None:
    """A table; None is shown as `-`, columns named in `numeric` stand at the right.

    Cells are text, never markup: an identifier cannot colour or break the table.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column in numeric
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    # Not as the table's own title: that would be folded to the width of a narrow table.
    console().print(Text(title, overflow="fold"))
    console().print(table)


def _cell(value: object) -> str:
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
