"""The page of the command line: output of commands that start Spark, printed with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_leasehold.assets.spark import connect_server
from tests.unit.docs.command_scene import HOME, play

pytestmark = pytest.mark.long

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/command-line.md"


@pytest.mark.spark
def test_replay_prints_what_the_page_says(tmp_path: Path) -> None:
    try:
        outputs = play(tmp_path, with_spark=True)
    finally:
        connect_server.stop(tmp_path / HOME / "spark")
    command, output = outputs["replay",]
    assert f"$ {command}\n{output}\n" in PAGE.read_text("utf-8")
