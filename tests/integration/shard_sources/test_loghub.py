"""The real SDK over HTTP, against a server of the log service's protocol."""

from __future__ import annotations

import logging
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    CursorInvalid,
    LogNotFound,
    SourceError,
    SourceRefused,
    SourceUnavailable,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.credentials import KEY_ID, KEY_SECRET, TOKEN
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.loghub.source import LogHub
from dagster_leasehold.shard_sources.source import Limits, Position, ReadRange
from tests.sls_server.store import ServiceError
from tests.sources.world import START, STEP
from tests.sources.worlds.loghub import LogHubWorld, written_with_sdk

SHARD = ShardId("0")
CANARY = "canary-4f1d"


class GroupedWorld(LogHubWorld):
    """LogGroups of several records."""

    def append(self, *sizes: int, start: int = 0) -> None:
        shard = self.logstore.shard(SHARD)
        for size in sizes:
            logs = [
                (START + (start + n) * STEP, [("content", b"%d" % (start + n))])
                for n in range(size)
            ]
            written_with_sdk(self.writer, shard.begin, logs, topic="t", tags=[("host", "web-1")])
            start += size

    def values(self, start: str, end: str) -> list[int]:
        return [int(row["value"]) for row in self.rows(SHARD, start, end)]


@pytest.fixture
def world(tmp_path: Path) -> Generator[GroupedWorld]:
    made = GroupedWorld(tmp_path)
    yield made
    made.close()


def test_every_cut_within_and_between_groups_is_exact(world: GroupedWorld) -> None:
    """Goal: [start, end) contains exactly its records. Method: all pairs of cursors."""
    world.append(3, 1, 4)
    bounds = world.source.bounds([SHARD])[SHARD]
    rows = world.rows(SHARD, bounds.begin, bounds.end)
    assert [int(row["value"]) for row in rows] == list(range(8))
    cursors = [*(row["cursor"] for row in rows), bounds.end]
    for first in range(9):
        for stop in range(first, 9):
            read = world.values(cursors[first], cursors[stop])
            assert read == list(range(first, stop)), (first, stop)


def test_a_batch_ends_between_groups_if_one_fits_and_within_a_group_if_none_fits(
    world: GroupedWorld,
) -> None:
    world.append(3, 3, 9)
    cursor, ends, counts = world.source.cursor_at(SHARD, Position.BEGIN), [], []
    while (plan := world.source.plan(SHARD, cursor, Limits(records_max=7))).end != cursor:
        assert len(world.values(cursor, plan.end)) == plan.records
        cursor = plan.end
        ends.append(GroupCursor.parse(SHARD, cursor).index)
        counts.append(plan.records)
    assert (counts, ends) == ([6, 7, 2], [0, 7, 0])


@pytest.mark.parametrize("step", [1, 3])
def test_cursors_with_holes_are_read_exactly(tmp_path: Path, step: int) -> None:
    """Goal: nothing depends on numbers of LogGroups without holes."""
    world = GroupedWorld(tmp_path)
    try:
        world.logstore = world.server.create("logstore", step=step)
        world.append(2, 2, 3, 1)
        bounds = world.source.bounds([SHARD])[SHARD]
        rows = world.rows(SHARD, bounds.begin, bounds.end)
        assert [int(row["value"]) for row in rows] == list(range(8))
        numbers = {GroupCursor.parse(SHARD, row["cursor"]).group for row in rows}
        assert sorted(numbers) == [group.number for group in world.logstore.shard("0").groups]
        assert world.values(rows[3]["cursor"], rows[6]["cursor"]) == [3, 4, 5]
        world.logstore.shard("0").expire(2)
        with pytest.raises(CursorExpired):
            world.values(bounds.begin, bounds.end)
    finally:
        world.close()


