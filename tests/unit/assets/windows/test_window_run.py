"""Files of an hour of event time: on the disk before a row names them, and safe from vacuum."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.errors import OutputUnreadable, SessionLost, TransformError
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.rewriting.vacuum import VacuumReport, vacuum
from dagster_leasehold.assets.windows import window_run
from dagster_leasehold.assets.windows.window_run import WindowMade, _files, make_window
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.pruning import OutputExpiry, expire
from tests.synced import synced
from tests.unit.assets.consumption_world import World


class Hour:
    """An hour of committed output, made without Spark; `meanwhile` happens once it is written."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(folder)
        self.world.consume()
        self.key, self.store = self.world.key, self.world.store
        self.meanwhile: Callable[[], None] = lambda: None
        self.sessions: list[str] = []
        self.renewed: Callable[[], Any] = lambda: None
        monkeypatch.setattr(window_run, "_write", self._write)

    def _write(self, session: str, *_: object, root: OutputPlace, name: str, **__: object) -> None:
        self.sessions.append(session)
        path = Path(str(root / name))
        path.mkdir()
        pq.write_table(pa.table({"value": [1, 2]}), path / "part-0.parquet")
        for each in (path / "part-0.parquet", path):
            os.utime(each, (0, 0))
        self.meanwhile()

    def make(self, run: str = "run-1", *ended: str) -> WindowMade:
        return make_window(
            Deployment(lambda: self.store, (), Timing(), lambda _: self.world.place),
            self.world.stream,
            asset="hourly",
            transform=lambda records: records,
            start=datetime(2000, 1, 1, tzinfo=UTC),
            end=datetime(2100, 1, 1, tzinfo=UTC),
            run=run,
            session=lambda: cast(Any, "first"),
            renewed=self.renewed,
            even_if_incomplete=True,
            ended=ended.__contains__,
        )

    def vacuum(self) -> VacuumReport:
        return vacuum(self.store, self.key, self.world.place, older_than=timedelta(hours=1))

    def attempts(self) -> list[str]:
        return [each.run for each in self.store.window_attempts(self.key)]


@pytest.fixture
def hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hour:
    return Hour(tmp_path, monkeypatch)


def test_files_of_an_hour_are_on_the_disk_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "attempts" / "run-1"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"value": [1, 2]}), folder / "part-0.parquet")
    with synced(monkeypatch) as paths:
        (file,) = _files(local_place(tmp_path), "attempts/run-1")
    assert (file.path, file.records) == ("attempts/run-1/part-0.parquet", 2)
    assert paths == [folder / "part-0.parquet", folder, tmp_path / "attempts"]


def test_an_hour_whose_output_expired_stays_as_it_was_made(hour: Hour) -> None:
    """Made again, it would hold only what has not expired."""
    window = hour.make().window
    hour.world.deliver()
    assert expire(hour.store, hour.key, OutputExpiry(timedelta(days=-1), list)).expired
    with pytest.raises(OutputUnreadable, match=r"at cursor .* cannot be read whole any more"):
        hour.make("run-2")
    assert hour.store.windows(hour.key) == [window]
    assert hour.attempts() == []


def test_vacuum_leaves_an_hour_alone_while_it_is_made(hour: Hour) -> None:
    """1. files are written, and grow old; 2. vacuum runs; 3. the row names them."""
    reports: list[VacuumReport] = []
    hour.meanwhile = lambda: reports.append(hour.vacuum())
    (file,) = hour.make().window.files
    assert [(report.removed, report.in_progress) for report in reports] == [((), 1)]
    assert (hour.world.output / file.path).exists()
    assert hour.attempts() == []
    assert hour.vacuum().removed == ()


def test_a_run_that_was_taken_for_dead_writes_no_row_over_removed_files(hour: Hour) -> None:
    """1. files are written; 2. somebody ends the attempt; 3. vacuum removes; 4. the run goes on."""

    def taken_for_dead() -> None:
        hour.meanwhile = lambda: None
        for each in hour.store.window_attempts(hour.key):
            hour.store.end_window(hour.key, each.attempt)
        assert len(hour.vacuum().removed) == 1
        folder = hour.world.output / "attempts" / each.attempt
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"value": [1]}), folder / "part-1.parquet")  # the last task ends

    hour.meanwhile = taken_for_dead
    (file,) = hour.make().window.files
    assert (hour.world.output / file.path).name == "part-0.parquet", "it was made again, as a whole"
    assert hour.attempts() == []


@pytest.mark.parametrize("lost", [1, 2])
def test_an_hour_is_made_once_more_in_a_new_session(hour: Hour, lost: int) -> None:
    """Goal: what the lost session wrote, or still writes, is in no row."""

    def fails() -> None:
        if len(hour.sessions) <= lost:
            raise SessionLost("Spark does not answer.")

    hour.meanwhile, hour.renewed = fails, lambda: "second"
    if lost == 2:
        with pytest.raises(SessionLost):
            hour.make()
        assert hour.store.windows(hour.key) == []
    else:
        (file,) = hour.make().window.files
        *others, made = sorted(hour.world.output.rglob("part-0.parquet"), key=str)
        assert len(others) == 1
        assert hour.world.output / file.path in {made, *others}
    assert hour.sessions == ["first", "second"]
    assert hour.attempts() == []


def test_a_run_that_fails_or_is_killed_keeps_nothing_for_ever(
    hour: Hour, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise TransformError("The transform is broken.")

    hour.meanwhile = fails
    with pytest.raises(TransformError):
        hour.make()
    assert hour.attempts() == []
    with monkeypatch.context() as patch:
        patch.setattr(hour.store, "end_window", lambda *_: None)  # as if it had been killed
        with pytest.raises(TransformError):
            hour.make()
    hour.meanwhile = lambda: None
    hour.make("run-2")
    assert hour.attempts() == ["run-1"], "nobody knows yet that it has ended"
    assert len(hour.vacuum().removed) == 1
    hour.make("run-3", "run-1")
    assert hour.attempts() == []
    assert len(hour.vacuum().removed) == 1, "the replaced hour is young"
