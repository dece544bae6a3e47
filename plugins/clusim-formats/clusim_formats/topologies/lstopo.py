"""Importer of hwloc's XML (``lstopo box.xml``): CPUs, PCIe tree, GPUs, NICs, NVLinks.

hwloc lists every PCIe bridge: the root ports of a CPU, and the upstream and downstream ports of a
switch. NCCL and clusim's topology files have switches instead: an upstream port and all devices below
its downstream ports. Link speeds are in GB/s of all lanes together, measured when the file was written.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from clusim.base.limits import number, parse_integer, printable
from clusim.base.xmltext import XmlElement, parse_root
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.identify import (
    ACCELERATORS,
    PCIE_GTS,
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    Net,
    PciClass,
    bus_id,
)
from clusim.formats.topologies.wiring import wire_machine
from clusim.hardware.identity import named_gpu

_DOCTYPE = re.compile(
    r"\A(\ufeff?\s*(?:<\?xml[^>]{0,200}\?>\s*)?)<!DOCTYPE\s+topology\s+SYSTEM\s+\"hwloc2?\.dtd\"\s*>"
)
_TYPE = re.compile(
    r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\](?: \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\])?.*"
)
_GPU_NAME = re.compile(r"(cuda|nvml|rsmi|ze)([0-9]{1,3})")
_PORT = re.compile(r"Port([0-9]{1,2})State")
_ACTIVE: Final = 4
_LANES: Final = (16, 8, 4, 2, 1)
_LINK_MBps: Final = {"nvlink1": 20_000, "nvlink5": 50_000, "nvlink6": 50_000}
"""Bandwidth that hwloc assumes for a link, by type [MB/s]; 25,000 for others."""


def read_lstopo(text: str, draft: Draft) -> None:
    """Fill `draft` from the text."""
    text = _DOCTYPE.sub(
        lambda match: match[1] + "\n" * match[0][len(match[1]) :].count("\n"), text
    )
    root = parse_root(text, draft.where, "topology", "hwloc")
    draft.settings["description"] = "imported from hwloc's XML (lstopo)"
    host = _Host(root, draft)
    wire_machine(host.read(), draft)


class _Host:
    """The node of a file."""

    def __init__(self, root: XmlElement, draft: Draft) -> None:
        self.root, self.draft = root, draft
        newer = root.get("version").partition(".")[0]
        self.openfabrics = 32 if newer.isdecimal() and int(newer[:4]) >= 3 else 3
        self.machine = ImportedMachine(hint=Path(draft.where).name)
        self.cpus: dict[int, ImportedCpu] = {}
        self.arch = next(
            (v for e in root.walk() for k, v in _infos(e) if k == "Architecture"), ""
        )
        self.by_index: dict[str, ImportedDevice] = {}
        self.shared: Counter[str] = Counter()

    def read(self) -> ImportedMachine:
        """Return the node."""
        top = [
            e
            for e in self.root.all("object")
            if e.get("type") in ("Machine", "System")
        ]
        if not top:
            raise self.draft.fail("no object of type Machine", self.root.line)
        for machine in top:
            packages = [
                e for e in machine.walk() if e.get("type") in ("Package", "Socket")
            ]
            self._walk(machine, packages[0] if packages else None, [0])
        for text, count in self.shared.items():
            self.draft.assume(
                text, "at the first of its NUMA nodes", f"the file has it at {count}"
            )
        if not any(
            device.gpu for cpu in self.cpus.values() for device in cpu.walk()
        ):
            raise self.draft.fail(
                "no GPU among its PCI devices; run lstopo where they are seen, with I/O"
            )
        self._nvlinks()
        self._ports()
        self.machine.cpus = [self.cpus[numa] for numa in sorted(self.cpus)]
        return self.machine

    def _walk(
        self, element: XmlElement, package: XmlElement | None, path: list[int]
    ) -> None:
        """Note the NUMA nodes and root complexes below an object."""
        if element.get("type") in ("Package", "Socket"):
            package = element
        inside = _numas(element)
        for numa in inside:
            self._cpu(numa, package)
        path = inside or path
        for child in element.all("object"):
            if child.get("type") == "Bridge" and child.get("bridge_type").startswith(
                "0"
            ):
                if len(path) > 1:
                    self.shared[
                        f"root complex {printable(child.get('bridge_pci'), 20)}"
                    ] = len(path)
                self._cpu(path[0], package).devices += self._below_port(child)
            elif child.get("type") == "PCIDev":
                self._cpu(path[0], package).devices.append(self._device(child))
            elif child.get("type") not in ("Misc", "OSDev"):
                self._walk(child, package, path)

    def _cpu(self, numa: int, package: XmlElement | None) -> ImportedCpu:
        """Return the CPU of a NUMA node."""
        if numa not in self.cpus or not self.cpus[numa].vendor:
            infos = dict(_infos(package)) if package is not None else {}
            family, model = infos.get("CPUFamilyNumber"), infos.get("CPUModelNumber")
            arm = infos.get("CPUPart")
            result = ImportedCpu(
                numa=numa,
                arch=self.arch or ("arm64" if arm else "x86_64"),
                vendor=infos.get("CPUVendor", "arm" if arm else ""),
                family=parse_integer(family),
                model=parse_integer(model) if arm is None else parse_integer(arm),
                line=package.line if package is not None else 0,
            )
            result.devices = self.cpus[numa].devices if numa in self.cpus else []
            self.cpus[numa] = result
        return self.cpus[numa]

    # The PCIe tree.

    def _below_port(self, port: XmlElement) -> list[ImportedDevice]:
        """Return the devices below a root complex, a root port, or a downstream port of a switch."""
        result: list[ImportedDevice] = []
        top = port.get("bridge_type").startswith("0")
        for child in port.all("object"):
            if child.get("type") == "PCIDev":
                result.append(self._device(child))
            elif child.get("type") == "Bridge" and top:
                result += self._below_port(child)
            elif child.get("type") == "Bridge":
                switch = self._switch(child)
                result += (
                    [switch]
                    if any(_counts(device) for device in switch.walk())
                    else []
                )
        return result

    def _switch(self, up: XmlElement) -> ImportedDevice:
        """Return the switch of an upstream port, with the devices below its downstream ports."""
        switch = self._pci(up)
        for child in up.all("object"):
            if child.get("type") == "Bridge":
                switch.children += self._below_port(child)
            elif child.get("type") == "PCIDev":
                switch.children.append(self._device(child))
        return switch

    def _pci(self, element: XmlElement) -> ImportedDevice:
        """Return a PCI device with its identity and link."""
        text = element.get("pci_busid")
        pci_type = _TYPE.fullmatch(element.get("pci_type"))
        ids = (
            [int(word, 16) if word else None for word in pci_type.groups()]
            if pci_type
            else [None] * 5
        )
        speed, width = _link(element.get("pci_link_speed"))
        return ImportedDevice(
            bus=bus_id(text),
            text=printable(text, 20),
            cls=None if ids[0] is None else ids[0] << 8,
            vendor=ids[1],
            device=ids[2],
            subvendor=ids[3],
            subdevice=ids[4],
            speed=speed,
            width=width,
            line=element.line,
        )

    def _device(self, element: XmlElement) -> ImportedDevice:
        """Return a GPU, a NIC, or another device."""
        result = self._pci(element)
        inside = element.all("object")
        for item in (element, *inside):
            self.by_index[item.get("gp_index")] = result
        if result.is_class(0x03, 0x12) and result.vendor in ACCELERATORS:
            self._gpu(result, inside)
        elif result.is_class(0x02):
            result.nets = [net for item in inside for net in self._net(item)]
        elif not result.is_class(0x06):
            result.ignored = "no part of the fabric"
        if result.is_class(0x06) or element.get("subtype") == "NVSwitch":
            result.ignored = (
                "no part of the PCIe tree"  # NVSwitches are found by their links
            )
        return result

    def _gpu(self, device: ImportedDevice, inside: list[XmlElement]) -> None:
        names = [
            m for item in inside if (m := _GPU_NAME.fullmatch(item.get("name")))
        ]
        first = next(
            (m for m in names if m[1] == "nvml"), names[0] if names else None
        )
        device.gpu = ImportedGpu(
            dev=int(first[2]) if first else None, line=device.line
        )
        models = [v for item in inside for k, v in _infos(item) if k == "GPUModel"]
        device.gpu.product = models[0] if models else ""
        chip = named_gpu(device.identity)
        if (
            device.speed in ("2.5 GT/s", "5 GT/s")
            and chip is not None
            and chip.pcie > 2
        ):
            self.draft.assume(
                device.text,
                f"its link runs at generation {chip.pcie}",
                f"the file has {device.speed}, as of a GPU at rest",
            )
            device.speed = f"{PCIE_GTS[chip.pcie]:g} GT/s"

    def _net(self, element: XmlElement) -> list[Net]:
        """Return the active ports of an RDMA device; other names of a NIC are the kernel's."""
        kind = parse_integer(element.get("osdev_type"))
        if element.get("type") != "OSDev" or kind is None:
            return []
        if kind != self.openfabrics and not (self.openfabrics == 32 and kind & 32):
            return []
        name = printable(element.get("name"), 40)
        infos = dict(_infos(element))
        states = {
            m[1]: v for k, v in infos.items() if (m := _PORT.fullmatch(k))
        } or {"1": "4"}
        up = [
            port for port, state in states.items() if parse_integer(state) == _ACTIVE
        ]
        for port in states.keys() - set(up):
            self.draft.assume(f"{name} port {port}", "ignored", "it is not active")
        guid = infos.get("NodeGUID", "")
        return [
            Net(
                f"{name}:{p}" if len(states) > 1 else name,
                guid=guid,
                line=element.line,
            )
            for p in up
        ]

    def _ports(self) -> None:
        """Drop NICs that NCCL would not use: those without RDMA, if others have it."""
        adapters = [
            d for cpu in self.cpus.values() for d in cpu.walk() if d.is_class(0x02)
        ]
        if any(device.nets for device in adapters):
            for device in adapters:
                if not device.nets:
                    device.ignored = "no RDMA"
                    device.cls = None

    # NVLinks.

    def _nvlinks(self) -> None:
        """Read the matrix of NVLinks; without a matrix the chip's usual links are assumed."""
        tables = (e for e in self.root.children if e.tag.startswith("distances2"))
        matrix = next(
            (e for e in tables if e.get("name") == "NVLinkBandwidth"), None
        )
        if matrix is None:
            return
        names = " ".join(item.text for item in matrix.all("indexes")).split()
        values = [
            number(w) for item in matrix.all("u64values") for w in item.text.split()
        ]
        if len(values) != len(names) ** 2 or None in values:
            raise self.draft.fail(
                f"NVLinkBandwidth: {len(values)} values of {len(names)} objects",
                matrix.line,
            )
        objects = [self.by_index.get(name.rpartition(":")[2]) for name in names]
        remaining = 0
        for at, device in enumerate(objects):
            if device is None or device.gpu is None:
                continue
            for to, other in enumerate(objects):
                rate = values[at * len(names) + to] or 0
                if to == at or rate <= 0:
                    continue
                if other is None:
                    remaining += 1
                    continue
                self._add_links(device, other, rate)
        if remaining:
            self.draft.assume(
                "NVLinks of GPUs to CPUs", "ignored", "no figures of such links"
            )

    def _add_links(
        self, device: ImportedDevice, other: ImportedDevice, rate: float
    ) -> None:
        """Add the links from a GPU to another device, by their combined bandwidth [MB/s]."""
        chip = named_gpu(device.identity)
        link_MBps = _LINK_MBps.get(chip.link, 25_000) if chip is not None else 25_000
        count = max(1, round(rate / link_MBps))
        kind = PciClass.GPU if other.gpu is not None else PciClass.NVSWITCH
        device.join(other.bus, min(count, 1024), kind, text=other.text)


