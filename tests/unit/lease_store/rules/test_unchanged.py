"""How long the ends of ledgers, the checkpoints of shards, and the runs of an observer last."""

from __future__ import annotations

from dagster_leasehold.lease_store.rules.unchanged import Unchanged


def test_a_value_ages_until_it_changes() -> None:
    ends = Unchanged[str]()
    assert ends.update({"x": 5, "y": 5}, 1_000.0) == {"x": 0.0, "y": 0.0}
    assert ends.update({"x": 5, "y": 6, "z": 1}, 1_010.0) == {"x": 10.0, "y": 0.0, "z": 0.0}
    assert ends.update({"x": 5, "y": 6, "z": 1}, 1_030.0) == {"x": 30.0, "y": 20.0, "z": 20.0}


def test_a_key_that_was_missing_counts_from_0() -> None:
    runs = Unchanged[str]()
    assert runs.update(dict.fromkeys(("run-1",)), 0.0) == {"run-1": 0.0}
    assert runs.update(dict.fromkeys(("run-1", "run-2")), 60.0) == {"run-1": 60.0, "run-2": 0.0}
    assert runs.update(dict.fromkeys(("run-2",)), 70.0) == {"run-2": 10.0}
    assert runs.update(dict.fromkeys(("run-1",)), 120.0) == {"run-1": 0.0}, "it had ended meanwhile"
