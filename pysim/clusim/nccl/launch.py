"""Launch overhead: the time per iteration of a stream of collectives, from the time of one kernel.

Iterations are enqueued ahead, so in the steady state an iteration lasts as long as the slower of two: the host,
which enqueues one collective on every GPU of a thread, and the GPU, which runs one kernel after the other. GPUs of one
thread are launched sequentially, but in the GPUs' time this affects only the first iteration: later ones are in
their streams before they can run. Since NCCL 2.9, threads of a process are as fast as processes; before, the last
thread to arrive launched the kernels of all.
"""

from __future__ import annotations

from clusim.base.records import dataclass
from clusim.base.terms.operations import PATTERNS
from clusim.base.units import parse_time
from clusim.hardware.catalog import FAMILIES, GPUS, HOST_COSTS
from clusim.hardware.figures import Figure
from clusim.nccl.communicator import Communicator
from clusim.nccl.constants import since

DEFAULT_ITERATIONS = 20
"""nccl-tests' ``-n``."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch mode of collectives.

    Attributes
    ----------
    gpus_per_thread : int
        GPUs that one thread drives, nccl-tests' ``-g``: its launches are grouped and sequential.
    graph : bool
        True if iterations were captured in a CUDA graph, nccl-tests' ``-G``.
    aggregated : int
        Iterations launched as one group, nccl-tests' ``-m``; the time is per iteration.
    blocking : int
        Nonzero if the host waits for every iteration, nccl-tests' ``-z``: 1 then synchronises with the other
        processes, 3 does so outside the timed part.
    threads : int
        Threads of a process, nccl-tests' ``-t``; each drives `gpus_per_thread` GPUs.
    """

    gpus_per_thread: int = 1
    graph: bool = False
    aggregated: int = 1
    blocking: int = 0
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Host:
    """Inputs of launch overheads.

    Attributes
    ----------
    architecture, vendor : str
        Of the GPUs, and of the CPUs.
    num_ranks : int
        Ranks of the communicator.
    alone : bool
        True if each thread of a process launches only its kernels, as since NCCL 2.9.
    overlaid : tuple of (str, str)
        Texts of figures that an overlay replaces, and the values in their place.
    """

    architecture: str
    vendor: str
    num_ranks: int
    alone: bool = True
    overlaid: tuple[tuple[str, str], ...] = ()


def host_of(comm: Communicator) -> Host:
    """Return the host of a communicator, by its oldest GPU."""
    group = comm.group
    alone = since(comm.version, "threads launch alone")
    vendor, overlaid = group.cpu_vendor, comm.overlaid
    return Host(comm.architecture, vendor, group.num_ranks, alone, overlaid)


def _ps(host: Host, figure: Figure) -> int:
    values = dict(host.overlaid)
    value = values.get(str(figure), figure.value) if values else figure.value
    return parse_time(str(value))


def _gpus(host: Host, launch: Launch) -> int:
    """Return the GPUs that one thread launches kernels on."""
    per_process = max(1, launch.gpus_per_thread) * (
        1 if host.alone else max(1, launch.threads)
    )
    return min(per_process, host.num_ranks)


def overhead_ps(host: Host, launch: Launch) -> int:
    """Return the time from the last step of a kernel to the first step of the next that all ranks can do [ps]."""
    family = FAMILIES[host.architecture]
    time_ps = _ps(host, family.kernel_overhead)
    if launch.graph:
        time_ps -= _ps(host, family.stream_launch) - _ps(host, family.graph_node)
    return time_ps


def period_ps(host: Host, operation: str, launch: Launch, channels: int = 1) -> int:
    """Return the time of a host thread per iteration [ps]; 0 for a graph."""
    if launch.graph:
        return 0
    costs, count = HOST_COSTS[host.vendor], _gpus(host, launch)
    messages = _messages(operation, host.num_ranks)
    time_ps = messages_ps(host, count, count * messages)
    if messages:
        return time_ps
    return time_ps + (count > 1) * count * max(0, channels - 1) * _ps(
        host, costs.group_channel
    )


def messages_ps(host: Host, gpus: int, messages: int) -> int:
    """Return the time of a host thread for a group of sends and receives, in total, on `gpus` GPUs [ps]."""
    costs = HOST_COSTS[host.vendor]
    group_ps = _ps(host, costs.group_base) + gpus * _ps(host, costs.group_launch)
    return (_ps(host, costs.launch) if gpus == 1 else group_ps) + messages * _ps(
        host, costs.p2p_task
    )


def _messages(operation: str, num_ranks: int) -> int:
    """Return the sends and receives that a rank enqueues."""
    if operation not in (*PATTERNS, "hypercube", "weighted_alltoall"):
        return 0
    if operation == "alltoall":
        return 2 * num_ranks
    if operation == "weighted_alltoall":
        return 2 * (num_ranks - 1)
    if operation == "hypercube":
        return 2 * (num_ranks - 1).bit_length()
    return num_ranks if operation in ("gather", "scatter") else 2


def graph_ps(host: Host, launch: Launch) -> int:
    """Return the time of a thread for launching a graph on each of its GPUs [ps]."""
    return _gpus(host, launch) * _ps(host, HOST_COSTS[host.vendor].graph_launch)


def start_and_end_ps(host: Host) -> tuple[int, int]:
    """Return the time from the launch of a kernel on an idle GPU to its start, and from its end to its notice [ps]."""
    costs = HOST_COSTS[host.vendor]
    return _ps(host, costs.first_start), _ps(host, costs.notice)


def empty_ps(host: Host, launch: Launch) -> int:
    """Return the time of a call without data [ps]."""
    return _ps(host, HOST_COSTS[host.vendor].empty_call) * max(
        1, launch.gpus_per_thread
    )


def wake_ps(host: Host) -> int:
    """Return the delay of each further thread that leaves a barrier [ps]."""
    return _ps(host, HOST_COSTS[host.vendor].wake)


def torch_ps(host: Host) -> tuple[int, int]:
    """Return the time that torch.distributed adds to a call on the host, and to its kernel by stream waits [ps]."""
    waits = 2 * _ps(host, FAMILIES[host.architecture].stream_launch)
    return _ps(host, HOST_COSTS[host.vendor].torch_call), waits


def enqueued_ps(
    host: Host, operation: str, kernel_ps: int, launch: Launch, channels: int = 1
) -> tuple[int, int]:
    """Return the time of one group of collectives on the host, and on the GPU [ps]."""
    gpu_ps = max(1, launch.aggregated) * kernel_ps + overhead_ps(host, launch)
    return period_ps(host, operation, launch, channels), gpu_ps


def iteration_ps(
    host: Host | Communicator, operation: str, kernel_ps: int, launch: Launch
) -> int:
    """Return the steady-state time per iteration of kernels of `kernel_ps` [ps]; 0 means no data."""
    if isinstance(host, Communicator):
        host = host_of(host)
    if kernel_ps == 0:
        return empty_ps(host, launch)
    host_ps, gpu_ps = enqueued_ps(host, operation, kernel_ps, launch)
    both = host_ps + gpu_ps + sum(start_and_end_ps(host))
    return (both if launch.blocking else max(host_ps, gpu_ps)) // max(
        1, launch.aggregated
    )


def engine_start_ps(chip: str) -> int | None:
    """Return an inference kernel's overhead in a CUDA graph [ps]; None for unknown chips."""
    result = GPUS.get(chip)
    return (
        None
        if result is None
        else parse_time(str(result.architecture.engine_start.value))
    )
