"""Errors of Kafka's client, in the types and words of this project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.shard_sources.retrying import Refusal, error_for

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

# As `KafkaError.name()` returns them; a leading underscore marks an error of the client itself.
REFUSED = (
    "_AUTHENTICATION|_SSL|SASL_AUTHENTICATION_FAILED|UNSUPPORTED_SASL_MECHANISM"
    "|(CLUSTER|GROUP|TOPIC|TRANSACTIONAL_ID)_AUTHORIZATION_FAILED"
)
OUT_OF_RANGE = "_AUTO_OFFSET_RESET|OFFSET_OUT_OF_RANGE"
UNAVAILABLE = (
    "_ALL_BROKERS_DOWN|_RESOLVE|_TIMED_OUT|_TIMED_OUT_QUEUE|_TRANSPORT|_WAIT_COORD"
    "|(BROKER|COORDINATOR|LEADER|OFFSET|REPLICA)_NOT_AVAILABLE|COORDINATOR_LOAD_IN_PROGRESS"
    "|NETWORK_EXCEPTION|NOT_COORDINATOR|NOT_LEADER_FOR_PARTITION|REQUEST_TIMED_OUT"
)
_REFUSALS = (
    Refusal(
        REFUSED,
        errors.SourceRefused,
        "Kafka refuses {where}: {text}; check the credentials, the certificates and the ACLs.",
    ),
    Refusal(
        OUT_OF_RANGE, errors.CursorExpired, "{where} no longer holds the requested offset: {text}."
    ),
    Refusal(
        "_UNKNOWN_PARTITION|_UNKNOWN_TOPIC|UNKNOWN_TOPIC_OR_PART",
        errors.UnknownShard,
        "Kafka has no {where}.",
    ),
    Refusal(
        "_INVALID_ARG|_CONFLICT",
        errors.InvalidSetting,
        "Kafka's client rejects its properties for {where}: {text}.",
    ),
    Refusal(
        "THROTTLING_QUOTA_EXCEEDED",
        errors.SourceThrottled,
        "Kafka throttles requests for {where}: {text}.",
    ),
    Refusal(UNAVAILABLE, errors.SourceUnavailable, "Kafka does not answer for {where}: {text}."),
)


def error_of(error: KafkaError, where: str) -> errors.LeaseholdError:
    """Return our error for a client's error; `where` is the subject of the request."""
    name, text = error.name(), shown(error.str())
    if match := error_for(_REFUSALS, name, where=where, text=text):
        return match
    if error.retriable():
        return errors.SourceUnavailable(f"Kafka does not answer for {where}: {text}.")
    return errors.SourceError(f"Kafka cannot answer for {where}: {name} {text}.")
