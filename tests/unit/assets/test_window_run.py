"""Files of an hour of event time: on the disk before a row names them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.window_run import _files
from tests.synced import synced


def test_files_of_an_hour_are_on_the_disk_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "attempts" / "run-1"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"value": [1, 2]}), folder / "part-0.parquet")
    with synced(monkeypatch) as paths:
        (file,) = _files(tmp_path, "attempts/run-1")
    assert (file.path, file.records) == ("attempts/run-1/part-0.parquet", 2)
    assert paths == [folder / "part-0.parquet", folder, tmp_path / "attempts"]
