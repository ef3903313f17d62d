"""Partitions of several kinds between real hosts: each record is left once."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.dagster_deployment import ROOT
from tests.network.hosts import reason_missing
from tests.network.partitions import kinds
from tests.spark_iceberg import without_spark_connect

CHOSEN = "cut|no answer|node . database|database > node"
"""Each pair of hosts is cut, each name gets no answer, and the database meets all there is."""


@pytest.mark.release
@pytest.mark.dagster_processes
@pytest.mark.mariadb
@pytest.mark.spark
@pytest.mark.timeout(2_400)
def test_partitions_leave_each_record_once() -> None:
    if reason := reason_missing():
        pytest.skip(reason)
    count = sum(bool(re.search(CHOSEN, kind)) for kind in kinds())
    played = subprocess.run(
        [sys.executable, "-m", "tests.network"],
        cwd=ROOT,
        env=without_spark_connect()
        | {"LEASEHOLD_CHAOS_KINDS": CHOSEN, "LEASEHOLD_CHAOS_PARTITIONS": str(count)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(played.stdout, played.stderr)  # noqa: T201
    assert played.returncode == 0
    assert f"{count} incidents" in played.stdout
    assert " 0 violations" in played.stdout
