"""Each failure is one sentence of the right type, and no record is skipped."""

from __future__ import annotations

import time

import pytest

from dagster_leasehold.lease_store.errors import (
    LogCorrupt,
    SourceError,
    SourceRefused,
    SourceThrottled,
    SourceUnavailable,
    UnknownShard,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import Limits, Position, ReadRange, ShardSource
from tests.sources.world import VALUES, Notion, SourceWorld

pytestmark = pytest.mark.long

TICK_S = 60.0
"""The time that a tick of a Dagster sensor may take."""


def each_call(source: ShardSource, shard: ShardId, start: str, end: str) -> dict[str, object]:
    """Call each method of a source, and return the errors by the method's name."""
    raised: dict[str, object] = {}
    calls = {
        "list_shards": source.list_shards,
        "bounds": lambda: source.bounds([shard]),
        "cursor_at": lambda: source.cursor_at(shard, Position.END),
        "plan": lambda: source.plan(shard, start, Limits()),
        "read": lambda: list(source.read(ReadRange(shard, start, end))),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            raised[name] = error
        else:
            raised[name] = None
    return raised


def test_an_unknown_shard_is_one_sentence(world: SourceWorld, shard: ShardId) -> None:
    bounds = world.source.bounds([shard])[shard]
    unknown = ShardId("no-such-shard")
    for name, error in each_call(world.source, unknown, bounds.begin, bounds.end).items():
        if name != "list_shards":
            assert isinstance(error, SourceError | UnknownShard), name
            assert "no-such-shard" in str(error), name
            assert "\n" not in str(error), name


@pytest.mark.needs(Notion.DAMAGE)
def test_damage_is_an_error_and_never_skipped(world: SourceWorld, shard: ShardId) -> None:
    world.damage(shard)
    with pytest.raises(LogCorrupt) as damaged:
        world.all_rows(shard)
    assert "\n" not in str(damaged.value)


@pytest.mark.needs(Notion.NETWORK)
def test_an_unreachable_service_is_an_error_in_time(world: SourceWorld, shard: ShardId) -> None:
    bounds = world.source.bounds([shard])[shard]
    source = world.unreachable()
    for call in (
        source.list_shards,
        lambda: list(source.read(ReadRange(shard, bounds.begin, bounds.end))),
    ):
        began = time.monotonic()
        with pytest.raises(SourceUnavailable) as away:
            call()
        assert time.monotonic() - began < TICK_S
        assert "\n" not in str(away.value)
        assert not any(secret in str(away.value) for secret in world.secrets())


@pytest.mark.needs(Notion.THROTTLING)
def test_a_throttled_request_is_retried_until_it_is_answered(
    world: SourceWorld, shard: ShardId
) -> None:
    world.throttle(2)
    bounds = world.source.bounds([shard])[shard]
    world.throttle(2)
    assert [row["value"] for row in world.rest(shard, bounds.begin)] == list(VALUES)


@pytest.mark.needs(Notion.THROTTLING)
def test_endless_throttling_is_an_error(world: SourceWorld, shard: ShardId) -> None:
    bounds = world.source.bounds([shard])[shard]
    world.throttle(None)
    began = time.monotonic()
    with pytest.raises(SourceThrottled) as throttled:
        world.rows(shard, bounds.begin, bounds.end)
    assert time.monotonic() - began < TICK_S
    assert "\n" not in str(throttled.value)
    world.throttle(0)
    assert [row["value"] for row in world.all_rows(shard)] == list(VALUES)


@pytest.mark.needs(Notion.CREDENTIALS)
def test_wrong_credentials_are_refused_by_every_call(world: SourceWorld, shard: ShardId) -> None:
    bounds = world.source.bounds([shard])[shard]
    raised = each_call(world.wrong_credentials(), shard, bounds.begin, bounds.end)
    for name, error in raised.items():
        assert isinstance(error, SourceRefused), name
        assert "\n" not in str(error)
        assert not any(secret in str(error) for secret in world.secrets())


@pytest.mark.needs(Notion.CREDENTIALS)
def test_rotated_credentials_are_used_without_a_restart(world: SourceWorld, shard: ShardId) -> None:
    world.change_credentials()
    with pytest.raises(SourceError):
        world.all_rows(shard)
    world.learn_credentials()
    assert [row["value"] for row in world.all_rows(shard)] == list(VALUES)


def test_spark_s_options_contain_no_secret(world: SourceWorld) -> None:
    shown = f"{dict(world.source.spark_options())} {world.source!r}"
    assert not any(secret in shown for secret in world.secrets())
