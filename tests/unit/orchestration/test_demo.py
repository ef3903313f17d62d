"""The demo's parts: its home, its input, its digest, and when it calls a stream complete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.assets.spark.spark_settings import SparkSettings
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.orchestration.demo.course import reshard
from dagster_leasehold.orchestration.demo.home import begin_home, demo_settings
from dagster_leasehold.orchestration.demo.input import (
    DemoInput,
    Loader,
    RecordDigest,
    access_log,
    count_lines,
    lines_of,
)
from dagster_leasehold.orchestration.demo.watch import StageDisplay, Standing, standing
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.orchestration.supervision.dagster_processes import child_environment
from dagster_leasehold.orchestration.supervision.leftovers import running_alone
from dagster_leasehold.shard_sources.local_log import LocalLog, Record
from dagster_leasehold.shard_sources.source import ReadRange

KEY = GroupKey.parse("default", "demo")
NODE = NodeName("node-a")


def values_of(log: LocalLog, shard: str) -> list[bytes]:
    """All values of a shard, in order."""
    (bounds,) = log.bounds([ShardId(shard)]).values()
    range_ = ReadRange(ShardId(shard), bounds.begin, bounds.end)
    return list(chain.from_iterable(b.column("value").to_pylist() for b in log.read(range_)))


def test_generated_records_are_the_same_for_the_same_seed() -> None:
    first, again, other = (list(access_log(50, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    times = [record.event_time for record in first if record.event_time is not None]
    assert times == sorted(times)
    assert len({record.value for record in first}) == 50


def test_a_new_home_is_marked_and_holds_settings_that_later_commands_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spark = SparkSettings(mode="classic", memory="3g", conf={"spark.a.b": 'x "y"'})
    settings = demo_settings(tmp_path / "h", spark)
    with running_alone(settings.home):
        begin_home(settings)
    loaded = load_settings(home=settings.home)
    assert loaded == settings


def test_a_home_of_an_earlier_demo_is_started_over(tmp_path: Path) -> None:
    settings = demo_settings(tmp_path, SparkSettings())
    begin_home(settings)
    (tmp_path / "leases.db").write_text("old")
    (tmp_path / "logs" / "demo").mkdir(parents=True)
    begin_home(settings)
    assert not (tmp_path / "leases.db").exists()
    assert not (tmp_path / "logs").exists()


def test_a_home_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidSetting, match=r"holds 'thesis\.txt', and no demo made it"):
        begin_home(demo_settings(tmp_path, SparkSettings()))
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_link_in_a_home_is_removed_and_what_it_points_to_is_not(tmp_path: Path) -> None:
    settings = demo_settings(tmp_path / "h", SparkSettings())
    (tmp_path / "h").mkdir()
    begin_home(settings)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (tmp_path / "h" / "logs").symlink_to(outside)
    begin_home(settings)
    assert (outside / "kept").exists()
    assert not (tmp_path / "h" / "logs").exists()


def test_two_demos_do_not_share_a_home(tmp_path: Path) -> None:
    second = running_alone(tmp_path)
    with running_alone(tmp_path), pytest.raises(InvalidSetting, match="`leasehold stop`"):
        second.__enter__()
    with running_alone(tmp_path):
        pass


def test_children_of_a_demo_see_the_settings_of_its_home_alone(tmp_path: Path) -> None:
    settings = demo_settings(tmp_path, SparkSettings())
    outer = {
        "LEASEHOLD_DATABASE_URL": "mysql+pymysql://elsewhere",
        "LEASEHOLD_NODES": "x",
        "LEASEHOLD_FAILPOINT": "after_intent",
        "PATH": "/bin",
    }
    inner = child_environment(settings, outer, settings_of_home_only=True)
    assert "LEASEHOLD_DATABASE_URL" not in inner
    assert "LEASEHOLD_NODES" not in inner
    assert inner["LEASEHOLD_HOME"] == str(tmp_path)
    assert inner["PATH"] == "/bin"
    assert "LEASEHOLD_FAILPOINT" in inner
    assert child_environment(settings, outer)["LEASEHOLD_NODES"] == "x"


@given(
    st.lists(
        st.binary(max_size=12) | st.sampled_from([b"a\r\n", b"\n", b"\r", b"a\rb\r\n", b"\n\n"]),
        max_size=20,
    ).map(b"".join)
)
def test_lines_come_out_as_they_went_in(content: bytes) -> None:
    """Goal: joining the records with line feeds gives the file, but for a missing last one."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.log"
        path.write_bytes(content)
        lines = list(lines_of([path]))
        assert count_lines([path]) == len(lines)
    assert not any(b"\n" in line for line in lines)
    assert b"".join(line + b"\n" for line in lines).removesuffix(b"\n") == content.removesuffix(
        b"\n"
    )


