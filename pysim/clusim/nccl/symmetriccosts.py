"""NCCL's cost models of its kernels for symmetric memory: time and CTAs of a kernel, by release.

**Up to 2.31**: latency by kind of kernel, and bandwidth that grows with CTAs up to a ceiling (``src/sym_kernels.cc`` of
2.27 to 2.30, ``src/tuning/sym_model.cc`` of 2.31.2). From 2.31 on also for kernels with TMA, and for even numbers of
CTAs only. **Since 2.32**, for Blackwell and later (``src/tuning/sym_model`` after 2.32.3): the longer of the CTAs' time
and the time at the ceiling, with measured rates by kernel (``symmetric.yaml``). Kernels without such rates have the
model of 2.31; kernels with multicast may use 64 CTAs.

In both, the fewest CTAs within 2.5% of the time of the most are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import exp, log1p, log2
from pathlib import Path
from typing import Any, NamedTuple

from clusim.base.datafiles import read
from clusim.base.records import dataclass
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import Collective
from clusim.nccl.communicator import Communicator
from clusim.nccl.constants import since

AR, AG, RS = Collective.ALLREDUCE, Collective.ALLGATHER, Collective.REDUCESCATTER


class SymmetricKernel(NamedTuple):
    """A kernel: NCCL's name, and the equivalent algorithm of `clusim.collectives`.

    `multicast` and `reduces` are True if it multicasts, or loads sums, through the switches; `tma_bytes` is the
    least chunk of a kernel that moves data by TMA [bytes], 0 for others, and `tma_parts` has the numbers of chunks
    that it needs at least: one for each of the words ``ranks`` and ``ctas``.
    """

    name: str
    collective: Collective
    algorithm: str
    low_latency: bool = False
    multicast: bool = False
    reduces: bool = False
    tma_bytes: int = 0
    tma_parts: tuple[str, ...] = ()

    @property
    def tma(self) -> bool:
        """True if it moves data by TMA."""
        return self.tma_bytes > 0

    @property
    def short(self) -> str:
        """Name without the collective: ``AGxLL_R``."""
        return self.name.partition("_")[2]


_BY_TMA: dict[str, Any] = {"tma_bytes": 16384, "tma_parts": ("ranks", "ctas")}

KERNELS = (
    SymmetricKernel("AllReduce_AGxLL_R", AR, "oneshot-ll", low_latency=True),
    SymmetricKernel(
        "AllReduce_AGxLLMC_R", AR, "oneshot-ll", low_latency=True, multicast=True
    ),
    SymmetricKernel("AllReduce_RSxTmaLD_AGxTmaST", AR, "ld-st", **_BY_TMA),
    SymmetricKernel("AllReduce_RSxLD_AGxST", AR, "ld-st"),
    SymmetricKernel(
        "AllReduce_RSxLDMC_AGxSTMC", AR, "multimem", multicast=True, reduces=True
    ),
    SymmetricKernel("AllGather_LL", AG, "ll", low_latency=True),
    SymmetricKernel("AllGather_LLMC", AG, "ll", low_latency=True, multicast=True),
    SymmetricKernel(
        "AllGather_TmaST", AG, "st", tma_bytes=8192, tma_parts=("ctas",)
    ),
    SymmetricKernel("AllGather_ST", AG, "st"),
    SymmetricKernel(
        "AllGather_TmaSTMC", AG, "multimem", multicast=True, tma_bytes=4096
    ),
    SymmetricKernel("AllGather_STMC", AG, "multimem", multicast=True),
    SymmetricKernel("ReduceScatter_LL", RS, "ll", low_latency=True),
    SymmetricKernel("ReduceScatter_TmaLD", RS, "ld", **_BY_TMA),
    SymmetricKernel("ReduceScatter_LD", RS, "ld"),
    SymmetricKernel(
        "ReduceScatter_LDMC", RS, "multimem", multicast=True, reduces=True
    ),
)
"""In NCCL's order, in which the first of equals wins, and since 2.31 the last."""


@dataclass(frozen=True, slots=True)
class SymmetricCall:
    """A call: `num_bytes` is the larger of the bytes that a rank sends and receives."""

    collective: Collective
    num_bytes: int
    dtype: str = "float32"
    redop: str = "sum"

    def own_bytes(self, ranks: int) -> int:
        """Return the size of the call to NCCL: the block of a rank, or the complete vector [bytes]."""
        return self.num_bytes if self.collective is AR else self.num_bytes // ranks


