"""The demo's last query tells a table that lacks records from one that has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.demo.query import query_table
from tests.unit.orchestration.consumed_home import ConsumedHome


def test_the_count_of_the_engine_is_compared_with_what_was_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    assert not query_table(home.store, home.settings, home.stream, 20)
    assert "DuckDB counts 0 records, and 20 were committed." in capsys.readouterr().out
    assert main(["table", "create", "demo", "--home", str(home.settings.home)]) == 0
    assert query_table(home.store, home.settings, home.stream, 20)
    assert "DuckDB counts 20 records, as many as were committed." in capsys.readouterr().out