def test_parts_are_loaded_in_order_into_whatever_is_writable_then(tmp_path: Path) -> None:
    log = LocalLog.create(tmp_path, 4)
    values = [b"%d" % number for number in range(1_000)]
    loader = Loader(log, iter(values))
    assert loader.load(601) == 601
    assert "split shard 0 into 4 and 5, merged 2 and 3 into 6" in reshard(log)
    assert loader.load(1_000) == 399
    assert loader.load(10) == 0
    shards = {entry.shard: values_of(log, entry.shard) for entry in log.list_shards()}
    assert sorted(chain.from_iterable(shards.values())) == sorted(values)
    for parent, child in (("0", "4"), ("0", "5"), ("2", "6"), ("1", "1")):
        numbers = [int(value) for value in (*shards[parent], *shards[child])]
        if parent != child:
            assert numbers == sorted(numbers)
    assert all(shards[child] for child in ("4", "5", "6"))
    assert loader.digest.records == 1_000


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_tiny_input_is_loaded_whole(tmp_path: Path, count: int) -> None:
    log = LocalLog.create(tmp_path, 8)
    loader = DemoInput(records=count).loader(log)
    first = loader.load(round(count * 0.6))
    reshard(log)
    assert first + loader.load(count) == count


def test_a_digest_tells_lost_doubled_and_changed_records() -> None:
    def digest(*values: bytes) -> RecordDigest:
        made = RecordDigest()
        made.add(values)
        return made

    whole = digest(b"a", b"b", b"b")
    assert digest(b"b", b"a", b"b") == whole
    for other in ((b"a", b"b"), (b"a", b"a", b"b"), (b"a", b"b", b"c"), (b"a", b"b", b"b", b"b")):
        assert digest(*other) != whole
        assert str(digest(*other)) != str(whole)


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    return LocalLog.create(tmp_path / "log", 2)


def wall() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


class Consuming:
    """A store in which shards are moved by hand."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.store = MemoryStore(wall)

    def now(self) -> Standing:
        return standing(self.store, KEY, self.log)

    def see(self) -> None:
        self.store.sync_shards(KEY, self.log.list_shards(), observer="test")

    def claim_all(self) -> None:
        claims = {
            lease.shard: (NODE, lease.lease_id)
            for lease in self.store.snapshot(KEY).shards
            if lease.lease_owner is None
        }
        self.store.claim(KEY, claims, observer="test", reason="free")

    def consume(self, shard: str, *, finish: bool = False) -> Callable[[], None]:
        """Open a shard and save its end as checkpoint; the caller closes it."""
        opened = self.store.open_tenure(KEY, ShardId(shard), NODE, f"run-{shard}")
        assert isinstance(opened, Opened)
        end = self.log.bounds([ShardId(shard)])[ShardId(shard)].end
        self.store.save_checkpoint(opened.tenure, end)
        if finish:
            self.store.finish_empty(opened.tenure, end)
            return lambda: None
        return lambda: self.store.close_tenure(opened.tenure, reason="caught up")


def test_a_stream_is_complete_only_when_nothing_is_left_to_do(log: LocalLog) -> None:
    log.append("0", [b"a", b"b"])
    log.append("1", [b"c"])
    demo = Consuming(log)
    assert demo.now() == Standing(3, 0, {"unseen": 2}, False, 0, False)
    demo.store.create_group(Group(KEY))
    demo.store.register(KEY, Node(NODE, 0, "incarnation"), observer="test")
    demo.see()
    assert demo.now().states == {"not_alloc": 2}
    assert not demo.now().owned
    demo.claim_all()
    assert demo.now().owned
    close = demo.consume("0")
    assert (demo.now().consumed, demo.now().lag, demo.now().open_runs) == (2, 1, 1)
    demo.consume("1")()
    assert demo.now().lag == 0
    assert not demo.now().complete, "a run has shard 0 open"
    close()
    assert demo.now().complete
    log.split("0")
    assert not demo.now().complete, "two shards are unseen, and a read-only one is not over"
    demo.see()
    demo.consume("0", finish=True)
    assert not demo.now().complete, "the children have no owner"
    demo.claim_all()
    assert demo.now().complete
    log.append("2", [b"d"])
    assert not demo.now().complete


def test_progress_is_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    with StageDisplay(lambda: now, 10) as progress:
        now = 1.0
        progress.stage("loaded")
        for now, consumed in ((1.0, 1), (2.0, 2), (9.0, 3)):  # noqa: B007 - the clock reads it
            progress.show(Standing(10, consumed, {"already_alloc": 8}, True, 1, False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "   1.0 s  loaded"
    assert len(lines) == 3
    assert "consumed 3 of 10, lag 7; shards: 8 already_alloc" in lines[-1]


def test_records_of_the_generated_log_carry_their_own_time(log: LocalLog) -> None:
    record = next(access_log(1, 1))
    assert isinstance(record, Record)
    log.append("0", [record])
    (batch,) = list(log.read(ReadRange(ShardId("0"), "0", "1")))
    assert batch.column("event_time")[0].as_py() == record.event_time
    assert batch.column("key")[0].as_py() == record.key
