"""The memory of a rebalance sensor between its ticks, in the code server's process."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.process_identity import current_place
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.tick_report import TickReport
from dagster_leasehold.lease_store.upkeep import Upkeep
from dagster_leasehold.sensors.launch_round import LaunchRounds
from dagster_leasehold.sensors.shard_list import sync_listing


class RebalanceMemory:
    """A memory of the nodes seen alive, on the process's own clock, and of launches.

    Made at the first tick, because loading a code location must not open the lease store.
    """

    def __init__(
        self,
        stream: ShardStream,
        deployment: Deployment,
        *,
        address: str,
        observer: str,
        clock: Clock,
    ) -> None:
        self._stream = stream
        self._deployment = deployment
        self._address = address
        store = deployment.store()
        self._rebalancer = Rebalancer(
            store,
            stream.key,
            serves=() if deployment.agents else deployment.nodes,
            timing=deployment.timing,
            observer=observer,
            incarnation_of=lambda _: uuid.uuid4().hex,
            clock=clock,
            beats=not deployment.agents,
            place=current_place(),
            serving=self._serving if deployment.agents else None,
            settings={name: stream.node(name, address=address) for name in deployment.nodes},
        )
        self._upkeep = Upkeep(clock)
        self.rounds = LaunchRounds(stream, store, address, clock, lambda: str(uuid.uuid4()))

    def _serving(self, nodes: Iterable[Node]) -> tuple[NodeName, ...]:
        return self._deployment.served(nodes, self._address)

    def tick(self, remembered: str) -> TickReport:
        """Do one tick; if the group has no shards yet, ask the source for them before.

        The shard list sensor does the same at about the same moment, but its result would be seen
        only at the next tick.
        """
        with suppress(UnknownGroup):
            report = self._tick(remembered)
            if report.snapshot.shards:
                return report
            remembered = report.remembered
        sync_listing(
            self._deployment.store(),
            self._stream,
            self._stream.source.list_shards(),
            timeout_s=self._deployment.timing.timeout_s,
        )
        return self._tick(remembered)

    def _tick(self, remembered: str) -> TickReport:
        report = self._rebalancer.tick(remembered)
        if self._deployment.upkeep_file is not None:
            self._upkeep.add(report.statements)
            upkeep = self._upkeep.report(
                term_s=report.snapshot.group.timeout_s,
                nodes=len(report.owned),
                at=datetime.now(UTC),
            )
            # What is only for people to look at must not keep a node from beating.
            with suppress(OSError):
                upkeep.save(self._deployment.upkeep_file(self._stream.key))
        return report
