"""Each code of the service becomes a typed error, in one sentence without secrets."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import (
    CursorInvalid,
    LeaseholdError,
    LogNotFound,
    SourceError,
    SourceRefused,
    SourceThrottled,
    SourceUnavailable,
    UnknownShard,
)
from dagster_leasehold.shard_sources.loghub.failures import ServiceRefusal, failure

SUBJECT = ("project/logstore", "https://sls", "3", "MTIz")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("Unauthorized", 401, SourceRefused),
        ("SignatureNotMatch", 403, SourceRefused),
        ("InvalidAccessKeyId.NotFound", 404, SourceRefused),
        ("SecurityTokenExpired", 401, SourceRefused),
        ("RequestTimeExpired", 400, SourceRefused),
        ("ProjectNotExist", 404, LogNotFound),
        ("LogStoreNotExist", 404, LogNotFound),
        ("ShardNotExist", 404, UnknownShard),
        ("InvalidCursor", 400, CursorInvalid),
        ("ReadQuotaExceed", 403, SourceThrottled),
        ("ShardReadQuotaExceed", 403, SourceThrottled),
        ("SomethingNew", 429, SourceThrottled),
        ("InternalServerError", 500, SourceUnavailable),
        ("ServerBusy", 503, SourceUnavailable),
        ("HTTP status 502", 502, SourceUnavailable),
        ("LogRequestError", 200, SourceUnavailable),
        ("ParameterInvalid", 400, SourceError),
    ],
)
def test_each_error_code_has_a_type(code: str, status: int, kind: type[LeaseholdError]) -> None:
    error = failure(ServiceRefusal(code, status, "said\nby the service"), *SUBJECT)
    assert type(error) is kind
    assert code in str(error) or kind in (UnknownShard, CursorInvalid)
    assert "\n" not in str(error)
    assert str(error).endswith(".")


def test_the_service_s_text_about_a_key_is_not_repeated() -> None:
    refusal = ServiceRefusal("Unauthorized", 401, "AccessKeyId not found: LTAI1234")
    assert "LTAI1234" not in str(failure(refusal, *SUBJECT))
    assert "LTAI1234" not in repr(refusal)
