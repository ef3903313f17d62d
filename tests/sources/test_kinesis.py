"""Features of Kinesis alone: silent jumps, packed records, closed and removed shards, refusals.

The server is kinesalite, whose clock a case can move. A proxy adds the answers that neither it nor
moto gives (too many requests, wrong credentials).
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    CursorInvalid,
    InvalidSetting,
    LeaseholdError,
    LogNotFound,
    SourceError,
    SourceRefused,
    SourceThrottled,
    SourceUnavailable,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.cursors import in_order
from dagster_leasehold.shard_sources.kinesis import (
    KinesisOptions,
    KinesisReader,
    KinesisStream,
    paging,
)
from dagster_leasehold.shard_sources.kinesis.service import KinesisService
from dagster_leasehold.shard_sources.kinesis.user_records import Part
from dagster_leasehold.shard_sources.positions import clamped
from dagster_leasehold.shard_sources.source import Limits, Position, ReadRange
from tests import kinesis_servers
from tests.kinesis_servers import ACCESS_KEY, REGION, SECRET_KEY
from tests.sources.world import VALUES, NewRecord, values_of
from tests.sources.worlds.kinesis import FAST, KinesaliteWorld
from tests.unit.shard_sources.kinesis.packing import pack

pytestmark = pytest.mark.long

HOUR_S = 3600


@pytest.fixture
def kinesis(tmp_path: Path) -> Generator[KinesaliteWorld]:
    world = KinesaliteWorld(tmp_path)
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def first(kinesis: KinesaliteWorld) -> ShardId:
    return kinesis.source.list_shards()[0].shard


def hours(kinesis: KinesaliteWorld, count: float, shard: ShardId) -> None:
    """Move the clock by hours, and let the server remove expired records."""
    kinesis_servers.kinesalite().advance(count * HOUR_S)
    kinesis.read_plainly(shard)


def fresh(kinesis: KinesaliteWorld) -> KinesisStream:
    """Return the stream of a new process, without cached answers."""
    return kinesis.open(kinesis.proxy.url)


def values(reader: KinesisReader, shard: ShardId, start: str, end: str) -> list[bytes]:
    return values_of(reader.read(ReadRange(shard, start, end)))


# --- Packed records ---


def put_packed(kinesis: KinesaliteWorld, shard: ShardId, groups: list[list[bytes]]) -> list[bytes]:
    hash_key = kinesis.hash_of(shard)
    for group in groups:
        data = pack([Part("key", value, hash_key) for value in group])
        kinesis.put(shard, [NewRecord(data)])
    return [value for group in groups for value in group]


def test_a_range_can_begin_and_end_within_a_packed_record(
    kinesis: KinesaliteWorld, first: ShardId, tmp_path: Path
) -> None:
    """Goal: every cut is exact, from the service and from the plan's kept records."""
    sent = put_packed(kinesis, first, [[b"a0", b"a1", b"a2"], [b"b0"], [b"c0", b"c1"]])
    rows = kinesis.all_rows(first)
    cursors = [row["cursor"] for row in rows] + [kinesis.source.cursor_at(first, Position.END)]
    assert [row["value"] for row in rows] == sent
    options = KinesisOptions(region=REGION, endpoint_url=kinesis.proxy.url, **FAST)
    elsewhere = KinesisReader(options, kinesis.name, tmp_path / "another-host")
    for low in range(len(sent) + 1):
        for high in range(low, len(sent) + 1):
            assert values(elsewhere, first, cursors[low], cursors[high]) == sent[low:high]
    for size in (1, 2, 4):
        cursor, received = kinesis.source.cursor_at(first, Position.BEGIN), []
        source = fresh(kinesis)
        while (plan := source.plan(first, cursor, Limits(records_max=size))).end != cursor:
            part = values(source, first, cursor, plan.end)
            assert part == values(elsewhere, first, cursor, plan.end)
            assert len(part) == plan.records
            received += part
            cursor = plan.end
        assert received == sent


def test_a_packed_record_of_another_shard_is_skipped(kinesis: KinesaliteWorld) -> None:
    """After a split, a packed record can belong to the other child as a whole."""
    shard, other = (row.shard for row in kinesis.source.list_shards()[:2])
    begin = kinesis.source.cursor_at(shard, Position.BEGIN)
    strangers = pack([Part("key", b"stranger", kinesis.hash_of(other))])
    kinesis.put(shard, [NewRecord(strangers)])
    plan = kinesis.source.plan(shard, begin, Limits())
    assert plan.records == 0
    assert plan.end != begin
    assert kinesis.source.plan(shard, plan.end, Limits()).end == plan.end
    kinesis.put(shard, [NewRecord(b"mine")])
    assert [row["value"] for row in kinesis.rest(shard, plan.end)] == [b"mine"]


