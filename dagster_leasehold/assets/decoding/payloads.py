"""The input of all decoders: byte strings within one buffer. Also the interface of decoders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
DECODED_COLUMN = "decoded"
"""The column of values that are not records, such as numbers or text."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """Byte strings within one buffer, in order and without overlaps.

    Attributes:
        data: the buffer.
        starts: the first position of each byte string.
        ends: the position after each byte string.
    """

    data: npt.NDArray[np.uint8]
    starts: Positions
    ends: Positions

    @classmethod
    def of(cls, values: pa.Array) -> Payloads:
        """Return the byte strings of a binary array; a null is an empty byte string."""
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
        positions = bounds.astype(np.int64)
        whole = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        return cls(whole, positions[:-1], positions[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        view = memoryview(self.data)  # pyright: ignore[reportArgumentType]
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield bytes(view[start:end])

    def array(self) -> pa.Array:
        """Return the byte strings as a binary array."""
        return byte_strings(self.data, self.starts, self.ends)

    def at_rows(self, rows: Any) -> Payloads:
        """Return some of the byte strings, by a mask or by ascending row numbers."""
        return Payloads(self.data, self.starts[rows], self.ends[rows])

    def after(self, lengths: Any) -> Payloads:
        """Return the byte strings without their first bytes."""
        return Payloads(self.data, self.starts + lengths, self.ends)


def byte_strings(data: npt.NDArray[np.uint8], starts: Positions, ends: Positions) -> pa.Array:
    """Return parts of a buffer, in order and without overlaps, as a binary array."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    # The elements between the bounds are parts and gaps in turn; `take` copies the parts.
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    parts = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return parts.take(pa.array(np.arange(0, 2 * count, 2)))


class Decoder(Protocol):
    """Decodes byte strings by one schema.

    Attributes:
        fields: the columns, which are all nullable.
        complaint: the end of the error message of a record in quarantine.
    """

    fields: pa.Schema
    complaint: str

    def decode(self, payloads: Payloads) -> tuple[list[pa.Array], Mask]:
        """Return the columns, and a mask of the byte strings that do not conform to the schema.

        The columns have types that a table can have. Their values are arbitrary where the mask is
        true.
        """
        ...
