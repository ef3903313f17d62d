"""The README's first screen, as somebody types it who has installed the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from dagster_leasehold import LocalLog
from tests.environment import forget_settings
from tests.unit.docs.test_docs import ROOT, fences


def test_the_first_stream_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the file makes a log, and what Dagster loads from it finds the shards."""
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    [code] = fences(ROOT / "README.md", "python")
    assert code.startswith("# visits.py\n")
    Path("visits.py").write_text(code, "utf-8")
    [make_log, start_dagster] = [
        line.removeprefix("$ ")
        for block in fences(ROOT / "README.md", "console")
        for line in block.splitlines()
        if "visits" in line
    ]
    assert make_log == "python visits.py"
    subprocess.run([sys.executable, "visits.py"], check=True, timeout=60)
    assert [len(LocalLog("visits-log").list_shards())] == [4]

    named = re.fullmatch(r"python -m dagster dev -m (\w+)", start_dagster)
    assert named
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(named[1])
    monkeypatch.delitem(sys.modules, named[1])
    sensor = module.defs.get_repository_def().get_sensor_def("visits_shard_list")
    with dg.DagsterInstance.ephemeral() as instance, dg.build_sensor_context(instance) as context:
        [request] = sensor(context).dynamic_partitions_requests
    assert list(request.partition_keys) == ["0", "1", "2", "3"]


def test_the_first_screen_is_short() -> None:
    """Goal: a picture, the install line and about 15 lines of Python before the first heading."""
    text = (ROOT / "README.md").read_text("utf-8")
    screen = text[: text.index("\n## ")]
    assert re.search(r"!\[[^\]]+\]\(docs/images/[\w-]+\.svg\)", screen)
    assert "$ python -m pip install dagster-leasehold\n" in screen
    [code] = re.findall(r"^```python\n(.*?)^```$", screen, re.M | re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
