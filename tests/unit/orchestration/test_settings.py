"""Settings: where they come from, which wins, and one sentence for each mistake."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.orchestration.resources import spark_of
from dagster_leasehold.orchestration.settings import load_settings
from tests.environment import forget_settings


@pytest.fixture(autouse=True)
def _clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory and no variable of the prefix."""
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)


def test_without_settings_the_embedded_default_is_in_the_working_directory() -> None:
    settings = load_settings()
    assert settings.home == Path(".leasehold")
    assert settings.store_url.get_secret_value().startswith("sqlite:////")
    assert settings.timing.beat_s == pytest.approx(settings.timing.timeout_s / 3)


def test_a_relative_output_is_found_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "leasehold.toml").write_text('output = "lake/out"')
    for folder in (tmp_path, home):
        monkeypatch.chdir(folder)
        assert load_settings(home=home).output_root.address == home / "lake" / "out"


def test_options_override_the_environment_which_overrides_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "h"
    home.mkdir()
    Path("leasehold.toml").write_text(
        'home = "elsewhere"\nnodes = ["folder"]\nspark = "yarn"\nlease_timeout_s = 9\n'
    )
    (home / "leasehold.toml").write_text('nodes = ["of-home"]\nspark = "connect"\n')
    monkeypatch.setenv("LEASEHOLD_NODES", "a, b")
    settings = load_settings(home=home)
    assert settings.home == home
    assert settings.nodes == ("a", "b")
    assert settings.spark.engine == "connect"
    assert settings.lease_timeout_s == 9
    monkeypatch.delenv("LEASEHOLD_NODES")
    assert load_settings(home=home).nodes == ("of-home",)
    assert load_settings().nodes == ("folder",)


def test_spark_is_a_table_or_one_word_in_the_file_and_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("leasehold.toml").write_text(
        'nodes = ["a"]\n[spark]\naddress = "yarn"\nmemory = "3g"\n[spark.conf]\n'
        'spark.executor.cores = 2\n"spark.yarn.queue" = "logs"\n'
    )
    resource = spark_of(load_settings())
    assert resource.mode == "yarn"
    assert resource.conf == {
        "spark.executor.cores": "2",
        "spark.yarn.queue": "logs",
        "spark.driver.memory": "3g",
    }
    monkeypatch.setenv("LEASEHOLD_SPARK", "k8s://https://host:6443")
    assert load_settings().spark.engine == "k8s://https://host:6443"
    monkeypatch.setenv("LEASEHOLD_SPARK", '{"address": "local[1]", "conf": {"spark.a": "b"}}')
    assert spark_of(load_settings()).conf == {"spark.a": "b"}


