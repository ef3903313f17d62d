"""`leasehold metrics`: serves the lease store as Prometheus metrics until Ctrl-C."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError
from dagster_leasehold.orchestration.commands.options import Home, Module
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.supervision.interrupts import ended_by_signals
from dagster_leasehold.sensors.statement_counts import UpkeepReport

if TYPE_CHECKING:
    from dagster_leasehold.shard_sources.source import ShardSource

PORT_DEFAULT = 9464
POLL_S = 0.5


def declared_sources(target: Target) -> dict[str, ShardSource]:
    """Return the sources of the declared streams, and print the unusable ones."""
    sources: dict[str, ShardSource] = {}
    for name in target.streams.names:
        try:
            sources[name] = target.streams.usable(name).source
        except LeaseholdError as error:
            say(f"The lag of stream {name} is not exported: {error}")
    return sources


def metrics(
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="Port of the metrics page; 0 picks a free one."
        ),
    ] = PORT_DEFAULT,
    address: Annotated[
        str, typer.Option("--address", help="Address to listen on; the page has no login.")
    ] = "127.0.0.1",
    module: Module = None,
    home: Home = None,
) -> None:
    """Serve Prometheus metrics of all groups of the lease store until Ctrl-C."""
    from prometheus_client import CollectorRegistry, start_http_server

    from dagster_leasehold.orchestration.metrics import StoreCollector

    registry = CollectorRegistry(auto_describe=False)
    target = Target.at(home, module)
    sources = cache(lambda: declared_sources(target))
    upkeep_file = target.settings.upkeep_file
    registry.register(
        StoreCollector(
            # Opened at the first scrape after the store was created.
            lambda: target.store,
            lambda key: sources().get(key.stream),
            lambda key: UpkeepReport.load(upkeep_file(key.stream, key.group)),
        )
    )
    # Ctrl-C is the normal end, not an error.
    with suppress(KeyboardInterrupt), ended_by_signals():
        try:
            server, thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            raise InvalidSetting(
                f"Metrics cannot be served on {address}, port {port} ({error.strerror}): give "
                "another port or address with --port or --address."
            ) from None
        say(f"Metrics on http://{address}:{server.server_port}/metrics; Ctrl-C ends it.")
        sys.stdout.flush()
        try:
            while thread.is_alive():
                time.sleep(POLL_S)
        finally:
            server.shutdown()
            server.server_close()
