"""Requests to a run travel as tags, and each is answered once."""

from __future__ import annotations

import pytest

from dagster_leasehold.assets.consuming.run_requests import (
    FINISH_TAG,
    RELEASE_TAG,
    STOP_TAG,
    TAKE_TAG,
    RequestBox,
    RunRequests,
    offer,
    offered,
)
from dagster_leasehold.lease_store.identifiers import ShardId

ZERO, ONE = ShardId("0"), ShardId("1")


def test_each_offer_is_returned_once() -> None:
    tags = offer("first", [ZERO, ONE])
    box = RequestBox(lambda: tags)
    assert box() == RunRequests(take=(ZERO, ONE))
    assert box() == RunRequests()
    tags = offer("second", [ZERO])
    assert box() == RunRequests(take=(ZERO,))


def test_a_shard_is_released_once_for_each_request() -> None:
    tags = {RELEASE_TAG + ZERO: "run-1"}
    box = RequestBox(lambda: tags)
    assert box().release == {ZERO}
    assert not box().release
    tags |= {RELEASE_TAG + ZERO: "run-2", RELEASE_TAG + ONE: "run-2"}
    assert box().release == {ZERO, ONE}


def test_an_invalid_request_is_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    tags = {RELEASE_TAG + name: "somebody" for name in ("../1", "", "a b", "0")}
    box = RequestBox(lambda: tags)
    assert box().release == {ZERO}
    assert box() == RunRequests()
    assert len(caplog.records) == 3
    assert "'../1'" in caplog.text
    tags[RELEASE_TAG + ONE] = "somebody"
    assert box().release == {ONE}


def test_a_request_to_end_is_returned_until_the_run_ends() -> None:
    box = RequestBox(lambda: {FINISH_TAG: "others wait", STOP_TAG: "new"})
    assert [box(), box()] == [RunRequests(finish=True, stop=True)] * 2


def test_an_unavailable_storage_means_no_requests(caplog: pytest.LogCaptureFixture) -> None:
    def tags() -> dict[str, str]:
        raise OSError("away")

    box = RequestBox(tags)
    assert [box(), box()] == [RunRequests()] * 2
    assert len(caplog.records) == 1


def test_an_offer_is_short_and_names_its_shards() -> None:
    assert offer("0b5f2c1e-77aa-4f0e", [ZERO, ONE]) == {TAKE_TAG: "0, 1 (offer 0b5f2c1e)"}


@pytest.mark.parametrize(
    "value", ["", "nonsense", "[]", " (offer a)", "0,1 (offer a)", "0, ../1 (offer a)"]
)
def test_an_offer_that_cannot_be_parsed_is_ignored(value: str) -> None:
    assert offered({TAKE_TAG: value}) == ()
