"""Identification of GPUs, processors and NICs of a file.

A GPU is identified by the user's name, PCI identity, compute capability, words in the file, or a guess; processors and
NICs by CPU families and models, and PCI vendor and device numbers.

Nodes as NCCL and `nvidia-smi` describe them: CPUs, their PCIe trees, GPUs, links, NICs.

The parsers build an `ImportedMachine` from a file; `clusim.formats.topologies.wiring` turns it into
graph nodes and links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from enum import IntEnum
from typing import Any, Final, TypeVar

from clusim.base.errors import InputError
from clusim.base.limits import fail, printable
from clusim.base.records import dataclass
from clusim.hardware import ADAPTER_IDS, PROCESSORS, Cpu, Gpu, stand_ins
from clusim.hardware.identity import CHOOSE, Identity, identify_gpu, named_gpu
from clusim.hardware.pcie import GENERATIONS
from clusim.hardware.product_names import gpu_by_words

_T = TypeVar("_T")

BusId = tuple[int, ...] | str
"""Domain, bus, device and function; the text if it is not a PCI address."""


class PciClass(IntEnum):
    """PCI classes of devices in topologies."""

    ETHERNET = 0x020000
    INFINIBAND = 0x020700
    GPU = 0x030200
    BRIDGE = 0x060400
    NVSWITCH = 0x068000
    NPU_BRIDGE = 0x068001


HIDDEN = "hidden switch"
"""Bus id of an NVSwitch that a virtual machine does not see."""

_BUS = re.compile(
    r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-9a-f]{1,2}))?"
)


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

    def join(
        self, target: BusId, count: int, tclass: int = PciClass.GPU, **keys: Any
    ) -> None:
        """Add links from a GPU to `target`; `keys` are fields of `Peer`."""
        if self.gpu is not None:
            self.gpu.peers.append(Peer(target, count, tclass, **keys))

    @property
    def identity(self) -> Identity:
        """Facts of the file about a GPU."""
        gpu = self.gpu or ImportedGpu()
        return Identity(
            self.vendor,
            self.device,
            gpu.product,
            gpu.sm,
            gpu.gcn,
            coherent=gpu.c2c_MBps > 0,
        )

    @property
    def is_bridge(self) -> bool:
        """True if other devices are reached through it."""
        return bool(self.children) or (
            self.cls is not None and self.cls >> 8 == PciClass.BRIDGE >> 8
        )

    def walk(self) -> Iterator[ImportedDevice]:
        """Yield the device and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def switch_above(devices: Iterable[ImportedDevice]) -> ImportedDevice:
    """Return an unnamed PCIe switch with these devices below it."""
    return ImportedDevice(text="switch", cls=PciClass.BRIDGE, children=list(devices))


@dataclass(slots=True)
class ImportedCpu:
    """A NUMA node, the devices below it, and interfaces without a PCI device.

    `name` is its graph node, set when the description is filled.
    """

    numa: int | None = None
    arch: str = ""
    vendor: str = ""
    family: int | None = None
    model: int | None = None
    host: str = ""
    devices: list[ImportedDevice] = field(default_factory=list)
    nets: list[Net] = field(default_factory=list)
    line: int = 0
    name: str = ""

    def walk(self) -> Iterator[ImportedDevice]:
        """Yield all devices."""
        for device in self.devices:
            yield from device.walk()


@dataclass(slots=True)
class PlacedGpu:
    """A GPU: its place in the file, the name of its graph node, and its model."""

    device: ImportedDevice
    gpu: ImportedGpu
    cpu: ImportedCpu
    name: str = ""
    chip: Gpu = field(init=False)


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


