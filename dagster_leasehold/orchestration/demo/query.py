"""The query at the end of a demo: DuckDB, which is not ours, reads the published table."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_leasehold.orchestration.presentation import say, show_table
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.dagster_processes import opened_instance

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.roles.publications import Publications

EXTENSIONS = ("avro", "iceberg")
QUERY = (
    "SELECT shard_id, count(*), date_trunc('second', min(event_time))::VARCHAR, "
    "date_trunc('second', max(event_time))::VARCHAR "
    "FROM iceberg_scan(?) GROUP BY shard_id ORDER BY try_cast(shard_id AS BIGINT)"
)


def publish_rest(settings: Settings, stream: ShardStream) -> None:
    """Publish what was committed since the last tick of the daemon, which has stopped."""
    from dagster_leasehold.orchestration.resources import deployment_of
    from dagster_leasehold.sensors.active_runs import ActiveRuns
    from dagster_leasehold.sensors.publish import publish_step
    from dagster_leasehold.sensors.steps import Tick

    with opened_instance(settings) as instance:
        publish_step(stream, deployment_of(settings)).run(Tick(ActiveRuns(instance)))


def query_table(
    store: Publications, settings: Settings, stream: ShardStream, committed: int
) -> bool:
    """Show what an engine reads in the table; return True if that is all that was committed."""
    if not all(find_spec(name) for name in ("duckdb", *map(_package, EXTENSIONS))):
        say("To have DuckDB query the table here: pip install 'dagster-leasehold[demo]'")
        return True
    name = stream.table.table_name(settings.catalog_settings.name, stream.key)
    pointer = store.table_pointer(name)
    rows = [] if pointer is None else _rows(pointer.location)
    show_table(f"Table {name}, as DuckDB reads it", "shard_id, >records, first, last", rows)
    count = sum(row[1] for row in rows)
    if count == committed:
        say(f"Table: DuckDB counts {count:,} records, as many as were committed.")
    else:
        say(f"Table: DuckDB counts {count:,} records, and {committed:,} were committed.")
    return count == committed


def _rows(metadata: str) -> list[tuple[Any, ...]]:
    import duckdb

    # Extensions from packages are not signed; with them, nothing is fetched from a network.
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for name in EXTENSIONS:
            (extension,) = Path(str(files(_package(name)))).rglob("*.duckdb_extension")
            connection.load_extension(str(extension))
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(QUERY, [metadata]).fetchall()


def _package(extension: str) -> str:
    return f"duckdb_extension_{extension}"
