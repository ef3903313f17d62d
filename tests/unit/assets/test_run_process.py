from __future__ import annotations

import subprocess
import sys

import dagster as dg
import psutil
import pytest
from dagster._core.storage.tags import TagType, get_tag_type

from dagster_leasehold.assets import run_process
from dagster_leasehold.assets.consuming.run_requests import (
    FINISH_TAG,
    RELEASE_TAG,
    STOP_TAG,
    TAKE_TAG,
)
from dagster_leasehold.assets.partitions import PROCESS_TAG, STREAM_TAG, WORK_MAX_TAG
from dagster_leasehold.assets.run_process import (
    ended_runs,
    process_ended,
    process_note,
    recorded_process,
    tag_run,
    tag_shards,
)
from tests.unit.sensors.streams import scripted_stream


def test_this_process_is_alive():
    assert not process_ended(process_note())


def test_an_ended_process_is_reported_as_ended():
    code = f"from {run_process.__name__} import process_note; print(process_note())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert process_ended(done.stdout.strip())


def test_a_reused_process_id_is_recognized_by_its_start_time():
    place, pid, start = process_note().split("|")
    assert process_ended(f"{place}|{pid}|{int(start) - 1}")


@pytest.mark.parametrize("step_s", [-3600.0, -2.5, 2.5, 3600.0])
def test_a_step_of_the_wall_clock_ends_no_process(step_s: float, monkeypatch: pytest.MonkeyPatch):
    """psutil counts a start from the time of boot, which is the wall clock less the uptime."""
    note, before = process_note(), psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: before(self) + step_s)
    assert not process_ended(note)


def test_a_container_with_the_same_host_name_does_not_judge_our_processes():
    """Goal: no live run is failed. Method: a real pid namespace judges this very process."""
    code = (
        f"import sys; from {run_process.__name__} import process_ended, process_note; "
        "print(process_ended(sys.argv[1]), process_note())"
    )
    own = process_note()
    there = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, own]
    looked = subprocess.run(there, capture_output=True, text=True, timeout=60, check=False)
    if "unshare:" in looked.stderr or "Operation not permitted" in looked.stderr:
        pytest.skip("this machine lets nobody make a pid namespace")
    gone, note = looked.stdout.split(maxsplit=1)
    assert gone == "False"
    # Nor is one of its processes judged, whose number can belong to any process here.
    assert note.partition("|")[0] != own.partition("|")[0]
    assert not process_ended(note.strip())


@pytest.mark.parametrize(
    "note", ["", "x", "a|b|c", "|", "elsewhere.example|4194303|1", "host|7|1.5"]
)
def test_an_unknown_process_is_not_reported_as_ended(note):
    assert not process_ended(note)


def test_a_run_has_ended_when_it_is_final_or_unknown():
    with dg.DagsterInstance.ephemeral() as instance:
        runs = {
            status: dg.DagsterRun(job_name="job", status=status)
            for status in (
                dg.DagsterRunStatus.STARTED,
                dg.DagsterRunStatus.SUCCESS,
                dg.DagsterRunStatus.FAILURE,
                dg.DagsterRunStatus.CANCELED,
            )
        }
        for run in runs.values():
            instance.add_run(run)
        asked = {run.run_id for run in runs.values()} | {"never-heard-of"}
        assert ended_runs(instance, asked) == asked - {runs[dg.DagsterRunStatus.STARTED].run_id}
        assert ended_runs(instance, []) == set()


def test_a_run_stores_its_process_in_a_hidden_tag():
    stream, _ = scripted_stream()
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.add_run(dg.DagsterRun(job_name="job"))
        tag_run(instance, run.run_id, stream)
        noted = instance.get_run_by_id(run.run_id)
    assert noted is not None
    assert recorded_process(noted) == process_note()
    assert [tag for tag in noted.tags if get_tag_type(tag) is not TagType.HIDDEN] == [STREAM_TAG]


def test_a_repeated_run_is_not_mistaken_for_its_dead_predecessor():
    """Dagster copies the tags of the dead run, with a process that is gone."""
    with dg.DagsterInstance.ephemeral() as instance:
        dead = instance.add_run(dg.DagsterRun(job_name="job"))
        tag_run(instance, dead.run_id, scripted_stream()[0])
        tags = getattr(instance.get_run_by_id(dead.run_id), "tags", {})
    assert recorded_process(dg.DagsterRun(job_name="job", tags=tags)) == ""
    assert PROCESS_TAG in tags


@pytest.mark.parametrize(
    "tag", [WORK_MAX_TAG, PROCESS_TAG, TAKE_TAG, f"{RELEASE_TAG}0", FINISH_TAG, STOP_TAG]
)
def test_tags_between_processes_are_hidden_in_dagster(tag: str) -> None:
    assert get_tag_type(tag) is TagType.HIDDEN


def test_a_run_shows_its_shards_and_records() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(dg.job(name="job")(lambda: None))
        tag_shards(instance, run.run_id, ["0", "2"], "12,345 read, nothing unread")
        tag_shards(instance, run.run_id, (), "12,400")
        shown = instance.get_run_by_id(run.run_id)
    assert shown is not None
    assert shown.tags["leasehold/shards"] == "0, 2"
    assert shown.tags["leasehold/records"] == "12,400"


def test_a_storage_that_refuses_tags_does_not_fail_a_run() -> None:
    class Refusing:
        def add_run_tags(self, *_: object) -> None:
            raise ConnectionError("away")

    tag_shards(Refusing(), "run", ["0"], "7")  # type: ignore[arg-type]
