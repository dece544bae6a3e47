"""Export of a fabric's node as NCCL's topology XML (``NCCL_TOPO_DUMP_FILE``).

The file contains all that NCCL reads: processors, the PCIe tree, GPUs with the NVLinks that NCCL reads,
and NICs with their rates. PCI addresses and interface names are synthetic, in the order of the tree. A
comment has the facts that the format cannot represent (`clusim.formats.topologies.remarks`), so that runs on
an imported export and on its topology have equal times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from clusim.base.limits import printable
from clusim.base.xmltext import XmlElement
from clusim.formats.topologies.identify import PCIE_GTS, PciClass
from clusim.formats.topologies.remarks import SETTINGS, Remarks, Socket
from clusim.hardware import (
    ADAPTER_IDS,
    ADAPTERS,
    CROSSBARS,
    GPUS,
    LINKS,
    PCIE_SWITCH_IDS,
    PROCESSORS,
    Cpu,
    Nic,
    gfx_of,
)
from clusim.hardware.pcie import LANES, lane_MBps
from clusim.topology.model import Fabric, Link
from clusim.topology.nccl_overrides import SWITCH, told_of, told_slot
from clusim.topology.node import Node
from clusim.topology.save import nic_data

_ARCHITECTURES = {"arm": "arm64", "power": "ppc64"}
_VENDORS = {
    "intel": "GenuineIntel",
    "amd": "AuthenticAMD",
    "arm": "ARM",
    "power": "IBM",
}
_NAMES = {"efa": "rdmap", "slingshot": "cxi", "tcp": "eth"}
_UNKNOWN = {"vendor": "0xffff", "device": "0xffff"}
_DOMAIN, _SWITCHES = 0x0F00, 0x0E00
"""PCI domains of synthetic addresses (devices, NVSwitches), which real systems do not use."""

_THREADS = 16
"""Threads of a processor in the CPU masks, which clusim does not read."""


def dump_system(fabric: Fabric) -> str:
    """Return the XML of a fabric's first node."""
    machine = _Machine(fabric)
    system = machine.system()
    chips = dict.fromkeys(
        node.endpoint.chip
        for node in fabric.nodes
        if node.kind == "gpu" and node.endpoint
    )
    title = printable(f"{fabric.name}: {', '.join(chips)}", 200).replace("--", "- -")
    comments = [f"<!-- {title} -->", machine.remarks()]
    return "\n".join([*filter(None, comments), *system.lines(), ""])


