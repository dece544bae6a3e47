"""NCCL's kernels for symmetric memory: list of kernels, NCCL's cost model for them, and its choice.

**Hardware**: since 2.27 (``src/symmetric.cc``, ``src/sym_kernels.cc``) buffers that all ranks have registered as
windows have the same offset on all ranks, so kernels load and store them in place. If such a kernel supports a
collective, NCCL uses it and skips its general cost model. **Model**: as in NCCL: latency by kind of kernel, bandwidth
that grows with CTAs up to a ceiling, the fewest CTAs within 2.5% of the best, 2.5% of penalty for each; programs of
`clusim.collectives` with as many channels. **Not modelled**: kernels over several nodes (GIN), TMA, copy engines;
the cost model since 2.31; LL by multicast runs as LL, with which a GPU receives the same bytes. **Parameters**:
``NCCL_SYM_KERNEL``, ``NCCL_SYM_CTAS``, ``NCCL_MIN_CTAS``, ``NCCL_MAX_CTAS``.
"""

from __future__ import annotations

from math import exp, log1p
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import Algorithm, Collective
from clusim.nccl.communicator import Communicator
from clusim.nccl.constants import LATEST, Path, Version, since

AR, AG, RS = Collective.ALLREDUCE, Collective.ALLGATHER, Collective.REDUCESCATTER


class SymmetricKernel(NamedTuple):
    """A kernel: NCCL's name, and the equivalent algorithm of `clusim.collectives`.

    `multicast` and `reduces` are True if it stores to all, or loads sums, through the switches.
    """

    name: str
    collective: Collective
    algorithm: str
    low_latency: bool = False
    multicast: bool = False
    reduces: bool = False


KERNELS = (
    SymmetricKernel("AllReduce_AGxLL_R", AR, "oneshot-ll", low_latency=True),
    SymmetricKernel("AllReduce_AGxLLMC_R", AR, "oneshot-ll", low_latency=True, multicast=True),
    SymmetricKernel("AllReduce_RSxLD_AGxST", AR, "ld-st"),
    SymmetricKernel("AllReduce_RSxLDMC_AGxSTMC", AR, "multimem", multicast=True, reduces=True),
    SymmetricKernel("AllGather_LL", AG, "ll", low_latency=True),
    SymmetricKernel("AllGather_LLMC", AG, "ll", low_latency=True, multicast=True),
    SymmetricKernel("AllGather_ST", AG, "st"),
    SymmetricKernel("AllGather_STMC", AG, "multimem", multicast=True),
    SymmetricKernel("ReduceScatter_LL", RS, "ll", low_latency=True),
    SymmetricKernel("ReduceScatter_LD", RS, "ld"),
    SymmetricKernel("ReduceScatter_LDMC", RS, "multimem", multicast=True, reduces=True),
)
"""In NCCL's order, in which the first of equals wins."""

MOST_BLOCKS = 64
_LL_FACTOR = 9
"""Twice the bytes, some processing, no unrolling (NCCL, ``LL_BusFactor``)."""
_GBPS = (1 << 30) / 1e6
"""NCCL's GB/s in its model [bytes per us]."""
_PENALTY = 0.025
_TOLERANCE = 1.025
_COPY_ELEMENTS = 8 << 20
"""Elements of a rank above which Blackwell's copy engines gather (``NCCL_SYM_CE_THRESHOLD``)."""


@dataclass(frozen=True, slots=True)
class SymmetricCall:
    """A call: `num_bytes` is the larger of the bytes that a rank sends and receives."""

    collective: Collective
    num_bytes: int
    dtype: str = "float32"
    redop: str = "sum"


@dataclass(frozen=True, slots=True)
class Picked:
    """NCCL's choice.

    Attributes
    ----------
    blocks : int
        CTAs.
    time_us : float
        Time estimated by NCCL's model [us].
    times_us : dict
        The same for every applicable kernel, by name [us].
    """

    kernel: SymmetricKernel
    blocks: int
    time_us: float
    times_us: dict[str, float]

    @property
    def note(self) -> str:
        """Return its note."""
        text = f"symmetric memory: {self.kernel.name}, {self.blocks} CTAs"
        if self.kernel.low_latency and self.kernel.multicast:
            text += "; its multicast as stores to each rank"
        return text


