"""The rows that a benchmark measured, printed as a table or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool, note: str = "") -> None:
    """Print rows; all have the keys of the first one, which head the columns."""
    if as_json:
        json.dump({"note": note, "rows": list(rows)}, sys.stdout, indent=2)
        print()
        return
    if note:
        print(note)
    headers = list(rows[0])
    cells = [[_shown(row[header]) for header in headers] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(headers, *cells, strict=True)]
    for line in [headers, *cells]:
        aligned = (
            text.rjust(width) if place else text.ljust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(aligned).rstrip())


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
