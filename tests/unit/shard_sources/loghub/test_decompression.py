"""Payloads of every codec: whole, damaged, and hostile ones that expand a thousandfold."""

from __future__ import annotations

import contextlib
import gzip
import subprocess
import sys
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import PayloadDamaged, PayloadTooLarge
from dagster_leasehold.shard_sources.loghub.decompression import Codec, decompress

TEXT = b"the quick brown fox " * 500
LIMIT = 1_000_000
ARROW_NAMES = {Codec.ZSTD: "zstd", Codec.LZ4_BLOCK: "lz4_raw"}
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
STREAMS = [Codec.GZIP, Codec.ZSTD]


def compressed(data: bytes, codec: Codec) -> bytes:
    if codec is Codec.NONE:
        return data
    if codec is Codec.GZIP:
        return gzip.compress(data)
    return pa.compress(data, codec=ARROW_NAMES[codec], asbytes=True)


def declared(codec: Codec, data: bytes) -> int | None:
    return len(data) if codec is Codec.LZ4_BLOCK else None


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=5_000))
def test_compressed_data_is_decompressed(codec: Codec, data: bytes) -> None:
    payload = compressed(data, codec)
    assert decompress(payload, codec, len(data), size=declared(codec, data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_one_byte_over_the_limit_is_refused(codec: Codec) -> None:
    payload = compressed(TEXT, codec)
    with pytest.raises(PayloadTooLarge, match=f"{codec} payload of {len(payload)} bytes"):
        decompress(payload, codec, len(TEXT) - 1, size=declared(codec, TEXT))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_data_is_refused(codec: Codec) -> None:
    payload = compressed(TEXT, codec)
    for length in (1, len(payload) // 2, len(payload) - 1):
        with pytest.raises(PayloadDamaged):
            decompress(payload[:length], codec, LIMIT, size=declared(codec, TEXT))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_of_another_codec_is_refused(codec: Codec) -> None:
    with pytest.raises((PayloadDamaged, PayloadTooLarge)):
        decompress(b"\xff" * 64, codec, LIMIT, size=declared(codec, TEXT))


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=300))
def test_any_bytes_have_a_typed_outcome(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(PayloadDamaged, PayloadTooLarge):
        assert len(decompress(data, codec, 10_000, size=200)) == 200


@pytest.mark.parametrize("codec", STREAMS)
def test_consecutive_members_are_one_payload(codec: Codec) -> None:
    payload = compressed(b"one", codec) + compressed(b"two", codec)
    assert decompress(payload, codec, LIMIT) == b"onetwo"
    with pytest.raises(PayloadDamaged):
        decompress(payload + b"and something else", codec, LIMIT)


def test_gzip_reads_zlib() -> None:
    assert decompress(zlib.compress(TEXT), Codec.GZIP, LIMIT) == TEXT


@pytest.mark.parametrize("size", [None, -1])
def test_a_block_needs_its_size(size: int | None) -> None:
    with pytest.raises(PayloadDamaged, match="without its expanded size"):
        decompress(compressed(TEXT, Codec.LZ4_BLOCK), Codec.LZ4_BLOCK, LIMIT, size=size)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("off", [-1, 1])
def test_another_size_than_declared_is_refused(codec: Codec, off: int) -> None:
    """No byte that the codec did not write becomes part of a payload."""
    with pytest.raises(PayloadDamaged):
        decompress(compressed(TEXT, codec), codec, LIMIT, size=len(TEXT) + off)


def test_a_declared_size_is_not_allocated() -> None:
    with pytest.raises(PayloadTooLarge):
        decompress(b"\x00", Codec.LZ4_BLOCK, LIMIT, size=2**60)


BOMB = """
import resource, sys
from dagster_leasehold.lease_store.errors import PayloadTooLarge
from dagster_leasehold.shard_sources.loghub.decompression import Codec, decompress
payload = sys.stdin.buffer.read()
codec = Codec(sys.argv[1])
decompress(payload[:0], Codec.GZIP, 1)
import pyarrow
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(payload, codec, 1_000_000, size=2**30 if codec is Codec.LZ4_BLOCK else None)
except PayloadTooLarge:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_costs_no_more_than_the_limit(codec: Codec) -> None:
    """A gigabyte of zeros, measured in a separate process: it is refused near the limit."""
    if codec in STREAMS:
        # Consecutive members of 64 MiB, so that the bomb is cheap to make.
        payload = compressed(bytes(64 * 2**20), codec) * 16
    else:
        payload = compressed(bytes(256 * 2**20), codec)
    outcome = subprocess.run(
        [sys.executable, "-c", BOMB, str(codec)],
        input=payload,
        capture_output=True,
        timeout=120,
        check=True,
    )
    grown_bytes = int(outcome.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown_bytes < 32 * 2**20
