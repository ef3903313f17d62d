"""The embedded Spark server on a host whose name does not resolve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dagster_leasehold.assets.spark.connect_server import stop
from tests.environment import forget_settings
from tests.network.hosts import ETC, network, reason_missing
from tests.spark_iceberg import without_spark_connect

START = """
import sys
from pathlib import Path
from dagster_leasehold.assets.spark.spark_session import connect_address
print(connect_address(Path(sys.argv[1])))
"""


@pytest.mark.release
@pytest.mark.spark
def test_an_embedded_server_starts_although_its_host_name_does_not_resolve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := reason_missing():
        pytest.skip(reason)
    forget_settings(monkeypatch)
    with network(["a"]) as hosts:
        (ETC / hosts.namespace("a") / "hosts").write_text("127.0.0.1 localhost\n")
        command = hosts.on("a", sys.executable, "-c", START, str(tmp_path / "spark"))
        try:
            started = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
                env=without_spark_connect(),
            )
        finally:
            stop(tmp_path / "spark")
    assert started.stdout.startswith("sc://"), started.stderr[-2_000:]
