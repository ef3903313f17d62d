"""One run of the consuming job as Dagster's run process does it; for the search for secrets.

Usage: python -m tests.security.canary_job HOME CASE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.resources import LeaseholdResource
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM = "orders"


def crash(records: DataFrame) -> DataFrame:
    """A user's mistake that shows all that it can get hold of."""
    import os

    raise RuntimeError(f"crashed with {sorted(os.environ)} and {records.columns}")


def definitions(settings: Settings, case: str) -> dg.Definitions:
    transform = crash if case == "crash" else None
    log = LocalLog(settings.home / "logs" / STREAM)
    leasehold = LeaseholdResource(home=str(settings.home))
    return build_definitions([ShardStream(STREAM, log, transform=transform)], leasehold)


def join(settings: Settings) -> None:
    """Do as the sensors would have done: make the group, a node and its shard."""
    log = LocalLog.create(settings.home / "logs" / STREAM, 1)
    stream = ShardStream(STREAM, log)
    log.append("0", [b"a", b"b"])
    store = open_store(settings.store_url, upgrade=True)
    store.create_group(stream.new_group(20.0))
    store.register(stream.key, Node(NodeName("local"), 0, "local-1"), observer="test")
    store.sync_shards(stream.key, log.list_shards(), observer="test")
    [lease] = store.snapshot(stream.key).shards
    claims = {lease.shard: (NodeName("local"), lease.lease_id)}
    store.claim(stream.key, claims, observer="test", reason="test")
    store.close()


def main(home: str, case: str) -> None:
    settings = load_settings(home=home)
    if case == "crash":
        join(settings)
    job = definitions(settings, case).resolve_job_def(f"consume_{STREAM}")
    config = {"node": "local", "incarnation": "local-1", "shards": ["0"]}
    with dg.DagsterInstance.from_config(str(Path(home) / "dagster")) as instance:
        result = job.execute_in_process(
            run_config={"ops": {f"consume__{STREAM}": {"config": config}}},
            instance=instance,
            raise_on_error=False,
            tags={"case": case},
        )
        # Spark's own session does not matter: the case needs a failure.
        assert result.success == (case == "success"), case
    if case in ("success", "crash"):
        return
    try:
        open_store(settings.store_url).groups()
    except LeaseholdError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
