"""A processor as one object: the root complex that a socket is, its memory, its neighbours, and what its host costs.

**Hardware** A TLP from a root port enters the mesh of the socket; packets for another port (peer to peer) are split
into cache lines on most Intel parts, and forwarded whole on AMD's. A thread enqueues the kernel of every GPU it drives.
**Model** A switch of the latency of the mesh; `peer_payload` is the largest payload of packets between two PCIe
devices that cross it. Peer to peer is used only where the fabric says so, otherwise data are staged in host memory.
A host has a period per collective, which grows with the GPUs one thread drives.
**Not modelled** Limits of root ports on packets in flight, the IOMMU and its misses, NUMA clusters (use one root per
cluster). Which launch of an iteration is slow; queues that run full; noise of the operating system.
**Parameters** The fields of `Cpu` and `HostCosts`; ``processors.yaml`` has those of every processor and vendor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from clusim.hardware.datafiles import Entry, build, figures
from clusim.hardware.figures import Figure, Preset, assumed, check_figures, published

_UNITS = {
    "cpu": "word",
    "latency": "s",
    "peer_payload": "B",
    "thread": "s",
    "thread_after": "s",
    "look": "s",
    "store_and_forward": "true or false",
    "tier": "word",
}


_AS_ROME = assumed(1.0, "as EPYC Rome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """A generation of processors.

    Attributes
    ----------
    name : str
        Of its root complex in topology files.
    figures : Preset
        The root complex as a switch; ``cpu`` is vendor and model as NCCL tells them apart.
    numa, numa_links : str, int
        Type and number of the links between two sockets.
    memory : str
        Its usual memory, a chip of `clusim.hardware.numa`.
    cpuid : tuple of (int, int, int)
        Families with their first and last models.
    maker : str
        Word by which files tell it from others of its instruction set; empty: none.
    usual : bool
        Whether it stands for unknown models of its vendor.
    socket_GBps : Figure or None
        What NCCL takes the link between two sockets for [GB/s]; None: as fast as inside.
    pace : Figure
        How fast one thread is, against EPYC Rome: boost clock times instructions per clock.
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

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure."""
        yield from self.figures.values()
        yield self.pace
        if self.socket_GBps is not None:
            yield self.socket_GBps


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Launch costs of a host with processors of one vendor, for collectives in a stream [s].

    Attributes
    ----------
    vendor : str
        In NCCL's words.
    launch : Figure
        Time of a host thread for a collective on one GPU.
    group_base, group_launch : Figure
        Time of a grouped launch over the GPUs of one process besides the launches, and of every launch in it.
    p2p_task : Figure
        Time of a host thread for one send or receive inside a group.
    group_channel : Figure
        Time per channel beyond the first and GPU in which a group's thread hands out its work.
    empty_call : Figure
        A call that has nothing to move, per GPU.
    first_start : Figure
        From the end of a launch until a kernel begins on a GPU that has nothing else to do.
    notice : Figure
        From the end of the last kernel until a thread that asks for it again and again knows.
    wake : Figure
        How much later each further thread leaves a barrier of threads, and every round of one of processes.
    graph_launch : Figure
        Time for launching a CUDA graph on one GPU.
    torch_call : Figure
        What a call of torch.distributed takes besides NCCL.
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

    def named_figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield every figure and what it is called."""
        yield from ((item.name, getattr(self, item.name)) for item in fields(self)[1:])

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure."""
        yield from (figure for _, figure in self.named_figures())


_TOPO = "NCCL, src/graph/topo.h and topo.cc: vendor and model of a CPU, by which it takes rates and distances"


def cpu_of(name: str, entry: Entry) -> Cpu:
    """Return the processor of a section of ``processors.yaml``; its root complex forwards TLPs as they come."""
    entry = dict(entry)
    title = entry.pop("title")
    root = {
        **figures(entry.pop("figures")),
        "cpu": published(entry.pop("cpu"), _TOPO),
        "store_and_forward": assumed(False, f"{title}: TLPs are forwarded as they come"),
        "tier": assumed("root", "tier in reports"),
    }
    ordered = {key: root[key] for key in _UNITS if key in root} | root
    return build(Cpu, {**entry, "name": name}, figures=ordered)


def host_of(vendor: str, entry: Entry, usual: HostCosts | None) -> HostCosts:
    """Return the launch costs of a section; those that it does not have are assumed to be as on Intel hosts."""
    costs: dict[str, Figure] = {}
    if usual is not None:
        costs = {key: assumed(f.value, "as on Intel hosts") for key, f in usual.named_figures()}
    return HostCosts(vendor=vendor, **{**costs, **figures(entry)})
