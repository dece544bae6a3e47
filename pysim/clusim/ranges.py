"""The legal ranges of what an engine computes with, in one place.

The C engine's checks, the reference's, the front end's and those of a trace's columns follow from this
module; `csrc/ranges.h` is written from it.
"""

from __future__ import annotations

__all__ = ["DURATION_END_PS", "PACKETS_END", "TIME_END_PS"]

TIME_END_PS = 1 << 62
"""No time of a run reaches this [ps]: 53 days of simulated time. A run that would is refused."""

DURATION_END_PS = 1 << 61
"""Every duration, latency and start in an image is below this [ps]."""

PACKETS_END = 1 << 32
"""A transfer has fewer packets (or bursts) than this."""
