"""The settings of Spark: where it runs, and which keys of its configuration users can set.

The deployment's settings contain them, and `spark_session` checks them again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pydantic

from dagster_leasehold.assets.spark.shipped_code import WORKERS_PYTHON_KEY
from dagster_leasehold.lease_store.errors import InvalidSetting, shown, without_secrets

CONNECT = "connect"
CONNECT_SCHEME = "sc://"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
MEMORY_KEY = "spark.driver.memory"
USE_TLS = "use_ssl"
MEMORY_MIN_MIB = 512
ARCHIVES = (".tar.gz", ".tgz")
_MODE = re.compile(r"connect|yarn|local(\[[^\]]+\])?|(sc|spark|k8s)://.+")
_MEMORY = re.compile(r"([1-9]\d*)([mg])")
_SECRET = re.compile(
    r"(?i)secret|password|token|credential|access[.-]?key|account[.-]?key|private[.-]key$"
)
_SECRET_KEY_REF = re.compile(r"spark\.kubernetes\.(driver|executor)\.secretKeyRef\..+")
_KEY_OF_SECRET = re.compile(r"[a-z0-9][a-z0-9.-]*:[\w.-]+")
_REFERENCE = re.compile(
    r"(?i).*(provider|file|path|enabled)"  # a class, a file, a path or a switch
    r"|spark\.kubernetes\.container\.image\.pullSecrets"
    r"|spark\.kubernetes\.(driver|executor)\.secrets\..+"
    r"|spark\.kubernetes\.kerberos\.tokenSecret\..+"
    r"|spark\.security\.credentials\..+|spark\.kerberos\.renewal\.credentials"
)
"""Keys whose names suggest a secret, but whose values only refer to one."""
SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""The settings that the project relies on. They can also be set in a running session."""
PROTECTED = {
    "spark.master": "the setting spark.address names it",
    "spark.remote": "the setting spark.address names it",
    "spark.api.mode": "the setting spark.address determines it",
    "spark.submit.deployMode": "each run is the driver of its own jobs",
    MEMORY_KEY: "set spark.memory instead",
    "spark.connect.grpc.binding.address": "the server that Leasehold starts is for this host alone",
    "spark.connect.grpc.binding.port": "each server uses a free port",
    "spark.connect.session.manager.defaultSessionTimeout": "all runs share one session",
    **dict.fromkeys(SESSION_CONF, "all files of a table hold times of one type, in UTC"),
}
"""The keys that `spark.conf` cannot set, and the reasons."""
PROTECTED_HERE = dict.fromkeys(
    ("spark.driver.host", "spark.driver.bindAddress"),
    "a Spark without an address is for this host alone",
)
"""More keys that `spark.conf` cannot set if Leasehold starts Spark on this host."""


def check_mode(mode: str) -> str:
    """Return `mode` if it is valid and contains no secret.

    Raises:
        InvalidSetting: it is neither a known word nor an address, or the address has a token.
    """
    if not _MODE.fullmatch(mode):
        raise InvalidSetting(
            f"Spark cannot run at {shown(mode)}: use connect, yarn, or an address such as "
            "sc://host:15002, spark://host:7077, k8s://https://host:6443 or local[2]."
        )
    if "token=" in mode.lower():
        # Dagster stores and shows the mode with a job, so it must not contain a token.
        raise InvalidSetting(
            f"The address of Spark contains a token: set {TOKEN_VARIABLE} in the environment "
            "instead."
        )
    return mode


def check_conf(mode: str, conf: Mapping[str, str]) -> None:
    """Refuse configuration that would break a promise, or reveal a secret.

    Raises:
        InvalidSetting: a key does not begin with `spark.`, is protected, or has a secret as its
            value.
    """
    protected = PROTECTED if is_remote(mode) else PROTECTED | PROTECTED_HERE
    for key, value in conf.items():
        if not key.startswith("spark."):
            raise InvalidSetting(
                f"spark.conf has {shown(key)}, but Spark's keys begin with 'spark.'"
            )
        if reason := protected.get(key):
            raise InvalidSetting(f"spark.conf cannot set {key}: {reason}.")
        if _holds_secret(key, value):
            # Dagster stores and shows it, and Spark's web page shows it, too.
            raise InvalidSetting(
                f"{shown(key)} of spark.conf holds a secret: set it in the environment of "
                "Spark's processes."
            )


def _holds_secret(key: str, value: str) -> bool:
    if _SECRET_KEY_REF.fullmatch(key):
        # The value names a Kubernetes secret and its key, such as `password`.
        return not _KEY_OF_SECRET.fullmatch(value)
    if _SECRET.search(key) and not _REFERENCE.fullmatch(key):
        return True
    return without_secrets(value) != value


def is_remote(mode: str) -> bool:
    """Return True if Spark runs on a cluster or server that Leasehold does not start."""
    return mode != CONNECT and not mode.startswith("local")


