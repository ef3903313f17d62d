"""Arrow's clients of object stores, with credentials of the platform or of a catalog."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

NOTHING: Mapping[str, Any] = MappingProxyType({})


@lru_cache
def own_client(scheme: str, root: str) -> FileSystem:
    """Return the client with the platform's credentials, one for each process."""
    return new_client(scheme, root)


def new_client(scheme: str, root: str, arguments: Mapping[str, Any] = NOTHING) -> FileSystem:
    """Return a client of a store.

    Args:
        root: the bucket, Azure's `container@account…`, or Hadoop's name node.
        arguments: arguments of Arrow's client, such as credentials; the rest come from the
            platform.
    """
    from pyarrow import fs

    match scheme:
        case "s3":
            return _s3(root, arguments)
        case "gs":
            return fs.GcsFileSystem(**arguments)
        case "abfss":
            account = root.partition("@")[2].partition(".")[0]
            return fs.AzureFileSystem(account, **arguments)
        case _:
            host, _, port = root.partition(":")
            return fs.HadoopFileSystem(host or "default", int(port or 0))


def _s3(bucket: str, arguments: Mapping[str, Any]) -> FileSystem:
    from pyarrow import fs

    given = dict(arguments)
    endpoint = given.pop("endpoint", "") or (
        os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    )
    own = urlsplit(endpoint)
    region = given.pop("region", "") or (
        os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    )
    if not region and not own.netloc:
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        region=region or "us-east-1",
        scheme=own.scheme or "https",
        endpoint_override=own.netloc or None,
        # Small objects go up in one request instead of three.
        allow_delayed_open=True,
        **given,
    )
