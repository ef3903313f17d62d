from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from lease_store.errors import UnknownSource
from shard_sources import registry
from shard_sources.local_log import LocalLog, LocalLogReader
from shard_sources.registry import reader_from_options, source_names


def test_builds_the_reader_of_the_local_log(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    reader = reader_from_options(log.spark_options())
    assert type(reader) is LocalLogReader
    assert reader.root == tmp_path


def test_an_unknown_source_is_told_what_is_installed() -> None:
    with pytest.raises(UnknownSource, match=r"no source 'kafca': installed are local_log\."):
        reader_from_options({"source": "kafca"})
    with pytest.raises(UnknownSource):
        reader_from_options({})


def test_a_missing_option_is_named() -> None:
    with pytest.raises(UnknownSource, match="needs the option 'root'"):
        reader_from_options({"source": "local_log"})


def test_a_package_of_the_users_adds_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", f"{__name__}:OwnReader", registry.ENTRY_POINT_GROUP)

    def entry_points(**wanted: str) -> EntryPoints:
        return EntryPoints([point]).select(**wanted)

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert source_names() == ["local_log", "mine"]
    reader = reader_from_options({"source": "mine", "address": "here"})
    assert isinstance(reader, OwnReader)
    assert reader.options["address"] == "here"


class OwnReader:
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
