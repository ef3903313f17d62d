"""Where a shard continues after removed records, for runs and clients alike."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import CursorExpired
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.rules.gap_policy import (
    GapVerdict,
    decide_gap,
    position_after_gap,
)


def verdict(
    policy: GapPolicy, *, resumption: str = "15", accepted: str | None = None
) -> GapVerdict:
    return decide_gap(
        "10",
        policy=policy,
        resumption=resumption,
        accepted_end=accepted,
        contradiction="It begins there.",
    )


def test_only_the_policy_end_skips_remaining_records() -> None:
    assert {policy: position_after_gap(policy) for policy in GapPolicy} == {
        GapPolicy.HOLD: "begin",
        GapPolicy.BEGIN: "begin",
        GapPolicy.END: "end",
    }


@pytest.mark.parametrize("policy", [GapPolicy.BEGIN, GapPolicy.END])
def test_a_group_that_continues_skips_the_gap_at_once(policy: GapPolicy) -> None:
    assert verdict(policy) == GapVerdict("15", passes=True)


def test_a_group_that_holds_skips_only_the_accepted_range() -> None:
    assert verdict(GapPolicy.HOLD) == GapVerdict("15", passes=False)
    assert verdict(GapPolicy.HOLD, accepted="12") == GapVerdict("12", passes=True)


@pytest.mark.parametrize("policy", GapPolicy)
def test_a_log_that_begins_at_what_it_calls_removed_is_an_error(policy: GapPolicy) -> None:
    with pytest.raises(CursorExpired, match=r"^It begins there\.$"):
        verdict(policy, resumption="10", accepted="12")
