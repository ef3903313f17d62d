"""Generated input: access-log records, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from shard_sources.local_log import Record

FIRST_TIME = datetime(2026, 1, 1, tzinfo=UTC)
METHODS = ("GET",) * 8 + ("POST", "HEAD")
STATUSES = (200,) * 14 + (204, 301, 304, 404, 429, 500)
PATHS = (
    "/", "/search", "/cart", "/checkout", "/login", "/api/items", "/api/orders",
    "/static/site.css", "/static/site.js", "/health",
)  # fmt: skip
AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (iPhone)", "curl/8.5", "Googlebot/2.1")


def access_log(records: int, seed: int) -> Iterator[Record]:
    """Records in the combined log format, in order of time; the key is the client's address."""
    # Not for secrets: the same seed must give the same log.
    draw = random.Random(seed)
    time = FIRST_TIME
    for number in range(records):
        time += timedelta(milliseconds=draw.randrange(1, 40))
        client = f"10.{draw.randrange(16)}.{draw.randrange(256)}.{draw.randrange(1, 255)}"
        line = (
            f"{client} - - [{time:%d/%b/%Y:%H:%M:%S} +0000] "
            f'"{draw.choice(METHODS)} {draw.choice(PATHS)}?request={number} HTTP/1.1" '
            f"{draw.choice(STATUSES)} {draw.randrange(120, 40_000)} "
            f'"-" "{draw.choice(AGENTS)}"'
        )
        yield Record(line.encode(), key=client.encode(), event_time=time)
