"""Programs that run in forks of `leasehold dev`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PARENT = """
import os, sys, threading
from pathlib import Path
from dagster_leasehold.orchestration.supervision import forked_programs
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess

forked_programs.make_forkable("dev", {**os.environ, "SHOWN": "to others"}, ["json"])
if "busy" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
folder = Path(__file__).parent
command = [sys.executable, "-m", "program", "--option", "x" * 500]
child = ChildProcess(
    "it", command, log=folder / "log", environment={"OWN": "1"}, folder=folder, forked=True
)
with child:
    while child.exit_code() is None:
        pass
    print(child.exit_code())
"""
LOADING = """
import gc
from dagster_leasehold.orchestration.supervision.forked_programs import load

frozen = [[] for _ in range(1_000_000)]
load([])
full = gc.get_stats()[2]["collections"]
later = [[] for _ in range(100_000)]
print(gc.get_stats()[2]["collections"] - full)
"""
PROGRAM = """
import gc, json, os, sys
import psutil

me = psutil.Process()
print(json.dumps({
    "arguments": sys.argv[1:],
    "line": me.cmdline(),
    "variables": dict(os.environ),
    "shown": me.environ().get("SHOWN"),
    "leads": os.getsid(0) == os.getpid(),
    "forked": "dagster_leasehold" in sys.modules,
    "collects": gc.isenabled(),
    "files": [int(each) for each in os.listdir("/proc/self/fd")],
}))
sys.exit(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems start an interpreter")
@pytest.mark.parametrize("state", ["calm", "busy"])
def test_a_forked_program_looks_like_a_started_one(tmp_path: Path, state: str) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "parent.py"), "dev", state]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "3\n"
    report = json.loads((tmp_path / "log").read_text())
    arguments = ["--option", "x" * 500]
    assert report["arguments"] == arguments
    assert report["line"] == [sys.executable, "-m", "program", *arguments]
    assert report["variables"]["OWN"] == "1"
    assert "SHOWN" not in report["variables"]
    assert report["leads"]
    assert report["forked"] == (state == "calm"), "two threads would not survive a fork"
    if report["forked"]:
        assert report["shown"] == "to others"
    assert report["collects"], "garbage in cycles would remain"
    assert max(report["files"]) <= 3, "it holds no file of its parent"


def test_frozen_objects_do_not_delay_the_collection_of_garbage() -> None:
    output = subprocess.check_output([sys.executable, "-c", LOADING], text=True)
    assert int(output) > 0, "garbage in cycles would remain until a quarter million objects"
