"""The options of a Kafka source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dagster_leasehold.lease_store.errors import shown

TOPIC_GRAMMAR = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
# They decide which records are read. Some are options of Leasehold, and the others are fixed.
OWN_PROPERTIES = frozenset({
    "auto.offset.reset", "bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store",
    "enable.partition.eof", "isolation.level", "metadata.broker.list",
})  # fmt: skip
# They load code.
UNSAFE_PROPERTIES = frozenset({"plugin.library.paths", "ssl.engine.location", "ssl.providers"})
_SECRET = re.compile(r"password|secret|\.key\.pem$|oauthbearer\.config$", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class KafkaOptions(BaseModel):
    """Options of a stream whose source is `kafka`.

    Attributes:
        bootstrap_servers: the first brokers to connect to, `host:port,host:port`.
        topic: the topic; by default the stream's name.
        isolation: `read_committed` skips the records of open and aborted transactions.
        probe_records: how many records of a batch are read to estimate how many fit the byte
            limit; a number above the record limit makes the result exact.
        timeout_s: how long brokers can be silent, in seconds.
        mirror_group: a consumer group of Kafka that receives the checkpoints, for lag dashboards.
        client: properties of librdkafka (TLS, SASL, buffers).
        secrets: secret properties of librdkafka, each with the environment variable that holds it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    bootstrap_servers: str = Field(min_length=1)
    topic: str | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    probe_records: int = Field(default=1_000, gt=0)
    timeout_s: float = Field(default=10.0, gt=0, le=50)
    mirror_group: str | None = Field(default=None, min_length=1, max_length=255)
    client: Mapping[str, str | int | float | bool] = Field(default={})
    secrets: Mapping[str, str] = Field(default={})

    @field_validator("topic")
    @classmethod
    def _of_the_grammar(cls, value: str | None) -> str | None:
        if value is not None and (not TOPIC_GRAMMAR.fullmatch(value) or value in (".", "..")):
            raise ValueError("use 1 to 249 letters, digits, '.', '_' or '-'")
        return value

    @field_validator("client")
    @classmethod
    def _without_secrets(
        cls, value: Mapping[str, str | int | float | bool]
    ) -> Mapping[str, str | int | float | bool]:
        for name in value:
            _refuse_own(name)
            if _SECRET.search(name):
                raise ValueError(
                    f"{shown(name)} is a secret: name the environment variable that holds it "
                    "under secrets"
                )
        return value

    @field_validator("secrets")
    @classmethod
    def _names_of_variables(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, variable in value.items():
            _refuse_own(name)
            if not _VARIABLE.fullmatch(variable):
                raise ValueError(f"{shown(name)} takes the name of an environment variable")
        return value


def _refuse_own(name: str) -> None:
    if name in OWN_PROPERTIES:
        raise ValueError(f"{shown(name)} is set by the source: remove it")
    if name in UNSAFE_PROPERTIES:
        raise ValueError(f"{shown(name)} loads code and is not allowed: remove it")
