"""Sources by name, and the one sentence for each wrong name or option."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr

from dagster_leasehold.lease_store.errors import (
    InvalidSetting,
    LeaseholdError,
    SourceLibraryMissing,
    UnknownSource,
)
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.shard_sources import registry
from dagster_leasehold.shard_sources.local_log import LocalLog, LocalLogReader
from dagster_leasehold.shard_sources.registry import (
    SourceKind,
    StreamPlace,
    check_library,
    open_source,
    reader_from_options,
    source_kind,
    source_names,
    source_options,
)

PLACE = StreamPlace(StreamName("orders"), Path("logs/orders"))


class OwnOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    address: str
    word: SecretStr = SecretStr("")


class OwnSource(LocalLog):
    pass


def _open(options: OwnOptions, place: StreamPlace) -> OwnSource:
    return OwnSource(place.folder / options.address)


def _reader(options: Mapping[str, str]) -> OwnSource:
    return OwnSource(options["address"])


KIND = SourceKind(OwnOptions, _open, _reader)
LACKING = SourceKind(OwnOptions, _open, _reader, "no_such_library", "pip install no-such-library")
NO_KIND = OwnSource


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's packages, as the registry sees them."""
    points = [
        EntryPoint(name, f"{__name__}:{attribute}", registry.ENTRY_POINT_GROUP)
        for name, attribute in (
            ("mine", "KIND"),
            ("lacking", "LACKING"),
            ("odd", "NO_KIND"),
            ("broken", "nothing.here"),
        )
    ]

    def entry_points(**wanted: str) -> EntryPoints:
        return EntryPoints(points).select(**wanted)

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_the_registry_builds_the_reader_of_the_local_log(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    reader = reader_from_options(log.spark_options())
    assert type(reader) is LocalLogReader
    assert reader.root == tmp_path


def test_the_registry_opens_a_local_log_in_the_home_or_at_its_option(tmp_path: Path) -> None:
    log = open_source("local_log", {}, PLACE)
    assert isinstance(log, LocalLog)
    assert log.root == PLACE.folder.absolute()
    log = open_source("local_log", {"root": str(tmp_path)}, PLACE)
    assert isinstance(log, LocalLog)
    assert log.root == tmp_path


def test_a_user_s_package_adds_a_source() -> None:
    assert {"local_log", "mine"} <= set(source_names())
    source = open_source("mine", {"address": "here"}, PLACE)
    assert isinstance(source, OwnSource)
    assert source.root == (PLACE.folder / "here").absolute()
    assert isinstance(reader_from_options({"source": "mine", "address": "here"}), OwnSource)


def test_all_built_in_sources_can_be_named_without_their_libraries() -> None:
    for name in registry._BUILT_IN:  # pyright: ignore[reportPrivateUsage]
        kind = source_kind(name)
        assert bool(kind.library) == bool(kind.install)
        assert kind.options.model_config.get("extra") == "forbid"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kafca", "no source 'kafca': installed are "),
        ("", "no source ''"),
        ("odd", "is not a SourceKind"),
        ("broken", "'broken' cannot be loaded from"),
        ("line\nfeed", "no source"),
    ],
)
def test_an_unknown_source_is_one_sentence(name: str, says: str) -> None:
    for attempt in (
        lambda: source_options(name, {}),
        lambda: reader_from_options({"source": name}),
    ):
        with pytest.raises(UnknownSource) as refused:
            attempt()
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(UnknownSource, match="needs the option 'root'"):
        reader_from_options({"source": "local_log"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "The option 'address' of the source 'mine' is missing."),
        (
            {"address": "x", "adress": "y"},
            "'adress' is not an option of the source 'mine': did you",
        ),
        ({"address": "x", "zzz": "y"}, "use one of address, word."),
        ({"address": 3}, "The option 'address' of the source 'mine' is not valid:"),
        ({"address": ["hunter2"]}, "is not valid"),
    ],
)
def test_wrong_options_are_one_sentence_without_their_values(
    given: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        source_options("mine", given)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_missing_library_is_named_with_the_command_that_installs_it() -> None:
    source = open_source("lacking", {"address": "x"}, PLACE)
    for attempt in (
        lambda: check_library(source),
        lambda: source.bounds([]),
        lambda: reader_from_options({"source": "lacking", "address": "x"}),
    ):
        with pytest.raises(SourceLibraryMissing, match="pip install no-such-library") as refused:
            attempt()
        assert isinstance(refused.value, LeaseholdError)
