"""Errors of Kafka's client, in the types and words of this project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.shard_sources.retrying import Refusal, error_for

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

# Names as `KafkaError.name()` gives them; a leading underscore is the client's own verdict.
REFUSED = (
    "_AUTHENTICATION|_SSL|SASL_AUTHENTICATION_FAILED|UNSUPPORTED_SASL_MECHANISM"
    "|(CLUSTER|GROUP|TOPIC|TRANSACTIONAL_ID)_AUTHORIZATION_FAILED"
)
OUT_OF_RANGE = "_AUTO_OFFSET_RESET|OFFSET_OUT_OF_RANGE"
AWAY = (
    "_ALL_BROKERS_DOWN|_RESOLVE|_TIMED_OUT|_TIMED_OUT_QUEUE|_TRANSPORT|_WAIT_COORD"
    "|(BROKER|COORDINATOR|LEADER|OFFSET|REPLICA)_NOT_AVAILABLE|COORDINATOR_LOAD_IN_PROGRESS"
    "|NETWORK_EXCEPTION|NOT_COORDINATOR|NOT_LEADER_FOR_PARTITION|REQUEST_TIMED_OUT"
)
_REFUSALS = (
    Refusal(
        REFUSED,
        errors.SourceRefused,
        "Kafka refuses {where}: {text}; check the credentials, the certificates and what they may "
        "read.",
    ),
    Refusal(
        OUT_OF_RANGE,
        errors.CursorExpired,
        "{where} no longer holds the offset that was asked for: {text}.",
    ),
    Refusal(
        "_UNKNOWN_PARTITION|_UNKNOWN_TOPIC|UNKNOWN_TOPIC_OR_PART",
        errors.UnknownShard,
        "Kafka does not know {where}.",
    ),
    Refusal(
        "_INVALID_ARG|_CONFLICT",
        errors.InvalidSetting,
        "Kafka's client does not take its properties for {where}: {text}.",
    ),
    Refusal(
        "THROTTLING_QUOTA_EXCEEDED",
        errors.SourceThrottled,
        "Kafka asks for patience with {where}: {text}.",
    ),
    Refusal(AWAY, errors.SourceUnavailable, "Kafka does not answer for {where}: {text}."),
)


def error_of(error: KafkaError, where: str) -> errors.LeaseholdError:
    """Return the error of ours that an error of the client means.

    Args:
        error: from the client.
        where: the topic or partition, and the brokers, for the sentence.
    """
    name, text = error.name(), shown(error.str())
    if meant := error_for(_REFUSALS, name, where=where, text=text):
        return meant
    if error.retriable():
        return errors.SourceUnavailable(f"Kafka does not answer for {where}: {text}.")
    return errors.SourceError(f"Kafka cannot answer for {where}: {name} {text}.")
