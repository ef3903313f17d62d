"""The sizes of the pages in which the SQL store reads."""

from __future__ import annotations

from collections.abc import Iterator

PAGE_FIRST_ROWS = 64
PAGE_ROWS_MAX = 2_048
_PAGE_GROWTH = 4


def page_sizes(first: int = PAGE_FIRST_ROWS) -> Iterator[int]:
    """The rows to ask for with each page: few at first, for a reader who takes only those."""
    size = first
    while True:
        yield size
        size = min(size * _PAGE_GROWTH, PAGE_ROWS_MAX)
