"""The few lines of protobuf encoding that a Perfetto trace needs.

https://protobuf.dev/programming-guides/encoding: a message is a row of fields, each a key and a value. Field numbers
are those of Perfetto's ``trace_packet.proto``, ``track_event.proto`` and ``track_descriptor.proto``.
"""

from __future__ import annotations

import struct

__all__ = ["field", "fixed64", "number", "real", "text", "varint"]

_SMALL = [bytes([value]) for value in range(128)]


def varint(value: int) -> bytes:
    """Return a number of any size, seven bits a byte, low ones first; negative ones as 64 bits."""
    if 0 <= value < 128:
        return _SMALL[value]
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


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
