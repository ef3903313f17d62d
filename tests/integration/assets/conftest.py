"""Real Spark for the tests: one Connect server a test session, classic sessions in a process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assets import connect_server
from assets.spark_resource import SparkResource
from tests.integration.assets.runs import new_home


@pytest.fixture(scope="session")
def spark_folder() -> Iterator[Path]:
    """The folder of the one embedded server; it is stopped when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-spark-"))
    before = os.environ.get(connect_server.TOKEN_VARIABLE)
    yield folder
    connect_server.stop(folder)
    if before is None:
        os.environ.pop(connect_server.TOKEN_VARIABLE, None)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def connect_session(spark_folder: Path) -> Any:
    """A session of the embedded Connect server, as a run gets it."""
    return SparkResource(mode="connect", folder=str(spark_folder)).spark_session


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A small deployment whose shards are all claimed."""
    return new_home(tmp_path)