def _counts(device: ImportedDevice) -> bool:
    """Return True if a device is a GPU or a NIC."""
    return device.gpu is not None or device.is_class(0x02)


def _infos(element: XmlElement) -> list[tuple[str, str]]:
    return [(item.get("name"), item.get("value")) for item in element.all("info")]


def _numas(element: XmlElement) -> list[int]:
    """Return the NUMA nodes of an object with CPUs, one per set of CPUs."""
    result: dict[str, int] = {}
    for item in element.walk():
        index = parse_integer(item.get("os_index"))
        cpus = item.get("cpuset") or str(index)
        if (
            item.get("type") != "NUMANode"
            or index is None
            or item.get("subtype") == "GPUMemory"
        ):
            continue
        if set(cpus) - set("0x,"):
            result.setdefault(cpus, index)
    return list(result.values())


def _link(text: str) -> tuple[str | None, int | None]:
    """Return the signalling rate and lanes of a link by its GB/s; the widest if several fit."""
    rate = number(text)
    if rate is None or rate <= 0:
        return None, None
    for lanes in _LANES:
        for gts in PCIE_GTS.values():
            coded = 0.8 if gts < 8 else 242 / 256 if gts > 32 else 128 / 130
            if abs(gts * coded * lanes / 8 - rate) < 0.005 * rate:
                return f"{gts:g} GT/s", lanes
    return None, None
