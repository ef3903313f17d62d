"""Sweeps on the embedded Spark Connect server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lease_store.errors import SweepInterrupted
from tests.integration.assets.sweeping import CASES, Sweeping

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, connect_session: Any, tmp_path: Path) -> None:
    getattr(Sweeping(connect_session, tmp_path), case)()


def slow(rows: Any) -> Any:
    from pyspark.sql import functions

    @functions.udf("string")
    def wait(value: bytes) -> str:
        time.sleep(0.5)
        return ""

    return rows.withColumn("slow", wait("value"))


def test_a_lost_lease_interrupts_the_job(connect_session: Any, tmp_path: Path) -> None:
    """Goal: a stale run must not burn cores. Method: half a second a record, doomed after one."""
    sweeping = Sweeping(connect_session, tmp_path)
    doomed = threading.Event()
    timer = threading.Timer(1.0, doomed.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(SweepInterrupted, match="interrupted"):
        sweeping.run(slow, doomed=doomed.is_set)
    assert time.monotonic() - began < 30, "all records would take minutes"
    assert connect_session.getTags() == set()
    sweeping.check_records_come_out_as_they_went_in()
