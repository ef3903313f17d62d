"""Runs commands in this process, and returns their output."""

from __future__ import annotations

import pytest

from dagster_leasehold.orchestration.command_line import main


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Return the output of a command, or the sentence of its error."""
    capsys.readouterr()
    done = main(list(arguments))
    captured = capsys.readouterr()
    assert done == code, captured.err
    if code != 2:
        return captured.out
    assert captured.err.count("\n") == 1
    return captured.err
