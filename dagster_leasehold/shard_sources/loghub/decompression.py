"""Decompression with a limit: a payload of a few kilobytes must not become gigabytes in memory.

A stream is expanded piece by piece until it ends or exceeds the limit. A block must be expanded as
a whole, so its declared size is checked before memory is allocated.
"""

from __future__ import annotations

from enum import StrEnum

from dagster_leasehold.lease_store.errors import PayloadDamaged, PayloadTooLarge

_PIECE_BYTES = 256 * 1024


class Codec(StrEnum):
    """The compression of a payload.

    `gzip` also reads zlib's format (RFC 1950), `zstd` is the frame format, and `lz4_block` is a
    block whose expanded size is sent beside it.
    """

    NONE = "none"
    GZIP = "gzip"
    LZ4_BLOCK = "lz4_block"
    ZSTD = "zstd"


def decompress(data: bytes, codec: Codec, limit: int, *, size: int | None = None) -> bytes:
    """Return the expanded payload.

    Args:
        data: the payload; consecutive gzip or zstd members are one payload.
        codec: its compression.
        limit: the largest expanded size in bytes.
        size: the expanded size that the service declares; required for `lz4_block`.

    Raises:
        PayloadTooLarge: the expanded or the declared size exceeds the limit.
        PayloadDamaged: the payload is incomplete, has another codec, or differs from its size.
    """
    too_large = PayloadTooLarge(
        f"A {codec} payload of {len(data)} bytes expands to more than the {limit} bytes allowed."
    )
    if size is not None and size > limit:
        raise too_large
    try:
        match codec:
            case Codec.NONE:
                expanded = data
            case Codec.LZ4_BLOCK:
                expanded = _lz4_block(data, size)
            case Codec.GZIP | Codec.ZSTD:
                expanded = _stream(data, codec, limit)
    except OSError:
        raise PayloadDamaged(
            f"A payload of {len(data)} bytes is incomplete, or its codec is not {codec}."
        ) from None
    if len(expanded) > limit:
        raise too_large
    if size is not None and len(expanded) != size:
        raise PayloadDamaged(
            f"A {codec} payload of {len(data)} bytes expands to {len(expanded)} bytes, but "
            f"{size} bytes were declared."
        )
    return expanded


def _stream(data: bytes, codec: Codec, limit: int) -> bytes:
    """Return the expanded bytes, or the first bytes beyond the limit."""
    import pyarrow as pa

    expanded = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(data), str(codec)) as stream:
        while len(expanded) <= limit and (piece := stream.read(_PIECE_BYTES)):
            expanded += piece
    return bytes(expanded)


def _lz4_block(data: bytes, size: int | None) -> bytes:
    from lz4 import block

    if size is None or size < 0:
        raise PayloadDamaged(
            f"An {Codec.LZ4_BLOCK} payload of {len(data)} bytes came without its expanded size."
        )
    try:
        return block.decompress(data, uncompressed_size=size) if data or size else b""
    except block.LZ4BlockError as error:
        raise OSError(str(error)) from None
