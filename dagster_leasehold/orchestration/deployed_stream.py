"""A stream and its deployment, for programs that read the stream's table."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field
from typing_extensions import Unpack

from dagster_leasehold.assets.declared import declared
from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.committed_output import CommittedOutput, ReadOptions
from dagster_leasehold.assets.output.output_file import TIME_COLUMN
from dagster_leasehold.assets.output.table.reading import ALWAYS, EventSpan
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_settings import route_table
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import Settings, load_settings

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from dagster_leasehold.assets.output.table.snapshot_contents import SnapshotContents
    from dagster_leasehold.assets.output.table.whereabouts import RecordPlace, Whereabouts


@declared
class DeployedStream(ShardStream):
    """A stream and its deployment, for reading the stream's committed records.

    Example:
        >>> table = declared_stream("visits").table()  # doctest: +SKIP
        >>> table.scan(row_filter="status = 500").to_arrow()  # doctest: +SKIP
    """

    settings: Settings = Field(kw_only=True)
    """The settings of the deployment."""

    @classmethod
    def of(cls, stream: ShardStream, settings: Settings) -> Self:
        """Combine a stream and the settings of its deployment."""
        values: dict[str, Any] = {each.name: getattr(stream, each.name) for each in fields(stream)}
        return cls(**values, settings=settings)

    def table(self, *, route: str = "") -> Table:
        """Return the PyIceberg table of the stream or of a route, with its current snapshot.

        Raises:
            TableUnavailable: no output is published yet, or the catalog does not answer.
        """
        from pyiceberg.catalog import load_catalog

        catalog = self.settings.catalog_settings
        name = self.iceberg.table_name(catalog.name, self.key)
        name = route_table(name, route) if route else name
        # The lease database is also a catalog; `leasehold db upgrade` creates its tables.
        lease_database = {
            "type": "sql",
            "uri": self.settings.store_url.get_secret_value(),
            "init_catalog_tables": "false",
        }
        try:
            opened = load_catalog(catalog.name, **(catalog.properties or lease_database))
            return opened.load_table((*name.namespace.split("."), name.name))
        except Exception as error:
            raise TableUnavailable(
                f"The table {name.namespace}.{name.name} of stream {self.name} cannot be opened in "
                f"catalog {catalog.name} ({type(error).__name__}): check that the deployment has "
                "published output, and that it uses this catalog."
            ) from error

    def dataset(
        self,
        *,
        span: EventSpan = ALWAYS,
        time_column: str = TIME_COLUMN,
        **options: Unpack[ReadOptions],
    ) -> ds.Dataset:
        """Return the committed records as an Arrow dataset.

        Args:
            span: the range of event times.
            time_column: the column of event times, if the transform renames it.
            options: `shards`, `snapshot_id`, `route` and `wait`; see `ReadOptions`. Unless `wait`
                is False, the dataset has all records that were committed before the call.

        Raises:
            UnknownGroup: the stream is not consumed yet.
            TableUnavailable: the table cannot be read, or a wait for publication timed out.
            OutputUnreadable: the table has no such time column or snapshot, or the stream has no
                such route.
        """
        with self._output() as output:
            all_options: ReadOptions = {"wait": True, **options}
            return output.dataset(span=span, time_column=time_column, **all_options)

    def frame(
        self,
        spark: SparkSession,
        *,
        span: EventSpan = ALWAYS,
        time_column: str = TIME_COLUMN,
        **options: Unpack[ReadOptions],
    ) -> DataFrame:
        """Return the committed records as a Spark DataFrame.

        Spark reads the table's data files directly, without the Iceberg runtime.

        Args:
            spark: a session whose workers can read the output.
            span: as in `dataset`.
            time_column: as in `dataset`.
            options: as in `dataset`.

        Raises:
            UnknownGroup, TableUnavailable, OutputUnreadable: as `dataset`.
        """
        with self._output() as output:
            all_options: ReadOptions = {"wait": True, **options}
            return output.frame(spark, span=span, time_column=time_column, **all_options)

    def where(self, shard: ShardId | str, cursor: str) -> RecordPlace:
        """Return the batch, run, files and snapshot of one record.

        Raises:
            UnknownGroup: the stream is not consumed yet.
            TableUnavailable: the table cannot be read.
            OutputUnreadable: the record is not in committed output; the message says why.
        """
        with self._whereabouts() as lookup:
            return lookup.record(ShardId(shard), cursor)

    def contents(self, snapshot_id: int | None = None) -> SnapshotContents:
        """Return the cursors and the event time of a snapshot, by default of the newest one.

        Raises:
            UnknownGroup: the stream is not consumed yet.
            TableUnavailable: the table cannot be read.
            OutputUnreadable: the table has no such snapshot.
        """
        with self._whereabouts() as lookup:
            return lookup.contents(snapshot_id)

    @contextmanager
    def _whereabouts(self) -> Generator[Whereabouts]:
        from dagster_leasehold.assets.output.table.whereabouts import Whereabouts
        from dagster_leasehold.assets.places.address import output_place

        with self._output() as own:
            place = output_place(own.output_root)
            yield Whereabouts(own.store, own.key, place, own.catalog)

    @contextmanager
    def _output(self) -> Generator[CommittedOutput]:
        store = open_store(self.settings.store_url)
        try:
            folder = self.settings.output_folder(self.key.stream, self.key.group, lambda: store)
            catalog = self.settings.catalog_settings
            yield CommittedOutput(store, self.key, folder, self.iceberg, catalog)
        finally:
            store.close()


def declared_stream(name: str | None = None, settings: Settings | None = None) -> DeployedStream:
    """Return a stream that the project declares, to read its table.

    Args:
        name: the stream's name; None means the only stream.
        settings: None reads them from the environment and `leasehold.toml`.

    Raises:
        InvalidSetting: the module cannot be imported, or a stream is declared twice.
        UnknownStream: no stream has this name, or `name` is None and there is not exactly one.
        SourceLibraryMissing: the client library of the stream's source is not installed.

    Examples:
        >>> try:
        ...     table = declared_stream("visits").table()
        ... except UnknownStream:
        ...     print("Run this in the folder of your project.")
        Run this in the folder of your project.
    """
    settings = settings or load_settings()
    return DeployedStream.of(DeclaredStreams(settings).usable(name), settings)
