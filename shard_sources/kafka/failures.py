"""Errors of Kafka's client, in the types and words of this project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    InvalidSetting,
    LeaseholdError,
    SourceError,
    SourceRefused,
    SourceThrottled,
    SourceUnavailable,
    UnknownShard,
    shown,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

# Names as `KafkaError.name()` gives them; a leading underscore is the client's own verdict.
REFUSED = frozenset(
    {
        "_AUTHENTICATION",
        "_SSL",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
    }
)
OUT_OF_RANGE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
UNKNOWN = frozenset({"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"})
MISCONFIGURED = frozenset({"_INVALID_ARG", "_CONFLICT"})
THROTTLED = frozenset({"THROTTLING_QUOTA_EXCEEDED"})
AWAY = frozenset(
    {
        "_ALL_BROKERS_DOWN",
        "_RESOLVE",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_TRANSPORT",
        "_WAIT_COORD",
        "BROKER_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "LEADER_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
    }
)
_KINDS: tuple[tuple[frozenset[str], type[LeaseholdError], str], ...] = (
    (
        REFUSED,
        SourceRefused,
        "Kafka refuses {where}: {text}; check the credentials, the certificates and what they may "
        "read.",
    ),
    (OUT_OF_RANGE, CursorExpired, "{where} no longer holds the offset that was asked for: {text}."),
    (UNKNOWN, UnknownShard, "Kafka does not know {where}."),
    (
        MISCONFIGURED,
        InvalidSetting,
        "Kafka's client does not take its properties for {where}: {text}.",
    ),
    (THROTTLED, SourceThrottled, "Kafka asks for patience with {where}: {text}."),
    (AWAY, SourceUnavailable, "Kafka does not answer for {where}: {text}."),
)


def error_of(error: KafkaError, where: str) -> LeaseholdError:
    """Return the error of ours that an error of the client means.

    Args:
        error: what the client reported.
        where: the topic or partition, and the brokers, for the sentence.
    """
    name, text = error.name(), shown(error.str())
    for names, kind, sentence in _KINDS:
        if name in names:
            return kind(sentence.format(where=where, text=text))
    if error.retriable():
        return SourceUnavailable(f"Kafka does not answer for {where}: {text}.")
    return SourceError(f"Kafka cannot answer for {where}: {name} {text}.")
