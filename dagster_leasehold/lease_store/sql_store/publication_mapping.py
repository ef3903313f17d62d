"""Between the columns of publications and frozen values, in both directions."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.publication_rows import (
    ChangeKind,
    PlannedPublication,
    Publication,
    PublishedRange,
    TableChange,
    TableColumns,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.rules.publishing import ShardPlace
from dagster_leasehold.lease_store.sql_store.mapping import Columns, Row, file_values, files_from

CHANGE = Columns(
    TableChange,
    key=("sequence",),
    named={"first": "first_batch"},
    reads={
        "kind": ChangeKind,
        "removed": lambda stored: tuple(json.loads(stored)),
        "added": files_from,
    },
    writes={"removed": list, "added": file_values},
)


def change_values(change: TableChange, at: datetime) -> dict[str, Any]:
    """Return what the row of a new change holds, its group aside."""
    return CHANGE.values(change) | {"published": False, "recorded_at": at}


def publication_from(row: Row) -> Publication:
    """Return the state of a group's table from its row."""
    table = None
    if row["table_name"] is not None:
        table = TableName(row["catalog_name"], row["table_namespace"], row["table_name"])
    return Publication(
        key=GroupKey.parse(row["consume_group"], row["logstream_sig"]),
        epoch=row["epoch"],
        node=NodeName(row["worker_instance"]) if row["worker_instance"] else None,
        table=table,
        columns=TableColumns(row["columns_version"], tuple(row["table_columns"] or ())),
        number=row["number"],
        last=row["last_publication"],
        snapshot=row["snapshot_id"],
        records=row["records"],
        at=row["published_at"],
        pending=pending_from(row),
        changes_pending=bool(row["changes_pending"]) if "changes_pending" in row else False,
    )


def planned_values(publication: PlannedPublication) -> dict[str, Any]:
    """Return a publication as the JSON of a pending one."""
    return asdict(publication)


def pending_from(row: Row) -> PlannedPublication | None:
    """Return the publication that is not settled, from a group's row; None if there is none."""
    values: dict[str, Any] | None = row["pending"]
    if values is None:
        return None
    ranges = tuple(
        PublishedRange(**each | {"shard": ShardId(each["shard"])}) for each in values["ranges"]
    )
    changes = tuple(values["changes"])
    values = values | {"ranges": ranges, "changes": changes}
    return PlannedPublication(**values)


def place_from(row: Row) -> ShardPlace:
    """Return the place that publishing of a shard has reached."""
    return ShardPlace(row["published_until"], row["committed_until"], row["ledger_version"])


def pointer_from(row: Row) -> TablePointer:
    """Return the pointer of a table from its row."""
    table = TableName(row["catalog_name"], row["table_namespace"], row["table_name"])
    return TablePointer(table, row["metadata_location"], row["previous_metadata_location"])


def table_values(table: TableName) -> dict[str, Any]:
    """Return the columns that a table's name has in the rows of publications and of catalogs."""
    return {
        "catalog_name": table.catalog,
        "table_namespace": table.namespace,
        "table_name": table.name,
    }
