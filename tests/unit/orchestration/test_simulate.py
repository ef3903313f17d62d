"""`leasehold simulate`: the shares after each change, and the moves."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.commands.simulate import simulate

app = typer.Typer()
app.command()(simulate)


def settled(*options: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["--json", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def changed(*changes: str, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    named = (word for change in changes for word in ("--change", change))
    return settled(*options, *named)


def test_nodes_that_join_together_need_the_fewest_moves() -> None:
    [start] = settled("--nodes", "3", "--shards", "8")
    assert start == {
        "change": "start", "nodes": 3, "shards": 8, "moves": 8, "moves_minimum": 8,
        "seconds": 5.0, "ownerless_s": 0.0, "counts": [3, 3, 2],
    }  # fmt: skip


@pytest.mark.parametrize("change", ["join:2", "leave", "leave:2", "crash", "crash:3"])
def test_a_change_of_members_costs_the_proven_minimum(change: str) -> None:
    start, after = changed(change, options=("--nodes", "4", "--shards", "13"))
    assert after["moves"] == after["moves_minimum"] > 0
    assert after["counts"][0] - after["counts"][-1] <= 1
    assert sum(after["counts"]) == start["shards"] == 13


@pytest.mark.parametrize("timeout", [2, 20, 200])
def test_shards_of_a_dead_node_wait_for_the_timeout_and_a_tick(timeout: int) -> None:
    _, crash, leave = changed("crash", "leave", options=("--nodes", "4", "--timeout", str(timeout)))
    tick = min(5.0, timeout / 4)
    # The last beat may have been sent a beat interval before the crash.
    assert timeout * 2 / 3 <= crash["ownerless_s"] <= timeout + 2 * tick
    assert leave["ownerless_s"] <= tick


@pytest.mark.parametrize("ordered", [(), ("--ordered",)])
def test_children_of_splits_and_merges_are_shared(ordered: tuple[str, ...]) -> None:
    _, split, merge = changed("split:2", "merge:2", options=ordered)
    assert (split["shards"], sum(split["counts"])) == (10, 10)
    assert (merge["shards"], sum(merge["counts"])) == (8, 8)
    assert merge["counts"][0] - merge["counts"][-1] <= 1


@pytest.mark.parametrize("mode", ["modulo", "pinned"])
def test_settings_that_name_shards_are_followed(mode: str) -> None:
    start, crash = changed("crash", options=("--mode", mode, "--shards", "9"))
    assert (start["counts"], crash["counts"]) == ([3, 3, 3], [3, 3])
    assert crash["moves"] == crash["moves_minimum"] == 0


def test_the_same_options_give_the_same_numbers() -> None:
    assert changed("crash", "join:3") == changed("crash", "join:3")


def test_the_default_output_is_a_table() -> None:
    result = CliRunner().invoke(app, ["--change", "crash"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "3 on 2, 2 on 1" in result.output
    assert "4 on 2" in result.output


@pytest.mark.parametrize("text", ["", "melt", "crash:0", "crash:x", "crash ", "crash@5"])
def test_a_change_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not a change: use KIND"):
        changed(text)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--nodes", "0"), "--nodes is 0"),
        (("--shards", "100001"), "--shards is 100001"),
        (("--change", "crash:3"), "would remove all nodes"),
        (("--change", "merge:5"), "are needed, but there are 8"),
        (("--change", "join:999"), "at most 1000 nodes"),
    ],
)
def test_numbers_out_of_range_are_refused(options: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidSetting, match=sentence):
        settled(*options)
