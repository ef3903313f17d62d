"""Sweeps over ranges: their requests to the place of output."""

from __future__ import annotations

import pytest
from pyarrow.fs import FileSystem, LocalFileSystem

from dagster_leasehold.assets.consuming import spark_work
from dagster_leasehold.assets.places.store_place import StorePlace


def test_an_attempt_in_a_store_ends_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a short sweep does not wait for a listing of signs that it did not leave."""
    asked: list[str] = []

    def arrow(place: StorePlace) -> tuple[FileSystem, str]:
        asked.append(str(place))
        return LocalFileSystem(), place.path

    monkeypatch.setattr(StorePlace, "arrow", arrow)
    spark_work.clean_up(StorePlace("s3", "bucket", "attempts/run-1"))
    assert not asked