class _Machine:
    """One node: its graph nodes, and the PCI addresses assigned to them."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.nodes = {node.name: node for node in fabric.nodes if node.zone == 0}
        self.links: dict[str, list[tuple[str, Link]]] = {
            name: [] for name in self.nodes
        }
        self.uplinks: dict[str, Link] = {}
        for link in fabric.links:
            for end, other in ((link.a, link.b), (link.b, link.a)):
                if end in self.nodes and other in self.nodes:
                    self.links[end].append((other, link))
                elif end in self.nodes:
                    self.uplinks[end] = link
        self.bus: dict[str, str] = {}
        self.gpus: dict[str, XmlElement] = {}
        self.rank = {n.name: i for i, n in enumerate(self._kind("gpu"))}
        self.net = {n.name: i for i, n in enumerate(self._kind("nic"))}
        self.placed: set[str] = set()

    def _kind(self, kind: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == kind]

    def system(self) -> XmlElement:
        """Return the element of the node."""
        result = XmlElement.of("system", version=1)
        for number, name in enumerate(self._roots()):
            below = self._below(name)
            result.children.append(
                XmlElement.of("cpu", *below, **_cpu(self.nodes[name], number))
            )
        lonely = [n.name for n in self._kind("gpu") if n.name not in self.placed]
        if lonely:
            if not result.children:
                result.children.append(XmlElement.of("cpu", **_cpu(None, 0)))
            for name in lonely:
                result.children[0].children.append(self._device(name, None))
        for name, gpu in self.gpus.items():
            self._add_links(name, gpu)
        return result

    def remarks(self) -> str:
        """Return the comment with facts that the elements do not represent; every device has an address."""
        fabric = self.fabric
        result = Remarks(network=dict(fabric.network))
        result.settings = {name: getattr(fabric, name) for name in SETTINGS}
        for name, bus in self.bus.items():
            self._remark(result, self.nodes[name], bus)
        numa = {name: number for number, name in enumerate(self._roots())}
        sockets = []
        for root, number in numa.items():
            for name, link in self.links[root]:
                end = self.nodes[name].endpoint
                if (
                    end is not None
                    and self.nodes[name].kind == "memory"
                    and link.name in LINKS
                ):
                    result.memory[number] = end.chip
                elif numa.get(name, -1) > number:
                    sockets.append(Socket(number, numa[name], link.name, link.count))
        if all(one.type in LINKS for one in sockets):
            result.sockets = sockets
        return result.comment()

    def _remark(self, result: Remarks, node: Node, bus: str) -> None:
        """Add the model of a device, and the keys that its model does not have."""
        slot = next(
            (link.name for _, link in self.links[node.name] if link.cls == "pcie"),
            "",
        )
        if node.nic is not None and node.model and node.model not in ADAPTERS:
            result.nics[node.model] = nic_data(node.nic, node.ports)
            result.latencies[bus] = f"{node.latency_ps}ps"
        if (
            node.model in ADAPTERS
            or node.model in CROSSBARS
            or node.model in result.nics
        ):
            result.models[bus] = node.model
        if (
            slot.startswith("pcie-")
            and slot in LINKS
            and slot.removesuffix("-gpu").count("-") > 2
        ):
            result.slots[bus] = slot

    def _roots(self) -> list[str]:
        return [n.name for n in self._kind("switch") if n.tier == "root"]

    def _below(self, parent: str) -> Iterator[XmlElement]:
        """Yield unplaced devices that PCIe joins to a CPU or switch, or a coherent link to a CPU."""
        self.placed.add(parent)
        below = {
            other: link
            for other, link in self.links[parent]
            if self._hangs(other, link) and other not in self.placed
        }
        for name, link in below.items():
            if name not in self.placed:
                yield self._device(name, link)

    def _hangs(self, name: str, link: Link) -> bool:
        """Return True if a device is the end of a PCIe link, or of a coherent link without PCIe."""
        slots = [one.cls for _, one in self.links[name]]
        lone = (
            link.cls == "c2c"
            and self.nodes[name].kind == "gpu"
            and "pcie" not in slots
        )
        return self.nodes[name].tier != "root" and (lone or link.cls == "pcie")

    def _device(self, name: str, link: Link | None) -> XmlElement:
        """Return a PCI device and all below it."""
        self.placed.add(name)
        node = self.nodes[name]
        number = len(self.bus) + 1
        self.bus[name] = f"{_DOMAIN + (number >> 8):04x}:{number & 255:02x}:00.0"
        count = sum(other.count for to, other in self.links[name] if other is link)
        override = told_slot(self.fabric, name)
        slot = _speed_attributes(*override) if override else _slot(link, count)
        if node.kind == "gpu":
            return self._gpu(node, slot)
        if node.kind == "nic":
            return self._nic(node, slot)
        ids = next(
            (i for i, model in PCIE_SWITCH_IDS.items() if model == node.model), None
        )
        keys = _UNKNOWN if ids is None else _identity(*ids)
        bus = self.bus[name]
        below = self._below(name)
        return XmlElement.of(
            "pci", *below, busid=bus, class_=_class(PciClass.BRIDGE), **keys, **slot
        )

    def _gpu(self, node: Node, slot: Mapping[str, object]) -> XmlElement:
        chip = GPUS.get(node.endpoint.chip if node.endpoint else "")
        ids = chip.pci_ids[0] if chip is not None and chip.pci_ids else (0x10DE, 0)
        rank = self.rank[node.name]
        keys: dict[str, object] = {"dev": rank}
        if chip is not None and (gfx := gfx_of(chip)):
            keys["gcn"] = f"gfx{gfx}"
        else:
            keys["sm"] = node.endpoint.compute_capability if node.endpoint else 0
        gpu = XmlElement.of("gpu", **keys, rank=rank, gdr=1)
        for _, link in self.links[node.name]:
            if link.cls == "c2c":
                rate = round(link.rate.bytes_per_s / 1e6)
                gpu.children.append(XmlElement.of("c2c", bw=rate, count=link.count))
        self.gpus[node.name] = gpu
        keys = {**_identity(*ids), **slot}
        bus = self.bus[node.name]
        return XmlElement.of(
            "pci", gpu, busid=bus, class_=_class(PciClass.GPU), **keys
        )

    def _add_links(self, name: str, gpu: XmlElement) -> None:
        """Add the NVLinks that NCCL reads; every GPU has an address by now."""
        tag = "xgmi" if "gcn" in gpu.attributes else "nvlink"
        overrides = told_of(self.fabric.told, name)
        ends = (
            self._links_by_address(name)
            if overrides is None
            else self._links_read(overrides)
        )
        for target, count in ends.items():
            leads = (
                PciClass.GPU if target in self.bus.values() else PciClass.NVSWITCH
            )
            link = XmlElement.of(
                tag, target=target, count=count, tclass=_class(leads)
            )
            gpu.children.append(link)

    def _links_by_address(self, name: str) -> Counter[str]:
        """Return the links of a GPU by the address of their other end."""
        result: Counter[str] = Counter()
        for other, link in self.links[name]:
            if link.cls in ("nvlink", "xgmi", "trunk") and other != name:
                result[self._target(other)] += link.count
        return result

    def _links_read(self, overrides: Mapping[str, int]) -> Counter[str]:
        """Return the links that NCCL reads, by target address; all switches have one address."""
        result: Counter[str] = Counter()
        for to, count in overrides.items():
            if to == SWITCH:
                result["fffffff:ff:ff.0"] += count
            elif to in self.bus:
                result[self.bus[to]] += count
        return result

    def _target(self, name: str) -> str:
        if name in self.bus:
            return self.bus[name]
        switches = [n.name for n in self.nodes.values() if n.kind == "switch"]
        number = switches.index(name)
        return f"{_SWITCHES + (number >> 8):04x}:{number & 255:02x}:00.0"

    def _nic(self, node: Node, slot: Mapping[str, object]) -> XmlElement:
        model = ADAPTERS.get(node.model.removesuffix("-no-gdr"))
        number = self.net[node.name]
        ids = _adapter_ids(model)
        infiniband = model is None or model.kind == "ib"
        keys = {**(_UNKNOWN if ids is None else _identity(*ids)), **slot}
        cls = _class(PciClass.INFINIBAND if infiniband else PciClass.ETHERNET)
        device, _, port = self.fabric.nic_names.get(node.name, "").partition(":")
        net = XmlElement.of(
            "net",
            name=device
            or f"{_NAMES.get(model.kind if model else '', 'mlx5_')}{number}",
            dev=number,
            latency="0.000000",
            speed=round(self._speed_Gbps(node, model) * 1000),
            port=int(port or 1),
            guid=f"{number + 1:#x}",
            maxconn=131072,
            gdr=int(node.nic.gpudirect if node.nic else True),
        )
        nic = XmlElement.of("nic", net)
        return XmlElement.of(
            "pci", nic, busid=self.bus[node.name], class_=cls, **keys
        )

    def _speed_Gbps(self, node: Node, model: Nic | None) -> float:
        """Return the rate of a NIC [Gb/s]: as reported, else of its cable, else nominal."""
        if node.nic is not None and node.nic.speed_Bps:
            return node.nic.speed_Bps * 8 / 1e9
        uplink = self.uplinks.get(node.name)
        if uplink is not None:
            return round(uplink.rate.bytes_per_s * 8 / 1e9)
        return model.gbps if model is not None else 0.0


def _class(cls: PciClass) -> str:
    return f"{cls:#08x}"


def _identity(vendor: int, device: int) -> dict[str, object]:
    return {"vendor": f"{vendor:#06x}", "device": f"{device:#06x}"}


def _slot(link: Link | None, count: int) -> dict[str, object]:
    """Return speed and lanes of a PCIe link, empty and 0 for other links."""
    if link is None or link.cls != "pcie":
        return {"link_speed": "", "link_width": 0}
    rate = link.rate.bytes_per_s
    # A generation with 16 lanes and the next with 8 are nearly equal; the wider slot is more common.
    slots: Iterable[tuple[int, int]] = [
        (gen, lanes) for lanes in sorted(LANES, reverse=True) for gen in PCIE_GTS
    ]
    named = _named_slot(link.name)
    gen, lanes = named or min(
        slots, key=lambda slot: abs(lane_MBps(slot[0]) * slot[1] * 1e6 / rate - 1)
    )
    return _speed_attributes(gen, lanes * max(1, count))


def _speed_attributes(gen: int, lanes: int) -> dict[str, object]:
    """Return speed and lanes as NCCL writes them."""
    return {"link_speed": f"{PCIE_GTS[gen]:.1f} GT/s PCIe", "link_width": lanes}


def _named_slot(name: str) -> tuple[int, int] | None:
    """Return generation and lanes of a link's type (``pcie-gen4-x16-gpu``)."""
    parts = name.removeprefix("pcie-gen").split("-")
    if not name.startswith("pcie-gen") or len(parts) < 2:
        return None
    gen, lanes = parts[0], parts[1].removeprefix("x")
    is_numeric = gen.isdecimal() and lanes.isdecimal() and int(gen) in PCIE_GTS
    return (int(gen), int(lanes)) if is_numeric else None


