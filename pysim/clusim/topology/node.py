"""Graph nodes of a topology: endpoints, switches and NICs, their behaviour and display names.

Endpoints of a topology: properties of GPUs, hosts and host memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from clusim.base.records import dataclass

if TYPE_CHECKING:
    from clusim.policies.choice import Sender

COST_ONE = 1 << 16
"""Unit of the `cost16` fields: 2^-16 ps per byte."""


def cost16(bytes_per_s: float) -> int:
    """Return the cost of one byte [2^-16 ps per byte], at least 1; 0 for an infinite rate."""
    if bytes_per_s == float("inf"):
        return 0
    return min(max(1, round(COST_ONE * 1e12 / bytes_per_s)), 2**32 - 1)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Properties of an endpoint (GPU or host): packets, memory and CTAs.

    Attributes
    ----------
    sms : int
        Streaming multiprocessors; every running CTA of a collective holds one.
    cta_slots : int
        Flows that can be active at once, 1..256.
    write_latency_ps, read_latency_ps, response_latency_ps : int
        Accepted by memory -> visible; request accepted -> response ready; response accepted -> in registers
        [ps].
    mem_Bps : float
        Peak memory bandwidth [B/s]; the fraction `mem_efficiency` is achievable.
    mem_quantum_ps : int
        Interval at which memory bandwidth is redistributed between communication and kernels [ps].
    l2_bytes : int
        L2 cache in front of the memory [bytes]; memory traffic of collectives then follows their primitives
        (`clusim.lowering.memory_traffic`). With 0 it follows the next three figures.
    deliver_256, read_256, inject_256 : int
        Memory bytes per payload byte delivered, read for a remote request, injected [1/256].
    slow_1024 : int
        Slow-down of CTAs and kernels: 1024 is nominal, 2048 doubles their time.
    peak_flops : dict
        Peak dense rate per data type [FLOP/s].
    chip : str
        Name of the chip; `links` is its number of links to other GPUs (0: any number).
    pcie_Bps : float
        Payload-layer rate of its widest PCIe link [B/s]; 0 is unknown.
    architecture : str
        Row of the presets of protocols and of launching; empty is unknown.
    compute_capability : int
        CUDA compute capability times ten, used in NCCL's decisions; 0 is unknown.
    peer_access : bool or None
        True if the driver lets two such chips reach each other over PCIe; None is unknown.
    mem_bytes : int
        Memory size [bytes]; 0 is unknown.
    gemm_fraction : float
        Fraction of the peak reached by large matrix products; 0 is unknown.
    power_W : float
        Sustained power limit [W]; 0 is unknown.
    kernels : str
        Chip or file with its measured kernels; empty: those of its architecture.
    """

    sms: int = 132
    cta_slots: int = 128
    write_latency_ps: int = 100_000
    read_latency_ps: int = 350_000
    response_latency_ps: int = 100_000
    mem_Bps: float = 3.35e12
    mem_efficiency: float = 0.87
    mem_quantum_ps: int = 2_000_000
    l2_bytes: int = 0
    deliver_256: int = 256
    read_256: int = 256
    inject_256: int = 256
    slow_1024: int = 1024
    peak_flops: Mapping[str, float] = field(default_factory=dict)
    chip: str = ""
    links: int = 0
    pcie_Bps: float = 0.0
    architecture: str = ""
    compute_capability: int = 0
    peer_access: bool | None = None
    mem_bytes: int = 0
    gemm_fraction: float = 0.0
    power_W: float = 0.0
    kernels: str = ""

    @property
    def mem_cost16(self) -> int:
        """Cost of a byte of memory traffic [2^-16 ps]."""
        return cost16(self.mem_Bps * self.mem_efficiency)


NodeKind = Literal["gpu", "host", "memory", "switch", "nic"]
"""``gpu`` and ``host`` are ranks; ``memory`` is the DRAM of a host, an endpoint without rank."""

UNBOUNDED_BYTES = 2**39
"""More than any queue or receive buffer holds [bytes]."""

NETWORK = -1
"""Zone of the switches between nodes."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Reduction unit of a switch.

    Attributes
    ----------
    latency_ps : int
        Last operand in -> result out [ps].
    capacity_bytes : int
        Payload of results that can be in flight at once [bytes].
    cost16 : int
        Time per operand byte [2^-16 ps].
    slots : int
        Packets that each aggregation tree may have open in the unit at once, at least 1.
    """

    latency_ps: int = 100_000
    capacity_bytes: int = 65_536
    cost16: int = 1
    slots: int = 64


