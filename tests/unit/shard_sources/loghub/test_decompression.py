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

from dagster_leasehold.shard_sources.loghub.decompression import CODECS, LZ4, decompress

TEXT = b"the quick brown fox " * 500
LIMIT = 1_000_000
COMPRESSED = [codec for codec in CODECS if codec]
STREAMS = [codec for codec in COMPRESSED if codec != LZ4]


def compressed(data: bytes, codec: str) -> bytes:
    if codec in ("deflate", "gzip"):
        return gzip.compress(data)
    names = {"zstd": "zstd", LZ4: "lz4_raw"}
    return pa.compress(data, codec=names[codec], asbytes=True) if codec else data


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=5_000))
def test_compressed_data_is_decompressed(codec: str, data: bytes) -> None:
    payload = compressed(data, codec)
    assert decompress(payload, codec, size=len(data), limit=len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_over_the_limit_is_refused(codec: str) -> None:
    payload = compressed(TEXT, codec)
    with pytest.raises(ValueError, match=f"{len(TEXT)} bytes are declared"):
        decompress(payload, codec, size=len(TEXT), limit=len(TEXT) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_data_is_refused(codec: str) -> None:
    payload = compressed(TEXT, codec)
    for length in (1, len(payload) // 2, len(payload) - 1):
        with pytest.raises(ValueError, match="bytes"):
            decompress(payload[:length], codec, size=len(TEXT), limit=LIMIT)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_of_another_codec_is_refused(codec: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        decompress(b"\xff" * 64, codec, size=len(TEXT), limit=LIMIT)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="'snappy' is unknown"):
        decompress(TEXT, "snappy", size=len(TEXT), limit=LIMIT)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=300))
def test_any_bytes_have_a_typed_outcome(codec: str, data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert len(decompress(data, codec, size=200, limit=10_000)) == 200


@pytest.mark.parametrize("codec", STREAMS)
def test_consecutive_members_are_one_payload(codec: str) -> None:
    payload = compressed(b"one", codec) + compressed(b"two", codec)
    assert decompress(payload, codec, size=6, limit=LIMIT) == b"onetwo"
    with pytest.raises(ValueError, match="bytes"):
        decompress(payload + b"and something else", codec, size=6, limit=LIMIT)


def test_gzip_reads_zlib() -> None:
    assert decompress(zlib.compress(TEXT), "deflate", size=len(TEXT), limit=LIMIT) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_a_negative_size_is_refused(codec: str) -> None:
    with pytest.raises(ValueError, match="-1 bytes are declared"):
        decompress(compressed(TEXT, codec), codec, size=-1, limit=LIMIT)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("off", [-1, 1])
def test_another_size_than_declared_is_refused(codec: str, off: int) -> None:
    """No byte that the codec did not write becomes part of a payload."""
    with pytest.raises(ValueError, match="bytes"):
        decompress(compressed(TEXT, codec), codec, size=len(TEXT) + off, limit=LIMIT)


def test_a_declared_size_is_not_allocated() -> None:
    with pytest.raises(ValueError, match="are allowed"):
        decompress(b"\x00", LZ4, size=2**60, limit=LIMIT)


BOMB = """
import resource, sys
from dagster_leasehold.shard_sources.loghub.decompression import decompress
payload, codec, size = sys.stdin.buffer.read(), sys.argv[1], int(sys.argv[2])
import lz4.block, pyarrow
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(payload, codec, size=size, limit=1_000_000)
except ValueError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [1_000_000, 2**30])
def test_a_bomb_costs_no_more_than_the_limit(codec: str, size: int) -> None:
    """A gigabyte of zeros, measured in a separate process: it is refused near the limit."""
    if codec in STREAMS:
        # Consecutive members of 64 MiB, so that the bomb is cheap to make.
        payload = compressed(bytes(64 * 2**20), codec) * 16
    else:
        payload = compressed(bytes(256 * 2**20), codec)
    outcome = subprocess.run(
        [sys.executable, "-c", BOMB, codec, str(size)],
        input=payload,
        capture_output=True,
        timeout=120,
        check=True,
    )
    grown_bytes = int(outcome.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown_bytes < 32 * 2**20
