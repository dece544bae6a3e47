"""NCCL's kernels for symmetric memory: list of kernels, and NCCL's choice by its cost model for them.

**Hardware**: since 2.27 (``src/symmetric.cc``, ``src/sym_kernels.cc``) buffers that ranks have registered as
windows have the same offset on each rank, so kernels load and store them in place. If such a kernel supports a
collective, NCCL uses it and skips its general cost model. **Model**: the choice as in NCCL
(`clusim.nccl.symmetriccosts`); programs of `clusim.collectives` with as many channels. Copy engines gather if
``NCCL_CTA_POLICY`` is ``ZERO`` (2.28), and blocks of more than 8 Mi elements on Blackwell (2.29, ``src/enqueue.cc``).
**Not modelled**: kernels over several nodes (GIN), multicast of copy engines, their all-to-all, gather and scatter by
policy; LL by multicast runs as LL, with which a GPU receives the same bytes, and TMA as loads and stores of threads.
**Parameters**: ``NCCL_SYM_KERNEL``, ``NCCL_SYM_CTAS``, ``NCCL_SYM_TMA_ENABLE``, ``NCCL_MIN_CTAS``, ``NCCL_MAX_CTAS``.
"""

from __future__ import annotations

from collections.abc import Container

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import Algorithm
from clusim.nccl.communicator import Communicator
from clusim.nccl.constants import Path, Version, since
from clusim.nccl.symmetriccosts import (
    AG,
    AR,
    KERNELS,
    RS,
    KernelEstimate,
    SymmetricCall,
    SymmetricKernel,
    copy_us,
    estimate,
)

COPIES = SymmetricKernel("copy engines", AG, "copy-engines")
"""Gather by copy engines, without CTAs."""

_COPY_ELEMENTS = 8 << 20
"""Elements of a rank above which Blackwell's copy engines gather (``NCCL_SYM_CE_THRESHOLD``)."""


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
        text = f"symmetric memory: {self.kernel.name}, {self.blocks or 'no'} CTAs"
        if self.kernel.low_latency and self.kernel.multicast:
            text += "; its multicast as stores to each rank"
        if self.kernel.tma:
            text += "; its TMA as loads and stores of threads"
        return text


def why_not(comm: Communicator, call: SymmetricCall) -> str:
    """Return why no kernel for symmetric memory can do a call; empty if one can."""
    group, version = comm.group, comm.version
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
        if comm.settings.cta_policy:
            return "hierarchical collectives by copy engines (NCCL_CTA_POLICY=ZERO) are not modelled"
        return "kernels for symmetric memory over several nodes are not modelled"
    if comm.graphs[Algorithm.RING].type_intra not in (Path.NVL, Path.NVB):
        return "kernels for symmetric memory need NVLinks between all GPUs"
    kind = find_dtype(call.dtype)
    if kind is None:
        return f"unknown element type {call.dtype}"
    adds = call.redop == "sum" or (
        call.redop == "avg" and since(version, "symmetric averages")
    )
    if call.collective is not AG and not (
        adds and "float" in kind.name and kind.name != "float64"
    ):
        return f"kernels for symmetric memory add up floating-point numbers, not {call.redop} of {kind.name}"
    return ""


def _uses_copy_engines(comm: Communicator, call: SymmetricCall) -> bool:
    """Return True if copy engines gather: by policy, or above 8 Mi elements a rank on Blackwell."""
    if call.collective is not AG:
        return False
    if comm.settings.cta_policy == "ZERO" and since(
        comm.version, "collectives by copy engines"
    ):
        return True
    kind = find_dtype(call.dtype)
    assert kind is not None
    elements_per_rank = call.num_bytes // comm.group.num_ranks // kind.size_bytes
    blackwell = comm.group.lowest_capability >= 100
    return (
        blackwell
        and since(comm.version, "gathers by copy engines")
        and elements_per_rank > _COPY_ELEMENTS
    )


def possible(
    comm: Communicator, call: SymmetricCall, selected: Container[str] | None = None
) -> list[SymmetricKernel]:
    """Return the kernels that can do a call; `selected` are short names, None without restriction."""
    several = comm.group.num_ranks > 2 or comm.version < Version(2, 29, 7)
    switches = comm.group.nvls and several
    result = [kernel for kernel in KERNELS if kernel.collective is call.collective]
    if not switches:
        result = [kernel for kernel in result if not kernel.multicast]
    if not _by_tma(comm):
        result = [kernel for kernel in result if not kernel.tma]
    if call.num_bytes >= 2 << 30:
        result = [kernel for kernel in result if not kernel.low_latency]
    if selected is not None:
        result = [kernel for kernel in result if kernel.short in selected]
    requested = comm.settings.sym_kernel
    return [kernel for kernel in result if requested in ("", "^", kernel.name)]


def _by_tma(comm: Communicator) -> bool:
    """Return True if kernels with TMA are enabled: on Blackwell and later, by default since 2.31."""
    enabled = comm.settings.sym_tma_enable
    if enabled is None:
        enabled = since(comm.version, "symmetric kernels by tma")
    return enabled and comm.group.lowest_capability >= 100


def pick(
    comm: Communicator, call: SymmetricCall, selected: Container[str] | None = None
) -> Picked:
    """Return the kernel that NCCL selects, among those of `possible`.

    Raises
    ------
    InputError
        No kernel supports the call, or the kernel in ``NCCL_SYM_KERNEL`` does not.
    """
    reason = why_not(comm, call)
    if not reason and selected is None and _uses_copy_engines(comm, call):
        time_us = copy_us(comm, call)
        return Picked(COPIES, 0, time_us, {COPIES.name: time_us})
    kernels = [] if reason else possible(comm, call, selected)
    if not kernels:
        raise InputError(
            reason
            or f"NCCL_SYM_KERNEL={comm.settings.sym_kernel}: cannot do it here"
        )
    estimates: dict[str, KernelEstimate] = {}
    for kernel in kernels:
        if (its := estimate(comm, kernel, call)) is not None:
            estimates[kernel.name] = its
    if not estimates:
        raise InputError(
            "every kernel for symmetric memory left needs more bytes for its TMA"
        )
    order = (
        list(reversed(kernels))
        if since(comm.version, "symmetric kernels by tma")
        else kernels
    )
    best = min(
        (kernel for kernel in order if kernel.name in estimates),
        key=lambda kernel: estimates[kernel.name].cost_us,
    )
    times = {name: its.time_us for name, its in estimates.items()}
    return Picked(
        best, estimates[best.name].blocks, estimates[best.name].time_us, times
    )
