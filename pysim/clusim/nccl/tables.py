"""The constants of NCCL's cost model by release: latencies, bandwidth ceilings, correction of trees.

Sources: src/graph/tuning.cc of NCCL 2.8, 2.12, 2.18, 2.20, 2.23, 2.27 and 2.30, and, where marked, public logs that
print costs: 2.12.12 on 4 x 8 RTX 3090 (github.com/Panlichen/nccl-tests), 2.21.5 on two PCIe GPUs
(github.com/cuiboyuan/nccl_log_rca_bench), 2.29.2 on 2, 4 and 6 H100 (github.com/waynehacking8/nccl-collectives-bench).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from clusim.base.terms.operations import Algorithm, Protocol
from clusim.nccl.constants import Version, since

Triple = tuple[float, float, float]
"""LL, LL128 and Simple; or one node, two nodes, more."""

ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")

_TREE, _RING = Algorithm.TREE, Algorithm.RING
_DIRECT, _CHAIN = Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN
_NVLS, _NVLS_TREE, _PAT = Algorithm.NVLS, Algorithm.NVLS_TREE, Algorithm.PAT
_NOTHING: Triple = (0.0, 0.0, 0.0)


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
    nvls_efficiency: tuple[float, ...] = (0.0, 0.0, 0.85, 0.74)
    inter_steps_extra: bool = False
    plateau: tuple[float, float] = (1.9, 1.4)


def _flat(rate: float) -> Triple:
    return (rate, rate, rate)


_CORRECTION = {
    Protocol.LL: (
        *(1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5),
        *(0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0),
    ),
    Protocol.LL128: (
        *(1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
        *(0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0),
    ),
    Protocol.SIMPLE: (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}
_CORRECTION_28 = {
    Protocol.LL: _CORRECTION[Protocol.LL][:22],
    Protocol.LL128: (
        *(1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
        *(0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1.0),
    ),
    Protocol.SIMPLE: (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.7, 0.8, 0.9),
    ),
}


_V30 = Tables(
    base_us={
        **{_TREE: (6.8, 14.0, 8.4), _RING: (6.6, 14.0, 8.4), _PAT: (8.0, 8.0, 8.0)},
        **{_DIRECT: _NOTHING, _CHAIN: _NOTHING, _NVLS: _NOTHING, _NVLS_TREE: _NOTHING},
    },
    nvlink_us={
        **{_TREE: (0.6, 1.25, 4.0), _RING: (0.6, 1.9, 3.4), _PAT: (0.0, 0.0, 4.0)},
        **{_DIRECT: (0.0, 0.0, 3.7), _CHAIN: (0.0, 0.0, 2.8)},
        **{_NVLS: (0.0, 0.0, 25.0), _NVLS_TREE: (0.0, 0.0, 25.0)},
    },
    pcie_us={
        **{_TREE: (1.0, 1.9, 4.0), _RING: (1.0, 2.5, 5.7), _PAT: (0.0, 0.0, 4.0)},
        **{_DIRECT: (0.0, 0.0, 3.7), _CHAIN: (0.0, 0.0, 2.8)},
        **{_NVLS: _NOTHING, _NVLS_TREE: _NOTHING},
    },
    network_us={
        **{_TREE: (5.0, 8.5, 14.0), _RING: (2.7, 4.0, 14.0), _PAT: (0.0, 0.0, 14.0)},
        **{_DIRECT: (0.0, 0.0, 31.0), _CHAIN: (0.0, 0.0, 30.0)},
        **{_NVLS: (0.0, 0.0, 18.0), _NVLS_TREE: (0.0, 0.0, 20.9)},
    },
    ll_GBps=((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0)),
    ring_ll128_GBps=(_flat(20.0), _flat(20.0), _flat(36.7), _flat(40.0)),
    tree_ll128_GBps=(_flat(20.0), _flat(20.0), (36.7, 36.7, 29.0), (55.6, 31.67, 20.0)),
    tree_GBps=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0)),
    nvls_tree_GBps=(_NOTHING, _NOTHING, (0.0, 57.7, 45.5), (0.0, 96.0, 80.0)),
    tree_correction=_CORRECTION,
)


def _changed(table: dict[Algorithm, Triple], **new: Triple) -> dict[Algorithm, Triple]:
    return table | {Algorithm[name.upper()]: values for name, values in new.items()}


_V27 = replace(
    _V30,
    network_us=_changed(_V30.network_us, nvls_tree=(0.0, 0.0, 14.0)),
    ring_ll128_GBps=(_flat(20.0), _flat(20.0), _flat(36.7), _flat(73.4)),
)
_V23 = replace(
    _V27,
    ll_GBps=(*_V30.ll_GBps[:3], (141.0, 45.0, 35.0)),
    ring_ll128_GBps=(*_V30.ring_ll128_GBps[:3], _flat(36.7)),
    tree_ll128_GBps=(*_V30.tree_ll128_GBps[:3], (36.7, 36.7, 29.0)),
    tree_GBps=(*_V30.tree_GBps[:3], (38.7, 41.4, 36.0)),
    nvls_tree_GBps=(*_V30.nvls_tree_GBps[:3], (0.0, 57.7, 45.5)),
)
_V21 = replace(
    _V23,
    base_us=_changed(_V23.base_us, tree=(6.8, 14.0, 0.0)),
    nvlink_us=_changed(_V23.nvlink_us, tree=(0.6, 1.25, 28.0)),
    pcie_us=_changed(_V23.pcie_us, tree=(1.0, 1.9, 28.0)),  # 2.21.5 log: 2 GPUs, 56.0 us
    network_us=_changed(_V23.network_us, tree=(5.0, 8.5, 28.0)),
)
_HOPPER_220 = (87.7, 22.5, 19.0)
_V20 = replace(_V21, ll_GBps=(*_V21.ll_GBps[:2], _HOPPER_220, _HOPPER_220))
_V18 = replace(
    _V20,
    base_us=_changed(_V20.base_us, nvls=(0.0, 0.0, 23.0), nvls_tree=(0.0, 0.0, 23.0)),
    nvlink_us=_changed(_V20.nvlink_us, tree=(0.6, 1.25, 4.0), nvls=_NOTHING, nvls_tree=_NOTHING),
    pcie_us=_changed(_V20.pcie_us, tree=(1.0, 1.9, 6.0)),
    network_us=_changed(_V20.network_us, tree=(5.0, 8.5, 14.0), nvls_tree=(0.0, 0.0, 19.0)),
    inter_steps_extra=True,
)
_V12 = replace(
    _V18,
    base_us=_changed(
        _V18.base_us,
        tree=(4.4, 4.4, 0.0),
        ring=(3.6, 10.0, 8.4),
        collnet_direct=(4.4, 4.4, 0.0),
        collnet_chain=(4.4, 4.4, 0.0),
    ),
    nvlink_us=_changed(
        _V18.nvlink_us,
        tree=(0.52, 1.25, 28.0),
        ring=(0.47, 1.9, 3.4),
        collnet_direct=(0.5, 1.2, 4.0),
        collnet_chain=(0.5, 1.2, 4.0),
    ),
    pcie_us=_changed(
        _V18.pcie_us,
        tree=(1.0, 1.9, 28.0),
        collnet_direct=(1.0, 1.9, 5.5),
        collnet_chain=(1.0, 1.9, 5.5),
    ),
    # The 2.12.12 log needs 28 us for a Simple step of a ring over the network: 1.9 (8.4 + 54 x 5.7 + 8 x 28) us.
    network_us=_changed(
        _V18.network_us,
        tree=(5.0, 8.5, 28.0),
        ring=(2.7, 4.0, 28.0),
        collnet_direct=(5.0, 5.0, 10.7),
        collnet_chain=(5.0, 5.0, 10.7),
    ),
    tree_GBps=(_V30.tree_GBps[0], *(_V30.tree_GBps[1],) * 3),
    ring_ll128_GBps=(_flat(20.0),) * 4,
    tree_ll128_GBps=(_flat(20.0),) * 4,
    plateau=(1.9, 1.9),
)
_V8 = replace(
    _V12,
    nvlink_us=_changed(_V12.nvlink_us, tree=(0.52, 1.2, 28.0)),
    network_us=_changed(_V12.network_us, tree=(5.0, 8.5, 50.0), ring=(2.7, 4.0, 9.6)),
    # 2.8 has no ceiling of LL; a tree has one for all channels together (see the tuner).
    ll_GBps=(_flat(1e9),) * 4,
    tree_correction=_CORRECTION_28,
    inter_steps_extra=False,
)

_BY_RELEASE: tuple[tuple[tuple[int, int], Tables], ...] = (
    ((2, 28), _V30),
    ((2, 27), _V27),
    ((2, 23), _V23),
    ((2, 21), _V21),
    ((2, 20), _V20),
    ((2, 14), _V18),
    ((2, 10), _V12),
    ((2, 4), _V8),
)


def tables_for(version: Version) -> Tables:
    """Return the constants of a release; a release between two examined releases uses the earlier."""
    return next(tables for first, tables in _BY_RELEASE if version[:2] >= first)


def architecture_of(lowest: int, highest: int, version: Version) -> int:
    """Return the row of the tables for GPUs of these compute capabilities."""
    if not since(version, "rows by generation"):
        return 1 if lowest == highest == 80 else 0
    return sum(lowest >= bound for bound in (80, 90, 100))
