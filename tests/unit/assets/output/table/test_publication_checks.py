"""Checks before publication: what fails is held, quarantined or only reported."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

from dagster_leasehold.assets.errors import PublicationHeld
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.output.table.snapshot_contents import completeness_of
from dagster_leasehold.assets.publication_check import PublicationCheck, publication_check
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.failpoints import Failpoint
from tests.table_engines import duckdb_query
from tests.unit.assets.output.table.publishing_world import OTHER, Publishing

pc: Any = pyarrow.compute
ZERO, ONE = ShardId("0"), ShardId("1")
REFUSED = b"0:5"
"""A record of shard 0 in its second batch, which has the records 4 to 7."""


def refused(records: pa.Table) -> pa.Array:
    """The value is not 0:5."""
    return pc.not_equal(records["value"], REFUSED)


def world(tmp_path: Path, *checks: Any) -> Publishing:
    publishing = Publishing(tmp_path, TableSettings(publication_checks=checks))
    publishing.world.consume()
    return publishing


def publish_all(publishing: Publishing) -> list[str]:
    findings: list[str] = []
    report = publishing.publish()
    findings += report.findings
    while report.more:
        report = publishing.publish()
        findings += report.findings
    return findings


def of_shard(values: list[bytes], shard: ShardId) -> list[bytes]:
    return [value for value in values if value.startswith(b"%s:" % shard.encode())]


def test_a_failed_batch_holds_its_shard_while_others_are_published(tmp_path: Path) -> None:
    publishing = world(tmp_path, PublicationCheck("refused", function=refused))
    findings = publish_all(publishing)
    assert findings == [
        "Shard 0: batch 1 failed the publication check refused: 1 of 4 records fail: "
        "The value is not 0:5.."
    ]
    assert of_shard(publishing.published(), ZERO) == [b"0:0", b"0:1", b"0:2", b"0:3"]
    assert len(of_shard(publishing.published(), ONE)) == 10
    # Consumption continues, and so does the publication of the other shard.
    for shard in (ZERO, ONE):
        publishing.world.append(shard, 5)
    publishing.world.consume("run-2")
    publish_all(publishing)
    assert len(publishing.committed()) == 30
    assert len(of_shard(publishing.published(), ZERO)) == 4
    assert len(of_shard(publishing.published(), ONE)) == 15
    (held,) = publishing.store.held_output(publishing.world.key)
    hold = held.hold
    assert (held.shard, hold.start, hold.batch, hold.check) == (ZERO, 1, 1, "refused")


def test_after_an_override_everything_is_published_once(tmp_path: Path) -> None:
    publishing = world(tmp_path, PublicationCheck("refused", function=refused))
    publish_all(publishing)
    store, key = publishing.store, publishing.world.key
    store.override_hold(key, ZERO, observer="me", reason="known")
    assert publish_all(publishing) == []
    assert publishing.published() == publishing.committed()
    assert len(publishing.published()) == 20


def test_a_held_batch_that_passes_again_is_published(tmp_path: Path) -> None:
    answers = ["a partner is down"]
    check = PublicationCheck("partner", function=lambda _: answers[0] if answers else None)
    publishing = world(tmp_path, check)
    publish_all(publishing)
    lock = publishing.lock()
    assert isinstance(lock, PublishLock)
    assert publishing.publisher().check_held(lock) == 0
    answers.clear()
    assert publishing.publisher().check_held(lock) == 2
    publish_all(publishing)
    assert publishing.published() == publishing.committed()


def test_failed_records_go_to_quarantine(tmp_path: Path) -> None:
    check = publication_check(refused, on_failure="quarantine")
    publishing = world(tmp_path, check)
    findings = publish_all(publishing)
    assert findings == ["Shard 0: 1 records of batch 1 failed refused, and were quarantined."]
    assert REFUSED not in publishing.published()
    assert len(publishing.published()) == 19
    assert publishing.published() == publishing.committed()
    world_ = publishing.world
    (record,) = quarantined_records(world_.store, world_.key, world_.output)
    assert (record.value, record.cursor) == (REFUSED, "5")
    assert record.error == "refused: The value is not 0:5."


def test_too_many_failed_records_hold_the_batch(tmp_path: Path) -> None:
    check = publication_check(on_failure="quarantine", name="every", quarantined_max=3)(
        lambda _: "all"
    )
    publishing = world(tmp_path, check)
    publish_all(publishing)
    assert {each.hold.batch for each in publishing.store.held_output(publishing.world.key)} == {0}
    # The last batches have two records each.
    assert publishing.store.publication(publishing.world.key).number == 0


def test_a_warning_publishes(tmp_path: Path) -> None:
    publishing = world(tmp_path, PublicationCheck("refused", function=refused, on_failure="warn"))
    assert len(publish_all(publishing)) == 1
    assert publishing.published() == publishing.committed()


@pytest.mark.parametrize(
    ("sql", "records"),
    [
        ("cursor != '5'", 18),
        ("event_time is not null and shard_id in ('0', '1')", 20),
        ("cursor = 'x'", 0),
    ],
)
def test_a_predicate_selects_the_records_that_pass(tmp_path: Path, sql: str, records: int) -> None:
    check = PublicationCheck("rule", sql=sql, on_failure="quarantine")
    publishing = world(tmp_path, check)
    publish_all(publishing)
    assert len(publishing.published()) == records
    assert publishing.published() == publishing.committed()


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (PublicationCheck("rule", sql="amount >="), "the predicate is not valid at"),
        (PublicationCheck("rule", sql="amount > 0"), "Could not find field with name amount"),
        (publication_check(lambda _: 1 / 0, name="rule"), "ZeroDivisionError: division by zero"),
        (publication_check(lambda _: 5, name="rule"), "the check returned int"),
    ],
)
def test_a_check_that_cannot_run_holds(tmp_path: Path, check: Any, reason: str) -> None:
    publishing = world(tmp_path, check)
    assert all(reason in finding for finding in publish_all(publishing))
    assert len(publishing.store.held_output(publishing.world.key)) == 2


def test_a_publisher_without_the_check_obeys_the_hold(tmp_path: Path) -> None:
    publishing = world(tmp_path, PublicationCheck("refused", function=refused))
    publish_all(publishing)
    publishing.settings = TableSettings()
    publishing.publish(OTHER)
    assert REFUSED not in publishing.published()


class Killed(BaseException):
    """This process is gone: nothing of it is tidied up."""


@pytest.mark.parametrize("on_failure", ["hold", "quarantine", "warn"])
@pytest.mark.parametrize(
    "point",
    [
        Failpoint.AFTER_PUBLISH_LOCK,
        Failpoint.AFTER_HOLD,
        Failpoint.BEFORE_QUARANTINE,
        Failpoint.AFTER_STAGE,
        Failpoint.BEFORE_PUBLISH,
        Failpoint.AFTER_PUBLISH,
    ],
    ids=lambda point: point.label,
)
def test_killed_at_any_step_nothing_is_lost_or_duplicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: Failpoint, on_failure: Any
) -> None:
    publishing = world(
        tmp_path, PublicationCheck("refused", function=refused, on_failure=on_failure)
    )

    def reach(reached: str) -> None:
        if reached == point.label:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "reach", reach)
        with contextlib.suppress(Killed):
            publish_all(publishing)
    publish_all(publishing)
    expected = {"hold": 14, "quarantine": 19, "warn": 20}[on_failure]
    assert len(publishing.published()) == expected
    if on_failure == "hold":
        publishing.store.override_hold(publishing.world.key, ZERO, observer="me", reason="known")
        publish_all(publishing)
    assert publishing.published() == publishing.committed()
    assert len(set(publishing.committed())) == len(publishing.committed())


def test_a_waiting_reader_gets_the_reason_of_a_hold_at_once(tmp_path: Path) -> None:
    publishing = world(tmp_path, PublicationCheck("refused", function=refused))
    world_ = publishing.world
    output = CommittedOutput(world_.store, world_.key, world_.place, publishing.settings)
    with pytest.raises(PublicationHeld, match="Check refused holds its publication from batch 1"):
        output.plan(wait=True)
    assert len(publishing.published()) == 14
    assert output.dataset(wait=True, shards=[ONE]).count_rows() == 10
    assert output.dataset().count_rows() == 14


def test_a_hold_holds_back_the_complete_event_time(tmp_path: Path) -> None:
    publishing = world(tmp_path, PublicationCheck("refused", function=refused))
    publish_all(publishing)
    publishing.world.append(ONE, 5)
    publishing.world.consume("run-2")
    publish_all(publishing)
    until = completeness_of(publishing.metadata().current_snapshot())
    at = publishing.metadata_at()
    ((newest,),) = duckdb_query(at, "max(event_time)", "shard_id = '0'")
    assert until is not None
    assert until <= newest


def test_the_outcome_of_a_check_is_that_of_the_last_batches(tmp_path: Path) -> None:
    publishing = world(tmp_path, PublicationCheck("refused", function=refused, on_failure="warn"))
    publish_all(publishing)
    store, key = publishing.store, publishing.world.key
    (failure,) = store.publication(key).failures
    assert (failure.check, failure.shard, failure.batch) == ("refused", ZERO, 1)
    publishing.world.append(ONE, 5)
    publishing.world.consume("run-2")
    publish_all(publishing)
    assert store.publication(key).failures == (failure,)
    publishing.world.append(ZERO, 5)
    publishing.world.consume("run-3")
    publish_all(publishing)
    assert store.publication(key).failures == ()
