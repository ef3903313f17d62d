"""A rolling update of the daemon and three nodes, with the commands of the shipped units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from tests.acceptance.node_hosts import CHANGE_S, NODES, wait_for_all_records, wait_for_progress
from tests.acceptance.node_scene import KEY, SHARDS, TICK_S, Writer
from tests.acceptance.ownership import seconds_without_owner, seconds_without_run
from tests.acceptance.unit_hosts import UnitHosts
from tests.kafka_broker import KafkaBroker
from tests.mariadb import MariaDB

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.mariadb,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
]


def test_no_shard_is_without_an_owner_for_longer_than_a_tick(
    tmp_path: Path, mariadb: MariaDB, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: daemon and three nodes are replaced in turn, and each shard keeps an owner.

    The order is that of docs/how-to/deploy.md: the daemon first, and each node is stopped as soon
    as the one before it is ready.
    """
    with KafkaBroker() as broker, ExitStack() as stack:
        writer = Writer(broker)
        hosts = UnitHosts(tmp_path, broker, mariadb, stack)
        watched = hosts.watched

        def without_run() -> float:
            return max(seconds_without_run(watched.store.journal(KEY, after=at)).values())

        hosts.upgrade()
        daemon = hosts.start_daemon()
        nodes = {node: hosts.start(node) for node in NODES}
        with writer:
            for node, command in nodes.items():
                hosts.wait_until_ready(hosts.homes[node], command)
            hosts.wait_until_ready(hosts.first, daemon)
            hosts.wait_until_shared(daemon)
            wait_for_progress(watched, daemon)
            at = watched.last_entry()
            hosts.stop_daemon(daemon)
            daemon = hosts.start_daemon()
            hosts.wait_until_ready(hosts.first, daemon)
            for node in NODES:
                hosts.stop(node, nodes[node])
                nodes[node] = hosts.start(node)
                hosts.wait_until_ready(hosts.homes[node], nodes[node])
            hosts.wait_until_shared(daemon)
            wait_for_progress(watched, daemon)
            # A shard is without a run for a moment whenever one has had its time.
            daemon.until(lambda: without_run() < math.inf, CHANGE_S)
            entries = list(watched.store.journal(KEY, after=at))
        wait_for_all_records(watched, daemon, writer)
        kinds = watched.kinds_after(at)
        assert [each for each in kinds if each.startswith("leave")] == [
            f"leave {node}" for node in NODES
        ]
        assert [each for each in kinds if each.startswith("evict")] == []
        ownerless = seconds_without_owner(entries)
        with capsys.disabled():
            show("without an owner", ownerless)
            show("without a run", seconds_without_run(entries))
        assert len(ownerless) == SHARDS
        assert {shard: s for shard, s in ownerless.items() if s > TICK_S} == {}
        hosts.end(daemon, nodes)


def show(what: str, seconds: Mapping[ShardId, float]) -> None:
    """Print the longest time of each shard, and the longest of all."""
    each = ", ".join(f"{shard}: {s:.2f}" for shard, s in sorted(seconds.items()))
    print(f"\n{what}, at most {max(seconds.values()):.2f} s ({each})")  # noqa: T201
