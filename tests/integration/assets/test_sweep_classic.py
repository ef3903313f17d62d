"""Sweeps on a classic session, in a separate process: a process can have only one kind of
session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.assets.arrow_sweeping import CASES, ArrowSweeping

pytestmark = [pytest.mark.long, pytest.mark.spark]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outcome of every case, by name: empty where it passed."""
    folder = tmp_path_factory.mktemp("classic")
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    # A path with every program but Java: the session runs on the package's own, through the shim.
    tools = folder / "tools"
    tools.mkdir()
    for entry in reversed(environment["PATH"].split(os.pathsep)):
        for program in Path(entry).iterdir() if Path(entry).is_dir() else ():
            link = tools / program.name
            link.unlink(missing_ok=True)
            if program.name != "java":
                link.symlink_to(program)
    environment["PATH"] = str(tools)
    answer = subprocess.run(
        [sys.executable, "-m", __name__, str(folder)],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[3],
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    return json.loads((folder / "outcomes.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, outcomes: dict[str, str]) -> None:
    assert outcomes[case] == ""


def test_the_session_ran_on_the_java_of_the_package(outcomes: dict[str, str]) -> None:
    assert "/java/java-" in outcomes["java_home"]


def main(folder: Path) -> None:
    """Run all cases in this process."""
    import traceback

    from dagster_leasehold.assets.spark.spark_resource import SparkResource

    spark = SparkResource(mode="local[2]", folder=str(folder / "spark")).spark_session
    outcomes = {"java_home": os.environ["JAVA_HOME"]}
    for case in CASES:
        try:
            getattr(ArrowSweeping(spark, folder / case), case)()
            outcomes[case] = ""
        except Exception:
            outcomes[case] = traceback.format_exc()
    (folder / "outcomes.json").write_text(json.dumps(outcomes))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
