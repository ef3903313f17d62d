"""Ten thousand hostile ids: refused at every door, and harmless where they got past one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import InvalidIdentifier, LeaseholdError
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.resources import LeaseholdResource
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.conformance.world import A, World, X
from tests.mariadb import MariaDB
from tests.unit.lease_store.test_identifiers import HOSTILE

KEY = GroupKey.parse("group", "stream")
IDS = 10_000
GRAMMAR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIECES = [
    "'", '"', "`", "\\", "%", "%s", "%(a)s", ":a", "?", ";", "--", "#", "/*", "*/", "\0", "\x1a",
    "\n", "\r", " ", "(", ")", ",", "=", " OR 1=1", " UNION SELECT 1", "; DROP TABLE batch", "..",
    "/", "{}", "{0}", "$(id)", "`id`", "\x1b[31m", "\u202e", "\ud7ff", "x", "A", "0", "\xdf",
]  # fmt: skip


def hostile_ids(count: int, seed: int = 1) -> list[str]:
    """Return distinct texts of one to eight pieces that are all outside the grammar."""
    dice = random.Random(seed)
    ids = dict.fromkeys(HOSTILE)
    while len(ids) < count:
        text = "".join(dice.choices(PIECES, k=dice.randint(1, 8)))
        if not GRAMMAR.fullmatch(text):
            ids[text] = None
    return list(ids)


def unchecked(text: str) -> ShardId:
    """Return a shard id that went past its own door, as a bug could let it."""
    return str.__new__(ShardId, text)


@pytest.mark.parametrize("kind", [ShardId, NodeName])
def test_the_parser_refuses_all_hostile_names(kind: Callable[[str], str]) -> None:
    for text in hostile_ids(IDS):
        with pytest.raises(InvalidIdentifier) as caught:
            kind(text)
        assert str(caught.value).isprintable()


@pytest.fixture(params=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    return request.getfixturevalue("mariadb_url")


@pytest.mark.mariadb
def test_statements_bind_hostile_names_as_values(url: str) -> None:
    """Method: past the door, straight into the verbs; rows and schema stay as they were."""
    store = open_store(url, upgrade=True)
    world = World(store, KEY)
    world.group()
    world.join(A)
    world.add(X)
    before = contents(store)
    ids = [unchecked(text) for text in hostile_ids(IDS)]
    for first in range(0, IDS, 500):
        part = ids[first : first + 500]
        claims = dict.fromkeys(part, (A, 0))
        try:
            outcomes = store.claim(KEY, claims, observer="test", reason="hostile")
        except LeaseholdError:
            continue  # refused as a whole
        assert {type(outcome).__name__ for outcome in outcomes.values()} <= {"Stale"}
    for shard in ids[::50]:
        with pytest.raises(LeaseholdError):
            store.open_tenure(KEY, shard, A, "run")
        with pytest.raises(LeaseholdError):
            store.force_checkpoint(KEY, shard, "0", observer="test", reason="hostile")
    assert contents(store) == before
    store.close()


def contents(store: Any) -> list[tuple[str, list[Any]]]:
    """Every table of the store, by name, with its rows."""
    from sqlalchemy import inspect, select

    from dagster_leasehold.lease_store.tables import metadata

    engine = store._transactions.engine
    with engine.connect() as connection:
        names = sorted(inspect(connection).get_table_names())
        return [
            (name, [tuple(row) for row in connection.execute(select(metadata.tables[name]))])
            for name in names
            if name in metadata.tables
        ]


@pytest.mark.mariadb
def test_a_hostile_row_of_the_database_is_refused(mariadb: MariaDB, mariadb_url: str) -> None:
    """The table's CHECK refuses it; without the CHECK, the reader does."""
    store = open_store(mariadb_url, upgrade=True)
    world = World(store, KEY)
    world.group()
    world.add(X)
    name = mariadb_url.rsplit("/", 1)[1]
    change = "UPDATE loghub_client_shard_lease SET shard_id = '../../etc/passwd'"
    with pytest.raises(Exception, match="CONSTRAINT"):
        mariadb.execute(change, database=name)
    mariadb.execute("SET check_constraint_checks = 0", change, database=name)
    with pytest.raises(InvalidIdentifier):
        store.snapshot(KEY)
    store.close()


@pytest.mark.parametrize("partition", ["../../etc/passwd", "/abs", "a b", "*", "_a", "a\nb"])
def test_a_hostile_partition_ends_in_one_sentence(tmp_path: Path, partition: str) -> None:
    """Dagster takes any text for a partition's key; the run refuses it before it opens a thing."""
    log = LocalLog.create(tmp_path / "log", 1)
    defs = build_definitions(
        [ShardStream("orders", log)], LeaseholdResource(home=str(tmp_path / "home"))
    )
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders", [partition])
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance,
            partition_key=partition,
            asset_selection=[dg.AssetKey("orders")],
            raise_on_error=False,
        )
        assert not result.success
        failures = [event for event in result.all_events if event.is_step_failure]
        error = failures[0].step_failure_data.error
        assert error is not None
        assert "is not a valid shard name" in error.message
    assert not (tmp_path / "home" / "output").exists()


def test_paths_of_accepted_names_stay_in_the_home(tmp_path: Path) -> None:
    """Distinct names lead to distinct folders below the home; none is hidden from listings."""
    settings = Settings(home=tmp_path)
    names = ["a", "A", "a.", "a..", "a.b", "a-b", "a_b", "0", "CON", "None", "a" * 64]
    streams = [GroupKey.parse("g", name).stream for name in names]
    folders = {Path(str(settings.output_folder(stream, "g"))) for stream in streams}
    assert len(folders) == len(names)
    for folder in folders:
        assert folder.resolve().is_relative_to(tmp_path.resolve())
        assert not any(part.startswith(("_", ".")) for part in folder.relative_to(tmp_path).parts)