class KernelEstimate(NamedTuple):
    """NCCL's estimate of a kernel: time [us], CTAs, and the time with a penalty for CTAs that NCCL compares [us]."""

    time_us: float
    blocks: int
    cost_us: float


MOST_BLOCKS = 64
_LL_FACTOR = 9
"""Twice the bytes, some processing, no unrolling (NCCL, ``LL_BusFactor``)."""
_GBPS = (1 << 30) / 1e6
"""NCCL's GB/s in its model [bytes per us]."""
_PENALTY, _MEASURED_PENALTY, _RUBIN_PENALTY = 0.025, 0.02, 0.01
"""Increase of the time by a CTA: of the model up to 2.31; of measured rates; of reductions with them on Rubin."""
_RUBIN = 107
_TOLERANCE = 1.025
_CELL_BYTES, _LOAD_BYTES, _TMA_BYTES, _SMALL_BYTES = 1024, 8192, 16384, 2048
"""Unit that CTAs share; chunks of four warps with loads and stores, with TMA, and of few bytes."""


@dataclass(frozen=True, slots=True)
class KernelRates:
    """Measured rates of a kernel; see ``symmetric.yaml``."""

    base_us: float
    rank_us: float
    cta: float
    peak: float
    ll_cta: float = 0.0
    small_cta: float = 0.0
    tail_cta: float = 0.0
    per_rank: bool = False
    curve: tuple[float, float] = (1.0, 1.0)
    overlap_ctas: float = 0.0
    trough_us: float = 0.0
    trough: float = 0.0


@cache
def _read_rates() -> dict[int, dict[str, KernelRates]]:
    """Return the rates by compute capability and kernel."""
    rows = read(Path(__file__).with_name("symmetric.yaml"))
    return {
        int(key): {name: KernelRates(**row) for name, row in kernels.items()}
        for key, kernels in rows.items()
    }


def _rates(
    comm: Communicator, kernel: SymmetricKernel, call: SymmetricCall
) -> KernelRates | None:
    """Return the measured rates by which a release estimates a kernel; None for the model up to 2.31."""
    if not since(comm.version, "symmetric kernels by measured rates"):
        return None
    lowest = comm.group.lowest_capability
    rows = _read_rates().get(_RUBIN if lowest > _RUBIN else lowest, {})
    kind = find_dtype(call.dtype)
    assert kind is not None
    word = (
        {1: "1 byte", 2: "2 bytes"}.get(kind.size_bytes, "")
        if call.redop == "sum"
        else ""
    )
    return rows.get(f"{kernel.name} of {word}", rows.get(kernel.name))


def estimate(
    comm: Communicator, kernel: SymmetricKernel, call: SymmetricCall
) -> KernelEstimate | None:
    """Return the estimate of a kernel; None if the call is too small for its TMA."""
    rates = _rates(comm, kernel, call)
    ranks = comm.group.num_ranks
    low, high = _limits(comm, kernel)
    size = call.own_bytes(ranks)
    if kernel.tma and since(comm.version, "symmetric kernels by tma"):
        if size >= _least_bytes(kernel, ranks, low):
            while high > low and size < _least_bytes(kernel, ranks, high):
                high -= 1 if high == 2 else 2
        elif not comm.settings.sym_kernel.strip("^"):
            return None

    def time_us(blocks: int) -> float:
        if rates is None:
            return _model_us(comm, kernel, call, blocks)
        return _measured_us(
            rates, kernel, call, (ranks, blocks, comm.group.lowest_capability)
        )

    best = time_us(high)
    selected = best, high
    for blocks in _numbers(comm, low, high):
        if (less := time_us(blocks)) <= _TOLERANCE * best:
            selected = less, blocks
            break
    penalty = _PENALTY
    if rates is not None:
        rubin = comm.group.lowest_capability == _RUBIN and call.collective is not AG
        penalty = _RUBIN_PENALTY if rubin else _MEASURED_PENALTY
    return KernelEstimate(*selected, selected[0] * (1 + penalty * selected[1]))


COPY_FLOOR_US = {0: (17.50, 1.957), 100: (32.04, 0.130)}
"""Lowest compute capability -> least time of a gather by copy engines, and of each rank [us] (``ce_model.cc``)."""

COPY_GBPS = {0: 392.0, 100: 779.0}
"""The same -> rate of a GPU's copies over NVLink that NCCL assumes [GB/s]."""


