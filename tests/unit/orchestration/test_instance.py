from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dagster import DagsterInstance

from dagster_leasehold.orchestration.instance import OWNED_MARK, create_instance
from dagster_leasehold.orchestration.settings import Settings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(home=tmp_path / "home")


def test_a_fresh_home_becomes_a_working_instance(settings):
    home = create_instance(settings)
    with DagsterInstance.from_config(str(home)) as instance:
        assert instance.get_runs_count() == 0
        assert not instance.telemetry_enabled
        assert instance.get_settings("sensors")["use_threads"] is True
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert {limit["key"] for limit in queue.tag_concurrency_limits} == {
            "dagster/partition",
            "leasehold/node",
            "dagster/backfill",
        }


def test_several_processes_may_create_it_at_once(settings):
    code = (
        "from dagster_leasehold.orchestration.instance import create_instance\n"
        "from dagster_leasehold.orchestration.settings import Settings\n"
        f"create_instance(Settings(home={str(settings.home)!r}))\n"
    )
    starting = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in starting:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


def test_a_configuration_of_the_user_stays(settings):
    home = create_instance(settings)
    path = home / "dagster.yaml"
    assert path.read_text().startswith(OWNED_MARK)
    path.write_text("telemetry:\n  enabled: false\n")
    create_instance(settings)
    assert path.read_text() == "telemetry:\n  enabled: false\n"
