"""Versions of NCCL, 2.4 to 2.30, and the releases that introduced each behaviour.

Numbers and behaviour were read from the published sources of the named releases and from public logs; for a
change between two examined releases the later one is given.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from clusim.base.errors import InputError


class Version(NamedTuple):
    """A release; compares as numbers do."""

    major: int = 2
    minor: int = 27
    patch: int = 0

    def __str__(self) -> str:
        patch = f".{self.patch}" if self.patch else ""
        return f"{self.major}.{self.minor}{patch}"


OLDEST, LATEST = Version(2, 4), Version(2, 30)

_FORM = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,4}))?(?:[-+].*)?")

FEATURES: dict[str, tuple[int, int]] = {
    "32 channels": (2, 5),
    "nvb": (2, 8),
    "collnet is ignored": (2, 8),
    "channels duplicated by the search": (2, 8),
    "codes of five digits": (2, 9),
    "threads launch alone": (2, 9),
    "collnet is simple": (2, 10),
    "ceilings by architecture": (2, 10),
    "nvlink of 22 GB/s": (2, 10),
    "speeds by generation": (2, 10),
    "pxn": (2, 12),
    "larger tlps": (2, 12),
    "latency of plugins": (2, 12),
    "net overhead": (2, 14),
    "asks the driver for peer access": (2, 14),
    "chains of collnet": (2, 14),
    "no ceiling on a100": (2, 14),
    "lone gpus as trees": (2, 14),
    "ll128 by generation": (2, 14),
    "rows by generation": (2, 14),
    "trees chunk as rings": (2, 14),
    "speeds of hopper": (2, 16),
    "crossing as a last resort": (2, 16),
    "nvls": (2, 17),
    "plateau by channel": (2, 18),
    "trees of nvls": (2, 18),
    "plain trees lose": (2, 18),
    "nvlink of 20 GB/s": (2, 18),
    "min/max path types": (2, 19),
    "continuous byte distribution": (2, 19),
    "socket bandwidth of AMD": (2, 19),
    "nvls compares bandwidth": (2, 20),
    "crossing NICs is no handicap": (2, 20),
    "doubled channels": (2, 20),
    "collnet for blocks": (2, 20),
    "p2p channels by ranks": (2, 20),
    "speed of 50 GB/s": (2, 20),
    "ll is half the bandwidth": (2, 21),
    "crossing rings keep pairs": (2, 22),
    "messages of ll by all channels": (2, 22),
    "pat": (2, 23),
    "ll128 of lone gpus": (2, 23),
    "speed of 11 GB/s": (2, 23),
    "algorithms per collective": (2, 24),
    "64 channels": (2, 24),
    "speeds of blackwell": (2, 26),
    "nvls channels of blackwell": (2, 26),
    "p2p through c2c": (2, 27),
    "symmetric memory": (2, 27),
    "larger buffers by plugins": (2, 27),
    "nvls efficiency": (2, 28),
    "messages are cut for simple": (2, 29),
    "p2p channels by NICs": (2, 29),
    "gathers by copy engines": (2, 29),
    "symmetric averages": (2, 30),
}
"""Features of NCCL -> first release with them."""


def parse_version(text: str | Version) -> Version:
    """Return the release that `text` names: ``2.27``, ``2.27.3``, ``v2.30.7-1``, ``2.21.5+cuda12.1``.

    Releases of NCCL 2 later than `LATEST` are assumed to behave as `LATEST`.
    """
    if isinstance(text, Version):
        return text
    match = _FORM.fullmatch(str(text).strip())
    if match is None:
        raise InputError(f"NCCL version {text!r}: not a version; write for example 2.27 or 2.27.3")
    version = Version(*(int(part or 0) for part in match.groups()))
    if not OLDEST[:2] <= version[:2] < (LATEST.major + 1, 0):
        raise InputError(
            f"NCCL version {text!r}: not known; give {OLDEST} to {LATEST}, for example 2.27"
        )
    return version


def since(version: Version, feature: str) -> bool:
    """Return True if `version` has a feature of `FEATURES`."""
    return version[:2] >= FEATURES[feature]
