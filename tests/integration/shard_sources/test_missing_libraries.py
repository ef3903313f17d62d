"""A host without the sources' client libraries: each error names the command that installs one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from dagster_leasehold.shard_sources.registry import source_kind
from tests.declared import declare, stream_text

REPOSITORY = Path(__file__).parents[3]
STREAMS = {
    "kafka": {"bootstrap_servers": "127.0.0.1:1"},
    "kinesis": {"region": "eu-west-1"},
    "loghub": {"endpoint": "cn-hangzhou.log.aliyuncs.com", "project": "my-project"},
}


@pytest.fixture(scope="module")
def bare_host(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that sees all installed packages but these libraries."""
    folder = tmp_path_factory.mktemp("packages")
    lacking = tuple(source_kind(name).library for name in STREAMS)
    for scheme in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(scheme)).iterdir():
            link = folder / path.name
            if not path.name.startswith(lacking) and not link.exists():
                link.symlink_to(path)
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(REPOSITORY)))}


def command(arguments: list[str], home: Path, environment: dict[str, str]):
    # -S: the packages of this environment are seen through the fixture's folder alone.
    line = [sys.executable, "-S", "-m", "dagster_leasehold.orchestration.command_line", *arguments]
    return subprocess.run(
        [*line, "--home", home],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("source", "arguments"),
    [("kafka", ["dev", "--nodes", "2"]), ("kinesis", ["dev"]), ("loghub", ["node", "--name", "a"])],
)
def test_a_missing_library_prevents_the_start_and_is_named_with_its_install_command(
    source: str, arguments: list[str], tmp_path: Path, bare_host: dict[str, str]
) -> None:
    module = declare(tmp_path, stream_text("orders", source, options=STREAMS[source]))
    done = command(arguments, tmp_path, bare_host)
    kind = source_kind(source)
    assert done.returncode != 0
    assert done.stderr.strip() == (
        f"The source '{source}' needs the library {kind.library}, which is not installed here: run "
        f"`{kind.install}` here and on Spark's workers."
    )
    assert done.stdout == ""
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {
        "leasehold.toml",
        f"{module}.py",
    }


@pytest.mark.parametrize("source", sorted(STREAMS))
def test_the_named_extra_exists(source: str) -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    [extra] = re.findall(r"'dagster-leasehold\[(\w+)\]'", source_kind(source).install)
    assert extra == source
    assert declared["project"]["optional-dependencies"][extra]
