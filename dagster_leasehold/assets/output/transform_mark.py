"""Signs in committed output that a transform made it, so that raw records never replace it.

A stream may be known from the settings alone, which name no transform, while its output was made
by the module that declares it in Python. Each file of output bears the name of its transform;
files of older versions bear none, and betray a transform by their columns and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.shard_sources.source import record_schema

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


def refuse_raw_over_parsed(
    stream: StreamName, batches: Iterable[Batch], output_root: OutputPlace
) -> None:
    """Refuse to replay batches without a transform where one of them was made by a transform.

    Raises:
        TransformError: a transform made one of them.
    """
    for batch in batches:
        sign = _sign_in_counts(batch) or _sign_in_files(batch, output_root)
        if sign:
            raise TransformError(
                f"The output of stream {shown(stream)} was made by a transform ({sign}), and the "
                "settings name none: name the Python module that declares the stream with "
                "--module."
            )


def _sign_in_counts(batch: Batch) -> str:
    counts = batch.statistics
    if counts.quarantined or any(file.quarantine for file in batch.files):
        return f"batch {batch.batch_id} has records in quarantine"
    if counts.records is None or counts.written != counts.records:
        read = "some" if counts.records is None else counts.records
        return f"batch {batch.batch_id} made {counts.written} records out of {read}"
    return ""


def _sign_in_files(batch: Batch, output_root: OutputPlace) -> str:
    import pyarrow as pa

    for file in batch.files:
        try:
            schema = (output_root / file.path).schema()
        except (OSError, pa.ArrowInvalid):
            continue  # lost or damaged: a replay is how it is made again
        if mark := mark_of(schema.metadata):
            return mark
        if set(schema.names) != set(record_schema().names):
            return f"batch {batch.batch_id} has other columns than its records"
    return ""
