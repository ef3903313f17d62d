"""Addresses and configuration of Spark: accepted ones, and the text of each refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest

from dagster_leasehold.assets.spark.spark_settings import SparkSettings, check_conf, check_mode
from dagster_leasehold.lease_store.errors import InvalidSetting
from tests.unit.docs.test_docs import DOCS

ADDRESSES = [
    "sc://spark:15002",
    "spark://a:7077,b:7077",
    "k8s://https://host:6443",
    "yarn",
    "local",
    "local[2]",
]


@pytest.mark.parametrize("place", ["connect", *ADDRESSES])
def test_settings_and_sessions_accept_the_same_addresses(place: str) -> None:
    assert check_mode(place) == place
    assert SparkSettings.model_validate(place).engine == place


@pytest.mark.parametrize("mode", ["", "conect", "http://x", "sc:/x", "localhost", "sc://"])
def test_wrong_addresses_are_one_sentence(mode: str) -> None:
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
        ("sc://h:1/;use_ssl=TRUE;user_id=x", "sc://h:1/;use_ssl=TRUE;user_id=x"),
        ("sc://h:1/;do_not_use_ssl=x", "sc://h:1/;do_not_use_ssl=x;use_ssl=true"),
    ],
)
def test_tls_is_a_parameter_of_the_address(address: str, engine: str, tmp_path: Path) -> None:
    assert SparkSettings(address=address, tls=True).engine == engine
    authority = tmp_path / "authority.pem"
    authority.touch()
    assert SparkSettings(address=address, certificate=authority).engine == engine


@pytest.mark.parametrize("switch", ["use_ssl=false", "use_ssl=", "use_ssl=true;use_ssl=0"])
def test_an_address_that_switches_tls_off_does_not_go_with_tls(switch: str, tmp_path: Path) -> None:
    """Spark's client would connect in plain text, despite spark.tls."""
    address = f"sc://h:1/;{switch}"
    assert SparkSettings(address=address).engine == address
    authority = tmp_path / "authority.pem"
    authority.touch()
    for encrypted in ({"tls": True}, {"certificate": authority}):
        with pytest.raises(pydantic.ValidationError, match="remove use_ssl from spark"):
            SparkSettings.model_validate({"address": address, **encrypted})


def test_tls_takes_no_token_in_the_address_either() -> None:
    with pytest.raises(pydantic.ValidationError, match="contains a token") as caught:
        SparkSettings(address="sc://h:1/;token=S3CRET", tls=True)
    assert "S3CRET" not in str(caught.value)


