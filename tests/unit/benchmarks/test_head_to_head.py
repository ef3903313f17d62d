"""The parts of the head-to-head benchmark that count: schedules, readable output, recovery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.rivals.log_feed import SHARDS, record_of, value_of
from benchmarks.rivals.output_files import (
    Sightings,
    all_files,
    finished_files,
    lost_and_doubled,
    write_durably,
)
from benchmarks.rivals.strikes import KINDS, MARK, Schedule, marked, send


def test_a_schedule_has_each_kind_once_before_it_repeats_one() -> None:
    for seed in range(20):
        strikes = Schedule(seed, 6, calm_s=2.0, slot_s=25.0).strikes()
        assert strikes == Schedule(seed, 6, calm_s=2.0, slot_s=25.0).strikes()
        assert [strike.at_s for strike in strikes] == [2.0 + 25.0 * n for n in range(6)]
        kinds = sorted((strike.verb, strike.moment) for strike in strikes)
        assert kinds == sorted([*KINDS, *KINDS[:2]])


def test_a_value_names_its_record() -> None:
    assert record_of(value_of(3, 12_345)) == (3, 12_345)


def test_missing_and_duplicated_records_are_counted(tmp_path: Path) -> None:
    """Goal: a draft and a file in a hidden folder count for no reader, but as begun."""
    for worker, numbers in (("0", range(10)), ("1", range(8, 18))):
        write_durably(tmp_path, worker, [value_of(0, n) for n in numbers])
    for shard in range(1, SHARDS):
        write_durably(tmp_path, "0", [value_of(shard, n) for n in range(20)])
    (tmp_path / "_temporary").mkdir()
    write_durably(tmp_path / "_temporary", "0", [value_of(0, 18)])
    (tmp_path / ".0-draft.parquet").touch()
    files = finished_files(tmp_path)
    assert lost_and_doubled(files, 20) == (2, 2)
    assert len(files) == 5
    assert len(list(all_files(str(tmp_path)))) == 7


def test_output_that_was_never_written_is_an_error(tmp_path: Path) -> None:
    write_durably(tmp_path, "0", [value_of(0, 5)])
    with pytest.raises(AssertionError, match="never written"):
        lost_and_doubled(finished_files(tmp_path), 5)


def test_recovery_ends_with_the_last_record_of_the_append_after_the_strike(tmp_path: Path) -> None:
    appends = [(1.0, 2), (2.0, 4), (3.0, 6)]
    sightings = Sightings()
    for end, now_s in ((2, 1.5), (4, 7.0)):
        write_durably(
            tmp_path, "0", [value_of(s, n) for s in range(SHARDS) for n in range(end - 2, end)]
        )
        sightings.look(finished_files(tmp_path), now_s)
    assert sightings.recovery_s(0.5, appends) == 1.0
    assert sightings.recovery_s(1.5, appends) == 5.5
    assert sightings.recovery_s(2.5, appends) is None
    assert sightings.readable(4)
    assert not sightings.readable(5)
    assert sightings.age_s(appends) == 2.75


def test_a_signal_reaches_every_process_of_a_worker() -> None:
    mark = f"test {os.getpid()}"
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    worker = subprocess.Popen(
        [sys.executable, "-c", nested],
        env={**os.environ, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        while len(processes := list(marked([mark]))) < 2:
            pass
        send(mark, signal.SIGKILL)
        assert worker.wait(10) == -signal.SIGKILL
        assert psutil.wait_procs(processes, timeout=10)[1] == []
        assert list(marked([mark])) == []
    finally:
        worker.kill()
