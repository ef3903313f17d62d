"""Commands on a full or read-only disk, as real mounts that no other process sees."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.leasehold_process import COMMAND, environment
from tests.declared import declare

SPACE_KB = 1_024


def mounts_allowed() -> bool:
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return tried.returncode == 0


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not mounts_allowed(), reason="this account may not mount anything"),
]


def script(tmp_path: Path, *lines: str) -> list[tuple[int, str]]:
    """Run lines of shell with mounts of their own: of each command its exit code and its words.

    A line that begins with `leasehold` is such a command; the others only prepare.
    """
    declare(tmp_path, "demo")
    steps = ["set -e", f"cd {shlex.quote(str(tmp_path))}"]
    for line in lines:
        if line.startswith("leasehold "):
            words = " ".join(map(shlex.quote, COMMAND)) + line.removeprefix("leasehold")
            steps.append(f'echo "== $({words} 2>&1 && echo 0 || echo $?)"')
        else:
            steps.append(line)
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", "\n".join(steps)],
        env=environment(),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [answer.strip() for answer in done.stdout.split("== ")[1:]]
    return [
        (int(answer.splitlines()[-1]), "\n".join(answer.splitlines()[:-1])) for answer in answers
    ]


def test_a_full_disk_is_reported_as_a_full_disk(tmp_path: Path) -> None:
    fill = "dd if=/dev/zero of=disk/fill bs=1k 2>dd.log || true"
    answers = script(
        tmp_path,
        f"mkdir disk && mount -t tmpfs -o size={SPACE_KB}k tmpfs disk",
        "leasehold group create demo --group counting --home disk/home",
        fill,
        "leasehold group pause demo --group counting --home disk/home",
        "leasehold checkpoint set demo 0 5 --force --group counting --home disk/home",
        "leasehold group create demo --group counting --home disk/another",
        "rm disk/fill",
        "leasehold group pause demo --group counting --home disk/home",
    )
    assert answers[0][0] == answers[-1][0] == 0, answers
    for code, words in answers[1:-1]:
        assert code == 2
        assert words.startswith("The disk that holds the lease store at ")
        assert words.endswith(" is full: make room there; nothing was changed.")
        assert len(words.splitlines()) == 1


@pytest.mark.parametrize("command", ["dev", "dev --nodes 2"])
def test_no_process_starts_on_a_full_disk(tmp_path: Path, command: str) -> None:
    """Goal: one sentence, before a home is made or anything is started that would fail half-way."""
    fill = "dd if=/dev/zero of=disk/fill bs=1k 2>dd.log || true"
    ((code, words),) = script(
        tmp_path,
        f"mkdir disk && mount -t tmpfs -o size={SPACE_KB}k tmpfs disk",
        fill,
        f"leasehold {command} --home disk/home",
        "test ! -e disk/home",
    )
    assert code == 2, words
    assert words.startswith("The disk of the home disk/home has 0 MiB left, but ")
    assert words.endswith(" free some space, or give a folder on another disk with --home.")
    assert len(words.splitlines()) == 1


@pytest.mark.parametrize("somebody_writes", [pytest.param(False, marks=pytest.mark.release), True])
def test_a_read_only_home_can_be_read(tmp_path: Path, somebody_writes: bool) -> None:
    """Reading needs no write, whether the store is closed or open in another process."""
    (tmp_path / "in.log").write_bytes(b"one\ntwo\n")
    opened = (
        "python3 -c \"import sqlite3, time; c = sqlite3.connect('home/leases.db', "
        "isolation_level=None); c.execute('begin immediate'); c.execute('update consumer_group "
        "set generation = generation + 1'); c.execute('commit'); print(1, flush=True); "
        'time.sleep(600)" >writer.log & writer=$!; while ! [ -s writer.log ]; do sleep 0.1; done'
    )
    answers = script(
        tmp_path,
        "leasehold load demo in.log --home home",
        "leasehold group create demo --home home",
        *([opened] if somebody_writes else []),
        "mkdir seen && mount --bind home seen && mount -o remount,bind,ro seen",
        "leasehold status --home seen --json",
        "leasehold cat demo --home seen",
        "leasehold verify --home seen",
        "leasehold journal --home seen",
        "leasehold group pause demo --home seen",
        *(["kill $writer"] if somebody_writes else []),
    )
    *looks, pause = answers[2:]
    assert [code for code, _ in looks] == [0, 0, 0, 0], looks
    assert '"demo"' in looks[0][1]
    assert pause[0] == 2
    assert "takes no writes" in pause[1]
    assert len(pause[1].splitlines()) == 1