def test_keys_without_quotes_and_values_that_are_not_text_are_passed_to_spark() -> None:
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
        ({"address": "connect"}, "remove it"),
        ({"address": "sc://h:1", "memory": "2g"}, "has its own"),
        ({"memory": "2"}, "use 512m or more"),
        ({"memory": "511m"}, "use 512m or more"),
        ({"tls": True}, "for an sc:// address"),
        ({"address": "sc://h:1", "certificate": "/nowhere.pem"}, "give the absolute path"),
        (
            {"address": "sc://h:1", "environment_archive": "/nowhere.tar.gz"},
            "the absolute path of a",
        ),
        ({"environment_archive": "/nowhere.tar.gz"}, "for a Spark with an address"),
        ({"conf": {"executor.cores": "1"}}, "begin with 'spark.'"),
        ({"conf": {"spark.hadoop.fs.s3a.secret.key": "S3CRET"}}, "holds a secret"),
        ({"conf": {"spark.connect.authenticate.token": "S3CRET"}}, "holds a secret"),
        ({"conf": {"spark.hadoop.x": "https://me:S3CRET@host/"}}, "holds a secret"),
    ],
)
def test_impossible_combinations_of_settings_are_refused(
    table: dict[str, Any], message: str
) -> None:
    with pytest.raises(pydantic.ValidationError, match=message) as caught:
        SparkSettings.model_validate(table)
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "com.amazonaws.auth.Provider"),
        ("spark.hadoop.hadoop.security.credential.provider.path", "jceks://file/etc/keys.jceks"),
        ("spark.sql.catalog.lake.client.credentials-provider", "com.example.Credentials"),
        ("spark.kubernetes.container.image.pullSecrets", "registry"),
        ("spark.kubernetes.executor.secretKeyRef.DB_PASSWORD", "db-secret:password"),
        ("spark.kubernetes.driver.secrets.aws-credentials", "/etc/secrets"),
        ("spark.kubernetes.executor.secrets.aws-credentials", "/etc/secrets"),
        ("spark.kubernetes.kerberos.tokenSecret.name", "delegation"),
        ("spark.kubernetes.authenticate.oauthTokenFile", "/var/run/token"),
        ("spark.kubernetes.authenticate.driver.caCertFile", "/etc/ca.pem"),
        ("spark.kubernetes.authenticate.driver.serviceAccountName", "spark"),
        ("spark.authenticate.secret.file", "/etc/spark/secret"),
        ("spark.security.credentials.hive.enabled", "false"),
        ("spark.security.credentials.renewalRatio", "0.75"),
        ("spark.kerberos.renewal.credentials", "ccache"),
    ],
)
def test_a_key_that_only_refers_to_a_secret_is_accepted(key: str, value: str) -> None:
    """Each names a class, a file, a Kubernetes secret or a switch; the secret is elsewhere."""
    check_conf("k8s://https://host:6443", {key: value})


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.sql.catalog.lake.client.credentials-provider.password",
        "spark.sql.catalog.lake.credential",
        "spark.ssl.keyPassword",
        "spark.authenticate.secret",
        "spark.hadoop.fs.gs.auth.service.account.private.key",
        "spark.kubernetes.authenticate.oauthToken",
        "spark.kubernetes.authenticate.driver.mounted.oauthToken",
        "spark.kubernetes.executor.secretKey",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
    ],
)
def test_a_key_that_contains_a_secret_is_refused(key: str) -> None:
    with pytest.raises(InvalidSetting, match="holds a secret"):
        check_conf("k8s://https://host:6443", {key: "S3CRET"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.kubernetes.executor.secretKeyRef.DB", "password=S3CRET"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "https://me:S3CRET@host/"),
    ],
)
def test_a_reference_that_is_a_secret_itself_is_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match="holds a secret"):
        check_conf("k8s://https://host:6443", {key: value})


FIXED = (
    "spark.master",
    "spark.remote",
    "spark.api.mode",
    "spark.submit.deployMode",
    "spark.driver.memory",
    "spark.connect.grpc.binding.address",
    "spark.connect.grpc.binding.port",
    "spark.connect.session.manager.defaultSessionTimeout",
    "spark.sql.session.timeZone",
    "spark.sql.timestampType",
    "spark.sql.parquet.outputTimestampType",
)
FIXED_HERE = ("spark.driver.host", "spark.driver.bindAddress")


@pytest.mark.parametrize("key", FIXED)
@pytest.mark.parametrize("mode", ["connect", "spark://host:7077", "sc://host"])
def test_fixed_keys_cannot_be_overridden(mode: str, key: str) -> None:
    with pytest.raises(InvalidSetting, match=f"cannot set {key}: "):
        check_conf(mode, {key: "x"})


@pytest.mark.parametrize("key", FIXED_HERE)
def test_a_local_spark_refuses_other_driver_addresses(key: str) -> None:
    check_conf("spark://host:7077", {key: "x"})
    with pytest.raises(InvalidSetting, match=f"cannot set {key}: "):
        check_conf("connect", {key: "x"})


def test_the_reference_names_each_key_that_is_fixed() -> None:
    text = (DOCS / "reference/settings.md").read_text(encoding="utf-8")
    for key in (*FIXED, *FIXED_HERE):
        assert f"`{key}`" in text, key


def test_workers_have_one_python(tmp_path: Path) -> None:
    """An environment sets the same key in each session, and would win without a word."""
    archive = tmp_path / "environment.tar.gz"
    archive.touch()
    conf = {"spark.sql.execution.pyspark.python": "/usr/bin/python3"}
    assert SparkSettings(address="yarn", conf=conf).conf == conf
    with pytest.raises(pydantic.ValidationError, match="remove one of the two"):
        SparkSettings(address="yarn", conf=conf, environment_archive=archive)