def test_lists_come_from_the_environment_as_json() -> None:
    os.environ["LEASEHOLD_NODES"] = '["x", "y"]'
    try:
        settings = load_settings()
    finally:
        del os.environ["LEASEHOLD_NODES"]
    assert settings.nodes == ("x", "y")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LEASEHOLD_HOMEE", "x", "did you mean LEASEHOLD_HOME?"),
        ("LEASEHOLD_DATABASE", "x", "LEASEHOLD_DATABASE_URL"),
        ("LEASEHOLD_LEASE_TIMEOUT_S", "soon", "LEASEHOLD_LEASE_TIMEOUT_S"),
        ("LEASEHOLD_LEASE_TIMEOUT_S", "-1", "lease_timeout_s"),
        ("LEASEHOLD_NODES", "a,a", "named twice"),
        ("LEASEHOLD_NODES", "../a", "not a valid node name"),
        ("LEASEHOLD_NODES", ",", "at least one node"),
        ("LEASEHOLD_SPARK", "flink", "Spark cannot run at 'flink'"),
        ("LEASEHOLD_SPARK", '{"adress": "yarn"}', "did you mean address?"),
        ("LEASEHOLD_SPARK", '{"address": "connect"}', "remove it"),
        ("LEASEHOLD_SPARK", "{", "spark"),
        ("LEASEHOLD_STREAMS", "[]", "Declare streams in a Python module"),
    ],
)
def test_a_wrong_variable_is_one_sentence_that_names_it(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSetting, match=r"^[^\n]+\.$|^[^\n]+\?$") as caught:
        load_settings()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes = [", "cannot be read as settings"),
        ('node = ["a"]', "did you mean nodes?"),
        ('[[streams]]\nname = "a"', "Declare streams in a Python module, like the one"),
        ('[spark]\nmemory = "1"', "use 512m or more"),
        ('[spark.conf]\nspark.master = "local"', "spark.conf cannot set spark.master"),
        ('[spark.conf]\nspark.x.password = "hunter2"', "holds a secret"),
        ('database_url = "mysql+pymysql://u:hunter2@h/d"', "LEASEHOLD_DATABASE_URL"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(text: str, says: str) -> None:
    Path("leasehold.toml").write_text(text)
    with pytest.raises(InvalidSetting, match=r"^[^\n]+$") as caught:
        load_settings()
    assert says in str(caught.value)
    assert "leasehold.toml" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_settings_file_that_is_not_text_is_one_sentence() -> None:
    Path("leasehold.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSetting, match="cannot be read as settings"):
        load_settings()


def test_the_home_of_a_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "leasehold.toml").write_text('home = "x"')
    with pytest.raises(InvalidSetting, match="remove that line"):
        load_settings(home=tmp_path / "h")


def test_no_text_of_the_settings_contains_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", "mysql+pymysql://u:hunter2@127.0.0.1/leases")
    settings = load_settings()
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert "hunter2" in settings.store_url.get_secret_value()


def test_variables_of_tests_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_FAILPOINT", "after_intent")
    monkeypatch.setenv("LEASEHOLD_TEST_LOGS", "/nowhere")
    assert load_settings().nodes == ("local",)


def test_history_days_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().history_age == timedelta(days=30)
    monkeypatch.setenv("LEASEHOLD_HISTORY_DAYS", "90")
    assert load_settings().history_age == timedelta(days=90)
    monkeypatch.setenv("LEASEHOLD_HISTORY_DAYS", "forever")
    assert load_settings().history_age is None
    for wrong, sentence in (
        ("0", "'history_days' is not valid: History cannot be kept for 0 days: use 1 to"),
        ("nan", "'history_days' is not valid: History cannot be kept for nan days"),
        ("never", "history_days"),
    ):
        monkeypatch.setenv("LEASEHOLD_HISTORY_DAYS", wrong)
        with pytest.raises(InvalidSetting, match=re.escape(sentence)):
            load_settings()


def test_output_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StreamName("demo")
    home = load_settings().home.absolute()
    assert str(load_settings().output_folder(stream, "g")) == f"{home}/output/demo/g"
    monkeypatch.setenv("LEASEHOLD_OUTPUT", "s3://bucket/here")
    assert str(load_settings().output_folder(stream, "g")) == "s3://bucket/here/demo/g"
    monkeypatch.setenv("LEASEHOLD_OUTPUT", "s3://key:hunter2@bucket")
    with pytest.raises(InvalidSetting, match=r"^Setting 'output' is not valid: [^\n]+$") as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


def test_another_catalog_is_named_with_its_properties(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_CATALOG", "lake")
    monkeypatch.setenv("LEASEHOLD_CATALOG_PROPERTIES", '{"type": "rest", "uri": "https://lake"}')
    catalog = load_settings().catalog_settings
    assert (catalog.name, catalog.properties["type"]) == ("lake", "rest")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("credential", "id:hush"),
        ("s3.secret-access-key", "hush"),
        ("token", "hush"),
        ("uri", "mysql+pymysql://me:hush@db/lake"),
    ],
)
def test_secrets_of_a_catalog_come_only_from_its_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leasehold.toml").write_text(f'[catalog_properties]\n"{name}" = "{value}"\n')
    with pytest.raises(InvalidSetting, match="PYICEBERG_CATALOG__NAME__PROPERTY") as refused:
        load_settings()
    assert "hush" not in str(refused.value)