def halves(items: list[_T]) -> list[list[_T]]:
    """Return two halves, for the two CPUs of most nodes; one part if there are at most two items."""
    half = -(-len(items) // 2)
    return [items[:half], items[half:]] if len(items) > 2 else [items]


PCIE_GTS = {generation: float(row[0]) for generation, row in GENERATIONS.items()}
"""Signalling rate of a lane per PCIe generation [GT/s]."""

_AMD = {
    143: 0x17,
    23: 0x17,
    24: 0x17,
    159: 0x17,
    175: 0x19,
    25: 0x19,
    191: 0x1A,
    26: 0x1A,
}
"""CPU family by `familyid`: NCCL's base + 16 x extended family (143), or their sum (23)."""


def processor(
    arch: str, vendor: str, family: int | None, model: int | None
) -> tuple[Cpu, str]:
    """Return the model of a CPU, and the reason if it is assumed (empty if the file names it)."""
    arch, vendor = arch.lower(), vendor.lower()
    if arch in ("ppc64", "ppc64le"):
        return _usual("power"), ""
    if arch in ("arm64", "aarch64", "arm"):
        return _arm(vendor, model), ""
    if "amd" in vendor or "hygon" in vendor:
        number = _AMD.get(family or 0)
        result = _by_cpuid(
            "amd", number, 0 if model is None and number != 0x17 else model
        )
        reason = (
            "no family in the file"
            if family is None
            else f"unknown AMD family {family}"
        )
        is_known_number = number is not None
        return result or _usual(
            "amd"
        ), "" if is_known_number else f"{reason}; taken as EPYC Rome"
    if "intel" in vendor:
        result = _by_cpuid("intel", 6, model)
        reason = (
            "no model in the file"
            if model is None
            else f"unknown Intel model {model}"
        )
        return result or _usual(
            "intel"
        ), "" if result else f"{reason}; taken as Ice Lake"
    return _usual("other"), "the file does not name the processor; --cpu does"


def _usual(vendor: str) -> Cpu:
    return next(
        cpu for cpu in PROCESSORS.values() if cpu.vendor == vendor and cpu.usual
    )


def _arm(vendor: str, model: int | None) -> Cpu:
    named = (
        c
        for c in PROCESSORS.values()
        if c.vendor == "arm" and c.maker and c.maker in vendor
    )
    return _by_cpuid("arm", 0, model) or next(named, None) or _usual("arm")


def _by_cpuid(vendor: str, family: int | None, model: int | None) -> Cpu | None:
    for cpu in PROCESSORS.values():
        for number, first, last in cpu.cpuid if cpu.vendor == vendor else ():
            if number == family and model is not None and first <= model <= last:
                return cpu
    return None


def named_processor(name: str) -> Cpu:
    """Return the processor called `name`; the error lists the known names."""
    if name not in PROCESSORS:
        listing = ", ".join(PROCESSORS)
        raise InputError(f"no processor {printable(name)!r}; there are {listing}")
    return PROCESSORS[name]


def nic_model(vendor: int | None, device: int | None) -> tuple[str, bool, int]:
    """Return family, Ethernet-only flag and port rate [Gb/s]; ('', False, 0) if unknown."""
    result = ADAPTER_IDS.get((vendor or 0, device or 0))
    return (
        (result.family, result.ethernet, result.gbps) if result else ("", False, 0)
    )


ACCELERATORS: Final = (0x10DE, 0x1002)
"""PCI vendors of data-centre GPUs."""


def gts(speed: str | None) -> float | None:
    """Return the signalling rate of ``16.0 GT/s PCIe`` or ``8 GT/s`` [GT/s], None if missing."""
    match = re.match(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s", speed or "")
    value = float(match[1]) if match else 0.0
    return value or None


def generation(speed: str | None) -> int | None:
    """Return the PCIe generation nearest to the rate in the file, None if it is missing."""
    rate = gts(speed)
    if rate is None:
        return None
    return min(PCIE_GTS, key=lambda gen: abs(PCIE_GTS[gen] - rate))


def identify(
    machine: ImportedMachine, device: ImportedDevice, forced: str, where: str
) -> tuple[str, str]:
    """Return the chip of a GPU, and the reason if it is assumed (empty if the file names it).

    Raises
    ------
    ClusimError
        The file describes the GPU, but no known one; it is not replaced by another GPU.
    """
    gpu = named_gpu(device.identity)
    if forced:
        name = (
            gpu.name if gpu is not None else printable(device.identity.product, 60)
        )
        return forced, f"requested; the file names {name}" if name not in (
            "",
            forced,
        ) else ""
    if gpu is not None:
        return gpu.name, ""
    try:
        usual = identify_gpu(device.identity)
    except InputError as error:
        raise fail(where, device.line, str(error)) from None
    hint = gpu_by_words(machine.hint)
    named = hint[0] if hint else None
    words = f"{hint[1]!r} in the file's name or text" if hint else ""
    if usual is None and named is not None:
        return named.name, words
    if (
        usual is not None
        and named is not None
        and named.architecture is usual.architecture
    ):
        return named.name, f"{_said_gpu(device)}, and {words}"
    aside = "".join(
        f"{text} is not known; "
        for text in _not_known(device, hint and not named, words)
    )
    if usual is not None:
        name = _said_gpu(device)
        return (
            usual.name,
            f"{aside}{name}; the file does not name the board, --chip does",
        )
    if device.vendor in ACCELERATORS and device.device:
        raise fail(where, device.line, f"{aside.removesuffix('; ')}; {CHOOSE}")
    if machine.guess is not None:
        return machine.guess[0], f"{aside}{machine.guess[1]}"
    why = f"{aside}not in the file; a card of its PCIe generation, --chip names another"
    return _card(device), why


def _said_gpu(device: ImportedDevice) -> str:
    """Return the compute capability of a GPU as the file has it."""
    identity = device.identity
    return (
        f"gcn {printable(identity.gfx, 16)}"
        if identity.gfx
        else f"sm {identity.capability}"
    )


def _not_known(
    device: ImportedDevice, unknown_words: object, words: str
) -> Iterator[str]:
    """Yield the identities of a GPU in the file that match no known chip."""
    if device.vendor in ACCELERATORS and device.device:
        yield f"PCI device {device.vendor:04x}:{device.device:04x}"
    if unknown_words:
        yield f"{words}, which"


def _card(device: ImportedDevice) -> str:
    """Return a PCIe card of the device's generation, for files without other identification."""
    cards = stand_ins("card")
    return cards[min(generation(device.speed) or 4, max(cards))].name
