from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import CursorInvalid
from dagster_leasehold.shard_sources.kinesis.cursors import (
    GONE,
    Place,
    Side,
    after,
    at,
    created_s,
    start,
)

NUMBER = 49680431711629241955125856913212554099471375107828482050


@pytest.mark.parametrize(
    "place",
    [at(NUMBER), at(NUMBER, 7), after(NUMBER, 1_767_225_600), start(1_767_225_600), GONE, at(0)],
    ids=str,
)
def test_a_cursor_is_its_position_as_text(place: Place) -> None:
    assert Place.parse("shard", str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        *("", "no", "-1", "٣", "1.0", "1.", "1+", "01", "1.2+3", "9" * 130, "1 ", "1\n"),
        *("start", "start+", "gone+1", "start+" + "1" * 13),
    ],
)
def test_other_text_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(CursorInvalid) as refused:
        Place.parse("shardId-000000000000", text)
    assert "\n" not in str(refused.value)


def test_positions_have_the_order_of_the_shard() -> None:
    ordered = [start(9), at(5), at(5, 1), at(5, 12), after(5, 1), at(6), after(6, 1), GONE]
    assert sorted(ordered, key=lambda place: place.order) == ordered
    assert after(5, 1).order == after(5, 99).order


def test_only_a_position_without_its_own_record_is_renewed() -> None:
    assert after(5, 10).renewed(20) == after(5, 20)
    assert after(5, 10).renewed(3) == after(5, 10)
    assert start(10).renewed(20) == Place(Side.START, sure_s=20)
    assert at(5, 2).renewed(20) == at(5, 2)
    assert GONE.renewed(20) == GONE


def test_a_shard_s_starting_number_contains_its_creation_time() -> None:
    assert created_s(49680431711629241955125856913212554099471374970389528578) == 1_795_271_857


@pytest.mark.parametrize("number", [0, 1, 10**20, 1 << 185, NUMBER * 2])
def test_a_number_of_another_form_contains_no_time(number: int) -> None:
    assert created_s(number) is None
