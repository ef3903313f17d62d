"""The metadata of a stream's table that Dagster and its catalogues know by name.

The definition names the table and where it lies; what only the lease store knows comes with events,
since loading a code location opens no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.table.columns import Columns, type_text
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.places.address import location_of
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.publication_rows import Publication, PublicationLag
from dagster_leasehold.lease_store.roles.publications import Publications

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.catalogs import OpenTable

SNAPSHOT = "snapshot"
RAW_COLUMNS: Columns = [
    {"name": "shard_id", "type": "string"},
    {"name": "cursor", "type": "string"},
    {"name": "event_time", "type": "timestamptz"},
    {"name": "key", "type": "binary"},
    {"name": "value", "type": "binary"},
    {"name": "attributes", "type": {"map": ["string", "string"]}},
]
"""The columns of a table without a transform. Arrow, which could tell, takes 0.3 s to load."""
_DESCRIBED = {
    "shard_id": "The shard that the record was read from.",
    "cursor": "The position of the record in its shard; its form is that of the source.",
    "event_time": "The time of the record, as its source has it.",
    "key": "The key of the record, as bytes; null where it has none.",
    "value": "The content of the record, as bytes.",
    "attributes": "Further fields of the record, such as the headers of a Kafka message.",
}


def definition_metadata(stream: ShardStream, deployment: Deployment) -> dict[str, Any]:
    """Return a stream's table, where it lies, and its columns if no transform makes them."""
    table = stream.iceberg.table_name(deployment.catalog.name, stream.key)
    return {
        "dagster/table_name": str(table),
        "dagster/uri": location_of(deployment.output_folder(stream.key)),
        **(column_schema(RAW_COLUMNS) if stream.transform is None else {}),
    }


def agreed_schema(store: Publications, stream: ShardStream) -> dict[str, Any]:
    """Return the columns of a stream's table, where its definition does not tell them."""
    publication = store.publication(stream.key)
    columns = [] if publication is None else list(publication.columns.columns)
    declared = not columns or (stream.transform is None and columns == RAW_COLUMNS)
    return {} if declared else column_schema(columns)


def table_observation(
    stream: ShardStream,
    publication: Publication,
    table: OpenTable,
    lag: PublicationLag,
    now: datetime,
) -> dg.AssetObservation:
    """Return the metadata of a stream's table, with numbers that Dagster can plot."""
    snapshot = table.metadata.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    rows = None if summary is None else summary["total-records"]
    return dg.AssetObservation(
        asset_key(stream),
        metadata={
            **({} if rows is None else {"dagster/row_count": int(rows)}),
            **column_schema(publication.columns.columns),
            # A number of this size is rounded by browsers.
            SNAPSHOT: str(publication.snapshot),
            "publications": publication.number,
            "unpublished_batches": lag.batches,
            "unpublished_records": lag.records,
            "publication_lag_seconds": round(lag.seconds(now), 3),
        },
    )


def observed_snapshot(instance: dg.DagsterInstance, stream: ShardStream) -> int | None:
    """Return the id of the table's snapshot that Dagster was last told of, or None."""
    newest = instance.fetch_observations(asset_key(stream), limit=1).records
    event = newest[0].asset_observation if newest else None
    snapshot = None if event is None else event.metadata.get(SNAPSHOT)
    return None if snapshot is None else int(str(snapshot.value))


def column_schema(columns: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metadata for a table's columns; the source's columns have a description."""
    shown = [
        dg.TableColumn(
            each["name"],
            type_text(each["type"]),
            # A transform can give another column the same name, then mostly with another type.
            _DESCRIBED[each["name"]] if each in RAW_COLUMNS else None,
        )
        for each in columns
    ]
    return {"dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(shown))}
