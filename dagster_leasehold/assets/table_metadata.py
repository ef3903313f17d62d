"""Metadata of a stream's table under Dagster's standard keys, such as `dagster/table_name`.

The asset's definition has the name and location of the table. Events add the metadata from the
lease store, because loading a code location does not open a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.table.columns import Columns, present, type_text
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
"""The columns of a table without a transform, repeated here because loading Arrow takes 0.3 s."""
_DESCRIPTIONS = {
    "shard_id": "The shard that the record was read from.",
    "cursor": "The position of the record in its shard, in the form of the source.",
    "event_time": "The time of the record in its source.",
    "key": "The key of the record, as bytes; null if it has none.",
    "value": "The content of the record, as bytes.",
    "attributes": "Other fields of the record, such as the headers of a Kafka message.",
}


def definition_metadata(stream: ShardStream, deployment: Deployment) -> dict[str, Any]:
    """Return the name and location of a stream's table, and its columns if it has no transform.

    A location that the catalog assigns is left out, since this makes no request.
    """
    catalog = deployment.catalog
    uri = "" if catalog.assigns else location_of(deployment.output_folder(stream.key))
    return {
        "dagster/table_name": str(stream.iceberg.table_name(catalog.name, stream.key)),
        **({"dagster/uri": uri} if uri else {}),
        **(column_schema(RAW_COLUMNS) if stream.keeps_records else {}),
    }


def agreed_schema(store: Publications, stream: ShardStream) -> dict[str, Any]:
    """Return the columns of a stream's published table, unless the definition already has them."""
    publication = store.publication(stream.key)
    columns = [] if publication is None else list(publication.columns.columns)
    in_definition = stream.keeps_records and columns == RAW_COLUMNS
    return {} if in_definition or not columns else column_schema(columns)


def table_observation(
    stream: ShardStream,
    publication: Publication,
    table: OpenTable,
    lag: PublicationLag,
    now: datetime,
) -> dg.AssetObservation:
    """Return an observation of the table: its snapshot and columns, and its lag as numbers."""
    snapshot = table.metadata.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    rows = None if summary is None else summary["total-records"]
    return dg.AssetObservation(
        asset_key(stream),
        metadata={
            **({} if rows is None else {"dagster/row_count": int(rows)}),
            **column_schema(publication.columns.columns),
            # As text, because browsers round numbers of this size.
            SNAPSHOT: str(publication.snapshot),
            "publications": publication.number,
            "unpublished_batches": lag.batches,
            "unpublished_records": lag.records,
            "publication_lag_seconds": round(lag.seconds(now), 3),
        },
    )


def observed_snapshot(instance: dg.DagsterInstance, stream: ShardStream) -> int | None:
    """Return the snapshot id in the last observation of the table, or None."""
    newest = instance.fetch_observations(asset_key(stream), limit=1).records
    event = newest[0].asset_observation if newest else None
    snapshot = None if event is None else event.metadata.get(SNAPSHOT)
    return None if snapshot is None else int(str(snapshot.value))


def column_schema(columns: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a table's columns as metadata, with descriptions of the source's columns."""
    table_columns = [
        dg.TableColumn(
            column["name"],
            type_text(column["type"]),
            # A transform can return another column with the same name, usually of another type.
            _DESCRIPTIONS[column["name"]] if column in RAW_COLUMNS else None,
        )
        for column in present(columns)
    ]
    return {"dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(table_columns))}
