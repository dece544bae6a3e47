"""Nodes as NCCL and `nvidia-smi` describe them: CPUs, their PCIe trees, GPUs, links, NICs.

The parsers build an `ImportedMachine` from a file; `clusim.formats.topologies.wiring` turns it into
graph nodes and links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

BusId = tuple[int, ...] | str
"""Domain, bus, device and function; the text if it is not a PCI address."""

HIDDEN = "hidden switch"
"""Bus id of an NVSwitch that a virtual machine does not see."""

_BUS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-9a-f]{1,2}))?")


def bus_id(text: str) -> BusId:
    """Return a PCI address in a normalised form."""
    word = text.strip().lower()
    if re.match(r"f{6,8}:f{2,4}", word):
        return HIDDEN
    match = _BUS.fullmatch(word)
    if match is None:
        return word
    return tuple(int(part or "0", 16) for part in match.groups())


@dataclass(slots=True)
class Peer:
    """`count` parallel links from a GPU to `target`, a device of PCI class `tclass`."""

    target: BusId
    count: int
    tclass: int | None = None
    xgmi: bool = False
    line: int = 0
    text: str = ""


@dataclass(slots=True)
class ImportedGpu:
    """Description of a GPU in addition to its PCI device.

    Attributes
    ----------
    stated : bool
        True if the file is from a run or lists links: links that are not listed do not exist.
    asked : bool
        True if the file reports the driver's answer: links that are not listed do not exist, for any chip.
    product : str
        Name of the product; empty if the file does not name it.
    told : list of Peer or None
        The links that NCCL reads; None: equal to the existing links, `peers`.
    c2c_MBps : int
        Rate of a coherent link to the CPU [MB/s]; 0 without such a link.
    """

    dev: int | None = None
    rank: int | None = None
    sm: int | None = None
    gcn: str = ""
    product: str = ""
    gdr: bool | None = None
    peers: list[Peer] = field(default_factory=list)
    told: list[Peer] | None = None
    c2c_MBps: int = 0
    stated: bool = True
    asked: bool = False
    line: int = 0


@dataclass(slots=True)
class Net:
    """A network interface: a port of a NIC, or a virtual interface.

    Attributes
    ----------
    speed_mbps : int or None
        Rate [Mb/s].
    port : int or None
        Number of the port of an InfiniBand device.
    collective : bool
        True if it supports in-network reductions.
    """

    name: str = ""
    dev: int | None = None
    speed_mbps: int | None = None
    gdr: bool | None = None
    guid: str = ""
    port: int | None = None
    collective: bool = False
    line: int = 0


@dataclass(slots=True)
class ImportedDevice:
    """A PCI device: a bridge with devices below it, a GPU, or a NIC.

    Attributes
    ----------
    told_speed, told_width
        Slot speed and width that NCCL reads if they differ from `speed` and `width`.
    """

    bus: BusId = ""
    text: str = ""
    cls: int | None = None
    vendor: int | None = None
    device: int | None = None
    subvendor: int | None = None
    subdevice: int | None = None
    speed: str | None = None
    width: int | None = None
    told_speed: str = ""
    told_width: int | None = None
    gpu: ImportedGpu | None = None
    nets: list[Net] = field(default_factory=list)
    children: list[ImportedDevice] = field(default_factory=list)
    ignored: str = ""
    line: int = 0

    def is_class(self, *bases: int) -> bool:
        """Return True if the base class of the device is one of `bases`."""
        return self.cls is not None and self.cls >> 16 in bases

    @property
    def is_bridge(self) -> bool:
        """True if other devices are reached through it."""
        return bool(self.children) or (self.cls is not None and self.cls >> 8 == 0x0604)

    def walk(self) -> Iterator[ImportedDevice]:
        """Yield the device and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class ImportedCpu:
    """A NUMA node, the devices below it, and interfaces without a PCI device."""

    numa: int | None = None
    arch: str = ""
    vendor: str = ""
    family: int | None = None
    model: int | None = None
    host: str = ""
    devices: list[ImportedDevice] = field(default_factory=list)
    nets: list[Net] = field(default_factory=list)
    line: int = 0

    def walk(self) -> Iterator[ImportedDevice]:
        """Yield all devices."""
        for device in self.devices:
            yield from device.walk()


@dataclass(slots=True)
class ImportedMachine:
    """Content of a file.

    Attributes
    ----------
    hint : str
        Words that may identify the node: the file's name, its comments.
    guess : tuple of str, or None
        Probable model of its GPUs, and the reason.
    """

    cpus: list[ImportedCpu] = field(default_factory=list)
    hint: str = ""
    guess: tuple[str, str] | None = None

    def walk(self) -> Iterator[ImportedDevice]:
        """Yield all devices."""
        for cpu in self.cpus:
            yield from cpu.walk()