class SparkSettings(pydantic.BaseModel):
    """Where Spark runs, and its configuration.

    Attributes:
        address: of a Connect server (`sc://host:15002`) or a master (`spark://…`, `k8s://…`,
            `yarn`, `local[…]`), where each run is a driver; None for the embedded server, which
            all runs of this host share.
        memory: the heap of the embedded server, or of the driver in each run: `512m`, `4g`.
        tls: True if the connection to `sc://…` is encrypted.
        certificate: the absolute path of a PEM file with the certificates to trust at `sc://…`,
            instead of gRPC's defaults.
        environment_archive: the absolute path of a packed environment, a .tar.gz, with the Python
            for the workers of a cluster or of an `sc://` server.
        conf: Spark's configuration, passed on unchanged.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    address: str | None = None
    memory: str | None = None
    tls: bool = False
    certificate: Path | None = None
    environment_archive: Path | None = None
    conf: Mapping[str, str] = {}

    @pydantic.model_validator(mode="before")
    @classmethod
    def _table_of_word(cls, value: object) -> object:
        """Convert a single word or address into a table."""
        if isinstance(value, str):
            return {} if value == CONNECT else {"address": value}
        return value

    @pydantic.field_validator("conf", mode="before")
    @classmethod
    def _flat(cls, value: object) -> object:
        return dict(_entries(value, "")) if isinstance(value, Mapping) else value

    @pydantic.model_validator(mode="after")
    def _sound(self) -> SparkSettings:
        try:
            self._check()
        except InvalidSetting as error:
            raise ValueError(str(error)) from None
        return self

    def _check(self) -> None:
        engine = check_mode(self.engine)
        check_conf(engine, self.conf)
        served = engine.startswith(CONNECT_SCHEME)
        if self.address == CONNECT:
            raise InvalidSetting(f"spark.address is {CONNECT!r}, which is no address: remove it")
        if (self.tls or self.certificate) and not served:
            raise InvalidSetting("spark.tls and spark.certificate are for an sc:// address")
        if self.certificate and not (self.certificate.is_absolute() and self.certificate.is_file()):
            # A relative path is ambiguous: a deployment's processes start in several folders.
            raise InvalidSetting(
                f"spark.certificate is {shown(self.certificate)}: give the absolute path of a file"
            )
        if self._encrypted and self._parameters.get(USE_TLS, "true").lower() != "true":
            raise InvalidSetting(
                "spark.tls and spark.certificate encrypt the connection, and the address switches "
                f"that off: remove {USE_TLS} from spark.address"
            )
        if self.environment_archive is not None:
            _check_archive(self.environment_archive, remote=is_remote(engine))
            if WORKERS_PYTHON_KEY in self.conf:
                raise InvalidSetting(
                    "spark.environment_archive contains the workers' Python, and "
                    f"{WORKERS_PYTHON_KEY} of spark.conf names another: remove one of the two"
                )
        if self.memory is not None:
            _check_memory(self.memory, served=served)

    @property
    def engine(self) -> str:
        """`connect`, or the address for Spark's client."""
        if self.address is None:
            return CONNECT
        if not self._encrypted or USE_TLS in self._parameters:
            return self.address
        between = ";" if "/;" in self.address else "/;"
        return f"{self.address.rstrip('/;')}{between}{USE_TLS}=true"

    @property
    def _encrypted(self) -> bool:
        return self.tls or self.certificate is not None

    @property
    def _parameters(self) -> dict[str, str]:
        """The parameters of the address; the last value of a name counts, as in Spark's client."""
        parameters = (self.address or "").split(";")[1:]
        return {name: unquote(value) for name, _, value in (p.partition("=") for p in parameters)}

    @property
    def whole_conf(self) -> dict[str, str]:
        """Spark's configuration, with the memory."""
        return {**self.conf, **({MEMORY_KEY: self.memory} if self.memory else {})}


def _entries(table: Mapping[str, Any], before: str) -> list[tuple[str, object]]:
    """Flatten nested tables, which TOML creates for dotted keys without quotes."""
    entries: list[tuple[str, object]] = []
    for key, value in table.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            entries += _entries(value, f"{name}.")
        elif isinstance(value, bool):
            entries.append((name, str(value).lower()))
        else:
            entries.append((name, str(value) if isinstance(value, int | float) else value))
    return entries


def _check_archive(archive: Path, *, remote: bool) -> None:
    if not remote:
        raise InvalidSetting(
            "spark.environment_archive is for a Spark with an address: on this host, workers use "
            "the Python of Leasehold"
        )
    if not (archive.is_absolute() and archive.is_file() and archive.name.endswith(ARCHIVES)):
        raise InvalidSetting(
            f"spark.environment_archive is {shown(archive)}: give the absolute path of a "
            f"{' or '.join(ARCHIVES)} file"
        )


def _check_memory(memory: str, *, served: bool) -> None:
    if served:
        raise InvalidSetting(
            "spark.memory is for a Spark that Leasehold starts; the server at an sc:// address "
            "has its own"
        )
    match = _MEMORY.fullmatch(memory)
    if not match or int(match[1]) * (1024 if match[2] == "g" else 1) < MEMORY_MIN_MIB:
        raise InvalidSetting(
            f"spark.memory is {shown(memory)}: use {MEMORY_MIN_MIB}m or more, such as 4g"
        )
