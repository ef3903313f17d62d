"""The demo's last query tells a table that lacks records from one that has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.declared_streams import stream_of
from dagster_leasehold.orchestration.demo.query import query_table
from tests.unit.orchestration.consumed_home import ConsumedHome


def test_the_count_of_the_engine_is_compared_with_what_was_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    stream = stream_of(home.settings.streams[0], home.settings)
    assert not query_table(home.store, home.settings, stream, 20)
    assert "DuckDB counts 0 records, and 20 were committed." in capsys.readouterr().out
    assert main(["table", "create", "demo", "--home", str(home.settings.home)]) == 0
    assert query_table(home.store, home.settings, stream, 20)
    assert "DuckDB counts 20 records, as many as were committed." in capsys.readouterr().out
