"""An object store on the loopback: moto's server, with a clock that a test can set.

Clients, Spark's workers included, need its address in the environment.
"""

from __future__ import annotations

import atexit
import logging
import socket
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from unittest import mock

from tests.ports import free_port

PORT = free_port()
# No other process can take the port before the server starts, which can be many tests later.
_reserved = socket.socket()
_reserved.bind(("127.0.0.1", PORT))
ENVIRONMENT = {
    "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{PORT}",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
PYICEBERG = {
    "s3.endpoint": ENVIRONMENT["AWS_ENDPOINT_URL_S3"],
    "s3.access-key-id": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
    "s3.secret-access-key": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
    "s3.region": ENVIRONMENT["AWS_DEFAULT_REGION"],
}
"""The store, as PyIceberg's properties name it."""


@cache
def serve() -> Any:
    """Start the server, which has Glue as well as S3, and return it; it ends with this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=PORT, verbose=False)
    _reserved.close()
    server.start()
    atexit.register(server.stop)
    return server


def new_bucket() -> str:
    """The name of a new bucket."""
    serve()
    name = f"bucket-{uuid.uuid4().hex}"
    _client().create_bucket(Bucket=name)
    return name


def keys(bucket: str) -> set[str]:
    """The keys of all objects in a bucket."""
    pages = _client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return {each["Key"] for page in pages for each in page.get("Contents", ())}


def _client() -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=ENVIRONMENT["AWS_ENDPOINT_URL_S3"],
        region_name=ENVIRONMENT["AWS_DEFAULT_REGION"],
        aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
    )


class StoreClock:
    """The time by which the store dates its objects."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def pass_by(self, time: timedelta) -> None:
        self.now += time

    def naive(self) -> datetime:
        return self.now.replace(tzinfo=None)


@contextmanager
def store_clock() -> Generator[StoreClock]:
    """Let the store go by a clock of the test's."""
    clock = StoreClock()
    with mock.patch("moto.s3.models.utcnow", clock.naive):
        yield clock
