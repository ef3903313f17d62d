"""The options of a logstore."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{1,62}", re.ASCII)


class LogHubOptions(BaseModel):
    """Options of a logstore; credentials come from the environment or an address.

    Attributes:
        endpoint: the service's address, such as `cn-hangzhou.log.aliyuncs.com`; HTTPS unless it
            starts with `http://`.
        project: the project.
        logstore: the logstore; by default the stream's name.
        value_field: the field whose bytes are a record's value; by default the value is JSON of
            all fields.
        key_field: the field whose bytes are a record's key; by default there is no key.
        compression: the compression of responses.
        auth_version: how requests are signed; `v4` needs the region.
        region: the project's region, such as `cn-hangzhou`.
        credentials_uri: the address of temporary credentials.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    endpoint: str
    project: str
    logstore: str = ""
    value_field: str = ""
    key_field: str = ""
    compression: Literal["lz4", "zstd", "deflate", "none"] = "lz4"
    auth_version: Literal["v1", "v4"] = "v1"
    region: str = Field(default="", pattern=r"^[a-z0-9-]*$")
    credentials_uri: str = ""

    @field_validator("endpoint")
    @classmethod
    def _address(cls, value: str) -> str:
        address = value if "://" in value else f"https://{value}"
        if not _is_address(address) or urlsplit(address).path not in ("", "/"):
            raise ValueError("use a host such as cn-hangzhou.log.aliyuncs.com")
        return address.rstrip("/")

    @field_validator("credentials_uri")
    @classmethod
    def _secretless(cls, value: str) -> str:
        if value and not _is_address(value):
            raise ValueError("use an http or https address without a user or password")
        return value

    @field_validator("project", "logstore")
    @classmethod
    def _name(cls, value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise ValueError("use 2 to 63 small letters, digits, '-' or '_'")
        return value

    @model_validator(mode="after")
    def _region_of_v4(self) -> LogHubOptions:
        if self.auth_version == "v4" and not self.region:
            raise ValueError("auth_version v4 needs the option region")
        return self


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not (parts.username or parts.password)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        return False
