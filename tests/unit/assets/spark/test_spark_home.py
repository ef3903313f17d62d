"""The home of a local Spark: all of the installed one but its archives of Python code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_leasehold.assets.spark.spark_home import spark_home


@pytest.fixture(scope="module")
def installed() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def test_it_has_the_programs_and_the_jars_and_no_archive(tmp_path: Path, installed: Path) -> None:
    home = spark_home(tmp_path / "home")
    assert (home / "bin" / "spark-submit").samefile(installed / "bin" / "spark-submit")
    assert len(list((home / "jars").glob("*.jar"))) > 100
    assert (installed / "python" / "lib" / "pyspark.zip").exists(), "the archive is still there"
    assert not (home / "python").exists()


def test_a_link_to_an_installation_that_has_gone_is_replaced(
    tmp_path: Path, installed: Path
) -> None:
    (tmp_path / "jars").symlink_to(tmp_path / "gone")
    for _ in range(2):
        home = spark_home(tmp_path)
        assert (home / "jars").samefile(installed / "jars")
        assert sorted(path.name for path in home.glob("*.draft")) == []