# --- Retention ---


def test_records_removed_before_a_planned_range_is_read_are_never_skipped(
    kinesis: KinesaliteWorld, first: ShardId
) -> None:
    """Method: a range is planned, its records are removed, and another host reads it then."""
    kinesis.fill(first)
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    plan = kinesis.source.plan(first, begin, Limits(records_max=4))
    kinesis.trim(first)
    reader = fresh(kinesis)
    for start, end in ((begin, plan.end), (plan.end, "9" * 56 + "+1")):
        with pytest.raises(CursorExpired):
            list(KinesisReader.read(_without_kept(reader), ReadRange(first, start, end)))
    with pytest.raises(CursorExpired):
        reader.plan(first, plan.end, Limits())


def _without_kept(reader: KinesisReader) -> KinesisReader:
    _, (options, stream, folder) = reader.__reduce__()  # type: ignore[misc]
    return KinesisReader(options, stream, folder / "elsewhere")  # type: ignore[operator]


def test_an_idle_shard_s_cursor_outlives_its_record(
    kinesis: KinesaliteWorld, first: ShardId
) -> None:
    """Goal: no false alarm in a shard that was idle for longer than the retention.

    Method: 30 h pass in steps, as runs and sensors see them; then a record comes and is read.
    """
    kinesis.fill(first, VALUES[:3])
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    cursor = kinesis.source.plan(first, begin, Limits()).end
    renewals = 0
    for _ in range(10):
        hours(kinesis, 3, first)
        source = fresh(kinesis)
        bounds = source.bounds_after({first: cursor})[first]
        plan = source.plan(first, cursor, Limits())
        assert plan.records == 0
        # The sensor launches a run exactly when that would renew the cursor.
        assert (bounds.end != cursor) == (plan.end != cursor)
        assert values(source, first, cursor, plan.end) == []
        renewals += plan.end != cursor
        cursor = plan.end
    assert renewals == 4
    kinesis.put(first, [NewRecord(b"at last")])
    assert [row["value"] for row in kinesis.rest(first, cursor)] == [b"at last"]


def test_a_cursor_without_renewal_has_expired(kinesis: KinesaliteWorld, first: ShardId) -> None:
    """Records possibly came and expired, so the reader gets an error."""
    kinesis.fill(first, VALUES[:3])
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    cursor = kinesis.source.plan(first, begin, Limits()).end
    hours(kinesis, 25, first)
    kinesis.put(first, [NewRecord(b"later")])
    with pytest.raises(CursorExpired):
        fresh(kinesis).plan(first, cursor, Limits())
    bounds = kinesis.source.bounds_after({first: cursor})[first]
    assert bounds.end != cursor
    assert [row["value"] for row in kinesis.rest(first, bounds.begin)] == [b"later"]


def test_after_all_records_expired_reading_continues_after_the_lost_record(
    kinesis: KinesaliteWorld, first: ShardId
) -> None:
    """The shard begins before all records, which for this reader would lead backwards."""
    kinesis.fill(first, VALUES[:3])
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    end = kinesis.source.plan(first, begin, Limits()).end
    hours(kinesis, 25, first)
    for lost in (begin, end):
        behind = clamped(fresh(kinesis), first, lost)
        assert in_order(lost, behind)
        assert behind != lost
        assert fresh(kinesis).plan(first, behind, Limits()).records == 0
    kinesis.put(first, [NewRecord(b"later")])
    assert [row["value"] for row in kinesis.rest(first, behind)] == [b"later"]


