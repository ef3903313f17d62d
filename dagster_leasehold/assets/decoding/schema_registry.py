"""A schema registry with Confluent's interface: each process fetches a schema once.

Secrets come from environment variables of the process that fetches. No error contains the message
of the HTTP library, which can quote a header.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import RegistryUnavailable, SchemaUnusable
from dagster_leasehold.lease_store.errors import one_line, shown, without_secrets

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

URL_VARIABLE = "SCHEMA_REGISTRY_URL"
UNKNOWN_FOR_S = 30.0
"""The time before a schema that the registry did not have is requested again."""
_NOT_FOUND = frozenset({40401, 40402, 40403})
"""The registry's error codes for an unknown subject, version and schema."""
_DEFAULTS = {
    "timeout": 10.0,
    "max.retries": 2,
    "retries.wait.ms": 200,
    "retries.max.wait.ms": 1_000,
}
_TOKEN = "bearer.auth.token"
_TOKEN_DEFAULTS = {
    "bearer.auth.credentials.source": "STATIC_TOKEN",
    "bearer.auth.logical.cluster": "",
}


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry.

    Attributes:
        kind: `AVRO`, `PROTOBUF` or `JSON`.
        text: the schema; for Protobuf, a serialized file descriptor in base 64.
        references: the name and text of each schema that it needs, in the order of their use.
    """

    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class SchemaRegistry:
    """The access to a registry; it can be sent to other processes, and has no secrets.

    Attributes:
        url: its address, or several separated by commas; empty to use an environment variable.
        client: properties of Confluent's client, as pairs.
        secrets: secret properties, each with the environment variable that contains its value.
    """

    url: str
    client: tuple[tuple[str, Any], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()

    def schema(self, number: int, kind: str) -> RegisteredSchema | None:
        """Return a schema; None if the registry does not have it.

        Args:
            number: the schema's id.
            kind: the kind that the stream decodes.

        Raises:
            RegistryUnavailable: the registry does not answer, or refuses access.
            SchemaUnusable: the schema is of another kind, or a schema that it needs is missing.
        """
        key = (self, number, kind)
        if key in _SCHEMAS:
            return _SCHEMAS[key]
        if time.monotonic() < _UNKNOWN.get(key, 0):
            return None
        schema = self._fetched(number, kind)
        if schema is None:
            _UNKNOWN[key] = time.monotonic() + UNKNOWN_FOR_S
        else:
            _SCHEMAS[key] = schema
        return schema

    def _fetched(self, number: int, kind: str) -> RegisteredSchema | None:
        client = self._client()
        form = "serialized" if kind == "PROTOBUF" else None
        answer = self._answer(lambda: client.get_schema(number, fmt=form))
        if answer is None:
            return None
        own_kind = answer.schema_type or "AVRO"
        if own_kind != kind:
            raise SchemaUnusable(
                f"The schema {number} of the schema registry is of the type {own_kind}, and the "
                f"stream decodes {kind}: set decode to the format of its records."
            )
        references: dict[str, str] = {}
        self._add_references(client, answer, form, references)
        return RegisteredSchema(own_kind, answer.schema_str or "", references)

    def _add_references(
        self, client: SchemaRegistryClient, schema: Any, form: str | None, texts: dict[str, str]
    ) -> None:
        for reference in schema.references or ():
            if reference.name in texts:
                continue
            answer = self._answer(
                lambda each=reference: client.get_version(each.subject, each.version, True, form)
            )
            if answer is None:
                raise SchemaUnusable(
                    f"The schema registry does not have version {reference.version} of the subject "
                    f"{shown(str(reference.subject))}, which another schema needs: register it."
                )
            self._add_references(client, answer.schema, form, texts)
            texts[reference.name] = answer.schema.schema_str or ""

    def _answer(self, request: Any) -> Any:
        """Return the answer to a request; None if the registry does not have the schema."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return request()
        except SchemaRegistryError as error:
            status = error.http_status_code
            if error.error_code in _NOT_FOUND:
                return None
            if status in (401, 403):
                reason, advice = f"refuses access ({status})", "check the secrets of decode"
            else:
                reason, advice = f"answers with the error {status}", "see its log"
        except Exception as error:
            reason, advice = f"does not answer ({type(error).__name__})", "check that it runs"
        # The next attempt reads the secrets again, because they may have changed.
        _CLIENTS.pop(self, None)
        raise RegistryUnavailable(
            f"The schema registry at {self._address()} {reason}, so no records are decoded: "
            f"{advice}."
        )

    def _address(self) -> str:
        return shown(without_secrets(self.url or os.environ.get(URL_VARIABLE, "")))

    def _client(self) -> SchemaRegistryClient:
        """Return the client of this process."""
        if self in _CLIENTS:
            return _CLIENTS[self]
        from confluent_kafka.schema_registry import SchemaRegistryClient

        url = self.url or os.environ.get(URL_VARIABLE, "")
        if not url:
            raise RegistryUnavailable(
                f"The stream has no schema registry: set `registry` in decode, or the "
                f"environment variable {URL_VARIABLE} of Spark's workers."
            )
        secrets = {name: _secret(name, variable) for name, variable in self.secrets}
        defaults = _DEFAULTS | (_TOKEN_DEFAULTS if _TOKEN in secrets else {})
        try:
            client = SchemaRegistryClient({"url": url, **defaults, **dict(self.client), **secrets})
        except Exception as error:
            reason = one_line(str(error)) if isinstance(error, ValueError) else ""
            for secret in secrets.values():
                reason = reason.replace(secret, "***")
            raise RegistryUnavailable(
                f"The client of the schema registry refuses its properties "
                f"({type(error).__name__}: {without_secrets(reason)}): correct decode."
            ) from None
        _CLIENTS[self] = client
        return client


_SCHEMAS: dict[tuple[SchemaRegistry, int, str], RegisteredSchema] = {}
_UNKNOWN: dict[tuple[SchemaRegistry, int, str], float] = {}
_CLIENTS: dict[SchemaRegistry, Any] = {}


def _secret(name: str, variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise RegistryUnavailable(
            f"The environment variable {variable}, which has {name} of the schema registry, is not "
            "set: set it for Spark's workers."
        )
    return value
