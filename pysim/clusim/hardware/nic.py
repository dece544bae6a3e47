"""Network interfaces (NICs): message costs between host memory and the wire.

**Hardware** A process posts a work request; the NIC fetches data over PCIe, cuts them into packets and
sends. The receiving NIC writes them to memory, then a completion; data for a GPU are flushed by a read
before the GPU may look. NCCL's proxy thread on the CPU posts and watches on both sides.
**Model** A forwarding latency in each direction; message costs of its transport
(`clusim.hardware.transport`): `post` before the first fetch and `completion` after the last packet, each
with the share of the proxy thread, `flush` for GPUDirect. Rate control reacts to congestion marks.
**Not modelled** Separate doorbells and queues, address translation misses, message rates, retransmission.
**Parameters** The figures of `Nic`; a section of ``nics.yaml`` for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from clusim.hardware.datafiles import Entry, build, figures, pci_id
from clusim.hardware.figures import (
    Figure,
    Preset,
    assumed,
    check_figures,
    published,
)
from clusim.hardware.transport import MESSAGE_UNITS, Transport

AdapterKind = Literal["ib", "roce", "efa", "slingshot", "tcp"]
"""Network type of a NIC."""

_UNITS = {
    **MESSAGE_UNITS,
    "latency": "s",
    "mtu": "bytes",
    "transit": "s",
    "ports": "ports",
    "speed": "B/s",
    "rate_control": "word",
}
_OPTIONAL = (
    "ack",
    "eager",
    "progress",
    "rendezvous",
    "transit",
    "speed",
    "rate_control",
    "plugin_latency",
)


@dataclass(frozen=True, slots=True)
class Pci:
    """Identity of a PCI device: NIC family, whether it is Ethernet only, rate of a port [Gb/s]."""

    vendor: int
    device: int
    family: str
    gbps: int
    ethernet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """NIC model.

    Attributes
    ----------
    name : str
        Name in topology files.
    figures : Preset
        Its figures.
    kind : str
        Network type.
    family : str
        Generation, identified by PCI IDs.
    gbps : int
        Rate of a port [Gb/s].
    usual : bool
        True if it represents unnamed NICs of this network and rate.
    """

    name: str
    figures: Preset
    kind: AdapterKind = "ib"
    family: str = ""
    gbps: int = 0
    usual: bool = False

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, _UNITS, _OPTIONAL)

    @property
    def plugin(self) -> str:
        """Return the transport by which NCCL reaches it."""
        return str(self.figures["plugin"].value)

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure."""
        yield from self.figures.values()


def nic_of(name: str, entry: Entry, transports: Mapping[str, Transport]) -> Nic:
    """Return the NIC of a section of ``nics.yaml``; missing figures are its transport's.

    `gbps` is the rate reported to NCCL; 0 reports the rate of the cable.
    """
    entry = dict(entry)
    own = figures(entry.pop("figures"))
    preset = {
        **transports[entry.pop("transport")].figures,
        "mtu": published(4096, "largest InfiniBand and RoCE MTU"),
        "ports": published(1, "network ports of the NIC"),
        "latency": own["latency"],
    }
    if gbps := entry.get("gbps", 0):
        rate = published(f"{gbps} Gb/s", "rate of the NIC, as it reports it to NCCL")
        preset["speed"] = rate
    return build(Nic, {**entry, "name": name}, figures={**preset, **own})


def pci_of(entry: Entry) -> Pci:
    """Return the PCI identity of an entry of ``nics.yaml``."""
    vendor, device = pci_id(entry["id"])
    rest = {key: value for key, value in entry.items() if key != "id"}
    return build(Pci, rest, vendor=vendor, device=device)


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
        "min_rate": assumed("100 Mb/s", "floor of Mellanox NICs"),
        "fast_recovery": published(5, paper),
    }


RATE_CONTROLS: dict[str, Preset] = {
    "dcqcn": _dcqcn(40),
    **{f"dcqcn-{gbps}": _dcqcn(gbps) for gbps in (25, 50, 100, 200, 400, 800)},
}
"""Rate controls by name: the paper's, and scaled to a link's rate."""