def why_not(comm: Communicator, call: SymmetricCall) -> str:
    """Return why no kernel for symmetric memory can do a call; empty if one can.

    Raises `InputError` for a release whose choice is not known, unless variables name kernel and CTAs.
    """
    group, version = comm.group, comm.version
    named = comm.settings.sym_kernel.strip("^") and comm.settings.sym_ctas
    if since(version, "symmetric kernels by another model") and not named:
        raise InputError(
            f"NCCL {version} selects kernels for symmetric memory by a cost model that is not modelled;"
            f" set NCCL_SYM_KERNEL and NCCL_SYM_CTAS, or use {LATEST}"
        )
    if not since(version, "symmetric memory"):
        return f"NCCL {version} lacks kernels for symmetric memory; they were added in 2.27"
    for name, enabled in (
        ("NCCL_WIN_ENABLE", comm.settings.win_enable),
        ("NCCL_CUMEM_ENABLE", comm.settings.cumem_enable),
    ):
        if not enabled:
            return f"{name}=0: no symmetric memory"
    if call.collective not in (AR, AG, RS):
        return f"{call.collective.value} lacks a kernel for symmetric memory"
    if group.num_nodes > 1:
        return "kernels for symmetric memory over several nodes are not modelled"
    if comm.graphs[Algorithm.RING].type_intra not in (Path.NVL, Path.NVB):
        return "kernels for symmetric memory need NVLinks between all GPUs"
    kind = find_dtype(call.dtype)
    if kind is None:
        return f"unknown element type {call.dtype}"
    adds = call.redop == "sum" or (call.redop == "avg" and since(version, "symmetric averages"))
    if call.collective is not AG and not (adds and "float" in kind.name and kind.name != "float64"):
        return f"kernels for symmetric memory add up floating-point numbers, not {call.redop} of {kind.name}"
    each = call.num_bytes // group.num_ranks // kind.size_bytes
    copied = group.lowest_capability >= 100 and since(version, "gathers by copy engines")
    if call.collective is AG and copied and each > _COPY_ELEMENTS:
        return "copy engines gather more than 8 Mi elements a rank on Blackwell; not modelled"
    return ""


def _possible(comm: Communicator, call: SymmetricCall) -> list[SymmetricKernel]:
    """Return the kernels that can do a call."""
    several = comm.group.num_ranks > 2 or comm.version < Version(2, 29, 7)
    switches = comm.group.nvls and several
    result = [kernel for kernel in KERNELS if kernel.collective is call.collective]
    if not switches:
        result = [kernel for kernel in result if not kernel.multicast]
    if call.num_bytes >= 2 << 30:
        result = [kernel for kernel in result if not kernel.low_latency]
    wanted = comm.settings.sym_kernel
    return [kernel for kernel in result if wanted in ("", "^", kernel.name)]


def pick(comm: Communicator, call: SymmetricCall) -> Picked:
    """Return the kernel that NCCL selects.

    Raises
    ------
    InputError
        No kernel supports the call, or the kernel in ``NCCL_SYM_KERNEL`` does not.
    """
    reason = why_not(comm, call)
    kernels = [] if reason else _possible(comm, call)
    if not kernels:
        raise InputError(reason or f"NCCL_SYM_KERNEL={comm.settings.sym_kernel}: cannot do it here")
    best: Picked | None = None
    times: dict[str, float] = {}
    for kernel in kernels:
        time_us, blocks = _query(comm, kernel, call)
        times[kernel.name] = time_us
        cost = time_us * (1 + _PENALTY * blocks)
        if best is None or cost < best.time_us * (1 + _PENALTY * best.blocks):
            best = Picked(kernel, blocks, time_us, times)
    assert best is not None
    return best


def _bus(kernel: SymmetricKernel, call: SymmetricCall, ranks: int) -> tuple[float, float]:
    """Return the bytes on the bus as NCCL counts them, and the multiplier of a CTA's bandwidth."""
    count = call.num_bytes if call.collective is AR else call.num_bytes // ranks
    if kernel.low_latency:
        return ranks * count * _LL_FACTOR, 1.1 if kernel.multicast else 1.0
    if call.collective is AR:
        if kernel.reduces:
            return count // ranks + count, float(ranks)
        return 2 * count * (ranks - 1) // ranks, 1.0
    return (ranks - 1) * count, 0.55 * ranks if kernel.multicast else 1.0


def _query(comm: Communicator, kernel: SymmetricKernel, call: SymmetricCall) -> tuple[float, int]:
    """Return the time that NCCL expects of a kernel [us], and its CTAs."""
    ranks, settings = comm.group.num_ranks, comm.settings
    old = comm.group.lowest_capability < 100
    bus_bytes, multiplier = _bus(kernel, call, ranks)
    most = MOST_BLOCKS
    if kernel.multicast and not kernel.low_latency:
        most = -(-(16 if old else 32) // ranks)
    most, least = min(most, settings.max_ctas or 64), settings.min_ctas or 1
    if settings.sym_ctas:
        most = least = min(MOST_BLOCKS, settings.sym_ctas)
    reduces_all = call.collective is AR
    if old:
        latency = 4.5 if kernel.low_latency else 7.8
        per_cta, peak = (65 if reduces_all else 44), 320
        peak = 480 if reduces_all and kernel.reduces else peak
    else:
        latency = 19.5 if reduces_all else 13.0
        if kernel.low_latency:
            latency = 8.5 if call.collective is AG else 11.0
        per_cta, peak = 55, 1000 if reduces_all and kernel.reduces else 600

    def model(blocks: int) -> float:
        one = per_cta * _GBPS
        bandwidth = _softmin(blocks * one * multiplier, peak * _GBPS, one)
        return latency + _softplus(bus_bytes / bandwidth - 1)

    best = model(most)
    for blocks in range(least, most):
        time_us = model(blocks)
        if time_us <= _TOLERANCE * best:
            return time_us, blocks
    return best, most


def _softmin(x: float, ceiling: float, softness: float) -> float:
    """Return a smooth version of ``min(x, ceiling)``."""
    return ceiling - softness * log1p((exp(ceiling / softness) - 1) * exp(-x / softness))


def _softplus(x: float) -> float:
    """Return a smooth version of ``max(0, x)``."""
    return x if x >= 100 else log1p(exp(x))
