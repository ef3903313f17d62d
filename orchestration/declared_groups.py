"""Which consumer groups a module of definitions has: what a node's agent becomes a member of."""

from __future__ import annotations

import importlib

from lease_store.errors import InvalidSetting, shown
from lease_store.identifiers import GroupKey
from orchestration.dagster_processes import DEFINITIONS_MODULE
from orchestration.settings import Settings

GROUP_METADATA = "consumer_group"


def groups_of(module: str, settings: Settings) -> list[GroupKey]:
    """The groups of all streams that a module's definitions were built from.

    Raises:
        InvalidSetting: the module cannot be imported, or has no definitions of streams.
    """
    if module == DEFINITIONS_MODULE:
        return [stream.key for stream in settings.streams]
    from dagster import Definitions

    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        raise InvalidSetting(
            f"The module {shown(module)} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    found: set[str] = set()
    for value in vars(loaded).values():
        if isinstance(value, Definitions):
            for spec in value.resolve_all_asset_specs():
                if GROUP_METADATA in spec.metadata:
                    found.add(str(spec.metadata[GROUP_METADATA]))
    if not found:
        raise InvalidSetting(
            f"The module {shown(module)} has no definitions of streams: name one that calls "
            "build_definitions."
        )
    keys: list[GroupKey] = []
    for text in sorted(found):
        stream, _, group = text.partition("/")
        keys.append(GroupKey.parse(group, stream))
    return keys
