"""What launching adds: the time per iteration of a stream of collectives, from the time of one kernel.

Iterations are enqueued ahead, so in the steady state an iteration takes as long as the slower of two things: the host,
which enqueues one collective on every GPU of a process, and the GPU, which runs one kernel after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusim.hardware import FAMILIES, GPUS, HOST_COSTS, Figure
from clusim.nccl.communicator import Communicator
from clusim.units import parse_time
from clusim.vocabulary.operations import PATTERNS

__all__ = [
    "Host",
    "Launch",
    "engine_start_ps",
    "host_of",
    "iteration_ps",
    "overhead_ps",
    "period_ps",
]


@dataclass(frozen=True, slots=True)
class Launch:
    """How collectives are launched.

    Attributes
    ----------
    gpus_per_thread : int
        GPUs that one thread drives, nccl-tests' ``-g``: its launches are grouped and come one after the other.
    graph : bool
        Whether iterations were captured in a CUDA graph, nccl-tests' ``-G``.
    aggregated : int
        Iterations launched as one group, nccl-tests' ``-m``; the time is that of one of them.
    blocking : bool
        Whether the host waits for every iteration, nccl-tests' ``-z``.
    """

    gpus_per_thread: int = 1
    graph: bool = False
    aggregated: int = 1
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """What launching depends on: architecture of the GPUs, vendor of the CPUs, ranks of the communicator."""

    architecture: str
    vendor: str
    num_ranks: int


def host_of(comm: Communicator) -> Host:
    """Return the host of a communicator, by its oldest GPU."""
    group = comm.group
    return Host(comm.architecture, group.cpu_vendor, group.num_ranks)


def _ps(figure: Figure) -> int:
    return parse_time(str(figure.value))


def overhead_ps(host: Host, launch: Launch, channels: int = 1) -> int:
    """Return the time from the last step of a kernel to the first step of the next that all ranks can do [ps]."""
    family, costs = FAMILIES[host.architecture], HOST_COSTS[host.vendor]
    time_ps = _ps(family.kernel_overhead)
    if launch.graph:
        time_ps -= _ps(family.stream_launch) - _ps(family.graph_node)
    further = max(1, min(launch.gpus_per_thread, host.num_ranks)) - 1
    time_ps += further * _ps(costs.group_skew)
    if further and not launch.graph:
        work = _ps(costs.group_channel) * (further + 1)
        time_ps += max(0, channels - 1) * work
    return time_ps


def period_ps(host: Host, operation: str, launch: Launch) -> int:
    """Return the time of the host per iteration [ps]; a graph has none."""
    if launch.graph:
        return 0
    costs = HOST_COSTS[host.vendor]
    count = max(1, min(launch.gpus_per_thread, host.num_ranks))
    group_ps = _ps(costs.group_base) + count * _ps(costs.group_launch)
    time_ps = _ps(costs.launch) if count == 1 else group_ps
    return time_ps + count * _messages(operation, host.num_ranks) * _ps(costs.p2p_task)


def _messages(operation: str, num_ranks: int) -> int:
    """Return the sends and receives that a rank enqueues."""
    if operation not in (*PATTERNS, "hypercube"):
        return 0
    if operation == "alltoall":
        return 2 * num_ranks
    if operation == "hypercube":
        return 2 * (num_ranks - 1).bit_length()
    return num_ranks if operation in ("gather", "scatter") else 2


def iteration_ps(
    host: Host | Communicator, operation: str, kernel_ps: int, launch: Launch, channels: int = 1
) -> int:
    """Return what nccl-tests reports for a kernel that takes `kernel_ps` [ps]; 0 is a call without data."""
    if isinstance(host, Communicator):
        host = host_of(host)
    host_ps = period_ps(host, operation, launch)
    if kernel_ps == 0:
        return _ps(HOST_COSTS[host.vendor].empty_call) * max(1, launch.gpus_per_thread)
    times = max(1, launch.aggregated)
    gpu_ps = kernel_ps + overhead_ps(host, launch, channels) // times
    return host_ps + gpu_ps if launch.blocking else max(host_ps // times, gpu_ps)


def engine_start_ps(chip: str) -> int | None:
    """Return what a kernel of an inference engine takes in a CUDA graph besides itself [ps]; None of unknown chips."""
    found = GPUS.get(chip)
    return None if found is None else parse_time(str(found.architecture.engine_start.value))
