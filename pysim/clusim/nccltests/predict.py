"""What nccl-tests would report for a collective of some size."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.nccltests.kernel import Kernel, kernel
from clusim.nccltests.launch import Launch, host_of, iteration_ps
from clusim.nccltests.setup import Setup

__all__ = ["Prediction", "predict"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time per iteration, out of place, as nccl-tests reports it [ps], and the kernel it consists of."""

    time_ps: int
    kernel: Kernel


def predict(
    setup: Setup,
    operation: str,
    size_bytes: int,
    launch: Launch = Launch(),  # noqa: B008 - frozen
    *,
    element_bytes: int = 4,
    granularity: str | int = "",
) -> Prediction:
    """Return what nccl-tests would report.

    Parameters
    ----------
    operation : str
        As of `clusim.nccl.programs.build`.
    size_bytes : int
        nccl-tests' size: the larger of what a rank sends and receives [bytes].
    granularity : str or int
        As of `clusim.simulate`; empty is as exact as a few seconds allow.
    """
    if size_bytes == 0:
        return Prediction(
            iteration_ps(host_of(setup.comm), operation, 0, launch), Kernel(0, "-", "-", 0)
        )
    found = kernel(
        setup, operation, size_bytes, element_bytes=element_bytes, granularity=granularity
    )
    return Prediction(
        iteration_ps(host_of(setup.comm), operation, found.time_ps, launch, found.channels), found
    )
