"""The constants of NCCL's cost model by release: latencies, bandwidth ceilings, correction of trees.

The file is ``tables.yaml``.

Sources: src/graph/tuning.cc of NCCL 2.8, 2.12, 2.18, 2.20, 2.23, 2.27 and 2.30, the data of the libraries
nvidia-nccl-cu12 2.31.2 (equal to 2.30) and 2.32.3, and, where marked, public logs that print costs: 2.12.12 on 4 x 8
RTX 3090 (github.com/Panlichen/nccl-tests), 2.21.5 on two PCIe GPUs (github.com/cuiboyuan/nccl_log_rca_bench), 2.29.2 on
2, 4 and 6 H100 (github.com/waynehacking8/nccl-collectives-bench).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from clusim.base.datafiles import read
from clusim.base.records import dataclass
from clusim.base.terms.operations import Algorithm, Protocol
from clusim.hardware.figures import plain
from clusim.nccl.constants import Version, release_of, since

Triple = tuple[float, float, float]
"""LL, LL128 and Simple; or one node, two nodes, more."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Constants of one release.

    Attributes
    ----------
    base_us : dict
        Algorithm -> latency of LL, LL128, Simple before the first step [us].
    nvlink_us, pcie_us, network_us : dict
        Algorithm -> latency of a step over that hardware [us].
    ll_GBps : tuple
        Per architecture, ceiling of the bus bandwidth of LL for one, two and more nodes [GB/s]; over several nodes
        the row is that of the CPU: the first for Intel, the second for AMD.
    ring_ll128_GBps, tree_ll128_GBps, tree_GBps, nvls_tree_GBps : tuple
        Per architecture, ceiling of a channel [GB/s].
    tree_correction : dict
        Protocol -> factor on the bandwidth of a tree by the binary logarithm of size / 64 B.
    inter_steps_extra : bool
        An all-reduce counts 2N inter-node steps of a ring instead of 2(N-1).
    plateau : tuple of float
        Factor on the latency of a multi-node Simple ring before and since compute capability 8.0.
    """

    base_us: dict[Algorithm, Triple]
    nvlink_us: dict[Algorithm, Triple]
    pcie_us: dict[Algorithm, Triple]
    network_us: dict[Algorithm, Triple]
    ll_GBps: tuple[Triple, ...]
    ring_ll128_GBps: tuple[Triple, ...]
    tree_ll128_GBps: tuple[Triple, ...]
    tree_GBps: tuple[Triple, ...]
    nvls_tree_GBps: tuple[Triple, ...]
    tree_correction: Mapping[Protocol, tuple[float, ...]]
    nvls_efficiency: tuple[float, ...]
    inter_steps_extra: bool
    plateau: tuple[float, float]


@cache
def _by_release() -> list[tuple[tuple[int, int], Tables]]:
    """Return the tables by first release, each with the changes to the previous ones."""
    names = {item.name.lower(): item for item in (*Algorithm, *Protocol)}
    by_version: dict[str, Any] = {}
    result = []
    for release, changes in read(Path(__file__).with_name("tables.yaml")).items():
        for key, value in changes.items():
            if isinstance(value, dict):
                rows = {names[name]: tuple(row) for name, row in value.items()}
                by_version[key] = by_version.get(key, {}) | rows
            else:
                by_version[key] = plain(value)
        result.append((release_of(release), Tables(**by_version)))
    return result


def tables_for(version: Version) -> Tables:
    """Return the constants of a release; a release between two examined releases uses the earlier."""
    return next(tables for first, tables in _by_release() if version[:2] >= first)


def architecture_of(lowest: int, highest: int, version: Version) -> int:
    """Return the row of the tables for GPUs of these compute capabilities."""
    if not since(version, "rows by generation"):
        return 1 if lowest == highest == 80 else 0
    return sum(lowest >= bound for bound in (80, 90, 100))
