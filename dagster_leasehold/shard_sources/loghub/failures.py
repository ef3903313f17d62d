"""Refusals of the log service as errors of this project.

Source: the error codes of the SLS API reference. Messages about credentials omit the service's
text, because it contains the credentials.
"""

from __future__ import annotations

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
        "service's by more than 15 minutes. Set it.",
    ),
    Refusal(
        "(ShardRead|Read|Project)QuotaExceed|ExceedQuota|QpsLimitExceeded|ShardReadQpsExceed",
        errors.SourceThrottled,
        "{service} throttles reads{of_shard} of {log} ({code}), and retries did not help.",
        (429,),
    ),
    # LogRequestError is the SDK's code for a missing answer.
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
        status: the HTTP status; 200 if there was no response.
        message: the service's text, which is not trusted.
    """

    def __init__(self, code: str, status: int = 200, message: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.status = status
        self.message = message


def failure(
    refusal: ServiceRefusal, logstore: str, endpoint: str, shard: str = "", cursor: str = ""
) -> errors.LeaseholdError:
    """Return our error for a refusal of a request; `logstore` is `project/logstore`."""
    service = f"The log service at {endpoint}"
    return error_for(
        _REFUSALS,
        refusal.code,
        refusal.status,
        service=service,
        log=logstore,
        shown_log=shown(logstore),
        shard=shard,
        shown_shard=shown(shard),
        of_shard=f" of shard {shard}" if shard else "",
        shown_cursor=shown(cursor),
    ) or errors.SourceError(
        f"{service} refused a request for {logstore}: {shown(refusal.code)}: "
        f"{shown(refusal.message)}."
    )
