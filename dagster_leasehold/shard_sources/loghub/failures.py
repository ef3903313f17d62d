"""Refusals of the service, as errors of this project with one sentence each.

Source: the error codes of the SLS API reference. The service's own text is left out where it
speaks of credentials, because it repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.shard_sources.retrying import Refusal, error_for

_REFUSALS = (
    Refusal(
        "Unauthorized|SignatureNotMatch|MissingAccessKeyId|MissingSecurityToken|ProjectForbidden"
        "|AccessDenied|Forbidden|NoPermission|(InvalidAccessKeyId|(Invalid)?SecurityToken).*",
        errors.SourceRefused,
        "{service} does not accept the credentials for {log} ({code}): check "
        "ALIBABA_CLOUD_ACCESS_KEY_ID, ALIBABA_CLOUD_ACCESS_KEY_SECRET and "
        "ALIBABA_CLOUD_SECURITY_TOKEN, and that they can read this logstore.",
    ),
    Refusal(
        "RequestTimeExpired|InvalidRequestTime|RequestTimeTooSkewed",
        errors.SourceRefused,
        "{service} refused the request's time ({code}): this machine's clock differs from the "
        "service's by more than 15 minutes, so set it.",
    ),
    Refusal(
        "(ShardRead|Read|Project)QuotaExceed|ExceedQuota|QpsLimitExceeded|ShardReadQpsExceed",
        errors.SourceThrottled,
        "{service} asks for fewer reads{of_shard} of {log} ({code}), and kept asking while they "
        "were repeated.",
        (429,),
    ),
    # The SDK calls it a LogRequestError if it got no answer.
    Refusal(
        "InternalServerError|ServerBusy|RequestTimeout|LogRequestError",
        errors.SourceUnavailable,
        "{service} does not answer for {log} ({code}).",
        range(500, 1000),
    ),
    Refusal(
        "ProjectNotExist|Log[Ss]toreNotExist",
        errors.LogNotFound,
        "{service} has no logstore {shown_log} ({code}): check the options project, logstore and "
        "endpoint.",
    ),
    Refusal("ShardNotExist", errors.UnknownShard, "Logstore {log} has no shard {shown_shard}."),
    Refusal(
        "InvalidCursor",
        errors.CursorInvalid,
        "{shown_cursor} is not a cursor of shard {shard} of {log}.",
    ),
)


class ServiceRefusal(Exception):
    """A refusal by the service, or by the network before it.

    Attributes:
        code: the service's error code.
        status: the HTTP status; 200 where there was no response.
        message: the service's sentence, which can hold anything.
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


def failure(refusal: ServiceRefusal, subject: RequestSubject) -> errors.LeaseholdError:
    """The error for a refusal."""
    code, log = refusal.code, subject.logstore
    service = f"The log service at {subject.endpoint}"
    return error_for(
        _REFUSALS,
        code,
        refusal.status,
        service=service,
        log=log,
        shown_log=shown(log),
        shard=subject.shard,
        shown_shard=shown(subject.shard),
        of_shard=f" of shard {subject.shard}" if subject.shard else "",
        shown_cursor=shown(subject.cursor),
    ) or errors.SourceError(
        f"{service} refused a request for {log}: {shown(code)}: {shown(refusal.message)}."
    )
