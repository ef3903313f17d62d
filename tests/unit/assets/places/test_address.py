"""Addresses of output: accepted ones, and refusals in one sentence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.local_place import LocalPlace
from dagster_leasehold.assets.places.store_place import StorePlace
from dagster_leasehold.lease_store.errors import InvalidSetting


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/srv/output", "/srv/output"),
        (Path("/srv/output"), "/srv/output"),
        ("file:///srv/out%20put", "/srv/out put"),
        ("out", str(Path.cwd() / "out")),
    ],
)
def test_paths_are_local_places(address: str | Path, path: str) -> None:
    place = output_place(address)
    assert place == LocalPlace(Path(path))
    assert (str(place), place.address) == (path, Path(path))
    assert output_place(place) is place


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket.of-mine/out/put",
        "gs://bucket",
        "abfss://container@account.dfs.core.windows.net/out",
        "hdfs://namenode:8020/out",
        "hdfs:///out",
    ],
)
def test_stores_travel_and_join_as_uris(address: str) -> None:
    place = output_place(address)
    assert isinstance(place, StorePlace)
    assert str(place / "a" / "b.parquet") == f"{address}/a/b.parquet"
    assert pickle.loads(pickle.dumps(place)) == place == output_place(str(place))
    assert ((place / "a").name, place.is_local) == ("a", False)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("s3://AKIA7:hunter2@bucket/out", "not of the form s3://BUCKET/FOLDER"),
        ("s3://bucket/out?secret_key=hunter2", "Credentials and options come from"),
        ("s3://bucket/out#hunter2", "Credentials and options come from"),
        ("abfss://container:hunter2@account.dfs.core.windows.net/x", "abfss://CONTAINER@ACCOUNT"),
        ("hdfs://hunter2@namenode/out", "hdfs://HOST:PORT"),
        ("s3:///out", "s3://BUCKET"),
        ("gs://-hunter2/out", "gs://BUCKET"),
        ("ftp://host/hunter2", "cannot be stored in ftp://"),
        ("file://host/folder", "three slashes"),
        ("file://name:hunter2@host/folder", "three slashes"),
        ("s3:/bucket/hunter2", "write s3:// for a URI"),
        ("File:hunter2", "write File:// for a URI"),
    ],
)
def test_a_refused_address_is_not_repeated(address: str, sentence: str) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        output_place(address)
    message = str(refusal.value)
    assert sentence in message
    assert "hunter2" not in message
    assert "\n" not in message
