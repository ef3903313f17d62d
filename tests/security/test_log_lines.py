"""Input cannot forge log lines: text from outside stays within one line."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import LeaseholdError, shown
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.shard_sources.positions import parse_offset
from tests.unit.lease_store.test_identifiers import HOSTILE

FORGED = "x\n2026-01-01 00:00:00 - dagster - INFO - all is well\x1b[31m%s%n\r\u2028y"


@pytest.mark.parametrize("text", [*HOSTILE, FORGED])
def test_shown_values_are_one_printable_line(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text)) < 300


@pytest.mark.parametrize(
    "raising",
    [
        ShardId,
        NodeName,
        lambda text: GroupKey.parse(text, "s"),
        lambda text: parse_offset(ShardId("0"), text),
        lambda text: load_settings(spark=text),
        lambda text: load_settings(nodes=text),
        lambda text: load_settings(lease_timeout_s=text),
    ],
)
def test_errors_that_quote_input_are_one_line(raising: object) -> None:
    with pytest.raises(LeaseholdError) as caught:
        raising(FORGED)  # type: ignore[operator]
    assert len(str(caught.value).splitlines()) == 1
    assert "\x1b" not in str(caught.value)


def test_a_logged_error_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the text contains placeholders of log messages."""
    with pytest.raises(LeaseholdError) as caught:
        ShardId(FORGED)
    logging.getLogger("dagster_leasehold.lease_store").warning("Refused: %s", caught.value)
    [record] = caplog.records
    assert len(record.getMessage().splitlines()) == 1


def test_the_command_line_answers_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dagster_leasehold.orchestration.command_line", "cat",
         FORGED, "--home", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "\x1b[31m" not in done.stderr
    assert not any(line.startswith("2026-01-01") for line in done.stderr.splitlines())


def test_no_setting_shows_the_url_of_the_database() -> None:
    settings = Settings(database_url="mysql://user:hunter2@host/database")  # type: ignore[arg-type]
    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump()} {settings.store_url}"
