"""`leasehold metrics`: the lease store as Prometheus metrics, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError
from dagster_leasehold.lease_store.upkeep import UpkeepReport
from dagster_leasehold.orchestration.commands.options import Home
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.supervision.interrupts import ended_by_signals

if TYPE_CHECKING:
    from dagster_leasehold.lease_store.identifiers import GroupKey
    from dagster_leasehold.lease_store.store import LeaseStore
    from dagster_leasehold.shard_sources.source import ShardSource

PORT_DEFAULT = 9464
POLL_S = 0.5


@dataclass(frozen=True)
class DeclaredDeployment:
    """The deployment that settings describe, as the exporter reads it."""

    target: Target

    def store(self) -> LeaseStore:
        """The lease store; opened at the first scrape that finds one."""
        return self.target.store

    def source(self, key: GroupKey) -> ShardSource | None:
        """The source of a stream that the settings declare."""
        return self._sources.get(key.stream)

    @cached_property
    def _sources(self) -> dict[str, ShardSource]:
        sources: dict[str, ShardSource] = {}
        for declared in self.target.settings.streams:
            try:
                sources[declared.name] = self.target.stream(declared.name).source
            except LeaseholdError as error:
                say(f"The lag of stream {declared.name} is not exported: {error}")
        return sources

    def upkeep(self, key: GroupKey) -> UpkeepReport | None:
        """Return the costs that the rebalance sensor noted in the home."""
        return UpkeepReport.load(self.target.settings.upkeep_file(key.stream, key.group))


def metrics(
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="Port of the metrics page; 0 picks a free one."
        ),
    ] = PORT_DEFAULT,
    address: Annotated[
        str,
        typer.Option(
            "--address", help="Address to listen on; beyond the loopback, anybody can read."
        ),
    ] = "127.0.0.1",
    home: Home = None,
) -> None:
    """Serve Prometheus metrics of all groups of the lease store until Ctrl-C."""
    from prometheus_client import CollectorRegistry, start_http_server

    from dagster_leasehold.orchestration.metrics import StoreCollector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(DeclaredDeployment(Target.at(home))))
    # Ctrl-C is how it is meant to end.
    with suppress(KeyboardInterrupt), ended_by_signals():
        try:
            server, thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            raise InvalidSetting(
                f"Metrics cannot be served on {address}, port {port} ({error.strerror}): name "
                "another one with --port or --address."
            ) from None
        say(f"Metrics on http://{address}:{server.server_port}/metrics; Ctrl-C ends it.")
        sys.stdout.flush()
        try:
            while thread.is_alive():
                time.sleep(POLL_S)
        finally:
            server.shutdown()
            server.server_close()
