"""The legal ranges of what an engine computes with, in one place.

The C engine's checks, the reference's, the front end's and those of a trace's columns follow from this
module; `csrc/ranges.h` is written from it.
"""

from __future__ import annotations

__all__ = [
    "DURATION_END_PS",
    "MEM_BYTES_256_END",
    "OFFSET_END_BYTES",
    "OWED_256_END",
    "PACKETS_END",
    "SLICES_END",
    "TIME_END_PS",
    "WIRE_BYTES_END",
    "packets_refused",
]

TIME_END_PS = 1 << 62
"""No time of a run reaches this [ps]: 53 days of simulated time. A run that would is refused."""

DURATION_END_PS = 1 << 61
"""Every duration, latency and start in an image is below this [ps]."""

PACKETS_END = 1 << 32
"""A transfer has fewer packets (or bursts) than this."""

WIRE_BYTES_END = 1 << 29
"""A packet (or burst) has fewer bytes than this on any wire, headers included."""

OFFSET_END_BYTES = 1 << 62
"""Every place of a chunk in a buffer is below this [bytes]."""

SLICES_END = 1 << 32
"""An instance has fewer slices than this."""

OWED_256_END = 1 << 62
"""A wire owes fewer control bytes than this [1/256 byte]; a run in which one would not is refused."""

MEM_BYTES_256_END = 1 << 64
"""Communication charges less than this to a memory [1/256 byte]; a run in which it would not is refused."""


def packets_refused(size_bytes: int, packet_bytes: int) -> str:
    """Return why a transfer of a size has too many packets of another [bytes]; empty if it has not."""
    packets = -(-size_bytes // packet_bytes)
    if packets < PACKETS_END:
        return ""
    return f"{packets} packets; at most 2^32-1: larger packets or bursts"
