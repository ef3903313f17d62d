"""Decompression with a limit: a payload of a few kilobytes must not become gigabytes in memory.

The service declares the expanded size of a payload. It is checked before memory is allocated, and
no more than that is expanded.
"""

from __future__ import annotations

# The names of the service's codecs in Arrow. `gzip` also reads zlib's format (RFC 1950).
_STREAMS = {"deflate": "gzip", "gzip": "gzip", "zstd": "zstd"}
LZ4 = "lz4"
"""A block without its expanded size."""
CODECS = ("", LZ4, *_STREAMS)


def decompress(data: bytes, codec: str, *, size: int, limit: int) -> bytes:
    """Return the expanded payload; consecutive gzip or zstd members are one payload.

    Args:
        codec: its compression, as the service names it; empty without one.
        size: the expanded size that the service declares.
        limit: the largest size that is allowed.

    Raises:
        ValueError: the size exceeds the limit, the codec is unknown, or the payload is incomplete,
            has another codec, or does not expand to this size.
    """
    if codec not in CODECS:
        raise ValueError(f"the codec {codec!r} is unknown")
    if not 0 <= size <= limit:
        raise ValueError(f"{size} bytes are declared, and at most {limit} are allowed")
    try:
        expanded = _expanded(data, codec, size) if codec else data
    except OSError:
        raise ValueError(f"{len(data)} bytes are incomplete, or not of codec {codec}") from None
    if len(expanded) != size:
        raise ValueError(f"{len(data)} bytes of codec {codec!r} do not expand to {size} bytes")
    return expanded


def _expanded(data: bytes, codec: str, size: int) -> bytes:
    """Return the expanded bytes, at most one more than `size`."""
    if codec != LZ4:
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(data), _STREAMS[codec]) as stream:
            return stream.read(size + 1)
    from lz4 import block

    try:
        return block.decompress(data, uncompressed_size=size) if data or size else b""
    except block.LZ4BlockError as error:
        raise OSError(str(error)) from None
