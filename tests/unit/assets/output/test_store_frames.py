"""DataFrames to files, with a stand-in for Spark that calls the function of a task at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast

import pyarrow as pa
import pytest

from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.output.store_frames import write_frame
from dagster_leasehold.assets.places.local_place import local_place
from tests.synced import synced

ATTEMPT = "attempts/run-1"


class Frame:
    """A DataFrame of one task; `meanwhile` is called once its rows are written."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.rows: list[pa.RecordBatch] = []

    def mapInArrow(  # noqa: N802  # as Spark has it
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str
    ) -> Self:
        self.rows = [*function(iter([pa.RecordBatch.from_pydict({"value": [1, 2]})]))]
        self.meanwhile()
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802  # as Spark has it
        return pa.Table.from_batches(self.rows)


def test_files_of_a_frame_are_synced_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with synced(monkeypatch) as paths:
        (file,) = write_frame(cast(Any, Frame()), local_place(tmp_path / ATTEMPT), ATTEMPT)
    path = tmp_path / file.path
    assert (file.records, file.bytes) == (2, path.stat().st_size)
    assert path.parent == tmp_path / ATTEMPT
    assert paths == [tmp_path, tmp_path / "attempts", path, path.parent]


def test_a_folder_that_workers_do_not_share_is_named(tmp_path: Path) -> None:
    def elsewhere() -> None:
        for path in tmp_path.rglob("*.parquet"):
            path.unlink()

    with pytest.raises(SparkUnavailable, match="share the output folder"):
        write_frame(cast(Any, Frame(elsewhere)), local_place(tmp_path / ATTEMPT), ATTEMPT)
