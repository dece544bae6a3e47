"""Processors: root complex of a socket, memory, socket links and host costs.

**Hardware** A TLP from a root port enters the mesh of the socket; packets for another port (peer to
peer) are split into cache lines on most Intel parts, and forwarded unsplit on AMD's. A thread enqueues
the kernel of every GPU it drives.
**Model** A switch of the latency of the mesh; `peer_payload` is the largest payload of packets between
two PCIe devices that cross it. Peer to peer is used only if the topology allows it, otherwise data are
staged in host memory. A host has a period per collective, which grows with the GPUs one thread drives.
**Not modelled** Limits of root ports on packets in flight, the IOMMU and its misses, NUMA clusters (use
one root per cluster). Variation of launches within an iteration; full queues; operating-system noise.
**Parameters** The fields of `Cpu` and `HostCosts`; ``processors.yaml`` has those of every processor and
vendor.

Plain hosts as endpoints: ideal sources and sinks of traffic, all delay is the network's.
"""

from __future__ import annotations

from pathlib import Path

from clusim.base.datafiles import Entry, read
from clusim.base.records import dataclass
from clusim.hardware.figures import (
    UNITS,
    Figure,
    Preset,
    Sourced,
    assumed,
    build,
    check_figures,
    figures,
    published,
)

HOST: Preset = figures(read(Path(__file__).with_name("host.yaml")))
"""The chip ``host``."""


_UNITS = UNITS["processor"]


_AS_ROME = assumed(1.0, "as EPYC Rome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu(Sourced):
    """A generation of processors.

    Attributes
    ----------
    name : str
        Name of its root complex in topology files.
    figures : Preset
        The root complex as a switch; ``cpu`` is vendor and model as NCCL distinguishes them.
    numa, numa_links : str, int
        Type and number of the links between two sockets.
    memory : str
        Default memory, a chip of `clusim.hardware.numa`.
    cpuid : tuple of (int, int, int)
        Families with their first and last models.
    maker : str
        Word that distinguishes it from others of its instruction set in files; may be empty.
    usual : bool
        True if it represents unknown models of its vendor.
    socket_GBps : Figure or None
        Bandwidth that NCCL assumes between two sockets [GB/s]; None: as fast as within a socket.
    pace : Figure
        Single-thread speed relative to EPYC Rome: boost clock times instructions per clock.
    """

    name: str
    figures: Preset
    numa: str
    numa_links: int
    memory: str
    cpuid: tuple[tuple[int, int, int], ...] = ()
    maker: str = ""
    usual: bool = False
    socket_GBps: Figure | None = None
    pace: Figure = _AS_ROME

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, _UNITS)

    @property
    def vendor(self) -> str:
        """Vendor, in NCCL's words."""
        return str(self.figures["cpu"].value).partition(" ")[0]

    @property
    def model(self) -> str:
        """NCCL's name."""
        return str(self.figures["cpu"].value).partition(" ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts(Sourced):
    """Launch costs of a host with processors of one vendor, for collectives in a stream [s].

    Attributes
    ----------
    vendor : str
        Vendor name in NCCL.
    launch : Figure
        Time of a host thread for a collective on one GPU.
    group_base, group_launch : Figure
        Fixed time of a grouped launch over the GPUs of one process, and time of each launch in it.
    p2p_task : Figure
        Time of a host thread for one send or receive inside a group.
    group_channel : Figure
        Time per channel beyond the first and GPU in which a group's thread hands out its work.
    empty_call : Figure
        Call without data, per GPU.
    first_start : Figure
        From the end of a launch until a kernel starts on an idle GPU.
    notice : Figure
        From the end of the last kernel until a polling thread detects it.
    wake : Figure
        How much later each further thread leaves a barrier of threads, and every round of one of processes.
    graph_launch : Figure
        Time for launching a CUDA graph on one GPU.
    torch_call : Figure
        Overhead of a torch.distributed call over NCCL.
    """

    vendor: str
    launch: Figure
    group_base: Figure
    group_launch: Figure
    p2p_task: Figure
    group_channel: Figure
    empty_call: Figure
    first_start: Figure
    notice: Figure
    wake: Figure
    graph_launch: Figure
    torch_call: Figure

    def __post_init__(self) -> None:
        """Check units and sources."""
        costs = dict(self.named_figures())
        check_figures(costs, dict.fromkeys(costs, "s"))


_TOPO = "NCCL, src/graph/topo.h and topo.cc: vendor and model of a CPU, which set rates and distances"


def cpu_of(name: str, entry: Entry) -> Cpu:
    """Return the processor of a section of ``processors.yaml``.

    Its root complex forwards TLPs unsplit.
    """
    entry = dict(entry)
    title = entry.pop("title")
    root = {
        **figures(entry.pop("figures")),
        "cpu": published(entry.pop("cpu"), _TOPO),
        "store_and_forward": assumed(
            False, f"{title}: TLPs are forwarded unchanged"
        ),
        "tier": assumed("root", "tier in reports"),
    }
    ordered = {key: root[key] for key in _UNITS if key in root} | root
    return build(Cpu, {**entry, "name": name}, figures=ordered)


def host_of(vendor: str, entry: Entry, usual: HostCosts | None) -> HostCosts:
    """Return the launch costs of a section; missing figures are those of Intel hosts."""
    costs: dict[str, Figure] = {}
    if usual is not None:
        costs = {
            key: assumed(f.value, "as on Intel hosts")
            for key, f in usual.named_figures()
        }
    return HostCosts(vendor=vendor, **{**costs, **figures(entry)})