def test_a_reader_that_sleeps_between_two_pages_checks_its_cursor_again(
    kinesis: KinesaliteWorld, first: ShardId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: pages of five records, and 25 h between the first and the second."""
    kinesis.fill(first)
    end = kinesis.source.cursor_at(first, Position.END)
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    monkeypatch.setattr(paging, "RECORDS_PER_CALL_MAX", 5)
    pages = fresh(kinesis)._between(
        first, paging.Place.parse(first, begin), paging.Place.parse(first, end)
    )
    read = [next(pages) for _ in range(5)]
    hours(kinesis, 25, first)
    kinesis.put(first, [NewRecord(b"later")])
    with pytest.raises(CursorExpired):
        read += list(pages)
    assert [record.part.data for record in read] == list(VALUES[:5])


def test_a_child_s_first_record_is_its_origin_while_none_can_be_removed(
    kinesis: KinesaliteWorld, first: ShardId
) -> None:
    child, _ = kinesis.split(first)
    kinesis.fill(child, VALUES[:2])
    bounds = kinesis.source.bounds([child])[child]
    assert bounds.origin == bounds.begin
    hours(kinesis, 25, child)
    kinesis.fill(child, VALUES[:2])
    bounds = fresh(kinesis).bounds([child])[child]
    assert bounds.origin not in (None, bounds.begin)


def test_a_removed_shard_is_a_gap_with_an_end(
    kinesis: KinesaliteWorld, first: ShardId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinesalite lists removed shards forever, so the test removes them from its answers."""
    kinesis.fill(first)
    cursor = kinesis.source.plan(first, kinesis.source.cursor_at(first, Position.BEGIN), Limits(4))
    kinesis.split(first)
    ask = KinesisService.call

    def without_first(self: KinesisService, operation: str, **arguments: Any) -> dict[str, Any]:
        if arguments.get("ShardId") == first:
            raise LogNotFound(f"Shard {first} does not exist.")
        answer = ask(self, operation, **arguments)
        if operation == "list_shards":
            answer["Shards"] = [row for row in answer["Shards"] if row["ShardId"] != first]
        return answer

    monkeypatch.setattr(KinesisService, "call", without_first)
    source = fresh(kinesis)
    children = [listed for listed in source.list_shards() if first in listed.parents]
    assert [listed.gone_parents for listed in children] == [(first,)] * 2
    with pytest.raises(CursorExpired):
        source.plan(first, cursor.end, Limits())
    for bounds in (source.bounds([first])[first], source.bounds_after({first: cursor.end})[first]):
        assert (bounds.finished, bounds.removed) == (True, True)
        assert bounds.origin not in (None, bounds.begin)
        assert bounds.end != cursor.end
        assert source.lag(first, cursor.end, bounds) is None
        assert source.lag(first, bounds.end, bounds) == 0
        plan = source.plan(first, bounds.end, Limits())
        assert (plan.end, plan.records, plan.last) == (bounds.end, 0, True)


# --- Looking at bounds ---


def test_bounds_after_a_cursor_take_one_read_a_shard(kinesis: KinesaliteWorld) -> None:
    source = kinesis.source
    first, second = (row.shard for row in source.list_shards()[:2])
    kinesis.fill(first, VALUES[:2])
    ends = {shard: source.cursor_at(shard, Position.END) for shard in (first, second)}
    kinesis.fill(second, VALUES[:2])
    source = fresh(kinesis)
    source.bounds_after(ends)
    kinesis.proxy.calls.clear()
    bounds = source.bounds_after(ends)
    assert kinesis.proxy.calls.count("GetRecords") == 2
    assert len(kinesis.proxy.calls) == 5
    assert bounds[first].end == ends[first]
    assert bounds[second].end != ends[second]
    assert source.lag(first, ends[first], bounds[first]) == 0
    assert source.lag(second, ends[second], bounds[second]) is None


def test_the_beginning_is_found_by_reading_one_record(
    kinesis: KinesaliteWorld, first: ShardId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a page of ten megabytes, the shard refuses all other reads for five seconds."""
    kinesis.fill(first)
    read: list[int] = []
    ask = KinesisService.call

    def counted(self: KinesisService, operation: str, **arguments: Any) -> dict[str, Any]:
        answer = ask(self, operation, **arguments)
        read.append(len(answer.get("Records", ())))
        return answer

    monkeypatch.setattr(KinesisService, "call", counted)
    begin = fresh(kinesis).cursor_at(first, Position.BEGIN)
    assert sum(read) == 1
    monkeypatch.undo()
    assert begin == kinesis.all_rows(first)[0]["cursor"]


def test_a_closed_shard_is_finished_once_it_is_read(
    kinesis: KinesaliteWorld, first: ShardId
) -> None:
    kinesis.fill(first, VALUES[:3])
    source = kinesis.source
    cursor = source.plan(first, source.cursor_at(first, Position.BEGIN), Limits(2)).end
    end = source.plan(first, cursor, Limits()).end
    kinesis.split(first)
    half = source.bounds_after({first: cursor})[first]
    assert half.end != cursor
    whole = source.bounds_after({first: end})[first]
    assert (whole.end, whole.finished) == (end, True)


def test_spark_does_not_read_a_planned_range_again(
    kinesis: KinesaliteWorld, first: ShardId
) -> None:
    kinesis.fill(first)
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    plan = kinesis.source.plan(first, begin, Limits(7))
    kinesis.proxy.calls.clear()
    assert values(kinesis.source, first, begin, plan.end) == list(VALUES[:7])
    assert kinesis.proxy.calls == []
    following = kinesis.source.plan(first, plan.end, Limits(7))
    assert kinesis.proxy.calls == []
    assert values(kinesis.source, first, plan.end, following.end) == list(VALUES[7:14])
    # Gone from the disk, it is read from the service, and is the same.
    assert values(_without_kept(kinesis.source), first, begin, plan.end) == list(VALUES[:7])


# --- Errors ---


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("AccessDeniedException", SourceRefused),
        ("KMSAccessDeniedException", SourceRefused),
        ("KMSDisabledException", SourceRefused),
        ("ResourceNotFoundException", LogNotFound),
        ("InvalidArgumentException", CursorInvalid),
        ("SomethingNewException", SourceError),
    ],
)
def test_an_error_of_the_service_has_a_type(
    kinesis: KinesaliteWorld, first: ShardId, code: str, expected: type[LeaseholdError]
) -> None:
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    source = fresh(kinesis)
    source.list_shards()
    kinesis.proxy.next_error = (code, "what the service says\nin two lines")
    with pytest.raises(expected) as raised:
        source.plan(first, begin, Limits())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "code",
    [
        "InternalFailure",
        "KMSThrottlingException",
        "LimitExceededException",
        "ExpiredTokenException",
    ],
)
def test_a_temporary_error_is_retried(kinesis: KinesaliteWorld, first: ShardId, code: str) -> None:
    kinesis.fill(first, VALUES[:3])
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    source = fresh(kinesis)
    kinesis.proxy.next_error = (code, "once")
    assert source.plan(first, begin, Limits()).records == 3


def test_an_expired_iterator_is_replaced_at_the_reader_s_position(
    kinesis: KinesaliteWorld, first: ShardId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: six minutes between two pages, and another record between them."""
    kinesis.fill(first)
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    monkeypatch.setattr(paging, "RECORDS_PER_CALL_MAX", 5)
    pages = fresh(kinesis)._pages.from_place(first, paging.Place.parse(first, begin), limit=5)
    read = [record.data for record in next(pages).records]
    kinesis_servers.kinesalite().advance(360)
    kinesis.put(first, [NewRecord(b"more")])
    for page in pages:
        read += [record.data for record in page.records]
        if not page.records:
            break
    assert read == [*VALUES, b"more"]


def test_credentials_come_from_boto3_and_appear_nowhere(
    kinesis: KinesaliteWorld, first: ShardId, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    kinesis.proxy.accepted_key = "AKIDOFSOMEBODYELSE00"
    with pytest.raises(SourceRefused) as refused:
        fresh(kinesis).plan(first, begin, Limits())
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(SourceRefused) as missing:
        fresh(kinesis).list_shards()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    kinesis.proxy.accepted_key = None
    source = fresh(kinesis)
    source.list_shards()
    shown = f"{source!r} {source.__reduce__()} {source.spark_options()} {vars(source)}"
    for text in (str(refused.value), repr(refused.value), str(missing.value), shown):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text


def test_an_unreachable_service_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinesis_servers.write_credentials()

    def source(**options: Any) -> KinesisStream:
        return KinesisStream(KinesisOptions(**options), "orders", tmp_path)

    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidSetting, match="region"):
        source().list_shards()
    with pytest.raises(InvalidSetting, match="no-such-profile"):
        source(profile="no-such-profile", region=REGION).list_shards()
    monkeypatch.setattr("dagster_leasehold.shard_sources.kinesis.service.ATTEMPTS", 1)
    with pytest.raises(SourceUnavailable):
        source(region=REGION, endpoint_url="http://127.0.0.1:9").list_shards()


def test_throttling_has_its_own_error(kinesis: KinesaliteWorld, first: ShardId) -> None:
    begin = kinesis.source.cursor_at(first, Position.BEGIN)
    source = kinesis.open(kinesis.proxy.url)
    source._service.sleep = lambda _: None
    kinesis.proxy.refusals = None
    with pytest.raises(SourceThrottled):
        source.plan(first, begin, Limits())
