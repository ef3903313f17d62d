"""Cursors of a LogHub shard: one text for one place, in the order of the shard."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import CursorInvalid
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor

SHARD = ShardId("0")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_the_service_s_cursor_is_a_number() -> None:
    text = "MTQ0NzI5OTYwNjg5NjYzMjM1Ng=="
    cursor = GroupCursor.from_service(SHARD, text)
    assert cursor == GroupCursor(1447299606896632356)
    assert (str(cursor), cursor.service) == ("1447299606896632356", text)


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**9 - 1))
def test_each_position_has_one_text(group: int, index: int) -> None:
    cursor = GroupCursor(group, index)
    assert GroupCursor.parse(SHARD, str(cursor)) == cursor
    assert GroupCursor.from_service(SHARD, cursor.service) == GroupCursor(group)


def test_positions_are_ordered_within_a_group_and_between_groups() -> None:
    assert GroupCursor(5, 9) < GroupCursor(6) < GroupCursor(6, 1) < GroupCursor(10)


@pytest.mark.parametrize(
    "text",
    ["", "no-cursor", "-1", "012", "12a", str(2**63), "1_000", " 12", "12.0", "12.01", "12.",
     "12\n", "٣", encoded("123456")],
)  # fmt: skip
def test_other_texts_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(CursorInvalid) as refused:
        GroupCursor.parse(SHARD, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "123", "????", "YWJj", encoded("-12"), encoded("012"), encoded("12.3"), encoded("١٢"),
     encoded(str(2**63)), encoded("12345").rstrip("="), "MTIzNDV="],
)  # fmt: skip
def test_other_texts_of_the_service_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(CursorInvalid) as refused:
        GroupCursor.from_service(SHARD, text)
    assert "\n" not in str(refused.value)
