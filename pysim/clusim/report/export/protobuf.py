"""Protobuf encoding for Perfetto traces.

https://protobuf.dev/programming-guides/encoding: a message is a row of fields, each a key and a value.
Field numbers are those of Perfetto's ``trace_packet.proto``, ``track_event.proto`` and
``track_descriptor.proto``.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SMALL = [bytes([value]) for value in range(128)]


def varint(value: int) -> bytes:
    """Return a number of any size, seven bits per byte, low bits first.

    Negative numbers are encoded in 64 bits.
    """
    if 0 <= value < 128:
        return _SMALL[value]
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def varints(values: Array) -> list[bytes]:
    """Return the `varint` encoding of every number of an array without negative numbers."""
    left = values.astype(np.uint64)
    result = np.zeros((len(left), 10), np.uint8)
    for place in range(10):
        result[:, place] = (left & np.uint64(127)) | (np.uint64(128) * (left > 127))
        left >>= np.uint64(7)
        if not left.any():
            break
    # NumPy strips trailing zero bytes of texts, and only the varint of 0 ends with one.
    return [text or _SMALL[0] for text in result.view("S10").ravel().tolist()]


def reals(values: Array) -> list[bytes]:
    """Return numbers of an array as fields of type double have them, without their keys."""
    raw = values.astype("<f8").tobytes()
    return [raw[place : place + 8] for place in range(0, len(raw), 8)]


def number(key: int, value: int) -> bytes:
    """Return an integer, boolean or enumeration field."""
    return varint(key << 3) + varint(value)


def fixed64(key: int, value: int) -> bytes:
    """Return a field of eight bytes."""
    return varint(key << 3 | 1) + value.to_bytes(8, "little")


def real(key: int, value: float) -> bytes:
    """Return a field of type double."""
    return varint(key << 3 | 1) + struct.pack("<d", value)


def field(key: int, *parts: bytes) -> bytes:
    """Return a message or string field."""
    body = b"".join(parts)
    return varint(key << 3 | 2) + varint(len(body)) + body


def text(key: int, value: str) -> bytes:
    """Return a string field."""
    return field(key, value.encode())
