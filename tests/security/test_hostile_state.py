"""Ten thousand broken inputs for all that is read back: a typed refusal, or a fresh start."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.spark.connect_server import STATE_FILE, ConnectServer
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.liveness import Observations
from dagster_leasehold.sensors.steps import cursors_in
from dagster_leasehold.shard_sources.kinesis.cursors import Place
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.positions import parse_offset, parse_position

INPUTS = 10_000
CURSOR = '{"format": 1, "nodes": {"a": [7, 1.5, "a-1"]}, "incarnations": {"a": "a-1"}}'
VALUES = [
    None, True, -1, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 5_000, [], {}, [[]],
    {"a": {}}, [1, "a", None], "\0", "__import__('os')", "!!python/object:os.system",
]  # fmt: skip


def inputs(seed: int, valid: str) -> list[str]:
    """Return noise, changed and cut copies of a valid text, JSON of wrong shapes, deep nesting."""
    dice = random.Random(seed)
    texts = ["", "[" * 100_000, '{"a":' * 100_000, "\0", "NaN", "1e999", "9" * 5_000, "-0", "٣"]
    while len(texts) < INPUTS:
        choice = dice.randrange(4)
        if choice == 0:
            texts.append("".join(dice.choices(string.printable, k=dice.randint(0, 60))))
        elif choice == 1:
            at = dice.randrange(len(valid) + 1)
            texts.append(valid[:at] + dice.choice(string.printable) + valid[at + 1 :])
        elif choice == 2:
            texts.append(valid[: dice.randrange(len(valid))])
        else:
            keys = ["format", "nodes", "transfers", "incarnations", "a"]
            shape = {key: dice.choice(VALUES) for key in dice.sample(keys, dice.randint(0, 5))}
            texts.append(json.dumps(dice.choice([shape, dice.choice(VALUES), [shape]])))
    return texts


def test_a_damaged_cursor_of_the_rebalance_sensor_starts_from_nothing() -> None:
    """A text that cannot be understood is forgotten: the count starts again, which is safe."""
    for text in inputs(1, CURSOR):
        remembered = Observations.recall(text, lambda: 0.0)
        assert all(still_s >= 0 for still_s in remembered.lapsed(0.0).values())


def test_a_damaged_cursor_of_many_steps_starts_from_nothing() -> None:
    for text in inputs(2, '{"orders rebalance": "7", "orders compaction": "5 clean"}'):
        assert all(isinstance(each, str) for each in cursors_in(text).values())


def test_a_damaged_checkpoint_of_a_local_log_is_a_typed_error() -> None:
    for text in inputs(3, "1234567"):
        with suppress(LeaseholdError):
            assert parse_offset(ShardId("0"), text) >= 0


@pytest.mark.parametrize(
    ("parse", "valid"),
    [
        (GroupCursor.parse, "MTYwMDAwMDAwMA==.7"),
        (Place.parse, "495903.7"),
        (Place.parse, "start+17"),
    ],
)
def test_a_damaged_checkpoint_of_a_service_is_a_typed_error(
    parse: Callable[[ShardId, str], object], valid: str
) -> None:
    for text in inputs(6, valid):
        with suppress(LeaseholdError):
            parse(ShardId("0"), text)


def test_a_hostile_position_or_span_is_a_typed_error() -> None:
    for text in inputs(4, "2026-03-29T12:00:00+02:00")[9:]:
        parse_position(text)
        with suppress(LeaseholdError):
            ReplaySpan.parse(text, None)


def test_a_damaged_state_file_of_the_spark_server_is_ignored(tmp_path: Path) -> None:
    valid = '{"process": "here|1|15", "port": 9, "session_id": "s", "version": "4"}'
    for text in inputs(5, valid)[:1_000]:
        (tmp_path / STATE_FILE).write_text(text, "utf-8")
        server = ConnectServer.read(tmp_path)
        assert server is None or not server.alive() or server.pid == 1


@pytest.mark.parametrize("text", ["begin", "end", "2026-03-29"])
def test_valid_positions_are_accepted(text: str) -> None:
    assert parse_position(text) is not None
