"""`leasehold doctor --spark`: what a real worker of Spark has."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import pytest

from dagster_leasehold.orchestration.commands.doctor import worker_versions

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_a_worker_tells_its_python_and_its_packages(connect_session: Any) -> None:
    here = [version(name) for name in ("pyspark", "pyarrow")]
    assert worker_versions(connect_session) == [platform.python_version(), *here]