def copy_floor_us(comm: Communicator) -> float:
    """Return the least time of a gather by copy engines: commands of the streams and two barriers [us]."""
    base, per_peer_us = COPY_FLOOR_US[
        100 if comm.group.lowest_capability >= 100 else 0
    ]
    return base + per_peer_us * comm.group.num_ranks


def copy_us(comm: Communicator, call: SymmetricCall) -> float:
    """Return the time that NCCL expects of a gather by copy engines, without multicast [us]."""
    ranks = comm.group.num_ranks
    rate = COPY_GBPS[100 if comm.group.lowest_capability >= 100 else 0]
    return copy_floor_us(comm) + (ranks - 1) * call.own_bytes(ranks) / rate / 1000


def _limits(comm: Communicator, kernel: SymmetricKernel) -> tuple[int, int]:
    """Return the fewest and the most CTAs."""
    settings, ranks = comm.settings, comm.group.num_ranks
    high = MOST_BLOCKS
    is_older = not since(comm.version, "symmetric kernels by measured rates")
    if is_older and kernel.multicast and not kernel.low_latency:
        high = -(-(16 if comm.group.lowest_capability < 100 else 32) // ranks)
    high, low = min(high, settings.max_ctas or MOST_BLOCKS), settings.min_ctas or 1
    if settings.sym_ctas:
        high = low = min(MOST_BLOCKS, settings.sym_ctas)
    if since(comm.version, "symmetric kernels by tma"):
        low = min(low, high)
        if low != high:
            low = low if low == 1 else low + low % 2
            high = high if high == 1 else high - high % 2
    return low, high


def _numbers(comm: Communicator, low: int, high: int) -> Iterator[int]:
    """Yield the numbers of CTAs below the most that a release considers: each, or 1 and even numbers."""
    even = since(comm.version, "symmetric kernels by tma")
    blocks = low
    while blocks < high:
        yield blocks
        blocks += 2 if even and blocks > 1 else 1


def _least_bytes(kernel: SymmetricKernel, ranks: int, blocks: int) -> int:
    """Return the bytes from which a kernel with these CTAs uses TMA."""
    numbers = {"ranks": ranks, "ctas": blocks}
    result = kernel.tma_bytes
    for word in kernel.tma_parts:
        result *= numbers[word]
    return result


def _bus(
    kernel: SymmetricKernel, call: SymmetricCall, ranks: int, *, tma: bool
) -> tuple[float, float]:
    """Return the bytes on the bus as NCCL counts them, and the multiplier of a CTA's bandwidth."""
    count = call.own_bytes(ranks)
    if kernel.low_latency:
        return ranks * count * _LL_FACTOR, 1.1 if kernel.multicast else 1.0
    if call.collective is AR:
        if kernel.reduces:
            return count // ranks + count, float(ranks)
        return 2 * count * (ranks - 1) // ranks, 1.0
    multiplier = 0.55 * ranks * (0.99 if tma else 1.0) if kernel.multicast else 1.0
    return (ranks - 1) * count, multiplier


def _model_us(
    comm: Communicator, kernel: SymmetricKernel, call: SymmetricCall, blocks: int
) -> float:
    """Return the time of a kernel by the model up to 2.31 [us]."""
    tuned = since(comm.version, "symmetric kernels by tma")
    tma = tuned and kernel.tma
    bus_bytes, multiplier = _bus(kernel, call, comm.group.num_ranks, tma=tma)
    all_reduce = call.collective is AR
    through = all_reduce and kernel.reduces
    if comm.group.lowest_capability < 100:
        latency = 4.5 if kernel.low_latency else 7.8
        per_cta, peak = (65.0 if all_reduce else 44.0), (480.0 if through else 320.0)
    else:
        retuned = tuned and call.collective is RS
        latency = 19.5 if all_reduce else 13.0
        if kernel.low_latency:
            latency = 8.5 if call.collective is AG else 10.5 if retuned else 11.0
        per_cta, peak = 55.0, 1000.0 if through else 650.0 if retuned else 600.0
        if tma:
            stores = call.collective is AG and not kernel.multicast
            latency += 23.0 if stores else 4.0
            peak = 700.0 if stores else peak
            peak *= 1.0 if kernel.multicast else 1.07
    one = per_cta * _GBPS
    bandwidth = _softmin(blocks * one * multiplier, peak * _GBPS, one)
    return latency + _softplus(bus_bytes / bandwidth - 1)


def _measured_us(
    rates: KernelRates,
    kernel: SymmetricKernel,
    call: SymmetricCall,
    machine: tuple[int, int, int],
) -> float:
    """Return the time of a kernel by measured rates [us]; `machine` is ranks, CTAs and compute capability."""
    ranks, requested, capability = machine
    size = call.own_bytes(ranks)
    active = _active(size, requested)
    ctas = active * _scale(rates, kernel, ranks, active)
    latency, peak = (ranks - 1) * rates.rank_us, rates.peak
    extra = 0.0
    if rates.trough and active >= 14 and active % 4 == 2:
        peak, extra = min(peak, rates.trough), rates.trough_us
    copies, sent = _copies(kernel, call, ranks)
    compute = size / (ctas * rates.ll_cta * 1000) if rates.ll_cta else 0.0
    top = (
        sent
        * size
        / (peak * ((ranks - 1) / ranks if rates.per_rank else 1.0) * 1000)
    )
    moved = copies * size / (ctas * rates.cta * 1000)
    if kernel.name == "AllGather_LL" and capability >= _RUBIN:
        bound = compute + max(moved, top)
    else:
        bound = max(compute + moved, top)
    if not (kernel.low_latency or kernel.multicast) and call.collective is not AG:
        bound = _in_portions(rates, kernel, (size, ranks * active), (moved, top))
    if kernel.low_latency and kernel.multicast and call.collective is AG:
        overlap = min(1.0, rates.overlap_ctas / active)
        return (
            rates.base_us + max(latency, bound) + (1 - overlap) * min(latency, bound)
        )
    return rates.base_us + latency + extra + bound


def _copies(
    kernel: SymmetricKernel, call: SymmetricCall, ranks: int
) -> tuple[float, float]:
    """Return how often a CTA moves a byte of the call, and how often wires do."""
    num_peers = float(ranks - 1)
    if kernel.low_latency:
        return float(ranks), num_peers
    if call.collective is AR:
        return (2.0 / ranks if kernel.multicast else 2.0), 2 * num_peers / ranks
    return (1.0 if kernel.multicast else float(ranks)), num_peers


def _in_portions(
    rates: KernelRates,
    kernel: SymmetricKernel,
    sizes: tuple[int, int],
    times: tuple[float, float],
) -> float:
    """Return the time of loads and sums [us]; full chunks, small chunks, and the rest have different rates.

    `sizes` is the bytes, and ranks times CTAs, each with a chunk at a time; `times` is the time in full chunks: of the
    CTAs, and at the ceiling.
    """
    (size, group), (moved, top) = sizes, times
    chunk = group * (_TMA_BYTES if kernel.tma else _LOAD_BYTES)
    full_bytes = size // chunk * chunk
    small = (size - full_bytes) // (group * _SMALL_BYTES) * (group * _SMALL_BYTES)
    portions = (
        (full_bytes, rates.cta),
        (small, rates.small_cta),
        (size - full_bytes - small, rates.tail_cta),
    )
    return sum(
        max(moved * rates.cta / (rate or rates.cta), top) * part / size
        for part, rate in portions
    )


def _active(size: int, requested: int) -> int:
    """Return the CTAs that have something to do."""
    cells = -(-size // _CELL_BYTES)
    return -(-cells // -(-cells // requested))


def _scale(
    rates: KernelRates, kernel: SymmetricKernel, ranks: int, active: int
) -> float:
    """Return the measured factor on the CTAs of a gathering kernel."""
    if kernel.name == "AllGather_TmaSTMC" and active == 1:
        return 1.1445
    if kernel.name != "AllGather_LL" or ranks <= 4 or not 4 < active < 64:
        return 1.0
    points = ((2.0, 1.0), (3.0, rates.curve[0]), (5.0, rates.curve[1]), (6.0, 1.0))
    at = log2(active)
    index = next(i for i in range(1, 4) if at <= points[i][0])
    (low, below), (right, above) = points[index - 1], points[index]
    return below + (at - low) / (right - low) * (above - below)


def _softmin(x: float, ceiling: float, softness: float) -> float:
    """Return a smooth version of ``min(x, ceiling)``."""
    return ceiling - softness * log1p(
        (exp(ceiling / softness) - 1) * exp(-x / softness)
    )


def _softplus(x: float) -> float:
    """Return a smooth version of ``max(0, x)``."""
    return x if x >= 100 else log1p(exp(x))
