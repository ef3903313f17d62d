"""Dagster's resource `leasehold`: the deployment, with its lease store, output and Spark."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

import dagster as dg
from pydantic import SecretStr
from typing_extensions import override

from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.spark.spark_settings import CONNECT
from dagster_leasehold.lease_store.errors import InvalidSetting, without_secrets
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import PREFIX, Settings, load_settings


class LeaseholdResource(dg.ConfigurableResource[Deployment]):
    """The deployment of runs and sensors: its database, output, catalog and Spark.

    Each field overrides the setting of the same name in the environment and in `leasehold.toml`.
    Omitted fields are read from there by `build_definitions`, when a run begins, and at the first
    tick of a sensor. If importing your module must not read settings, call `build_definitions` in a
    function under `@dg.definitions`.

    Commands and agents read only the settings. A command refuses to run if the settings name
    another database, output or catalog than the resource.

    Attributes:
        database_url: SQLAlchemy URL of the lease store. If it has a password, use
            `dg.EnvVar("NAME")`.
        output: the folder or URI of all committed output; `catalog` if the catalog assigns it.
        home: the folder of logs, lease store and output, except those that other fields place
            elsewhere.
        spark: `connect`, the address of a Spark server or master, or Spark's settings as JSON.
        catalog: the name of the catalog of the published tables.
        catalog_properties: PyIceberg's properties of a catalog other than the lease database.
        nodes: the names of the nodes, if they have no agents.
        lease_timeout_s: T of new consumer groups, in seconds.

    Examples:
        >>> import dagster as dg
        >>> from dagster_leasehold import LeaseholdResource, build_definitions
        >>> branch = LeaseholdResource(
        ...     database_url=dg.EnvVar("BRANCH_DATABASE_URL"), output="s3://lake/branch"
        ... )
        >>> definitions = build_definitions([], branch)
        >>> definitions.resources["leasehold"] is branch
        True
    """

    database_url: str | None = None
    output: str | None = None
    home: str | None = None
    spark: str | None = None
    catalog: str | None = None
    catalog_properties: dict[str, str] | None = None
    nodes: list[str] | None = None
    lease_timeout_s: float | None = None

    @override
    def create_resource(self, context: dg.InitResourceContext) -> Deployment:
        """Return the deployment; Dagster calls this."""
        del context
        return deployment_of(self.settings())

    def settings(self) -> Settings:
        """Return the settings of the deployment.

        Raises:
            InvalidSetting: a value is missing, unknown or of the wrong form, or an environment
                variable is not set.
        """
        values: dict[str, Any] = {}
        for name in type(self).model_fields:
            value: Any = getattr(self, name)
            if isinstance(value, dg.EnvVar):
                variable, value = value.env_var_name, value.get_value()
                if not value:
                    raise InvalidSetting(
                        f"LeaseholdResource reads {name} from the environment variable {variable}, "
                        "which is not set. Set it."
                    )
            values[name] = value
        return load_settings("LeaseholdResource", **values)

    def refuse_secrets(self) -> None:
        """Refuse a password in the configuration, which Dagster stores and shows.

        Raises:
            InvalidSetting: `database_url` has a password.
        """
        url = self.database_url
        if url and not isinstance(url, dg.EnvVar) and without_secrets(url) != url:
            raise InvalidSetting(
                "LeaseholdResource has a password in database_url, which Dagster would show: "
                'use dg.EnvVar("NAME"), and set that variable.'
            )


DEFAULT = LeaseholdResource()
"""The deployment that the settings describe.

It is one object, since Dagster merges only definitions that share the resource.
"""
_OPENING = Lock()


def deployment_of(settings: Settings) -> Deployment:
    """Return the deployment that the settings describe; the store is opened at first use."""

    stores: list[LeaseStore] = []

    def store() -> LeaseStore:
        # The threads of a process share one pool of connections.
        with _OPENING:
            if not stores:
                settings.home.mkdir(parents=True, exist_ok=True)
                stores.append(_store_at(settings.store_url))
            return stores[0]

    return Deployment(
        store=store,
        nodes=settings.node_names,
        timing=settings.timing,
        output_folder=lambda key: settings.output_folder(key.stream, key.group, store),
        upkeep_file=lambda key: settings.upkeep_file(key.stream, key.group),
        agents=settings.agents,
        catalog=settings.catalog_settings,
        history_age=settings.history_age,
        leaving=settings.leaving_mark.exists if settings.agent_node else lambda: False,
        spark_folder=settings.spark_folder if _spark_is_shared(settings) else None,
        spark=spark_of(settings),
    )


def _output_of(settings: Settings) -> str:
    """Return the location of output; empty if the catalog assigns it."""
    return "" if settings.catalog_settings.assigns else str(settings.output_root)


@cache
def _store_at(url: SecretStr) -> LeaseStore:
    """Return the lease store at a URL, shared by all definitions of a process."""
    from dagster_leasehold.lease_store import open_store

    return open_store(url)


def _spark_is_shared(settings: Settings) -> bool:
    return settings.spark.engine == CONNECT and not settings.agents


def spark_of(settings: Settings) -> SparkResource:
    """Return the Spark resource of the settings; the first run starts its session."""
    spark = settings.spark
    return SparkResource(
        mode=spark.engine,
        folder=str(settings.spark_folder),
        conf=spark.whole_conf,
        certificate=str(spark.certificate.absolute()) if spark.certificate else "",
        environment_archive=str(spark.environment_archive or ""),
    )


def require_same_deployment(definitions: dg.Definitions, settings: Settings) -> None:
    """Check that the resource of definitions and the settings describe the same deployment.

    Raises:
        InvalidSetting: the database, the output or the catalog differs.
    """
    resource = (definitions.resources or {}).get(LEASEHOLD)
    if not isinstance(resource, LeaseholdResource) or resource is DEFAULT:
        return
    of_resource = resource.settings()
    for name, value, resource_value in (
        ("database_url", settings.store_url, of_resource.store_url),
        ("output", _output_of(settings), _output_of(of_resource)),
        ("catalog", settings.catalog_settings, of_resource.catalog_settings),
    ):
        if value != resource_value:
            raise InvalidSetting(
                f"The LeaseholdResource of the definitions has another {name} than the settings "
                f"that this command reads: set {PREFIX}{name.upper()} to the resource's value."
            )
