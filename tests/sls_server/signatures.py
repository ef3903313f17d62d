"""Check of a request's signature: versions 1 (HMAC-SHA1) and 4 (HMAC-SHA256)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from tests.sls_server.store import ServiceError

SKEW_MAX = timedelta(minutes=15)


@dataclass(frozen=True)
class Request:
    """The text that a signature covers; header names in small letters, the query decoded."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


def check(request: Request, keys: Mapping[str, tuple[str, str]], now: datetime) -> None:
    """Refuse a request that none of the keys (id: secret, token) signed.

    Raises:
        ServiceError: with the code of the service.
    """
    given = request.headers.get("authorization", "")
    if not given:
        raise ServiceError(401, "Unauthorized", "no authorization")
    if given.startswith("LOG "):
        key_id, _, signature = given.removeprefix("LOG ").partition(":")
        when = parsedate_to_datetime(request.headers["date"])
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        expected = _version_1
    elif given.startswith("SLS4-HMAC-SHA256 Credential="):
        credential, _, signature = given.partition(",Signature=")
        key_id = credential.removeprefix("SLS4-HMAC-SHA256 Credential=").split("/")[0]
        when = datetime.fromisoformat(request.headers["x-log-date"])
        expected = _version_4
    else:
        raise ServiceError(400, "InvalidAuthorization", "unknown scheme")
    if key_id not in keys:
        raise ServiceError(401, "Unauthorized", f"AccessKeyId not found: {key_id}")
    secret, token = keys[key_id]
    if request.headers.get("x-acs-security-token", "") != token:
        raise ServiceError(401, "SecurityTokenExpired", f"of {key_id}")
    if abs(now - when) > SKEW_MAX:
        raise ServiceError(400, "RequestTimeExpired", f"server time is {now.isoformat()}")
    if request.body and "content-md5" in request.headers:
        md5 = hashlib.md5(request.body).hexdigest().upper()
        if request.headers["content-md5"] != md5:
            raise ServiceError(400, "PostBodyInvalid", "Content-MD5 differs")
    if not hmac.compare_digest(expected(request, secret), signature):
        # The service repeats what it signed in its answer, so the message is not shown.
        raise ServiceError(401, "SignatureNotMatch", f"signature {signature} of {key_id}")


def _extra_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if name.startswith(("x-log-", "x-acs-")) and name != "x-log-date"
    }


def _version_1(request: Request, secret: str) -> str:
    headers = request.headers
    resource = request.path
    if request.query:
        resource += "?" + "&".join(
            f"{name}={request.query[name]}" for name in sorted(request.query)
        )
    lines = [
        request.method,
        headers.get("content-md5", ""),
        headers.get("content-type", ""),
        headers["date"],
        *(f"{name}:{value}" for name, value in sorted(_extra_headers(headers).items())),
        resource,
    ]
    digest = hmac.new(secret.encode(), "\n".join(lines).encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


def _version_4(request: Request, secret: str) -> str:
    headers = request.headers
    content = hashlib.sha256(request.body).hexdigest()
    if headers["x-log-content-sha256"] != content:
        raise ServiceError(400, "InvalidParameter", "x-log-content-sha256 differs")
    signed = _extra_headers(headers) | {"x-log-date": headers["x-log-date"]}
    signed |= {name: headers[name] for name in ("content-type", "host") if name in headers}
    query = "&".join(
        f"{name}={quote(value, safe='~')}" if value else name
        for name, value in sorted(request.query.items())
    )
    canonical = "\n".join(
        [
            request.method,
            request.path,
            query,
            "".join(f"{name}:{signed[name].strip()}\n" for name in sorted(signed)),
            ";".join(sorted(signed)),
            content,
        ]
    )
    scope = headers["authorization"].split("Credential=")[1].split(",")[0].split("/", 1)[1]
    when = headers["x-log-date"]
    text = f"SLS4-HMAC-SHA256\n{when}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"aliyun_v4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
