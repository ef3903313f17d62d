"""What a Dagster deployment gives to the streams that it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lease_store.identifiers import GroupKey, NodeName
from lease_store.records import Timing
from lease_store.store import LeaseStore


@dataclass(frozen=True)
class Deployment:
    """The lease store, the nodes and the folders of one deployment.

    It is built anew in every process from the same settings, so that a run needs no secret in
    its config: neither a database URL nor a token ever travels through Dagster.

    Attributes:
        store: opens the lease store on first use and returns the same one from then on.
        nodes: the nodes that this deployment serves: it claims shards and launches runs for them.
        timing: the durations of the protocol for groups that this deployment creates.
        output_folder: where committed output of a stream's group lives.
        upkeep_file: where the rebalance sensor notes what it costs, for `leasehold status`; None
            where nobody looks.
    """

    store: Callable[[], LeaseStore]
    nodes: tuple[NodeName, ...]
    timing: Timing
    output_folder: Callable[[GroupKey], Path]
    upkeep_file: Callable[[GroupKey], Path] | None = None