@dataclass(frozen=True, slots=True)
class RateControl:
    """Reaction of a sender to congestion marks: DCQCN (Zhu et al., SIGCOMM 2015).

    Attributes
    ----------
    g_65536 : int
        Weight of the newest mark in the moving average alpha [1/65536].
    alpha_timer_ps, increase_timer_ps, cnp_interval_ps : int
        Periods of the decay of alpha and of rate increases, and least interval of notifications [ps].
    cnp_delay_ps : int
        Delivery of a marked packet -> reaction of the sender [ps].
    byte_counter : int
        The rate also rises each time this number of bytes was sent [bytes].
    additive_Bps, hyper_Bps, min_Bps : float
        Steps of additive and hyper increase, and the lowest rate [B/s].
    fast_recovery : int
        Rises towards the target rate before the target itself rises.
    kept_65536 : int
        Least share of the rate after a notification [1/65536].
    clamp : bool
        Each notification lowers the target rate to the rate; otherwise only the first after a rise by the timer.
    sender, receiver : Sender or None
        Policy of senders or receivers in place of DCQCN, and one of receivers beside one of senders.
    """

    g_65536: int = 256
    alpha_timer_ps: int = 55_000_000
    increase_timer_ps: int = 55_000_000
    cnp_interval_ps: int = 50_000_000
    cnp_delay_ps: int = 2_000_000
    byte_counter: int = 10_000_000
    additive_Bps: float = 5e6
    hyper_Bps: float = 25e6
    min_Bps: float = 12.5e6
    fast_recovery: int = 5
    kept_65536: int = 0
    clamp: bool = True
    sender: Sender | None = None
    receiver: Sender | None = None


@dataclass(frozen=True, slots=True)
class HostTraits:
    """Times of a processor's host threads that serve messages, one thread for a rank.

    Attributes
    ----------
    thread_ps, thread_after_ps : int
        Time until a message is posted, and later work for it: its completion, posting and completing a
        receive [ps].
    look_ps : int
        Time to poll a line of LL, 8 bytes of data, in host memory [ps].
    """

    thread_ps: int = 500_000
    thread_after_ps: int = 500_000
    look_ps: int = 1_000


