"""The deployment as Dagster's resource `leasehold`: the lease store, the output, Spark."""

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
    """The deployment that runs and sensors work for: a database, an output, a catalog and Spark.

    Each field is the setting of its name, and wins over the environment and `leasehold.toml`,
    which give what is left out. They are read by `build_definitions`, for what a definition shows,
    and again when a run begins and at the first tick of a sensor. Call it in a function under
    `@dg.definitions`, and importing your module reads none.

    The commands and agents of a deployment read the settings alone. Where a command finds that
    these lead to another database, output or catalog than the resource, it says so and ends.

    Attributes:
        database_url: SQLAlchemy URL of the lease store. If it holds a password, give
            `dg.EnvVar("NAME")`.
        output: the folder or URI of all committed output.
        home: the folder of the embedded defaults.
        spark: `connect`, the address of a Spark, or the settings of Spark as JSON.
        catalog: the name of the catalog of the published tables.
        catalog_properties: of PyIceberg, for another catalog than the lease database.
        nodes: the nodes that this deployment keeps alive by itself.
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
        """Return the deployment, for Dagster."""
        del context
        return deployment_of(self.settings())

    def settings(self) -> Settings:
        """Return the settings of the deployment.

        Raises:
            InvalidSetting: a value is missing, unknown or of the wrong form, or the environment
                lacks a variable.
        """
        given: dict[str, Any] = {}
        for name in type(self).model_fields:
            value: Any = getattr(self, name)
            if isinstance(value, dg.EnvVar):
                variable, value = value.env_var_name, value.get_value()
                if not value:
                    raise InvalidSetting(
                        f"LeaseholdResource takes {name} from the environment variable {variable}, "
                        "which is not set: set it."
                    )
            given[name] = value
        return load_settings("LeaseholdResource", **given)

    def refuse_secrets(self) -> None:
        """Refuse a password that Dagster would store and show as part of the configuration.

        Raises:
            InvalidSetting: `database_url` holds one.
        """
        url = self.database_url
        if url and not isinstance(url, dg.EnvVar) and without_secrets(url) != url:
            raise InvalidSetting(
                "LeaseholdResource holds a password in database_url, which Dagster would show: "
                'give it as dg.EnvVar("NAME"), and set that variable.'
            )


DEFAULT = LeaseholdResource()
"""The deployment of the settings: one object, so that definitions that use it merge."""
_OPENING = Lock()


def deployment_of(settings: Settings) -> Deployment:
    """Return the deployment that the settings describe; nothing is opened before it is used."""

    opened: list[LeaseStore] = []

    def store() -> LeaseStore:
        # Steps run in threads of one process, and share one pool of connections.
        with _OPENING:
            if not opened:
                settings.home.mkdir(parents=True, exist_ok=True)
                opened.append(_store_at(settings.store_url))
            return opened[0]

    return Deployment(
        store=store,
        nodes=settings.node_names,
        timing=settings.timing,
        output_folder=lambda key: settings.output_folder(key.stream, key.group),
        upkeep_file=lambda key: settings.upkeep_file(key.stream, key.group),
        agents=settings.agents,
        catalog=settings.catalog_settings,
        history_age=settings.history_age,
        leaving=settings.leaving_mark.exists if settings.agent_node else lambda: False,
        spark_folder=settings.spark_folder if _spark_is_shared(settings) else None,
        spark=spark_of(settings),
    )


@cache
def _store_at(url: SecretStr) -> LeaseStore:
    """Return the lease store at a URL: all definitions of a process share its connections."""
    from dagster_leasehold.lease_store import open_store

    return open_store(url)


def _spark_is_shared(settings: Settings) -> bool:
    return settings.spark.engine == CONNECT and not settings.agents


def spark_of(settings: Settings) -> SparkResource:
    """Return the Spark session that the settings describe; the first run starts it."""
    spark = settings.spark
    return SparkResource(
        mode=spark.engine,
        folder=str(settings.spark_folder),
        conf=spark.whole_conf,
        certificate=str(spark.certificate.absolute()) if spark.certificate else "",
        environment_archive=str(spark.environment_archive or ""),
    )


def refuse_another(definitions: dg.Definitions, settings: Settings) -> None:
    """Refuse definitions whose resource names another deployment than these settings.

    Raises:
        InvalidSetting: the database, the output or the catalog differs.
    """
    resource = (definitions.resources or {}).get(LEASEHOLD)
    if not isinstance(resource, LeaseholdResource) or resource is DEFAULT:
        return
    theirs = resource.settings()
    for name, one, other in (
        ("database_url", settings.store_url, theirs.store_url),
        ("output", str(settings.output_root), str(theirs.output_root)),
        ("catalog", settings.catalog_settings, theirs.catalog_settings),
    ):
        if one != other:
            raise InvalidSetting(
                f"The LeaseholdResource of the definitions has another {name} than the settings "
                f"that this command reads: set {PREFIX}{name.upper()} to the same."
            )
