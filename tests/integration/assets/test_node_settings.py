"""Groups by modulo and by name in Dagster, as `leasehold.toml` has them: sensors, then runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dagster_leasehold.assets.checks import NO_GAP
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.declared import declare, stream_text
from tests.environment import forget_settings
from tests.ledger_output import ledger_records
from tests.ticks import tick

if TYPE_CHECKING:
    from dagster._core.definitions.sensor_definition import SensorExecutionData

pytestmark = pytest.mark.spark

KEY = GroupKey.parse("default", "visits")
NODES = 'nodes = ["east", "west"]\n'
PACE = "Pace(commit_interval_s=0, idle_limit_s=0.1)"
MODULO = stream_text(
    "visits",
    pace=PACE,
    assignment='"modulo"',
    ordered="False",
    nodes="{'east': Modulo(2, 0), 'west': Modulo(2, 1)}",
)
PINNED = stream_text(
    "visits",
    pace=PACE,
    assignment='"pinned"',
    nodes="{'east': Pinned({'0': '10', '1': 5}), 'west': Pinned({'2': -1})}",
)


class Scene:
    """The definitions of a settings file over a log, and an instance that they run in."""

    def __init__(self, home: Path, instance: dg.DagsterInstance) -> None:
        self.home = home
        self.instance = instance
        self.log = LocalLog(home / "logs" / KEY.stream)
        self.load()
        self.store: Any = open_store(self.settings.store_url)
        self.cursors: dict[str, str | None] = {}

    def load(self) -> None:
        """A restarted code server: the memory of its process is lost."""
        self.settings = load_settings()
        streams = DeclaredStreams(self.settings).all()
        self.definitions = build_definitions(streams)
        self.repository = self.definitions.get_repository_def()

    def tick(self, name: str) -> SensorExecutionData:
        result = tick(self.definitions, f"visits_{name}", self.instance, self.cursors.get(name))
        self.cursors[name] = result.cursor
        return result

    def consume(self) -> dict[str, list[str]]:
        """Execute the run requests of a rebalance tick; return the shards of each node's run."""
        ran: dict[str, list[str]] = {}
        for request in self.tick("rebalance").run_requests or ():
            config = request.run_config["ops"]["consume__visits"]["config"]
            ran[config["node"]] = sorted(config["shards"])
            job = self.repository.get_job("consume_visits")
            assert job.execute_in_process(
                instance=self.instance, run_config=request.run_config, tags=dict(request.tags)
            ).success
        return ran

    def no_gap(self, shard: str) -> dg.AssetCheckEvaluation:
        """Return the outcome of the check after a click on the partition."""
        job = self.repository.get_implicit_global_asset_job_def()
        done = job.execute_in_process(
            instance=self.instance,
            partition_key=shard,
            tags={"dagster/partition": shard},
            asset_selection=[dg.AssetKey([KEY.stream])],
        )
        checks = done.get_asset_check_evaluations()
        (check_result,) = [check for check in checks if check.check_name == NO_GAP]
        return check_result

    def values(self, shard: str) -> list[bytes]:
        output = self.settings.output_folder(KEY.stream, KEY.group)
        batches = ledger_records(self.store, KEY, output, ShardId(shard))
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    def owners(self) -> dict[str, str | None]:
        return {str(row.shard): row.consumer_owner for row in self.store.snapshot(KEY).shards}


NewScene = Callable[[str], Scene]


@pytest.fixture
def new_scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_folder: Path, connect_session: object
) -> Iterator[NewScene]:
    """Four shards of 20 records each; of shard 1 the first 10 are gone."""
    del connect_session  # requested so that the server is warm
    forget_settings(monkeypatch)
    home = tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(home))
    monkeypatch.setenv("LEASEHOLD_SPARK_STATE", str(spark_folder))
    log = LocalLog.create(home / "logs" / KEY.stream, 4)
    for begin in (0, 10):
        for shard in "0123":
            log.append(shard, [b"%s:%d" % (shard.encode(), begin + n) for n in range(10)])
        log.retain("1", "10")
    with dg.DagsterInstance.ephemeral() as instance:

        def scene(settings: str) -> Scene:
            declare(Path(), settings, settings=NODES)
            new = Scene(home, instance)
            new.tick("housekeeping")
            return new

        yield scene


def records(shard: str, begin: int = 0) -> list[bytes]:
    return [b"%s:%d" % (shard.encode(), number) for number in range(begin, 20)]


def test_two_nodes_by_modulo_consume_their_own_ranks(new_scene: NewScene) -> None:
    """Shards 0 to 3 by rank; then a split, whose children are requested manually at once."""
    scene = new_scene(MODULO)
    assert scene.consume() == {"east": ["0", "2"], "west": ["1", "3"]}
    assert [scene.values(shard) for shard in "0123"] == [
        records("0"), records("1", 10), records("2"), records("3")
    ]  # fmt: skip
    scene.log.split("3")
    scene.load()  # or the list is not due for a quarter of a minute
    scene.tick("housekeeping")
    scene.log.append("5", [b"5:0"])
    assert scene.no_gap("5").passed
    assert scene.owners()["5"] == "west"
    assert scene.consume() == {}
    assert scene.owners()["4"] == "east"
    assert verify(scene.store, KEY) == []


def test_pinned_shards_begin_at_their_bootstrap_cursors(
    new_scene: NewScene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shard 0 starts at 10; shard 1 should start at 5 but has no record before 10; no node names
    shard 3.
    """
    scene = new_scene(PINNED)
    assert scene.consume() == {"east": ["0", "1"], "west": ["2"]}
    assert [scene.values(shard) for shard in "0123"] == [
        records("0", 10), records("1", 10), records("2"), []
    ]  # fmt: skip
    assert scene.owners()["3"] is None
    (gap,) = scene.store.gaps(KEY)
    assert (gap.shard, gap.start, gap.end, gap.acknowledged) == ("1", "5", "10", False)
    assert scene.no_gap("0").passed
    missing = scene.no_gap("1")
    assert not missing.passed
    assert "[5, 10) (the log has no record at 5: reading begins at 10)" in str(missing.description)
    assert main(["gap", "ack", "visits", "1"]) == 0
    assert "5 to 10 of shard 1" in capsys.readouterr().out
    assert scene.no_gap("1").passed
    # The same settings again start nothing again.
    scene.load()
    scene.log.append("0", [b"0:20"])
    assert scene.consume() == {"east": ["0"]}
    assert scene.values("0") == [*records("0", 10), b"0:20"]
    assert [row.bootstrap for row in scene.store.snapshot(KEY).shards] == ["10", "5", None, None]
    assert verify(scene.store, KEY) == []
