from __future__ import annotations

import subprocess
import sys

import dagster as dg
import pytest

from assets.run_process import ended_runs, process_gone, process_note


def test_this_process_is_there():
    assert not process_gone(process_note())


def test_a_process_that_ended_is_gone():
    code = "from assets.run_process import process_note; print(process_note())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert process_gone(done.stdout.strip())


def test_a_reused_process_id_is_told_by_its_start_time():
    host, pid, start = process_note().split("|")
    assert process_gone(f"{host}|{pid}|{float(start) - 60:.2f}")


@pytest.mark.parametrize("note", ["", "x", "a|b|c", "|", "elsewhere.example|4194303|1.0"])
def test_what_cannot_be_told_is_not_called_gone(note):
    assert not process_gone(note)


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
