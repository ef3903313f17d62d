"""The environment that a test starts from."""

from __future__ import annotations

import os

import pytest

from dagster_leasehold.orchestration.settings import PREFIX


def forget_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away, until the test ends, every setting that the environment carries."""
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
