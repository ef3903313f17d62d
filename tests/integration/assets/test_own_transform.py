"""The transform that the how-to shows, on real Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.output.output_file import RECORD_DDL
from tests.unit.docs.test_docs import DOCS, fences

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.spark
def test_the_transform_of_the_page_returns_its_columns_and_quarantines_other_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect_session: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in fences(DOCS / "how-to/transform.md", "python"):
        exec(block, namespace)
    lines = ("2026-03-01T12:00:00Z;/cart;200", "2026-03-01T12:00:00Z;/pay", "no line")
    records = connect_session.createDataFrame(
        [
            {
                "shard_id": "0",
                "cursor": str(number),
                "event_time": NOON,
                "key": None,
                "value": line.encode(),
                "attributes": {},
            }
            for number, line in enumerate(lines)
        ],
        RECORD_DDL,
    )
    rows = namespace["visits"](records).orderBy("cursor").collect()
    assert [(row.path, row.status, row.quarantine_error) for row in rows] == [
        ("/cart", 200, None),
        ("/pay", None, None),
        (None, None, "no time"),
    ]
    assert rows[0].event_time.astimezone(UTC) == NOON
