"""Names and numbers shared by NCCL's topology, search, tuner and chunking, and its releases.

Sources, if no other is named: NCCL v2.30.7 (src/graph/topo.h, topo.cc, search.cc, src/include/device.h).

``releases.yaml`` has the release (2.4 to 2.30) that introduced each behaviour, and the bandwidths of the search.
Bandwidths and constants of 2.31 and 2.32 are from the data of the published libraries.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from clusim.base.datafiles import read
from clusim.base.errors import InputError
from clusim.hardware.catalog import PROCESSORS
from clusim.hardware.links import nccl_link_GBps


class Version(NamedTuple):
    """A release; compares as numbers do."""

    major: int = 2
    minor: int = 27
    patch: int = 0

    def __str__(self) -> str:
        patch = f".{self.patch}" if self.patch else ""
        return f"{self.major}.{self.minor}{patch}"


OLDEST, LATEST = Version(2, 4), Version(2, 30)
"""Oldest release, and the newest with known rules, which is the default."""

_FORM = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,4}))?(?:[-+].*)?")

_RELEASES = read(pathlib.Path(__file__).with_name("releases.yaml"))


def release_of(text: str) -> tuple[int, int]:
    """Return the release written as ``2.27``."""
    major, minor = map(int, text.split("."))
    return major, minor


FEATURES = {
    name: release_of(text)
    for text, names in _RELEASES["features"].items()
    for name in names
}
"""Features of NCCL -> first release with them."""

NEWEST = Version(*max(FEATURES.values()))
"""Newest release with known constants."""


def parse_version(text: str | Version) -> Version:
    """Return the release that `text` names: ``2.27``, ``2.27.3``, ``v2.30.7-1``, ``2.21.5+cuda12.1``.

    Releases of NCCL 2 later than `LATEST` have its rules, with the constants of the newest release in the tables.
    """
    if isinstance(text, Version):
        return text
    match = _FORM.fullmatch(str(text).strip())
    if match is None:
        raise InputError(
            f"NCCL version {text!r}: not a version; write for example 2.27 or 2.27.3"
        )
    version = Version(*(int(part or 0) for part in match.groups()))
    if not OLDEST[:2] <= version[:2] < (LATEST.major + 1, 0):
        raise InputError(
            f"NCCL version {text!r}: not known; give {OLDEST} to {LATEST}, for example 2.27"
        )
    return version


def since(version: Version, feature: str) -> bool:
    """Return True if `version` has a feature of `FEATURES`."""
    return version[:2] >= FEATURES[feature]


RELEASE_MONTHS: Mapping[str, str] = _RELEASES["dates"]
"""Release of NCCL -> month of its first tag, oldest first."""

_OLDER_PLUGINS = {
    "netdevs policy by plugins": (1, 16),
    "larger buffers by plugins": (0,),
}
"""Feature of NCCL's release -> release of aws-ofi-nccl before it, of the time of NCCL's releases before it, newest
first: September and June 2025. The oldest stands for all before 1.16.
"""


def plugin_of_time(version: Version) -> tuple[int, ...]:
    """Return the release of the network plugins of the time of a release of NCCL; empty is the newest."""
    older: tuple[int, ...] = ()
    for feature, plugin in _OLDER_PLUGINS.items():
        if not since(version, feature):
            older = plugin
    return older


def later_notes(version: Version) -> list[str]:
    """Return a note on a release after `LATEST`: the changes that are not modelled."""
    if version[:2] <= LATEST[:2]:
        return []
    changes = [
        change
        for text, names in _RELEASES["later"].items()
        if release_of(text) <= version[:2]
        for change in names
    ]
    release = min(version[:2], NEWEST[:2])
    constants = f", with constants of {Version(*release)}"
    return [
        f"NCCL {version}: planned as {LATEST}{constants}; not modelled: {'; '.join(changes)}"
    ]


class Path(IntEnum):
    """Path types between two devices, nearest first; the numbers are those of NCCL 2.27 and later."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


