"""Commands of this process, and what they print."""

from __future__ import annotations

import pytest

from dagster_leasehold.orchestration.command_line import main


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Return what a command prints; its one sentence where it is a mistake."""
    capsys.readouterr()
    done = main(list(arguments))
    captured = capsys.readouterr()
    assert done == code, captured.err
    if code != 2:
        return captured.out
    assert captured.err.count("\n") == 1
    return captured.err
