"""Generated input: access-log records, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from dagster_leasehold.shard_sources.local_log import Record

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
    # Not for secrets: the same seed must give the same log. One draw a record keeps it fast.
    draw = random.Random(seed)
    time, stamp = FIRST_TIME, ""
    for number in range(records):
        bits = draw.getrandbits(64)
        later = time + timedelta(milliseconds=1 + bits % 40)
        if later.second != time.second or not stamp:
            stamp = f"{later:%d/%b/%Y:%H:%M:%S}"
        time = later
        client = f"10.{bits >> 8 & 15}.{bits >> 12 & 255}.{1 + (bits >> 20) % 254}"
        line = (
            f"{client} - - [{stamp} +0000] "
            f'"{METHODS[(bits >> 32) % len(METHODS)]} {PATHS[(bits >> 36) % len(PATHS)]}'
            f'?request={number} HTTP/1.1" '
            f"{STATUSES[(bits >> 42) % len(STATUSES)]} {120 + (bits >> 48)} "
            f'"-" "{AGENTS[(bits >> 6) % len(AGENTS)]}"'
        )
        yield Record(line.encode(), key=client.encode(), event_time=time)