@dataclass(frozen=True, slots=True)
class NicTraits:
    """Properties of a NIC between host and network.

    Attributes
    ----------
    mtu_bytes : int
        Payload of a packet on the network [bytes].
    gpudirect : bool
        Reads and writes GPU memory itself; otherwise data are staged in host memory.
    post_ps : int
        A work request is posted -> the NIC starts to fetch [ps].
    eager_bytes : int
        Largest message that is sent before the receiver has requested it [bytes].
    transit_ps : int
        Further delay of a message, or of the notice of a free slot, in the transport; several may be in
        flight [ps].
    progress_ps : int
        Time of the host thread per message for the transport's progress, after it has posted one [ps].
    progress_simple_ps : int
        Further time of the host thread per message of Simple [ps].
    control_ps, control_flush_ps : int
        Further time of the host thread per message, and per message of Simple for its flush, with releases of the
        plugin that send control messages [ps].
    rendezvous_ps : int
        Further delay of messages above `eager_bytes` [ps].
    ack_ps : int
        Least time from sending a message to its acknowledgement, at any distance [ps].
    completion_ps : int
        The last packet is in memory -> the receiving host has seen the completion [ps].
    flush_ps : int
        Read that ensures that data of a peer's write are visible to the GPU [ps]; 0: not needed.
    rate_control : RateControl or None
        Reaction to congestion marks (RoCE).
    adaptive : bool
        Packets of a message may use different paths; switches choose the emptiest output.
    reorder_bytes : int or None
        Early packets of a queue pair that it keeps after several paths [bytes]; 0 drops them, and the sender
        repeats; None places all in memory as they arrive.
    retransmission : str
        Repeats after a loss: ``go-back-n`` (all from the missing packet on) or ``selective``; empty is the first with
        verbs, otherwise the second.
    timeout_ps : int
        Time without progress after a loss until it repeats packets [ps].
    retries : int
        Timeouts in a row after which the run ends.
    traffic_class : int
        Class of its flows on links with a schedule.
    speed_Bps : float
        Rate of all its ports that it reports to NCCL [B/s]; 0: that of its cable.
    plugin : str
        Transport by which NCCL reaches it (`clusim.hardware.TRANSPORTS`).
    plugin_ps : int
        Latency that the plugin states [ps].
    """

    mtu_bytes: int = 4096
    gpudirect: bool = True
    post_ps: int = 300_000
    eager_bytes: int = 0
    progress_ps: int = 0
    progress_simple_ps: int = 0
    control_ps: int = 0
    control_flush_ps: int = 0
    rendezvous_ps: int = 0
    ack_ps: int = 0
    completion_ps: int = 300_000
    flush_ps: int = 1_000_000
    transit_ps: int = 0
    rate_control: RateControl | None = None
    adaptive: bool = False
    reorder_bytes: int | None = None
    retransmission: str = ""
    timeout_ps: int = 4_294_967_296_000
    retries: int = 7
    traffic_class: int = 0
    speed_Bps: float = 0.0
    plugin: str = "verbs"
    plugin_ps: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """Graph node, at which wires meet: an endpoint, a switch or a NIC.

    Attributes
    ----------
    latency_ps : int
        Time to forward a packet [ps], at least 1.
    store_and_forward : bool
        Forward only after the tail has arrived; otherwise virtual cut-through.
    tier : str
        Tier in drawings: ``gpu``, ``host``, ``edge``, ``core`` ...
    relay : bool
        The endpoint forwards packets for others, store-and-forward.
    ports : int
        Ports of a switch; 0 is any number.
    nic : NicTraits or None
        Properties of a NIC; it forwards like a switch, and packets are steered to it.
    zone : int
        Number of its node (server), or `NETWORK` for switches between nodes.
    peer_payload_bytes : int
        Payload of packets between two PCIe devices that pass this root complex [bytes]; 0: the usual
        payload.
    buffer_bytes : int
        Packet memory that all ports of a switch share [bytes]; 0 is unknown.
    model : str
        Name of the type of a switch, root complex or NIC, for display.
    host : HostTraits or None
        Of root complexes: times of host threads on that processor.
    cpu : str
        Vendor and model of the processor of a root complex, as NCCL distinguishes them; empty is unknown.
    half_of : str
        PCIe switch whose downward packets pass this node (`clusim.topology.pcie_paths`).
    path_policy : Sender or None
        Policy of a switch that chooses among equal paths.
    """

    name: str
    kind: NodeKind
    latency_ps: int = 100_000
    store_and_forward: bool = False
    endpoint: Endpoint | None = None
    unit: Unit | None = None
    tier: str = ""
    relay: bool = False
    ports: int = 0
    nic: NicTraits | None = None
    zone: int = 0
    peer_payload_bytes: int = 0
    buffer_bytes: int = 0
    model: str = field(default="", compare=False)
    cpu: str = ""
    host: HostTraits | None = None
    half_of: str = ""
    path_policy: Sender | None = None

    @property
    def product(self) -> str:
        """Name of its chip, or of the type of a switch, root complex or NIC."""
        return self.endpoint.chip if self.endpoint is not None else self.model

    @property
    def forwards(self) -> bool:
        """True if packets for others may pass through."""
        return self.endpoint is None or self.relay


def kind_of(node: Node) -> str:
    """Return the name of a node's kind, or the kind of switch (cpu, pcie, nvswitch, switch)."""
    if node.kind != "switch":
        return node.kind
    if node.tier == "root":
        return "cpu"
    if node.tier == "nvswitch" or node.model.startswith("nvswitch"):
        return "nvswitch"
    return "pcie" if node.tier == "pcie" else "switch"


KIND_WORDS = {
    "host": "hosts",
    "nic": "NICs",
    "nvswitch": "NVSwitches",
    "pcie": "PCIe switches",
    "cpu": "CPUs",
    "switch": "switches",
}
"""Plurals of node kinds, in the order of counting."""


def counted_nodes(nodes: Iterable[Node]) -> list[str]:
    """Return the numbers of every chip and of every kind of node, in words."""
    result = list(nodes)
    chips = Counter(
        n.endpoint.chip for n in result if n.endpoint and n.kind == "gpu"
    )
    kinds = Counter(map(kind_of, result))
    counted = [
        (kinds[kind], word) for kind, word in KIND_WORDS.items() if kinds[kind]
    ]
    return [
        *(f"{count} x {chip}" for chip, count in chips.items()),
        *(f"{count} {word if count > 1 else _one(word)}" for count, word in counted),
    ]


def _one(word: str) -> str:
    return (
        word.removesuffix("es") if word.endswith("ches") else word.removesuffix("s")
    )
