"""Which consumer groups a module of definitions has, and what a node says of itself in each."""

from __future__ import annotations

import importlib

from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.rules.node_settings import node_row
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.dagster_processes import DEFINITIONS_MODULE


def memberships_of(node: NodeName, module: str, settings: Settings) -> dict[GroupKey, Node]:
    """The row to register for `node` in the group of each stream of a module's definitions.

    Raises:
        InvalidSetting: the module cannot be imported, or builds no definitions of streams.
    """
    if module == DEFINITIONS_MODULE:
        return {
            stream.key: node_row(node, stream.node_settings.get(node), address="")
            for stream in settings.streams
        }
    from dagster_leasehold.orchestration import build

    before = len(build.BUILT)
    try:
        importlib.import_module(module)
    except Exception as error:
        raise InvalidSetting(
            f"The module {shown(module)} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    found = {stream.key: stream.node(node, address="") for stream in build.BUILT[before:]}
    if not found:
        raise InvalidSetting(
            f"The module {shown(module)} has no definitions of streams: name one that calls "
            "build_definitions."
        )
    return found
