"""Releases of Spark that work together, and the sentence for others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark import spark_session
from dagster_leasehold.assets.spark.spark_versions import NEWEST, OLDEST, refusal, release_of

RELEASES = [f"4.{minor}" for minor in range(OLDEST.minor, NEWEST.minor + 1)]


@pytest.mark.parametrize("server", RELEASES)
@pytest.mark.parametrize("here", RELEASES)
def test_a_server_of_the_same_or_the_next_minor_version_is_accepted(here: str, server: str) -> None:
    apart = abs(RELEASES.index(here) - RELEASES.index(server))
    assert (refusal(f"{here}.1", f"{server}.0") is None) == (apart <= 1)


@pytest.mark.parametrize(
    ("here", "server", "words"),
    [
        ("4.3.0", "3.5.9", "The Spark Connect server has version 3.5.9.* 4.0 to 4.3"),
        ("4.3.0", "4.4.0", "The Spark Connect server has version 4.4.0"),
        ("4.3.0", "5.2.0", "The Spark Connect server has version 5.2.0"),
        ("4.3.0", "4.30.0", "The Spark Connect server has version 4.30.0"),
        ("4.3.0", "unknown", "The Spark Connect server has version unknown"),
        ("3.5.9", "4.0.0", "The PySpark of this node has version 3.5.9"),
        ("4.3.0", "4.0.5", "more than one minor version apart: install pyspark 4.0 on the nodes"),
    ],
)
def test_any_other_pair_is_one_sentence(here: str, server: str, words: str) -> None:
    assert re.search(words, refusal(here, server) or "")


@pytest.mark.parametrize("version", ["4.1", "4.1.2", "4.1.0-amzn-1", "4.1.0.dev1"])
def test_versions_of_vendors_are_parsed(version: str) -> None:
    assert release_of(version) == (4, 1)


class _Client:
    def set_retry_policies(self, policies: object) -> None:
        pass


class _Conf:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def isModifiable(self, key: str) -> bool:  # noqa: N802
        return True


class _Session:
    """A session of a Connect server, whose client knows of no models, as that of 4.1."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, version: str) -> None:
        self.client, self.conf, self.version = _Client(), _Conf(), version


def test_both_versions_are_compared_when_a_session_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.version.__version__", "4.2.0")
    session: Any = _Session("4.0.5")
    with pytest.raises(SparkUnavailable, match=r"4\.2\.0 .* 4\.0\.5"):
        spark_session.configure_session(session)
    assert not session.conf.values
    session.version = "4.1.4"
    spark_session.configure_session(session)
    assert session.conf.values["spark.sql.session.timeZone"] == "UTC"
