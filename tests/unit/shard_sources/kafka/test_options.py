"""Options of a Kafka source: valid ones pass, and each invalid one is refused in one sentence."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from dagster_leasehold.shard_sources.registry import reader_from_options, source_options

SERVERS = {"bootstrap_servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "'bootstrap_servers' of the source 'kafka' is missing"),
        ({**SERVERS, "topik": "x"}, "did you mean topic?"),
        ({**SERVERS, "topic": "a/b"}, "letters, digits"),
        ({**SERVERS, "topic": ".."}, "letters, digits"),
        ({**SERVERS, "isolation": "serializable"}, "read_committed"),
        ({**SERVERS, "client": {"sasl.password": "hunter2"}}, "under secrets"),
        ({**SERVERS, "client": {"ssl.key.pem": "hunter2"}}, "under secrets"),
        ({**SERVERS, "client": {"sasl.oauthbearer.client.secret": "hunter2"}}, "under secrets"),
        ({**SERVERS, "client": {"auto.offset.reset": "latest"}}, "set by the source"),
        ({**SERVERS, "client": {"enable.auto.commit": True}}, "set by the source"),
        ({**SERVERS, "client": {"plugin.library.paths": "x"}}, "loads code"),
        ({**SERVERS, "secrets": {"sasl.password": "hunter2!"}}, "environment variable"),
        ({**SERVERS, "probe_records": 0}, "probe_records"),
    ],
)
def test_wrong_options_are_one_sentence(given: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        source_options("kafka", given)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_variable_that_is_not_set_is_named() -> None:
    options = KafkaOptions.model_validate(
        {**SERVERS, "secrets": {"sasl.password": "TEST_NO_SUCH_VARIABLE"}}
    )
    with pytest.raises(InvalidSetting, match="'TEST_NO_SUCH_VARIABLE', which holds") as refused:
        KafkaSource(options, "orders").list_shards()
    assert "'sasl.password'" in str(refused.value)


def test_a_property_that_the_client_does_not_know_is_named() -> None:
    options = KafkaOptions.model_validate({**SERVERS, "client": {"no.such.property": 1}})
    with pytest.raises(InvalidSetting, match=r"no\.such\.property"):
        KafkaSource(options, "orders").list_shards()


def test_workers_get_the_names_of_variables_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_WORD", "hunter2")
    options = KafkaOptions.model_validate(
        {**SERVERS, "secrets": {"sasl.password": "TEST_WORD"}, "client": {"log_level": 3}}
    )
    source = KafkaSource(options, "orders")
    described = source.spark_options()
    assert "hunter2" not in f"{described} {source!r} {options!r}"
    assert "TEST_WORD" in described["options"]
    assert reader_from_options(described) is reader_from_options(described), "connections are kept"
