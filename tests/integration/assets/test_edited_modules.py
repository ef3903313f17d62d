"""Modules that a transform imports, edited between two runs that share the embedded server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_leasehold.assets.spark import connect_server
from tests.integration.assets.runs import PROJECT
from tests.integration.assets.sweeping import Sweeping

pytestmark = pytest.mark.spark
RUN_S = 150.0
TRANSFORMS = """
from dagster_leasehold import arrow_transform
from pyspark.sql import functions

from shop.rules import price_of


@arrow_transform
def arrow(table):
    from shop.prices import PRICE

    prices = [f"{price_of(value)} {PRICE}" for value in table["value"]]
    return table.append_column("price", [prices])


def frames(rows):
    def price(value):
        from shop.prices import PRICE

        return f"{price_of(value)} {PRICE}"

    return rows.withColumn("price", functions.udf(price, "string")("value"))
"""
RULES = """
from shop.prices import PRICE


def price_of(value):
    return PRICE
"""


def write_project(folder: Path, price: str) -> None:
    package = folder / "shop"
    package.mkdir(exist_ok=True)
    (package / "transforms.py").write_text(TRANSFORMS)
    (package / "rules.py").write_text(RULES)
    (package / "prices.py").write_text(f"PRICE = {price!r}\n")


def run(project: Path, spark_folder: Path, scratch: Path) -> dict[str, list[str]]:
    """Return the prices that a separate process finds in its output, with Arrow or DataFrames."""
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(spark_folder), str(scratch)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(project), str(PROJECT)])},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def folder_of_spark(tmp_path: Path) -> Iterator[Path]:
    """The state of a server of this test's own: its workers find the project on their path."""
    folder = tmp_path / "spark"
    yield folder
    connect_server.stop(folder)


def test_the_next_run_uses_edited_modules(tmp_path: Path, folder_of_spark: Path) -> None:
    """Goal: no output by old code. Method: modules that transforms import change, and transforms do
    not.

    Workers of the first run are still alive. One module of the project has imported another, and
    the functions of the transforms import it again each time.
    """
    project = tmp_path / "project"
    project.mkdir()
    for price in ("one", "three"):
        write_project(project, price)
        prices = run(project, folder_of_spark, tmp_path / price)
        assert prices == {"arrow": [f"{price} {price}"], "frames": [f"{price} {price}"]}


def main(spark_folder: Path, scratch: Path) -> None:
    from shop import transforms  # pyright: ignore[reportMissingImports]

    from dagster_leasehold.assets.spark.spark_resource import SparkResource

    sweeping = Sweeping(SparkResource(folder=str(spark_folder)).spark_session, scratch)
    prices: dict[str, list[str]] = {}
    for way in ("arrow", "frames"):
        outcomes = sweeping.run(getattr(transforms, way)).values()
        columns = [sweeping.table(outcome).column("price").to_pylist() for outcome in outcomes]
        prices[way] = sorted({price for column in columns for price in column})
    sys.stdout.write(json.dumps(prices) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
