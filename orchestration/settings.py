"""The settings of a deployment: from `LEASEHOLD_*`, then `leasehold.toml`, typed and checked.

Secrets (a database URL with a password, tokens) come from the environment alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from lease_store.errors import InvalidSetting, LeaseholdError, shown
from lease_store.identifiers import NodeName, StreamName
from lease_store.records import TIMEOUT_DEFAULT_S, Timing

SETTINGS_FILE = "leasehold.toml"
DEMO_STREAM = "demo"


class StreamSettings(BaseModel):
    """A stream named in `leasehold.toml`: `[[streams]]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str = "local"
    group: str = "default"
    ordered: bool = True
    batch_records_max: int = Field(default=100_000, gt=0)
    batch_bytes_max: int = Field(default=64 * 1024 * 1024, gt=0)
    shards_per_run: int = Field(default=64, gt=0)
    run_budget_s: float = Field(default=300.0, gt=0)


class Settings(BaseSettings):
    """All settings of a deployment.

    Attributes:
        home: the folder of the embedded default: log, lease store, output, Dagster's home.
        database_url: SQLAlchemy URL of the lease store; None is SQLite in `home`.
        nodes: the nodes that this deployment serves.
        lease_timeout_s: T of new consumer groups.
        spark: `connect` (a warm Spark Connect server, started on demand on the loopback),
            `classic` (a session in every run's own process), or an `sc://` or `spark://` address.
        streams: the streams that the package's own definitions are made of.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEASEHOLD_",
        env_nested_delimiter="__",
        toml_file=SETTINGS_FILE,
        extra="forbid",
        frozen=True,
    )

    home: Path = Path(".leasehold")
    database_url: SecretStr | None = None
    nodes: tuple[str, ...] = ("local",)
    lease_timeout_s: float = TIMEOUT_DEFAULT_S
    spark: str | Literal["connect", "classic"] = "connect"
    streams: tuple[StreamSettings, ...] = (StreamSettings(name=DEMO_STREAM),)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over the environment, the environment over the file."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def timing(self) -> Timing:
        """The protocol's durations."""
        return Timing(timeout_s=self.lease_timeout_s, beat_s=self.lease_timeout_s / 3)

    @property
    def store_url(self) -> SecretStr:
        """The lease store's URL: the one given, or SQLite in `home`."""
        if self.database_url is not None:
            return self.database_url
        return SecretStr(f"sqlite:///{self.home.absolute() / 'leases.db'}")

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        """The nodes that this deployment serves, parsed."""
        return tuple(NodeName(name) for name in self.nodes)

    def log_folder(self, stream: StreamName) -> Path:
        """Where the local log of a stream lives."""
        return self.home.absolute() / "logs" / stream

    def output_folder(self, stream: StreamName, group: str) -> Path:
        """Where committed output of a stream and group lives."""
        return self.home.absolute() / "output" / stream / group

    @property
    def dagster_home(self) -> Path:
        """The embedded Dagster instance's home."""
        return self.home.absolute() / "dagster"

    @property
    def spark_folder(self) -> Path:
        """State of the embedded Spark Connect server, and class-data archives."""
        return self.home.absolute() / "spark"


def load_settings(**overrides: object) -> Settings:
    """The settings of this process.

    Raises:
        InvalidSetting: a value is missing, unknown or of the wrong form; the message names it.
    """
    try:
        settings = Settings(**overrides)  # pyright: ignore[reportArgumentType]
        # Derived values are checked here, where the message can still name the setting.
        _ = settings.timing, settings.node_names
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidSetting(
            f"Setting {shown(name)} is not valid: {first['msg']}. It comes from LEASEHOLD_"
            f"{name.upper()} or from {SETTINGS_FILE}."
        ) from None
    except LeaseholdError:
        raise
    except Exception as error:
        raise InvalidSetting(f"{SETTINGS_FILE} cannot be read: {error}.") from None
    return settings
