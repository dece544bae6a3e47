"""A network adapter as one object: what it adds to a message between a host's memory and the wire.

**Hardware** A process posts a work request; the adapter fetches data over PCIe, cuts them into packets and sends. The
receiving adapter writes them to memory, then a completion; data for a GPU are flushed by a read before the GPU may
look. NCCL's proxy thread on the CPU posts and watches on both sides.
**Model** `post` before the first fetch and `completion` after the last packet, each with the share of the proxy
thread; `flush` for GPUDirect; a forwarding latency in each direction. Rate control reacts to congestion marks.
**Not modelled** Doorbells and queues of their own, address translation misses, message rates, retransmission.
**Parameters** The figures of `Nic`; one file of `clusim.hardware.adapters` for each vendor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from clusim.hardware.figures import (
    Figure,
    Preset,
    assumed,
    check_figures,
    published,
)

__all__ = ["RATE_CONTROLS", "AdapterKind", "Nic", "Pci", "adapter"]

AdapterKind = Literal["ib", "roce", "efa", "slingshot", "tcp"]
"""Network that an adapter is for."""

_IN_LOGS: dict[AdapterKind, str] = {
    "ib": "IB",
    "roce": "IB",
    "efa": "OFI",
    "slingshot": "OFI",
    "tcp": "Socket",
}
"""NCCL's own transports, and those of aws-ofi-nccl, by the network of an adapter."""

_UNITS = {
    "latency": "s",
    "mtu": "bytes",
    "gpudirect": "true or false",
    "post": "s",
    "eager": "B",
    "rendezvous": "s",
    "ack": "s",
    "completion": "s",
    "flush": "s",
    "transit": "s",
    "adaptive": "true or false",
    "ports": "ports",
    "speed": "B/s",
    "rate_control": "word",
    "plugin": "word",
    "plugin_latency": "s",
}
_OPTIONAL = (
    "ack",
    "eager",
    "rendezvous",
    "transit",
    "speed",
    "rate_control",
    "plugin",
    "plugin_latency",
)


@dataclass(frozen=True, slots=True)
class Pci:
    """What a PCI identity says: family of the adapter, whether it is Ethernet only, rate of a port [Gb/s]."""

    vendor: int
    device: int
    family: str
    gbps: int
    ethernet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One kind of network adapter.

    Attributes
    ----------
    name : str
        As topology files have it.
    figures : Preset
        Its figures.
    kind : str
        Network it is for.
    family : str
        Generation, as PCI identities tell it.
    gbps : int
        Rate of a port [Gb/s].
    network : str
        What NCCL's log calls the network it reaches over it; empty: as for others of its kind.
    usual : bool
        Whether it stands for adapters of this network and rate that a file does not name.
    """

    name: str
    figures: Preset
    kind: AdapterKind = "ib"
    family: str = ""
    gbps: int = 0
    network: str = ""
    usual: bool = False

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, _UNITS, _OPTIONAL)

    @property
    def in_logs(self) -> str:
        """What NCCL's log calls the network it reaches over it."""
        return self.network or _IN_LOGS[self.kind]

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure."""
        yield from self.figures.values()


_PROXY = "NCCL counts 1 us per step for its proxy thread on Intel (tuning.cc)"

_DEFAULT: Preset = {
    "mtu": published(4096, "largest InfiniBand and RoCE MTU"),
    "gpudirect": published(True, "reads and writes GPU memory (GPUDirect RDMA)"),
    "post": assumed(
        "500ns",
        "doorbell 0.15, work request 0.15, read request 0.2 us (verbs writes take 0.9-1.0 us end to end)",
    ),
    "completion": assumed(
        "750ns", f"completion entry and its poll 0.25 us, and half a step of the thread: {_PROXY}"
    ),
    "flush": assumed("1us", "a read of GPU memory by the adapter, there and back"),
    "adaptive": assumed(False, "one path per connection unless asked for"),
    "ports": published(1, "network ports of the adapter"),
}


def adapter(latency: Figure, gbps: int, **more: Figure) -> Preset:
    """Return the figures of an adapter; `gbps` is what it reports to NCCL, 0 the rate of its cable."""
    figures = {**_DEFAULT, "latency": latency}
    if gbps:
        figures["speed"] = published(
            f"{gbps} Gb/s", "rate of the adapter, as it reports it to NCCL"
        )
    return {**figures, **more}


def _dcqcn(gbps: float) -> Preset:
    """Return DCQCN with the steps of the paper, which are for 40 Gb/s, scaled to a rate."""
    scale = gbps / 40
    paper = "DCQCN (Zhu et al., SIGCOMM 2015)"
    step = published if scale == 1 else assumed
    return {
        "g": published(1 / 256, paper),
        "alpha_timer": published("55us", paper),
        "increase_timer": published("55us", paper),
        "cnp_interval": published("50us", paper),
        "cnp_delay": assumed("2us", "notification packet back to the sender over an idle network"),
        "byte_counter": published("10MB", paper),
        "additive": step(f"{40 * scale:g} Mb/s", f"{paper}: 40 Mb/s at 40 Gb/s, with the rate"),
        "hyper": step(f"{200 * scale:g} Mb/s", f"{paper}: 200 Mb/s at 40 Gb/s, with the rate"),
        "min_rate": assumed("100 Mb/s", "floor of Mellanox adapters"),
        "fast_recovery": published(5, paper),
    }


RATE_CONTROLS: dict[str, Preset] = {
    "dcqcn": _dcqcn(40),
    **{f"dcqcn-{gbps}": _dcqcn(gbps) for gbps in (25, 50, 100, 200, 400, 800)},
}
"""Rate controls by name: the paper's, and scaled to a link's rate."""