def _cpu(node: Node | None, number: int) -> dict[str, object]:
    """Return the description of a processor."""
    processor = PROCESSORS.get(node.model if node is not None else "")
    vendor = processor.vendor if processor is not None else ""
    mask = ((1 << _THREADS) - 1) << (_THREADS * number)
    arch = _ARCHITECTURES.get(vendor, "x86_64")
    keys: dict[str, object] = {"host_hash": "0x1", "numaid": number}
    keys |= {"affinity": f"{mask:x}", "arch": arch}
    if processor is None or vendor not in _VENDORS:
        return keys
    keys["vendor"] = processor.maker.upper() if processor.maker else _VENDORS[vendor]
    return keys | _family(processor)


def _family(processor: Cpu) -> dict[str, object]:
    """Return family and model of a processor as NCCL reads them; AMD's families differ."""
    if not processor.cpuid:
        return {}
    family, model, _ = (
        processor.cpuid[-1] if processor.vendor == "intel" else processor.cpuid[0]
    )
    if processor.vendor == "amd":
        family = 15 + 16 * (family - 15)
    return {"familyid": family, "modelid": model}


def _adapter_ids(model: Nic | None) -> tuple[int, int] | None:
    """Return the PCI identity of a NIC: of its family, with the nearest rate."""
    if model is None:
        return None
    family = [item for item in ADAPTER_IDS.values() if item.family == model.family]
    ethernet = model.kind == "roce"
    best = min(
        family,
        key=lambda item: (
            item.ethernet and not ethernet,
            abs(item.gbps - model.gbps),
        ),
        default=None,
    )
    return (best.vendor, best.device) if best is not None else None
