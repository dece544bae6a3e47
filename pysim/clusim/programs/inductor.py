"""Expected times of collectives for the scheduler of PyTorch's Inductor.

Inductor reorders collectives and kernels by ``torch._inductor.comm_analysis.estimate_nccl_collective_runtime``, an
estimate of rings with LL on nodes of eight GPUs. `install` replaces it by simulated times in every module of Inductor
that imported it. Older releases expect nanoseconds, later releases milliseconds; the text of the function names the
unit. Collectives except all-reduce, all-gather, reduce-scatter and all-to-all keep PyTorch's estimate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from clusim.base.errors import InputError
from clusim.base.terms.operations import find_operation
from clusim.nccltests.expected import expected

NAME = "estimate_nccl_collective_runtime"
"""Function of Inductor that is replaced."""


def install(topology: str, analysis: ModuleType | None = None) -> Callable[[], None]:
    """Let Inductor schedule by the times of a system; return a function that restores PyTorch's estimate.

    Parameters
    ----------
    analysis : module or None
        ``torch._inductor.comm_analysis``; None imports it.

    Raises
    ------
    InputError
        PyTorch is not installed, or its release has no such function.
    """
    analysis = _analysis() if analysis is None else analysis
    original = getattr(analysis, NAME, None)
    if original is None:
        raise InputError(f"this release of PyTorch has no {NAME} in Inductor")
    per_us = 1e-3 if "(ms)" in (original.__doc__ or "") else 1e3

    def estimate(node: Any, *more: Any, **options: Any) -> float:
        operation = find_operation(analysis.get_collective_type(node).name)
        ranks = analysis.get_collective_group_size(node)
        # Inductor has no kinds with a root.
        if operation is None or operation.rooted or ranks < 2:
            result: float = original(node, *more, **options)
            return result
        size_bytes = int(analysis.get_collective_input_size_bytes(node))
        if operation.name == "all_gather":
            size_bytes *= ranks
        size_bytes = max(1, size_bytes)
        return expected(topology, operation.name, size_bytes, ranks).time_us * per_us

    estimate.__doc__ = original.__doc__
    users = [
        module
        for name, module in [*sys.modules.items(), (analysis.__name__, analysis)]
        if name.startswith("torch._inductor") or module is analysis
        if vars(module).get(NAME) is original
    ]
    for module in users:
        setattr(module, NAME, estimate)

    def restore() -> None:
        for module in users:
            setattr(module, NAME, original)

    return restore


def _analysis() -> ModuleType:
    try:
        from torch._inductor import comm_analysis
    except ImportError:
        raise InputError("PyTorch is not installed: pip install torch") from None
    result: ModuleType = comm_analysis
    return result
