"""What a node says of itself in `leasehold.toml`: `[streams.nodes.NAME]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictInt

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.rules.node_settings import Modulo, NodeSettings, Pinned


class NodeTable(BaseModel):
    """One node's part of a stream's assignment: a count and an id, or shards by name.

    Attributes:
        source_count: modulo: how many nodes the group has; negative switches the rule off.
        node_id: modulo: which of them this is, from 0.
        pinned: pinned: shard to bootstrap cursor, or -1 to continue from the checkpoint.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source_count: StrictInt | None = None
    node_id: StrictInt | None = None
    pinned: Mapping[str, Any] | None = None

    @property
    def settings(self) -> NodeSettings:
        """The table as a value that has been checked.

        Raises:
            InvalidSetting: it is empty, has settings of two modes, or an id without a count.
            ModuloSettingMissing, ModuloIdOutOfRange, InvalidIdentifier: a value is not valid.
        """
        modulo = self.source_count is not None or self.node_id is not None
        if modulo == (self.pinned is not None):
            raise InvalidSetting("Give source_count and node_id, or pinned, and not both.")
        if self.pinned is not None:
            return Pinned(dict(self.pinned))
        if self.source_count is None:
            raise InvalidSetting(
                f"A node_id of {self.node_id} is given without a source_count: give both."
            )
        return Modulo(self.source_count, self.node_id)
