"""Requests to the Kinesis service: boto3's client, with our errors and retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.shard_sources.retrying import Refusal, ask, error_for

ATTEMPTS = 6
PAUSE_MAX_S = 5.0
"""The service refuses reads of a shard for five seconds after a read of ten megabytes."""
CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 8
CONNECTIONS = 16
SHARD_CALLS_PER_S = 5.0
SHARD_BYTES_PER_S = 2 * 1024 * 1024
"""The documented limit of GetRecords for all readers of a shard."""


class KinesisOptions(BaseModel):
    """Options of a Kinesis stream; boto3 finds the credentials.

    Attributes:
        stream: its name, or its ARN for a stream of another account; by default the stream's
            name in Leasehold.
        region: the region; by default boto3's.
        profile: a profile of boto3's configuration files.
        endpoint_url: an interface endpoint, or a local server; by default the region's.
        shard_calls_per_s: the most reads of one shard by this host in a second; lower it if other
            applications read the stream.
        shard_bytes_per_s: the most bytes of one shard for this host in a second.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: str | None = Field(default=None, min_length=1, max_length=512)
    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^\s/@]+(/\S*)?$")
    shard_calls_per_s: float = Field(default=SHARD_CALLS_PER_S, gt=0)
    shard_bytes_per_s: int = Field(default=SHARD_BYTES_PER_S, gt=0)


class IteratorExpired(errors.SourceError):
    """An iterator is older than five minutes; a new one is made from the last cursor."""


class NumberRefused(errors.SourceError):
    """The service does not accept a sequence number of this shard."""


class CredentialsRefused(errors.SourceRefused):
    """The service refuses the credentials; they are possibly replaced by now."""


_REFUSALS = (
    Refusal(
        "(ProvisionedThroughput|Limit|RequestLimit)Exceeded(Exception)?|TooManyRequestsException"
        "|(KMS)?ThrottlingException|Throttling",
        errors.SourceThrottled,
        "{answer}, and retries did not help: too many readers read this shard.",
        (429,),
    ),
    # The service's text can repeat the request's signature, so only the code is shown.
    Refusal(
        "ExpiredToken(Exception)?|UnrecognizedClientException|InvalidClientTokenId"
        "|InvalidSignatureException|SignatureDoesNotMatch|IncompleteSignature(Exception)?"
        "|MissingAuthenticationToken(Exception)?|InvalidAccessKeyId|RequestExpired",
        CredentialsRefused,
        "{answer}: the credentials are wrong or have expired; renew them where boto3 finds them.",
    ),
    Refusal(
        "AccessDenied(Exception)?|NotAuthorized|(KMS)?OptInRequired"
        "|KMS(AccessDenied|Disabled|InvalidState|NotFound)Exception",
        errors.SourceRefused,
        "{answer}: {message}; grant it, or use other credentials.",
        (401, 403),
    ),
    Refusal("ExpiredIteratorException", IteratorExpired, "{answer}."),
    Refusal("ResourceNotFoundException", errors.LogNotFound, "{answer}: {message}."),
    Refusal("InvalidArgumentException|ValidationException", NumberRefused, "{answer}: {message}."),
    Refusal(
        "InternalFailure|ServiceUnavailable",
        errors.SourceUnavailable,
        "{answer} ({status}): try again later.",
        range(500, 1000),
    ),
)


