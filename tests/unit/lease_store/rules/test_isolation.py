"""The search for records that block a shard, played by the rules alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.rules.isolation import (
    NextStep,
    Suspicion,
    blocks,
    goes_to_quarantine,
    next_step,
    sentence,
)


class Shard:
    """A shard of some records, whose tries all end their runs: nothing is known but its row."""

    def __init__(self, records: int, poison: set[int]) -> None:
        self.records, self.poison = records, poison
        self.at = self.failures = self.tries = 0
        self.intent = records
        self.suspicion: Suspicion | None = None
        self.quarantined: list[int] = []
        self.committed: list[int] = []

    def run(self) -> bool:
        """Make one try, and the other work of a run; return False once all records are read."""
        if self.at == self.records:
            return False
        suspicion = self.suspicion or Suspicion()
        if self.intent:
            step = next_step(self.failures, self.suspicion)
            if step is NextStep.SETTLE:
                self.quarantined.append(self.at)
                self.commit(self.intent, quarantined=True)
                return True
            if step is NextStep.HALVE:
                size = self.intent
                smaller = max(1, size // 2)
                self.suspicion = suspicion.within(size, alone=smaller == 1)
                self.intent, self.failures = smaller, 0
        else:
            self.intent, self.failures = min(suspicion.next_size(), self.records - self.at), 0
            if self.suspicion is None:
                self.intent = self.records - self.at
            else:
                self.suspicion = replace(suspicion, alone=self.intent == 1)
        self.tries += 1
        span = set(range(self.at, self.at + self.intent))
        if span & self.poison:
            self.failures += 1
        else:
            self.committed += sorted(span)
            self.commit(self.intent)
        return True

    def commit(self, size: int, *, quarantined: bool = False) -> None:
        self.at, self.intent, self.failures = self.at + size, 0, 0
        if self.suspicion is not None:
            self.suspicion = self.suspicion.after(size, quarantined=quarantined)


@given(st.integers(1, 200), st.sets(st.integers(0, 199), max_size=12))
def test_only_blocking_records_are_found_and_all_others_committed_once(
    records: int, poison: set[int]
) -> None:
    shard = Shard(records, poison & set(range(records)))
    while shard.run():
        assert shard.tries < 1_000
    assert shard.quarantined == sorted(shard.poison)
    assert shard.committed == sorted(set(range(records)) - shard.poison)
    assert shard.suspicion is None


@pytest.mark.parametrize("at", [0, 1, 511, 512, 999, 1023])
def test_one_record_in_a_thousand_is_found_in_about_as_many_tries_as_the_range_has_bits(
    at: int,
) -> None:
    shard = Shard(1024, {at})
    while not shard.quarantined and shard.run():
        pass
    assert shard.tries <= 3 + math.log2(1024) + 3


def test_a_shard_gets_separate_runs_during_a_search() -> None:
    assert not blocks(0, None)
    assert not blocks(1, Suspicion(failure="it hangs"))
    assert blocks(2, Suspicion(failure="it hangs"))
    assert not blocks(2, None), "what killed them need not be a record"
    assert blocks(3, None)
    assert blocks(0, Suspicion().within(8))


def test_the_setting_decides_and_an_operator_can_override_it() -> None:
    alone = Suspicion().within(1, alone=True)
    assert not goes_to_quarantine("hold", alone, quarantined_max=9)
    assert goes_to_quarantine("quarantine", alone, quarantined_max=9)
    full = replace(alone, quarantined=9)
    assert not goes_to_quarantine("quarantine", full, quarantined_max=9)
    assert goes_to_quarantine("hold", replace(full, skip=True), quarantined_max=9)


def test_the_message_names_shard_cursor_and_reason() -> None:
    assert sentence("orders/default", "3", "17", None) == ""
    assert sentence("orders/default", "3", "17", Suspicion(failure="it hangs")) == ""
    searched = Suspicion(failure="It hangs.").within(4096)
    assert sentence("orders/default", "3", "17", searched) == (
        "Shard 3 of orders/default is blocked at cursor 17 or up to 4,096 records after it "
        "(It hangs). Its runs halve that range until they find the record."
    )
    held = replace(searched.within(1, alone=True), holds_shard=True, failure="")
    assert sentence("orders/default", "3", "17", held) == (
        "Shard 3 of orders/default is held at cursor 17, because the record there stops every run "
        "(the run died without an error message, as if it was killed). Each run retries it, so "
        "fix the transform, or send the record to quarantine with `leasehold quarantine skip`."
    )
