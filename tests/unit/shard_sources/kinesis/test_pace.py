from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from dagster_leasehold.shard_sources.kinesis.pace import Pace
from tests.manual_clock import ManualClock

SHARD = "shardId-000000000000"


def pace(
    folder: Path, clock: ManualClock, calls_per_s: float = 5, bytes_per_s: int = 1_000
) -> Pace:
    return Pace(folder, calls_per_s, bytes_per_s, clock=clock, sleep=clock.pass_s)


def test_reads_of_a_shard_keep_their_distance_whoever_makes_them(tmp_path: Path) -> None:
    clock = ManualClock()
    sensor, worker = pace(tmp_path / "new", clock), pace(tmp_path / "new", clock)
    for _ in range(5):
        sensor.before_read(SHARD)
        worker.before_read(SHARD)
    assert clock.now_s == pytest.approx(1_000 + 9 / 5)


def test_shards_do_not_wait_for_each_other(tmp_path: Path) -> None:
    clock = ManualClock()
    each = pace(tmp_path, clock)
    for shard in ("a", "b", "c"):
        each.before_read(shard)
    assert clock.now_s == 1_000


def test_a_large_read_is_paid_for_before_the_next_one(tmp_path: Path) -> None:
    clock = ManualClock()
    each = pace(tmp_path, clock)
    each.before_read(SHARD)
    each.after_read(SHARD, 5_000)
    each.before_read(SHARD)
    assert clock.now_s == pytest.approx(1_005)
    each.after_read(SHARD, 10)
    each.before_read(SHARD)
    assert clock.now_s == pytest.approx(1_005.2)


def test_idle_time_is_not_saved_up(tmp_path: Path) -> None:
    clock = ManualClock()
    each = pace(tmp_path, clock)
    each.before_read(SHARD)
    clock.now_s += 100
    for _ in range(3):
        each.before_read(SHARD)
    assert clock.now_s == pytest.approx(1_100.4)


@pytest.mark.parametrize("left", ["99999.0", "not a number", ""])
def test_what_a_reboot_or_a_full_disk_has_left_holds_nobody_up(tmp_path: Path, left: str) -> None:
    clock = ManualClock()
    each = pace(tmp_path, clock)
    each.before_read(SHARD)
    (file,) = tmp_path.glob("*.pace")
    file.write_text(left)
    each.before_read(SHARD)
    assert clock.now_s <= 1_000.2


def test_a_host_without_the_folder_reads_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    clock = ManualClock()
    each = pace(tmp_path / "file", clock)
    each.before_read(SHARD)
    each.after_read(SHARD, 5_000)
    assert clock.now_s == 1_000


def read_some(folder: Path, times: int) -> None:
    each = Pace(folder, calls_per_s=40, bytes_per_s=1 << 30)
    for _ in range(times):
        each.before_read(SHARD)


def test_processes_of_one_host_share_the_pace(tmp_path: Path) -> None:
    """Method: real processes, whose reads together may not be faster than one's."""
    spawning = multiprocessing.get_context("spawn")
    read_some(tmp_path, 1)
    began = time.monotonic()
    processes = [spawning.Process(target=read_some, args=(tmp_path, 10)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert time.monotonic() - began >= 19 / 40
