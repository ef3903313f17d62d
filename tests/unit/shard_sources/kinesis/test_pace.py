from __future__ import annotations

import multiprocessing
import threading
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


def read(pace: Pace, size: int = 0, *, shard: str = SHARD) -> None:
    with pace.turn(shard) as charge:
        charge(size)


def test_reads_of_a_shard_by_several_processes_keep_their_distance(tmp_path: Path) -> None:
    clock = ManualClock()
    sensor, worker = pace(tmp_path / "new", clock), pace(tmp_path / "new", clock)
    for _ in range(5):
        read(sensor)
        read(worker)
    assert clock.now_s == pytest.approx(1_000 + 9 / 5)


def test_shards_do_not_wait_for_each_other(tmp_path: Path) -> None:
    clock = ManualClock()
    each = pace(tmp_path, clock)
    for shard in ("a", "b", "c"):
        read(each, shard=shard)
    assert clock.now_s == 1_000


def test_a_large_read_delays_the_next_one(tmp_path: Path) -> None:
    clock = ManualClock()
    each = pace(tmp_path, clock)
    read(each, 5_000)
    read(each)
    assert clock.now_s == pytest.approx(1_005)
    read(each)
    assert clock.now_s == pytest.approx(1_005.2)


def test_a_reader_waits_for_the_cost_of_a_read_in_progress(tmp_path: Path) -> None:
    """Goal: the second read is not refused. Method: it asks for its turn before the first ends."""
    pace = Pace(tmp_path, calls_per_s=50, bytes_per_s=1_000)
    starts: list[float] = []

    def second() -> None:
        with pace.turn(SHARD):
            starts.append(time.monotonic())

    waiting = threading.Thread(target=second)
    with pace.turn(SHARD) as charge:
        starts.append(time.monotonic())
        waiting.start()
        time.sleep(0.1)
        charge(400)
    waiting.join(10)
    assert starts[1] - starts[0] >= 0.39


def test_idle_time_is_not_saved_up(tmp_path: Path) -> None:
    clock = ManualClock()
    each = pace(tmp_path, clock)
    read(each)
    clock.now_s += 100
    for _ in range(3):
        read(each)
    assert clock.now_s == pytest.approx(1_100.4)


@pytest.mark.parametrize("left", ["99999.0", "not a number", ""])
def test_a_file_damaged_or_from_before_a_reboot_delays_no_read(tmp_path: Path, left: str) -> None:
    clock = ManualClock()
    each = pace(tmp_path, clock)
    read(each)
    (file,) = tmp_path.glob("*.pace")
    file.write_text(left)
    read(each)
    assert clock.now_s <= 1_000.2


def test_a_host_without_the_folder_reads_without_delay(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    clock = ManualClock()
    each = pace(tmp_path / "file", clock)
    read(each, 5_000)
    assert clock.now_s == 1_000


def read_some(folder: Path, times: int) -> None:
    each = Pace(folder, calls_per_s=40, bytes_per_s=1 << 30)
    for _ in range(times):
        read(each)


def test_processes_of_one_host_share_the_pace(tmp_path: Path) -> None:
    """Method: real processes, whose reads together are not faster than the reads of one."""
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