_PATHS_SINCE = {
    Path.NVB: "nvb",
    Path.PXN: "pxn",
    Path.NET: "pxn",
    Path.DIS: "pxn",
    Path.C2C: "p2p through c2c",
    Path.P2C: "p2p through c2c",
}


def path_types(version: Version) -> tuple[Path, ...]:
    """Return the path types of a release, nearest first."""
    return tuple(
        p for p in Path if p not in _PATHS_SINCE or since(version, _PATHS_SINCE[p])
    )


class Pattern(IntEnum):
    """Patterns of the graph search, with the numbers of the log line ``Pattern``."""

    BALANCED_TREE = 1
    SPLIT_TREE = 2
    TREE = 3
    RING = 4
    NVLS = 5
    COLLNET_DIRECT = 6


BEFORE_RUBIN = 106
"""Highest compute capability times ten that NCCL 2.32 does not treat as Rubin."""

LOCAL_GBps = 5000.0
MAX_NVLS_HEADS = 32
MAX_DIRECT_HEADS = 8


def nvlink_GBps(compute_capability: int, version: Version) -> float:
    """Return NCCL's bandwidth of a GPU link [GB/s].

    Volta and A100 had 21 up to 2.9 and 22 up to 2.17; Rubin is Blackwell up to 2.31.
    """
    if not since(version, "speeds of rubin"):
        compute_capability = min(compute_capability, BEFORE_RUBIN)
    if 70 <= compute_capability <= 80 and not since(version, "nvlink of 20 GB/s"):
        return 22.0 if since(version, "nvlink of 22 GB/s") else 21.0
    return nccl_link_GBps(compute_capability)


_PCIE_STEP = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}


def pcie_GBps(generation: int, lanes: int) -> float:
    """Return NCCL's bandwidth of a PCIe link [GB/s]: 12 for Gen3 x16, doubled by every generation."""
    return _PCIE_STEP[generation] * lanes / 80


class CpuModel(NamedTuple):
    """A processor as NCCL sees it."""

    vendor: str = "other"
    model: str = ""


UNKNOWN_CPU = CpuModel()


def cpu_of(name: str) -> CpuModel:
    """Return the processor of a root complex from its vendor and model; empty is unknown."""
    vendor, _, model = name.partition(" ")
    return CpuModel(vendor, model) if name else UNKNOWN_CPU


def socket_GBps(cpu: CpuModel, version: Version) -> float:
    """Return NCCL's bandwidth of the link between two sockets [GB/s]."""
    processors = (
        p
        for p in PROCESSORS.values()
        if (p.vendor, p.model) == (cpu.vendor, cpu.model)
    )
    figure = next((p.socket_GBps for p in processors), None)
    if figure is None:
        return LOCAL_GBps
    rate = float(str(figure.value))
    if cpu.vendor in ("amd", "intel") and not since(
        version, "socket bandwidth of AMD"
    ):
        return LOCAL_GBps if cpu.vendor == "amd" else min(rate, OLD_INTEL_GBps)
    return rate


OLD_INTEL_GBps = 10.0
"""Socket bandwidth that older releases assume for Skylake and everything later."""


def peer_overhead(version: Version) -> tuple[int, int]:
    """Return the overhead of a peer-to-peer flow through an Intel root complex, due to small TLPs, as a fraction."""
    return (6, 5) if since(version, "larger tlps") else (12, 9)


def max_channels(version: Version) -> int:
    """Return the largest number of channels of a communicator."""
    if not since(version, "32 channels"):
        return 16
    return 64 if since(version, "64 channels") else 32


def speeds(
    compute_capability: int, version: Version, *, inter: bool
) -> tuple[float, ...]:
    """Return the bandwidths of a channel that the search tries [GB/s], fastest first."""
    row = next(
        row
        for row in _RELEASES["speeds"]
        if compute_capability >= row["compute_capability"]
        and (not row["since"] or since(version, row["since"]))
    )
    return tuple(row["inter" if inter else "intra"])
