"""Options of a logstore: typed, and without secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting, UserMistake
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.loghub.source import KIND
from dagster_leasehold.shard_sources.registry import (
    StreamPlace,
    open_source,
    reader_from_options,
    source_options,
)
from dagster_leasehold.shard_sources.source import Position

GIVEN = {"endpoint": "cn-hangzhou.log.aliyuncs.com", "project": "my-project"}


def test_an_endpoint_is_https_by_default() -> None:
    assert source_options("loghub", GIVEN).endpoint == f"https://{GIVEN['endpoint']}"
    plain = source_options("loghub", {**GIVEN, "endpoint": "http://127.0.0.1:80/"})
    assert plain.endpoint == "http://127.0.0.1:80"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"endpoint": "ftp://host"}, "endpoint"),
        ({"endpoint": "https://user:canary@host"}, "endpoint"),
        ({"endpoint": "host/path"}, "endpoint"),
        ({"endpoint": "host:port"}, "endpoint"),
        ({"project": "Upper"}, "project"),
        ({"logstore": "../x"}, "logstore"),
        ({"compression": "snappy"}, "compression"),
        ({"auth_version": "v4"}, "region"),
        ({"credentials_uri": "http://a:canary@host/role"}, "credentials_uri"),
        ({"access_key_secret": "canary"}, "access_key_secret"),
    ],
)
def test_a_wrong_option_is_named_and_its_value_is_not_shown(
    change: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidSetting, match=named) as refused:
        source_options("loghub", {**GIVEN, **change})
    assert "canary" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_logstore_is_the_stream_unless_it_is_named(tmp_path: Path) -> None:
    place = StreamPlace(StreamName("visits"), tmp_path)
    source = open_source("loghub", GIVEN, place)
    assert source.spark_options() == {
        "source": "loghub",
        "endpoint": "https://cn-hangzhou.log.aliyuncs.com",
        "project": "my-project",
        "logstore": "visits",
    }
    assert repr(source) == "LogHub(my-project/visits)"
    assert repr(reader_from_options(source.spark_options())) == "LogHubReader(my-project/visits)"


@pytest.mark.parametrize("shard", ["x", "01", "1.5", "1234567890"])
def test_a_shard_that_is_no_number_is_refused_without_a_request(tmp_path: Path, shard: str) -> None:
    place = StreamPlace(StreamName("visits"), tmp_path)
    source = KIND.open(source_options("loghub", GIVEN), place)
    with pytest.raises(UserMistake, match=shard):
        source.cursor_at(ShardId(shard), Position.BEGIN)


def test_declaring_a_logstore_does_not_load_the_sdk() -> None:
    """The SDK takes half a second, which each code location would pay."""
    script = (
        "import sys; from pathlib import Path\n"
        "from dagster_leasehold.lease_store.identifiers import StreamName\n"
        "from dagster_leasehold.shard_sources.registry import open_source\n"
        "from dagster_leasehold.shard_sources.registry import StreamPlace\n"
        "options = {'endpoint': 'h', 'project': 'pp'}\n"
        "open_source('loghub', options, StreamPlace(StreamName('s-s'), Path('.')))\n"
        "sys.exit('aliyun.log' in sys.modules or 'requests' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
