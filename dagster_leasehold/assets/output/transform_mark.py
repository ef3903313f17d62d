"""The name of its transform in each file of committed output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"leasehold.transform"
OTHER_COLUMNS = "it had other columns than its records"
"""The mark of a file that was merged from files of several sets of columns without a mark."""


def name_of(transform: Callable[..., object] | None) -> str:
    """Return the name that files bear of a transform; empty if there is none."""
    if transform is None:
        return ""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{getattr(named, '__qualname__', '')}"


def marked(schema: pa.Schema, transform: str) -> pa.Schema:
    """Return a file's schema with the name of its transform; unchanged if the name is empty."""
    if not transform:
        return schema
    return schema.with_metadata({**(schema.metadata or {}), _KEY: transform.encode()})


def mark_of(metadata: Mapping[bytes, bytes] | None) -> str:
    """Return the name of the transform in a file's metadata; empty if there is none."""
    return (metadata or {}).get(_KEY, b"").decode(errors="replace")
