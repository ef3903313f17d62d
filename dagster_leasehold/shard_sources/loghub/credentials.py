"""Credentials from the environment, or from an address, as Alibaba Cloud's tools find them.

The environment variables are `ALIBABA_CLOUD_ACCESS_KEY_ID`, `ALIBABA_CLOUD_ACCESS_KEY_SECRET` and,
for temporary credentials, `ALIBABA_CLOUD_SECURITY_TOKEN`. They are read for every request.
Credentials that are renewed come from the address in the option `credentials_uri` or in
`ALIBABA_CLOUD_CREDENTIALS_URI`. It answers with the JSON of the STS API, like the metadata service
of an ECS instance for its RAM role.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from dagster_leasehold.lease_store.errors import SourceRefused, SourceUnavailable

KEY_ID = "ALIBABA_CLOUD_ACCESS_KEY_ID"
KEY_SECRET = "ALIBABA_CLOUD_ACCESS_KEY_SECRET"
TOKEN = "ALIBABA_CLOUD_SECURITY_TOKEN"
URI = "ALIBABA_CLOUD_CREDENTIALS_URI"
RENEW_AFTER_S = 300.0
"""Successive credentials overlap by far more. Their expiry is not used: it needs a wall clock."""
_TIMEOUT_S = (3.0, 5.0)


@dataclass(frozen=True, slots=True)
class AccessKey:
    """The key that signs requests, hidden in logs. The SDK calls its methods."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)

    def get_access_key_id(self) -> str:
        """Return the key's name."""
        return self.id

    def get_access_key_secret(self) -> str:
        """Return the key."""
        return self.secret

    def get_security_token(self) -> str:
        """Return the security token."""
        return self.token


class CredentialsProvider:
    """The credentials provider of the SDK's client; without an `uri`, the environment decides."""

    def __init__(
        self,
        uri: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._uri = uri
        self._clock = clock
        self._environment = environment
        self._lock = Lock()
        self._fetched: tuple[float, AccessKey] | None = None

    def get_credentials(self) -> AccessKey:
        """Return the key for the next request.

        Raises:
            SourceRefused: there are no credentials.
            SourceUnavailable: the address does not answer.
        """
        uri = self._uri or self._environment.get(URI, "")
        if uri and (self._uri or KEY_ID not in self._environment):
            return self._at(uri)
        key = AccessKey(
            self._environment.get(KEY_ID, ""),
            self._environment.get(KEY_SECRET, ""),
            self._environment.get(TOKEN, ""),
        )
        if not key.id or not key.secret:
            raise SourceRefused(
                f"There are no credentials for the log service: set {KEY_ID} and {KEY_SECRET} in "
                f"the environment, or their address in the option credentials_uri or in {URI}."
            )
        return key

    def renewed(self) -> bool:
        """Return True if the address has new credentials, after a refusal of the last ones."""
        with self._lock:
            before, self._fetched = self._fetched, None
        return before is not None and self.get_credentials() != before[1]

    def _at(self, uri: str) -> AccessKey:
        with self._lock:
            if self._fetched is None or self._clock() - self._fetched[0] > RENEW_AFTER_S:
                self._fetched = (self._clock(), _fetch(uri))
            return self._fetched[1]


def _fetch(uri: str) -> AccessKey:
    import requests

    try:
        response = requests.get(uri, timeout=_TIMEOUT_S)
    except (requests.RequestException, ValueError):
        raise SourceUnavailable("The address of the credentials does not answer.") from None
    if response.status_code != requests.codes.ok:
        raise SourceUnavailable(
            f"The address of the credentials answers with status {response.status_code}."
        )
    try:
        answer = response.json()
        return AccessKey(
            str(answer["AccessKeyId"]),
            str(answer["AccessKeySecret"]),
            str(answer.get("SecurityToken") or ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        # The answer can contain secrets, so it is not shown.
        raise SourceRefused(
            "The address of the credentials does not answer with AccessKeyId, AccessKeySecret "
            "and SecurityToken as JSON."
        ) from None