def test_retention_during_a_read_is_an_error(
    world: GroupedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the service sends one group at a time, and forgets two between the pulls."""
    world.append(*[1] * 6)
    monkeypatch.setattr("tests.sls_server.server.PULLED_BYTES_MAX", 1)
    bounds = world.source.bounds([SHARD])[SHARD]
    groups = world.source.groups(SHARD, GroupCursor.parse(SHARD, bounds.begin).group, None)
    next(groups)
    world.logstore.shard("0").expire(4)
    with pytest.raises(CursorExpired):
        next(groups)


def test_a_range_beyond_the_log_or_a_group_is_refused(world: GroupedWorld) -> None:
    world.append(2)
    begin = world.source.cursor_at(SHARD, Position.BEGIN)
    end = GroupCursor.parse(SHARD, world.source.cursor_at(SHARD, Position.END))
    for start, stop in (
        (begin, str(GroupCursor(end.group + 5))),
        (begin, f"{begin}.3"),
        (f"{begin}.7", str(end)),
        (str(end), str(GroupCursor(end.group, 2))),
    ):
        with pytest.raises(CursorInvalid) as refused:
            list(world.source.read(ReadRange(SHARD, start, stop)))
        assert "\n" not in str(refused.value)
    with pytest.raises(CursorInvalid):
        world.source.plan(SHARD, str(GroupCursor(end.group + 5)), Limits())


@pytest.mark.parametrize("compression", ["lz4", "zstd", "deflate", "none"])
def test_every_compression_is_read(world: GroupedWorld, compression: str) -> None:
    world.append(4, 4)
    world.source = world.source_at(world.server.endpoint, compression=compression)
    assert [int(row["value"]) for row in world.all_rows(SHARD)] == list(range(8))
    shard = world.source.list_shards()[1].shard
    assert world.all_rows(shard) == []


def test_both_signature_versions_are_accepted(world: GroupedWorld) -> None:
    world.append(1)
    source = world.source_at(world.server.endpoint, auth_version="v4", region="cn-hangzhou")
    world.source = source
    assert len(world.all_rows(SHARD)) == 1
    world.server.role = ("LTAItest", "wrong", "")
    with pytest.raises(SourceRefused, match="SignatureNotMatch"):
        world.source_at(
            world.server.endpoint, auth_version="v4", region="cn-hangzhou"
        ).list_shards()


def test_topic_and_tags_of_a_group_are_read(world: GroupedWorld) -> None:
    world.append(1)
    (row,) = world.all_rows(SHARD)
    assert dict(row["attributes"]) == {
        "__topic__": "t", "__source__": "10.0.0.1", "__tag__:host": "web-1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InternalServerError", 500, SourceUnavailable),
        ("ReadQuotaExceed", 403, SourceUnavailable),
        ("ServerBusy", 503, SourceUnavailable),
    ],
)
def test_a_short_fault_is_retried_and_a_lasting_one_is_raised(
    world: GroupedWorld, code: str, status: int, kind: type[SourceError]
) -> None:
    world.server.refusals = [ServiceError(status, code)] * 2
    assert len(world.source.list_shards()) == 2
    world.server.refusals = [ServiceError(status, code)] * 50
    with pytest.raises(kind, match=code):
        world.source.list_shards()
    assert len(world.server.refusals) == 45, "the SDK repeats nothing by itself"


def test_an_error_that_no_retry_can_cure_is_raised_at_once(world: GroupedWorld) -> None:
    world.server.refusals = [ServiceError(400, "ParameterInvalid", "said so"), *[
        ServiceError(500, "InternalServerError")
    ]]  # fmt: skip
    with pytest.raises(SourceError, match="said so"):
        world.source.list_shards()
    assert len(world.server.refusals) == 1
    world.server.refusals = []
    for change in ({"project": "other"}, {"logstore": "other"}):
        with pytest.raises(LogNotFound, match="other"):
            world.source_at(world.server.endpoint, **change).list_shards()
    world.server.now = lambda: datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(SourceRefused, match="clock"):
        world.source.list_shards()


def test_no_credential_appears_in_messages(
    world: GroupedWorld,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Method: a canary in id, secret and token; success, refusal, throttling, silence, damage."""
    caplog.set_level(logging.DEBUG)
    given = {KEY_ID: f"id-{CANARY}", KEY_SECRET: f"secret-{CANARY}", TOKEN: f"token-{CANARY}"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    world.append(2)
    source = world.source = world.source_at(world.server.endpoint, credentials_uri="")
    world.server.keys[given[KEY_ID]] = (given[KEY_SECRET], given[TOKEN])
    assert len(world.all_rows(SHARD)) == 2
    spoken = [repr(source), repr(source.client), str(source.spark_options()), repr(vars(source))]
    bounds = source.bounds([SHARD])[SHARD]

    def fails(attempted: LogHub) -> None:
        with pytest.raises(Exception) as raised:
            list(attempted.read(ReadRange(SHARD, bounds.begin, bounds.end)))
        chain: BaseException | None = raised.value
        while chain is not None:
            spoken.extend([str(chain), repr(chain)])
            chain = chain.__cause__

    monkeypatch.setenv(KEY_SECRET, f"wrong-{CANARY}")
    fails(source)
    monkeypatch.setenv(KEY_ID, f"nobody-{CANARY}")
    fails(source)
    monkeypatch.setenv(KEY_ID, given[KEY_ID])
    monkeypatch.setenv(KEY_SECRET, given[KEY_SECRET])
    monkeypatch.setenv(TOKEN, f"old-{CANARY}")
    fails(source)
    monkeypatch.setenv(TOKEN, given[TOKEN])
    world.throttle(None)
    fails(source)
    world.throttle(0)
    world.damage(SHARD)
    fails(source)
    fails(world.unreachable())  # pyright: ignore[reportArgumentType]
    out, err = capfd.readouterr()
    assert CANARY not in "\n".join([*spoken, out, err, caplog.text])


def test_a_small_answer_that_expands_to_gigabytes_is_refused(
    world: GroupedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_leasehold.shard_sources.loghub.client.BODY_BYTES_MAX", 100_000)
    shard = world.logstore.shard(SHARD)
    written_with_sdk(world.writer, shard.begin, [(START, [("content", b"x" * 1_000_000)])])
    begin = world.source.cursor_at(SHARD, Position.BEGIN)
    with pytest.raises(SourceError, match="at most 100000 are allowed"):
        world.source.plan(SHARD, begin, Limits())


def test_bounds_take_two_requests_a_shard_and_one_for_all(world: GroupedWorld) -> None:
    world.logstore = world.server.create("logstore", 12)
    world.server.requests.clear()
    shards = [row.shard for row in world.source.list_shards()]
    world.server.requests.clear()
    assert len(world.source.bounds(shards)) == 12
    assert sum(world.server.requests.values()) == 25


def test_the_logstore_defaults_to_the_stream() -> None:
    options = LogHubOptions(endpoint="http://127.0.0.1:1", project="project")
    made: Any = LogHub(options.model_copy(update={"logstore": "s"}))
    assert made.spark_options()["logstore"] == "s"
