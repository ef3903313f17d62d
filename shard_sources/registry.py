"""Sources by name: how a Spark worker builds the reader that the driver described by options.

A package of the user's adds a source with an entry point of the group `leasehold.sources`: its
name is the value of the option `source`, its object a callable from options to a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from lease_store.errors import UnknownSource, shown
from shard_sources.source import ShardReader

ENTRY_POINT_GROUP = "leasehold.sources"

ReaderFactory = Callable[[Mapping[str, str]], ShardReader]


def _local_log(options: Mapping[str, str]) -> ShardReader:
    from shard_sources.local_log import LocalLogReader

    return LocalLogReader(options["root"])


_BUILT_IN: dict[str, ReaderFactory] = {"local_log": _local_log}


def source_names() -> list[str]:
    """The names of all installed sources."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def reader_from_options(options: Mapping[str, str]) -> ShardReader:
    """The reader that `ShardSource.spark_options` of its source describes.

    Raises:
        UnknownSource: no source of this name is installed, or an option that it needs is missing.
    """
    name = options.get("source", "")
    factory = _BUILT_IN.get(name)
    if factory is None:
        for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
            factory = point.load()
            break
    if factory is None:
        raise UnknownSource(
            f"There is no source {shown(name)}: installed are {', '.join(source_names())}."
        )
    try:
        return factory(options)
    except KeyError as missing:
        raise UnknownSource(f"The source {shown(name)} needs the option {missing}.") from None