@dataclass
class KinesisService:
    """Requests of one process about one stream; safe for several threads."""

    kind: ClassVar = "kinesis"
    options: KinesisOptions
    stream: str
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    _client: Any = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def call(self, operation: str, **arguments: object) -> dict[str, Any]:
        """Return the answer to a request; retry while the service is unavailable or throttles.

        Raises:
            SourceThrottled, SourceUnavailable: retries did not help.
            SourceRefused: the credentials are wrong, or do not allow this.
            LogNotFound: the stream or the shard does not exist.
            IteratorExpired, NumberRefused: an argument is no longer valid, or never was.
            SourceError: the service answers with another error.
        """
        # An iterator or a token names the stream; a token does not allow the stream's name too.
        complete = "ShardIterator" in arguments or "NextToken" in arguments
        named = arguments if complete else self.stream_argument() | arguments

        def attempt() -> dict[str, Any]:
            try:
                return self._once(operation, named)
            except CredentialsRefused:
                # They were possibly rotated. A new session reads files and roles again.
                with self._lock:
                    self._client = None
                return self._once(operation, named)

        return ask(attempt, attempts=ATTEMPTS, pause_max_s=PAUSE_MAX_S, sleep=self.sleep)

    def stream_argument(self) -> dict[str, object]:
        """Return the request argument that names the stream."""
        name = "StreamARN" if self.stream.startswith("arn:") else "StreamName"
        return {name: self.stream}

    def __str__(self) -> str:
        where = self.options.endpoint_url or self.options.region or "the default region"
        return f"the Kinesis stream {shown(self.stream)} at {where}"

    def _once(self, operation: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._connected(), operation)(**arguments)
        except ClientError as error:
            raise self._typed(error.response, operation) from None
        except BotoCoreError as error:
            raise self._typed_locally(error, operation) from None
        except ValueError as error:
            # botocore raises it for an endpoint that is not a URL.
            raise errors.InvalidSetting(f"{_capital(self)} cannot be reached: {error}.") from None

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                import boto3
                from botocore.config import Config

                session = boto3.Session(
                    profile_name=self.options.profile, region_name=self.options.region
                )
                self._client = session.client(
                    self.kind,
                    endpoint_url=self.options.endpoint_url,
                    config=Config(
                        connect_timeout=CONNECT_TIMEOUT_S,
                        read_timeout=READ_TIMEOUT_S,
                        max_pool_connections=CONNECTIONS,
                        # Two layers of retries would multiply their attempts.
                        retries={"mode": "standard", "total_max_attempts": 1},
                    ),
                )
            return self._client

    def _typed(self, response: Mapping[str, Any], operation: str) -> errors.LeaseholdError:
        """Return our error for an error answer, without request headers."""
        code = str(response.get("Error", {}).get("Code", ""))
        message = shown(" ".join(str(response.get("Error", {}).get("Message", "")).split()))
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        answer = f"{_capital(self)} answered {operation} with {code}"
        error = error_for(_REFUSALS, code, status, answer=answer, message=message)
        return error or errors.SourceError(f"{answer}: {message}.")

    def _typed_locally(self, error: Exception, operation: str) -> errors.LeaseholdError:
        """Return our error for a client error without an answer."""
        from botocore import exceptions as boto

        subject = f"{_capital(self)} cannot answer {operation}"
        kind = type(error).__name__
        if isinstance(error, boto.NoRegionError):
            return errors.InvalidSetting(
                f"{subject}: no region is set; set the option 'region' or AWS_DEFAULT_REGION."
            )
        if isinstance(error, boto.ProfileNotFound):
            return errors.InvalidSetting(
                f"{subject}: boto3 has no profile {shown(self.options.profile)}."
            )
        if isinstance(error, boto.HTTPClientError | boto.EndpointConnectionError):
            return errors.SourceUnavailable(f"{subject}: {kind}; try again later.")
        if isinstance(error, boto.ParamValidationError):
            return NumberRefused(f"{subject}: an argument does not have the service's form.")
        credentials = ("Credential", "Token", "SSO", "Login", "Signature", "Auth")
        if any(word in kind for word in credentials):
            return CredentialsRefused(
                f"{subject}: {kind}; put credentials where boto3 finds them (environment, profile, "
                "role)."
            )
        return errors.SourceError(f"{subject}: {kind}.")


def _capital(service: KinesisService) -> str:
    text = str(service)
    return text[0].upper() + text[1:]


def service_time(response: Mapping[str, Any]) -> datetime | None:
    """Return the service's time from the `Date` of an answer, if it has one."""
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return None
