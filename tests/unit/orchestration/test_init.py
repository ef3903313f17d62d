"""`leasehold init` writes a project that runs, for every source."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands.init import project_files
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.reading import declared_stream
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.registry import source_names
from tests import kinesis_servers
from tests.environment import forget_settings
from tests.kafka_broker import KafkaBroker, Partition
from tests.sls_server.server import SlsServer
from tests.unit.docs.recorded_output import assert_printed

OPTIONS = {
    "kafka": {"bootstrap_servers": "127.0.0.1:9092", "topic": "visits"},
    "kinesis": {"region": "eu-west-1", "shard_calls_per_s": 2.0},
    "loghub": {"endpoint": "https://cn-hangzhou.log.aliyuncs.com", "project": "shop"},
    "local_log": {},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "streams", raising=False)
    return tmp_path


def stream_of(text: str) -> ShardStream:
    """The stream of a module's text."""
    names: dict[str, Any] = {}
    exec(text, names)
    [stream] = [value for value in names.values() if isinstance(value, ShardStream)]
    return stream


def options_of(stream: ShardStream) -> dict[str, Any]:
    """The options of a stream's source, as Spark's workers get them."""
    return json.loads(stream.source.spark_options()["options"])


def test_a_local_log_is_healthy_and_has_records(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "web-visits"]) == 0
    assert_printed(("init",), capsys.readouterr().out.replace("web-visits", "visits"))
    stream = declared_stream("web-visits")
    assert stream.transform is not None
    assert isinstance(stream.source, LocalLog)
    bounds = stream.source.bounds([row.shard for row in stream.source.list_shards()])
    assert sum(int(each.end) for each in bounds.values()) == 4


def test_a_topic_of_kafka_is_reached(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with KafkaBroker() as broker:
        broker.topics["orders"] = [Partition(), Partition()]
        option = f"bootstrap_servers={broker.address}"
        assert main(["init", "orders", "--source", "kafka", "--option", option]) == 0
    printed = capfd.readouterr().out
    assert "source of orders: 2 shards, readable." in printed
    stream = stream_of(Path("streams.py").read_text())
    assert options_of(stream)["bootstrap_servers"] == broker.address


def test_a_logstore_is_reached(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = SlsServer("shop")
    try:
        server.create("orders")
        options = (
            f"endpoint={server.endpoint}",
            "project=shop",
            f"credentials_uri={server.credentials_uri}",
        )
        assert main(["init", "orders", "--source", "loghub", *given(options)]) == 0
    finally:
        server.close()
    assert "source of orders: 2 shards, readable." in capsys.readouterr().out


def test_a_stream_of_kinesis_is_reached(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Method: moto's server stands for the service."""
    url = f"http://127.0.0.1:{kinesis_servers.moto_port()}"
    kinesis_servers.write_credentials()
    client = kinesis_servers.client(url)
    client.create_stream(StreamName="init-orders", ShardCount=3)
    try:
        options = (
            f"region={kinesis_servers.REGION}", f"endpoint_url={url}", "shard_calls_per_s=9.5",
        )  # fmt: skip
        assert main(["init", "init-orders", "--source", "kinesis", *given(options)]) == 0
    finally:
        client.delete_stream(StreamName="init-orders")
        client.close()
    assert "source of init-orders: 3 shards, readable." in capsys.readouterr().out
    assert options_of(stream_of(Path("streams.py").read_text()))["shard_calls_per_s"] == 9.5


def given(options: Sequence[str]) -> list[str]:
    return [word for option in options for word in ("--option", option)]


def test_a_broker_that_is_away_is_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Goal: the client's own log is silent about its tries, several of which it makes a second."""
    options = ("bootstrap_servers=127.0.0.1:1", "timeout_s=1")
    assert main(["init", "orders", "--source", "kafka", *given(options)]) == 1
    printed = capfd.readouterr()
    assert "failed   source of orders: Kafka does not answer" in printed.out
    assert printed.out.endswith("The next command: leasehold doctor, after you have fixed this.\n")
    assert printed.err == ""


@pytest.mark.parametrize("source", source_names())
def test_every_setting_is_written_with_its_meaning(source: str) -> None:
    """Method: all that is commented out is a default or an example, and valid."""
    files = project_files(StreamName("visits"), source, OPTIONS[source])
    text = files["streams.py"]
    stream = stream_of(text)
    assert stream.name == "visits"
    assert stream.source.spark_options()["source"] == source
    uncommented = re.sub(r"# (?=\w+=.*,$)", "", text, flags=re.MULTILINE)
    [call] = [
        node.value
        for node in ast.parse(uncommented).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    ]
    written = {keyword.arg: keyword.value for keyword in call.keywords}
    left_out = {"nodes", "on_commit", "asset_spec", "execute"}  # settings without an example value
    assert {*written} == {field.name for field in fields(ShardStream)} - left_out
    for name in ("pace", "limits", "iceberg", "checks", "retention"):
        part = written[name]
        assert isinstance(part, ast.Call)
        default = getattr(stream, name)
        assert [each.arg for each in part.keywords] == [each.name for each in fields(default)]
    changed = replace(stream_of(uncommented), source=stream.source, transform=stream.transform)
    assert (changed.pace, changed.limits) == (stream.pace, stream.limits)
    settings = re.sub(r"^# (?=\w+ = )", "", files["leasehold.toml"], flags=re.MULTILINE)
    assert Settings.model_validate(tomllib.loads(settings)).nodes == Settings().nodes
    for line, following in zip(text.splitlines(), text.splitlines()[1:], strict=False):
        if re.match(r" +# \w+=", following):
            assert line.strip().startswith("# "), following


@pytest.mark.parametrize("name", ["class", "2026-visits", "a.b-c", "visits", "Pace", "parsed"])
def test_a_stream_gets_a_valid_python_name(name: str) -> None:
    stream = stream_of(project_files(StreamName(name), "local_log", {})["streams.py"])
    assert stream.name == name
    assert stream.transform is not None


def test_no_file_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("streams.py").write_text("mine")
    assert main(["init", "visits"]) == 2
    assert "The file streams.py already exists: use another folder." in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["streams.py"]
    assert Path("streams.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--source", "kafka"), "The option 'bootstrap_servers' of the source 'kafka' is missing."),
        (("--source", "kafkaa"), "There is no source 'kafkaa'"),
        (("--option", "root"), "The option 'root' has no value: use NAME=VALUE."),
        (("--option", "roof=1"), "'roof' is not an option of the source 'local_log'"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert main(["init", "visits", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not [*folder.iterdir()]
