"""A stream with its deployment: what a program needs to read its table in one line."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from dagster_leasehold.assets.declared import declared
from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.reading import ALWAYS, EventSpan
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import Settings, load_settings

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyiceberg.table import Table


@declared
class DeployedStream(ShardStream):
    """A declared stream, and the deployment whose database and output it is read from.

    Example:
        >>> table = declared_stream("visits").table()  # doctest: +SKIP
        >>> table.scan(row_filter="status = 500").to_arrow()  # doctest: +SKIP
    """

    settings: Annotated[Settings, Field(kw_only=True)] = Settings()
    """The settings of the deployment."""

    @classmethod
    def of(cls, stream: ShardStream, settings: Settings) -> Self:
        """Return a stream in a deployment."""
        own: dict[str, Any] = {each.name: getattr(stream, each.name) for each in fields(stream)}
        return cls(**own, settings=settings)

    def table(self) -> Table:
        """Return PyIceberg's table: what is published at this moment.

        Raises:
            TableUnavailable: nothing was published yet, or the catalog does not answer.
        """
        from pyiceberg.catalog import load_catalog

        catalog = self.settings.catalog_settings
        name = self.iceberg.table_name(catalog.name, self.key)
        # The lease database is a catalog of its own, whose tables its upgrade has made.
        own = {
            "type": "sql",
            "uri": self.settings.store_url.get_secret_value(),
            "init_catalog_tables": "false",
        }
        try:
            opened = load_catalog(catalog.name, **(catalog.properties or own))
            return opened.load_table((*name.namespace.split("."), name.name))
        except Exception as error:
            raise TableUnavailable(
                f"The table {name.namespace}.{name.name} of stream {self.name} cannot be opened in "
                f"catalog {catalog.name} ({type(error).__name__}): see if its deployment has "
                "published anything, and with which catalog."
            ) from error

    def dataset(
        self, *, shards: Collection[ShardId] | None = None, span: EventSpan = ALWAYS
    ) -> ds.Dataset:
        """Return an Arrow dataset of exactly the records that are committed at this moment.

        What is committed and not published yet is published, or waited for.

        Args:
            shards: only these; None is all.
            span: only records whose event time lies in it.

        Raises:
            UnknownGroup: nobody consumes the stream yet.
            TableUnavailable: the table cannot be reached, or waiting was in vain.
        """
        from dagster_leasehold.assets.output.committed_output import committed_dataset
        from dagster_leasehold.lease_store import open_store

        store = open_store(self.settings.store_url)
        try:
            return committed_dataset(
                store,
                self.key,
                self.settings.output_folder(self.key.stream, self.key.group),
                span=span,
                shards=shards,
                wait=True,
                table=self.iceberg,
                catalog=self.settings.catalog_settings,
            )
        finally:
            store.close()


def declared_stream(name: str | None = None, settings: Settings | None = None) -> DeployedStream:
    """Return the stream that the project's module declares by this name, to read its table.

    Args:
        name: of the stream; None means the only one.
        settings: of the deployment; None reads them from the environment and `leasehold.toml`.

    Raises:
        InvalidSetting: the module cannot be imported, or a stream is declared twice.
        UnknownStream: no stream of this name is declared, or None was given and there are several
            or none.
        SourceLibraryMissing: the client library of the stream's source is not installed.
    """
    settings = settings or load_settings()
    return DeployedStream.of(DeclaredStreams(settings).opened(name), settings)
