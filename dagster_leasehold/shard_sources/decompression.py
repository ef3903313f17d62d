"""Decompression with a limit: a payload of a few kilobytes must not become gigabytes in memory.

Nothing beyond the limit is ever allocated: streams are expanded piece by piece until they end or
pass it, and blocks, which do not carry an end, are refused by the size that is declared for them.
"""

from __future__ import annotations

import zlib
from enum import StrEnum

from dagster_leasehold.lease_store.errors import PayloadDamaged, PayloadTooLarge

_PIECE_BYTES = 256 * 1024
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class Codec(StrEnum):
    """How a payload is compressed.

    `gzip` reads zlib's format (RFC 1950) too, `zstd` is the frame format, and `lz4_block` is a
    block whose expanded size travels beside it.
    """

    NONE = "none"
    GZIP = "gzip"
    LZ4_BLOCK = "lz4_block"
    ZSTD = "zstd"


def decompress(data: bytes, codec: Codec, limit: int, *, size: int | None = None) -> bytes:
    """The bytes that a payload expands to, at most `limit` of them.

    Args:
        data: the payload; several gzip or zstd members behind each other are one.
        codec: how it is compressed.
        limit: the most bytes that it can expand to.
        size: the bytes that it is declared to expand to, where the service says so; needed for
            `lz4_block`.

    Raises:
        PayloadTooLarge: it expands to more than the limit, or is declared to.
        PayloadDamaged: it is not whole, not of this codec, or of another size than declared.
    """
    if size is not None and size > limit:
        raise _too_large(codec, len(data), limit)
    match codec:
        case Codec.NONE:
            expanded = data
        case Codec.GZIP:
            expanded = _gzip(data, limit)
        case Codec.ZSTD:
            expanded = _zstd(data, limit)
        case Codec.LZ4_BLOCK:
            expanded = _lz4_block(data, size)
    if len(expanded) > limit:
        raise _too_large(codec, len(data), limit)
    if size is not None and len(expanded) != size:
        raise PayloadDamaged(
            f"A {codec} payload of {len(data)} bytes expands to {len(expanded)} bytes instead of "
            f"the {size} that are declared for it."
        )
    return expanded


def _too_large(codec: Codec, length: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"A {codec} payload of {length} bytes expands to more than the {limit} bytes allowed."
    )


def _damaged(codec: Codec, length: int) -> PayloadDamaged:
    return PayloadDamaged(f"A payload of {length} bytes is not whole, or is not of codec {codec}.")


def _gzip(data: bytes, limit: int) -> bytes:
    expanded = bytearray()
    rest = data
    while rest:
        member = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            while not member.eof and rest:
                expanded += member.decompress(rest, _PIECE_BYTES)
                if len(expanded) > limit:
                    raise _too_large(Codec.GZIP, len(data), limit)
                rest = member.unconsumed_tail
            if not member.eof:
                expanded += member.flush(_PIECE_BYTES)
        except zlib.error:
            raise _damaged(Codec.GZIP, len(data)) from None
        if not member.eof:
            raise _damaged(Codec.GZIP, len(data))
        rest = member.unused_data
    return bytes(expanded)


def _zstd(data: bytes, limit: int) -> bytes:
    import pyarrow as pa

    expanded = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while piece := stream.read(_PIECE_BYTES):
                expanded += piece
                if len(expanded) > limit:
                    raise _too_large(Codec.ZSTD, len(data), limit)
    except OSError:
        raise _damaged(Codec.ZSTD, len(data)) from None
    return bytes(expanded)


def _lz4_block(data: bytes, size: int | None) -> bytes:
    from lz4 import block

    if size is None or size < 0:
        raise PayloadDamaged(
            f"An {Codec.LZ4_BLOCK} payload of {len(data)} bytes came without the size that it "
            "expands to."
        )
    try:
        return block.decompress(data, uncompressed_size=size) if data or size else b""
    except block.LZ4BlockError:
        raise _damaged(Codec.LZ4_BLOCK, len(data)) from None
