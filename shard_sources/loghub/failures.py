"""Refusals of the service, as errors of this project with one sentence each.

Source: the error codes of the SLS API reference. The service's own text is left out where it
speaks of credentials, because it repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store.errors import (
    CursorInvalid,
    LeaseholdError,
    LogNotFound,
    SourceError,
    SourceRefused,
    SourceThrottled,
    SourceUnavailable,
    UnknownShard,
    shown,
)

UNREACHABLE = "LogRequestError"
"""The SDK's code for what it did not get an answer to."""
_REFUSED = frozenset(
    {
        "Unauthorized",
        "SignatureNotMatch",
        "MissingAccessKeyId",
        "MissingSecurityToken",
        "ProjectForbidden",
        "AccessDenied",
        "Forbidden",
        "NoPermission",
    }
)
_REFUSED_BEGIN = ("InvalidAccessKeyId", "SecurityToken", "InvalidSecurityToken")
_CLOCK = frozenset({"RequestTimeExpired", "InvalidRequestTime", "RequestTimeTooSkewed"})
_NO_LOG = frozenset({"ProjectNotExist", "LogStoreNotExist", "LogstoreNotExist"})
_THROTTLED = frozenset(
    {
        "ReadQuotaExceed",
        "ShardReadQuotaExceed",
        "ProjectQuotaExceed",
        "ExceedQuota",
        "QpsLimitExceeded",
        "ShardReadQpsExceed",
    }
)
_AWAY = frozenset({"InternalServerError", "ServerBusy", "RequestTimeout", UNREACHABLE})
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500


class ServiceRefusal(Exception):
    """A refusal by the service, or by the network before it.

    Attributes:
        code: the service's error code.
        status: the HTTP status; 200 where there was no response.
        message: the service's sentence, which may hold anything.
    """

    def __init__(self, code: str, status: int = 200, message: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class RequestSubject:
    """The subject of a request, for messages.

    Attributes:
        logstore: `project/logstore`.
        endpoint: of the service.
        shard: empty where the request was about all.
        cursor: the cursor that it named, or empty.
    """

    logstore: str
    endpoint: str
    shard: str = ""
    cursor: str = ""


def failure(refusal: ServiceRefusal, subject: RequestSubject) -> LeaseholdError:
    """The error for a refusal."""
    code, log = refusal.code, subject.logstore
    where = f"The log service at {subject.endpoint}"
    kind: type[LeaseholdError] = SourceError
    sentence = f"{where} refused a request for {log}: {shown(code)}: {shown(refusal.message)}."
    if code in _REFUSED or code.startswith(_REFUSED_BEGIN):
        kind, sentence = (
            SourceRefused,
            f"{where} does not accept the credentials for {log} ({code}): check "
            "ALIBABA_CLOUD_ACCESS_KEY_ID, ALIBABA_CLOUD_ACCESS_KEY_SECRET and "
            "ALIBABA_CLOUD_SECURITY_TOKEN, and that they may read this logstore.",
        )
    elif code in _CLOCK:
        kind, sentence = (
            SourceRefused,
            f"{where} refused the request's time ({code}): this machine's clock differs from "
            "the service's by more than 15 minutes, so set it.",
        )
    elif code in _THROTTLED or refusal.status == _TOO_MANY_REQUESTS:
        of = f" of shard {subject.shard}" if subject.shard else ""
        kind, sentence = (
            SourceThrottled,
            f"{where} asks for fewer reads{of} of {log} ({code}), and went on asking while they "
            "were repeated.",
        )
    elif code in _AWAY or refusal.status >= _SERVER_ERRORS:
        kind, sentence = SourceUnavailable, f"{where} does not answer for {log} ({code})."
    elif code in _NO_LOG:
        kind, sentence = (
            LogNotFound,
            f"{where} has no logstore {shown(log)} ({code}): check the options project, logstore "
            "and endpoint.",
        )
    elif code == "ShardNotExist":
        kind, sentence = UnknownShard, f"Logstore {log} has no shard {shown(subject.shard)}."
    elif code == "InvalidCursor":
        kind, sentence = (
            CursorInvalid,
            f"{shown(subject.cursor)} is not a cursor of shard {subject.shard} of {log}.",
        )
    return kind(sentence)
