"""Places and configuration of Spark: those that are taken, and what each refusal says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest

from dagster_leasehold.assets.spark.spark_settings import (
    PROTECTED,
    PROTECTED_HERE,
    SparkSettings,
    check_conf,
    check_mode,
)
from dagster_leasehold.lease_store.errors import InvalidSetting

ADDRESSES = [
    "sc://spark:15002",
    "spark://a:7077,b:7077",
    "k8s://https://host:6443",
    "yarn",
    "local",
    "local[2]",
]


@pytest.mark.parametrize("place", ["connect", "classic", *ADDRESSES])
def test_settings_and_sessions_take_the_same_places(place: str) -> None:
    assert check_mode(place) == place
    assert SparkSettings.model_validate(place).engine == place


@pytest.mark.parametrize("mode", ["", "conect", "http://x", "sc:/x", "localhost", "sc://"])
def test_wrong_places_are_one_sentence(mode: str) -> None:
    with pytest.raises(InvalidSetting, match="Spark cannot run at"):
        check_mode(mode)


def test_a_token_in_the_address_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_mode("sc://host:15002/;use_ssl=true;token=S3CRET")
    assert "S3CRET" not in str(caught.value)
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN" in str(caught.value)


@pytest.mark.parametrize(
    ("address", "engine"),
    [
        ("sc://h:1", "sc://h:1/;use_ssl=true"),
        ("sc://h:1/", "sc://h:1/;use_ssl=true"),
        ("sc://h:1/;user_id=x;", "sc://h:1/;user_id=x;use_ssl=true"),
        ("sc://h:1/;use_ssl=true", "sc://h:1/;use_ssl=true"),
    ],
)
def test_tls_is_a_parameter_of_the_address(address: str, engine: str, tmp_path: Path) -> None:
    assert SparkSettings(address=address, tls=True).engine == engine
    authority = tmp_path / "authority.pem"
    authority.touch()
    assert SparkSettings(address=address, certificate=authority).engine == engine


def test_keys_without_quotes_and_values_that_are_no_text_are_sparks_all_the_same() -> None:
    """In TOML, the dots of a key without quotes make tables."""
    spark = SparkSettings.model_validate(
        {"memory": "4g", "conf": {"spark": {"executor": {"cores": 2}, "a": True}, "spark.x": "y"}}
    )
    conf = {"spark.executor.cores": "2", "spark.a": "true", "spark.x": "y"}
    assert spark.conf == conf
    assert spark.whole_conf == {**conf, "spark.driver.memory": "4g"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"mode": "connect", "address": "spark://h:1"}, "leave spark.mode out"),
        ({"mode": "classic", "address": "sc://h:1"}, "leave spark.mode out"),
        ({"address": "connect"}, "which is a spark.mode"),
        ({"address": "sc://h:1", "memory": "2g"}, "has its own"),
        ({"memory": "2"}, "use 512m or more"),
        ({"memory": "511m"}, "use 512m or more"),
        ({"tls": True}, "for an sc:// address"),
        ({"address": "sc://h:1", "certificate": "/nowhere.pem"}, "name a file by its whole path"),
        ({"address": "sc://h:1", "environment_archive": "/nowhere.tar.gz"}, "by its whole path"),
        ({"environment_archive": "/nowhere.tar.gz"}, "for a Spark with an address"),
        ({"conf": {"executor.cores": "1"}}, "begin with 'spark.'"),
        ({"conf": {"spark.hadoop.fs.s3a.secret.key": "S3CRET"}}, "holds a secret"),
        ({"conf": {"spark.connect.authenticate.token": "S3CRET"}}, "holds a secret"),
        ({"conf": {"spark.hadoop.x": "https://me:S3CRET@host/"}}, "holds a secret"),
    ],
)
def test_what_cannot_be_meant_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message) as caught:
        SparkSettings.model_validate(table)
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize("key", [*PROTECTED, *PROTECTED_HERE])
def test_what_others_rely_on_is_not_overridden(key: str) -> None:
    with pytest.raises(InvalidSetting, match=f"may not set {key}: "):
        check_conf("connect", {key: "x"})
