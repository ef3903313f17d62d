"""The deployment as a resource: where its settings come from, and who works for it."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.resources import LeaseholdResource
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.environment import forget_settings
from tests.unit.assets.test_lease_asset import materialized
from tests.unit.sensors.streams import scripted_stream

MODULE = """
import dagster as dg
from dagster_leasehold import *


@dg.definitions
def defs():
    leasehold = LeaseholdResource(database_url=dg.EnvVar("BRANCH_DATABASE"), output="branch")
    return build_definitions([ShardStream("visits", LocalLog("log"))], leasehold)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_values_of_the_resource_override_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_OUTPUT", "of-the-environment")
    monkeypatch.setenv("LEASEHOLD_LEASE_TIMEOUT_S", "30")
    monkeypatch.setenv("BRANCH", f"sqlite:///{tmp_path}/branch.db")
    leasehold = LeaseholdResource(
        database_url=dg.EnvVar("BRANCH"), output="branch", nodes=["east", "west"], spark="local[1]"
    )
    settings = leasehold.settings()
    assert settings.store_url.get_secret_value() == f"sqlite:///{tmp_path}/branch.db"
    assert (settings.output, settings.timing.timeout_s) == ("branch", 30.0)
    assert (settings.node_names, settings.spark.engine) == (("east", "west"), "local[1]")


def test_the_default_resource_has_the_values_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEASEHOLD_NODES", "east")
    assert LeaseholdResource().settings() == load_settings()


@pytest.mark.parametrize(
    ("leasehold", "sentence"),
    [
        (
            LeaseholdResource(database_url=dg.EnvVar("BRANCH")),
            "reads database_url from the environment variable BRANCH, which is not set",
        ),
        (
            LeaseholdResource(database_url="mysql+pymysql://a:hunter2@h/b"),
            "LeaseholdResource has a password in database_url, which Dagster would show",
        ),
        (LeaseholdResource(nodes=[]), "'nodes' from LeaseholdResource is not valid"),
    ],
)
def test_a_value_that_cannot_be_used_is_one_sentence(
    leasehold: LeaseholdResource, sentence: str
) -> None:
    with pytest.raises(InvalidSetting, match=sentence) as raised:
        build_definitions([scripted_stream()[0]], leasehold)
    assert "hunter2" not in str(raised.value)


def test_a_run_uses_the_deployment_of_its_resource(tmp_path: Path) -> None:
    """Goal: where a test replaces the resource, its runs leave the first deployment alone."""
    log = LocalLog.create(tmp_path / "log", 2)
    stream = ShardStream("visits", log)
    for home in ("one", "other"):
        own = LeaseholdResource(home=str(tmp_path / home))
        with dg.build_init_resource_context() as context:
            deployment = own.create_resource(context)
        if home == "one":
            deployment.store().create_group(stream.new_group(20.0))
        assert materialized(stream, deployment).success is (home == "one")
    job = build_definitions(
        [stream], LeaseholdResource(home=str(tmp_path / "one"))
    ).resolve_implicit_global_asset_job_def()
    key = dg.AssetKey(["leases", "visits_leases"])
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(instance=instance, asset_selection=[key]).success


def test_importing_a_module_reads_no_setting_and_commands_refuse_another_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "branch_project.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("branch_project")
    declared = DeclaredStreams(Settings(), "branch_project")
    with pytest.raises(InvalidSetting, match="BRANCH_DATABASE, which is not set"):
        declared.find("visits")
    monkeypatch.setenv("BRANCH_DATABASE", f"sqlite:///{tmp_path}/branch.db")
    with pytest.raises(InvalidSetting, match="has another database_url than the settings"):
        DeclaredStreams(Settings(), "branch_project").find("visits")
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", f"sqlite:///{tmp_path}/branch.db")
    assert main(["status", "visits", "-m", "branch_project"]) == 2
    assert "set LEASEHOLD_OUTPUT to the resource" in capsys.readouterr().err
    monkeypatch.setenv("LEASEHOLD_OUTPUT", "branch")
    assert DeclaredStreams(load_settings(), "branch_project").names == ("visits",)
