"""Goal: a process is known by boot, namespace, number and start. Method: real and made-up tables.

A made-up table is a folder that looks like `/proc`.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.lease_store.process_identity import (
    Existence,
    ProcessIdentity,
    current_boot,
    current_place,
    start_of,
)

OWN = os.getpid()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def table(folder: Path, *, boot: str = "boot-1", self_pid: int = OWN) -> Path:
    """Make a process table of one process: this one, which began at tick 700."""
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    (folder / str(self_pid) / "ns").mkdir(parents=True)
    (folder / str(self_pid) / "ns/pid").touch()
    (folder / "self").symlink_to(str(self_pid))
    note_stat(folder, self_pid, started=700)
    return folder


def note_stat(folder: Path, pid: int, *, started: int, state: str = "S") -> None:
    (folder / str(pid)).mkdir(exist_ok=True)
    fields = [str(pid), "(a ) (b)", state, *["0"] * 18, str(started), "0"]
    (folder / str(pid) / "stat").write_text(" ".join(fields))


def test_the_note_of_this_process_identifies_it_as_alive() -> None:
    own = ProcessIdentity.of(OWN)
    assert own.existence() is Existence.ALIVE
    assert ProcessIdentity.parse(str(own)) == own
    assert own.same_place


def test_a_process_counts_as_ended_before_its_exit_code_is_collected(
    child: subprocess.Popen[bytes],
) -> None:
    identity = ProcessIdentity.of(child.pid)
    assert identity.existence() is Existence.ALIVE
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.existence() is Existence.GONE, "a zombie"
    child.wait()
    assert identity.existence() is Existence.GONE
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(child.pid)


def test_a_reused_process_id_is_another_process(tmp_path: Path) -> None:
    proc = table(tmp_path)
    identity = ProcessIdentity.of(OWN, proc)
    assert identity.started == 700
    note_stat(proc, OWN, started=701)
    assert identity.existence(proc) is Existence.GONE


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_zombie_counts_as_ended(tmp_path: Path, state: str) -> None:
    proc = table(tmp_path)
    identity = ProcessIdentity.of(OWN, proc)
    note_stat(proc, OWN, started=700, state=state)
    assert identity.existence(proc) is Existence.GONE


def test_processes_of_another_boot_or_namespace_are_unknown(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "abc")
    identity = ProcessIdentity.of(OWN, table(first))
    assert identity.existence(table(second, boot="boot-2")) is Existence.UNKNOWN
    # Another namespace of the same boot has another inode.
    assert identity.existence(table(third)) is Existence.UNKNOWN
    assert identity.existence(first) is Existence.ALIVE


def test_the_table_of_another_namespace_is_not_read(tmp_path: Path) -> None:
    """A container whose `/proc` is its host's: the numbers there are not the ones that it sees."""
    proc = table(tmp_path, self_pid=OWN + 1)
    assert current_place(proc) == ""
    note_stat(proc, OWN, started=700)
    identity = ProcessIdentity.of(OWN, proc)
    assert identity.existence(proc) is Existence.UNKNOWN
    assert not identity.same_place


def test_a_hidden_process_does_not_count_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = table(tmp_path)
    identity = replace(ProcessIdentity.of(OWN, proc), pid=4_000_000)

    def hidden(pid: int, number: int) -> None:
        del pid, number
        raise PermissionError

    monkeypatch.setattr(os, "kill", hidden)
    assert identity.existence(proc) is Existence.UNKNOWN


def test_without_a_process_table_the_host_name_and_psutil_identify_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
) -> None:
    nowhere = tmp_path / "none"
    assert current_place(nowhere) == f"host-{platform.node()}"
    assert current_boot(nowhere).isdecimal()
    identity = ProcessIdentity.of(child.pid, nowhere)
    before = psutil.Process.create_time
    for step_s, existence in ((1.5, Existence.ALIVE), (60.0, Existence.GONE)):
        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "create_time", lambda self, s=step_s: before(self) + s)
            assert identity.existence(nowhere) is existence
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.existence(nowhere) is Existence.GONE
    child.wait()
    assert identity.existence(nowhere) is Existence.GONE
    assert start_of(child.pid, nowhere) is None


@pytest.mark.parametrize(
    "note",
    ["", "x", "a|b|c", "|", "a|1", "a|1|1.5", "a|-1|1", "a|²|1", f"a|1|{'9' * 30}", "a|1|1|1"],
)
def test_an_invalid_note_identifies_no_process(note: str) -> None:
    assert ProcessIdentity.parse(note) is None


def test_a_step_of_the_wall_clock_is_not_another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = current_boot()
    monkeypatch.setattr(psutil, "boot_time", lambda: 1.0)
    assert current_boot() == boot
