"""The settings of a deployment, from `LEASEHOLD_*` variables and `leasehold.toml`.

Secrets, such as a database URL with a password, are accepted in the environment only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pydantic

from dagster_leasehold.assets.places.address import output_place, unaddressable
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.spark.spark_settings import SparkSettings
from dagster_leasehold.assets.table_settings import (
    CATALOG_DEFAULT,
    SECRET_PROPERTY,
    CatalogSettings,
)
from dagster_leasehold.lease_store.errors import (
    InvalidSetting,
    LeaseholdError,
    plain_reason,
    shown,
    suggestion,
    without_secrets,
)
from dagster_leasehold.lease_store.group_rows import TIMEOUT_DEFAULT_S, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, GroupName, NodeName, StreamName
from dagster_leasehold.lease_store.pruning import HISTORY_DAYS_DEFAULT, history_age
from dagster_leasehold.orchestration.project_module import (
    DEFINITIONS_MODULE,
    SETTINGS_FILE,
    project_folder,
    toml_values,
)

if TYPE_CHECKING:
    from dagster_leasehold.lease_store.roles.publications import Publications

HOME_DEFAULT = Path(".leasehold")
ASSIGNED = "catalog"
"""The value of `output` with which the catalog assigns the location of each table."""
LOCATION = "leasehold"
"""The name of our code location; Dagster stores the states of sensors under it."""
PREFIX = "LEASEHOLD_"
# Variables for tests and fault injection are not settings.
NOT_SETTINGS = ("LEASEHOLD_TEST_", "LEASEHOLD_FAILPOINT", "LEASEHOLD_SCREENSHOT")


class Settings(pydantic.BaseModel):
    """All settings of a deployment; `load_settings` reads them.

    Attributes:
        home: the folder of logs, lease store, output, and Dagster's and Spark's state.
        output: the folder of committed output, relative to the home, or its URI; by default
            `output` in the home. With `catalog`, the catalog assigns a location to each table.
        database_url: SQLAlchemy URL of the lease store; None means SQLite in the home.
        nodes: the names of the nodes, if they have no agents.
        agents: True if nodes have agents, which are processes `leasehold node`.
        agent_node: the node of the agent that started this process; None in other processes. Only
            agents set it.
        spark_state: the folder of the local Spark server's state; by default `spark` in the home,
            or `nodes/<node>/spark` under an agent.
        lease_timeout_s: T of new consumer groups, in seconds.
        spark: where Spark runs, and its configuration. A text instead of a table is its address.
        history_days: the days that journal, delivered events, accepted gaps and merged ledger
            rows stay in the lease store; `forever` keeps them.
        catalog: the name of the catalog of the published tables.
        catalog_properties: PyIceberg's properties of a catalog other than the lease database; its
            secrets come from the environment (`PYICEBERG_CATALOG__NAME__…`).
        module: the Python module that declares streams, or has their definitions; without it,
            commands use the module of the current folder's project.

    Examples:
        >>> Settings(nodes=("east", "west")).lease_timeout_s
        20.0
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    home: Path = HOME_DEFAULT
    output: str | None = None
    database_url: pydantic.SecretStr | None = None
    nodes: tuple[str, ...] = ("local",)
    agents: bool = False
    agent_node: str | None = None
    spark_state: Path | None = None
    lease_timeout_s: float = TIMEOUT_DEFAULT_S
    spark: SparkSettings = SparkSettings()
    history_days: float | Literal["forever"] = HISTORY_DAYS_DEFAULT
    catalog: str = CATALOG_DEFAULT
    catalog_properties: Mapping[str, str] = {}
    module: str | None = None

    @pydantic.field_validator("nodes", "catalog_properties", "spark", mode="before")
    @classmethod
    def _parse_text(cls, value: object, info: pydantic.ValidationInfo) -> object:
        """Parse a text: JSON, nodes as `a,b`, or Spark's address."""
        if not isinstance(value, str) or (info.field_name == "spark" and value[:1] != "{"):
            return value
        if info.field_name == "nodes" and not value.lstrip().startswith("["):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return json.loads(value)

    @pydantic.field_validator("catalog_properties")
    @classmethod
    def _no_secrets(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if SECRET_PROPERTY.search(name) or without_secrets(text) != text:
                raise ValueError(
                    f"{shown(name)} has a secret: set it in the environment variable "
                    "PYICEBERG_CATALOG__NAME__PROPERTY"
                )
        return value

    @pydantic.field_validator("home")
    @classmethod
    def _addressable(cls, value: Path) -> Path:
        path, trouble = str(value.absolute()), unaddressable(value)
        # Dagster puts the path of its SQLite files into a URL unescaped, and Java separates paths
        # by colons.
        if not trouble and (mark := re.search(r"%[0-9A-Fa-f]{2}|:", path)):
            trouble = f"has a {mark[0]} in its path"
        if trouble:
            raise ValueError(
                f"{shown(value)} {trouble}, which an address cannot hold: choose another folder"
            )
        return value

    @pydantic.field_validator("nodes")
    @classmethod
    def _some_node(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("give at least one node")
        if len(set(value)) < len(value):
            raise ValueError("a node is named twice")
        return value

    @property
    def timing(self) -> Timing:
        """The protocol's durations."""
        return Timing(timeout_s=self.lease_timeout_s, beat_s=self.lease_timeout_s / 3)

    @property
    def history_age(self) -> timedelta | None:
        """The age at which history can be deleted; None if it is kept."""
        return history_age(self.history_days)

    @property
    def catalog_settings(self) -> CatalogSettings:
        """The catalog of the published tables."""
        assigns = self.output == ASSIGNED
        return CatalogSettings(self.catalog, self.catalog_properties, assigns)

    @property
    def store_url(self) -> pydantic.SecretStr:
        """The lease store's URL: `database_url`, or by default the SQLite file in the home."""
        if self.database_url is not None:
            return self.database_url
        # SQLAlchemy takes a third of a second to load.
        from sqlalchemy import URL

        file = str(self.home.absolute() / "leases.db")
        return pydantic.SecretStr(URL.create("sqlite", database=file).render_as_string())

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        """The names of `nodes`, checked."""
        return tuple(NodeName(name) for name in self.nodes)

    def log_folder(self, stream: str) -> Path:
        """Return the folder of a stream's local log."""
        return self.home.absolute() / "logs" / StreamName(stream)

    def upkeep_file(self, stream: StreamName, group: str) -> Path:
        """Return the file with the recorded statements for membership in a group."""
        return self.home.absolute() / "upkeep" / stream / f"{group}.json"

    @property
    def output_root(self) -> OutputPlace:
        """The location of all committed output, if the catalog assigns none.

        Raises:
            InvalidSetting: its address is not supported, or no catalog can assign one.
        """
        if self.output == ASSIGNED and not self.catalog_properties:
            raise InvalidSetting(
                "The lease database cannot assign locations: name another catalog in catalog and "
                f"catalog_properties, or write ./{ASSIGNED} for a folder of that name."
            )
        if self.output and re.match(r"[A-Za-z0-9]+:", self.output):
            return output_place(self.output)
        # Absolute, since the deployment's processes start in different folders.
        return output_place(self.home.absolute() / (self.output or "output"))

    def output_folder(
        self, stream: StreamName, group: str, store: Callable[[], Publications] | None = None
    ) -> OutputPlace:
        """Return the location of a group's committed output.

        Args:
            store: returns the lease store, which has the name of the table if the catalog assigns
                the location.

        Raises:
            TableUnavailable: the catalog assigns the location, and cannot be reached.
        """
        if store is None or self.output != ASSIGNED:
            return self.output_root / stream / group
        from dagster_leasehold.assets.output.table.assigned_location import assigned_place

        key = GroupKey(GroupName(group), stream)
        return assigned_place(store(), key, self.catalog_settings)

    @property
    def expected_nodes(self) -> tuple[NodeName, ...] | None:
        """The nodes that this deployment serves; None with agents, since their nodes vary."""
        return None if self.agents else self.node_names

    @property
    def dagster_home(self) -> Path:
        """The home of the embedded Dagster instance."""
        return self.home.absolute() / "dagster"

    @property
    def workspace_file(self) -> Path:
        """The workspace file, which names this package's definitions."""
        return self.dagster_home / "workspace.yaml"

    @property
    def spark_folder(self) -> Path:
        """The folder of the local Spark Connect server's state."""
        if self.spark_state is not None:
            return self.spark_state.absolute()
        return (
            self.node_folder(self.agent_node) if self.agent_node else self.home.absolute()
        ) / "spark"

    def node_folder(self, node: str) -> Path:
        """Return the folder of the state and logs of a node's agent."""
        return self.home.absolute() / "nodes" / NodeName(node)

    @property
    def leaving_mark(self) -> Path:
        """The file that an agent creates to stop its node's runs at their next checkpoint."""
        return self.node_folder(self.agent_node or "") / "leaving"


def location_of(module: str) -> str:
    """Return the name of the code location of a module's definitions."""
    return LOCATION if module == DEFINITIONS_MODULE else module


def load_settings(origin: str = "an option of the command", /, **overrides: object) -> Settings:
    """Return the settings of this process.

    Arguments override the environment, which overrides `leasehold.toml` in the home, which
    overrides `leasehold.toml` in the project's folder. Arguments that are None are ignored. Error
    messages about the other arguments name `origin`.

    Raises:
        InvalidSetting: a value is missing, unknown or of the wrong form; the message names it.

    Examples:
        >>> load_settings(nodes=["east"]).nodes
        ('east',)
    """
    arguments = {name: value for name, value in overrides.items() if value is not None}
    variables = _from_environment(os.environ)
    project = project_folder()
    # Messages then show a file in the current folder without its path.
    project = Path() if project == Path.cwd() else project
    project_file = project / SETTINGS_FILE
    of_project = _from_file(project_file)
    if project != Path():
        of_project["home"] = project / str(of_project.get("home", HOME_DEFAULT))
    home = {"home": HOME_DEFAULT, **of_project, **variables, **arguments}["home"]
    home_file = Path(str(home)) / SETTINGS_FILE
    of_home = {} if home_file.absolute() == project_file.absolute() else _from_file(home_file)
    if "home" in of_home:
        raise InvalidSetting(
            f"{home_file} sets 'home', although the file is in the home: remove that line."
        )
    origins = {
        **dict.fromkeys(of_project, str(project_file)),
        **dict.fromkeys(of_home, str(home_file)),
        **{name: PREFIX + name.upper() for name in variables},
        **dict.fromkeys(arguments, origin),
    }
    try:
        settings = Settings.model_validate({**of_project, **of_home, **variables, **arguments})
    except pydantic.ValidationError as error:
        raise _invalid(error, origins) from None
    # Derived values are computed here, so that error messages can name the setting.
    for name, derive in (
        ("lease_timeout_s", lambda: settings.timing),
        ("history_days", lambda: settings.history_age),
        ("output", lambda: settings.output_root),
        ("nodes", lambda: settings.node_names),
        ("agent_node", lambda: settings.agent_node and NodeName(settings.agent_node)),
    ):
        try:
            derive()
        except LeaseholdError as error:
            raise InvalidSetting(f"Setting '{name}' is not valid: {error}") from None
    return settings


def _invalid(error: pydantic.ValidationError, origins: Mapping[str, str]) -> InvalidSetting:
    first = error.errors(include_input=False, include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    if not location:
        return InvalidSetting(f"The settings are not valid: {plain_reason(first['msg'])}.")
    origin = origins.get(location[0], PREFIX + location[0].upper())
    if first["type"] == "extra_forbidden":
        siblings = SparkSettings if location[0] == "spark" else Settings
        return InvalidSetting(
            f"{origin} sets {shown('.'.join(location))}, which is not a setting: "
            f"{suggestion(location[-1], siblings.model_fields)}"
        )
    return InvalidSetting(
        f"Setting {shown('.'.join(location))} from {origin} is not valid: "
        f"{plain_reason(first['msg'])}."
    )


def _no_streams(origin: str) -> InvalidSetting:
    return InvalidSetting(
        f"{origin} declares streams, but settings only describe the deployment. Declare streams in "
        "a Python module, like the one that `leasehold init` writes, or in YAML, as components of "
        "`dg`, and set `module` to their module."
    )


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in the environment; empty variables are ignored."""
    values: dict[str, Any] = {}
    names = {PREFIX + field.upper(): field for field in Settings.model_fields}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable.startswith(NOT_SETTINGS):
            continue
        if variable == f"{PREFIX}STREAMS":
            raise _no_streams(variable)
        if variable not in names:
            raise InvalidSetting(
                f"The environment variable {shown(variable)} is not a setting: "
                f"{suggestion(variable, names)}"
            )
        if value:
            values[names[variable]] = value
    return values


def _from_file(path: Path) -> dict[str, Any]:
    """Return the settings in a file; an empty dictionary if there is no file."""
    values = toml_values(path)
    if "streams" in values:
        raise _no_streams(str(path))
    if urlsplit(str(values.get("database_url", ""))).password:
        raise InvalidSetting(
            f"{path} has a password in 'database_url': set {PREFIX}DATABASE_URL in the environment "
            "instead."
        )
    return values
