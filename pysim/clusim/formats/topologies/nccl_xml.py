"""NCCL's and RCCL's topology XML: dumps of a run, vendors' files, and mapping-group files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from clusim.base.limits import natural, printable
from clusim.base.xmltext import XmlElement, parse_root
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.identify import (
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    Net,
    PciClass,
    Peer,
    bus_id,
)
from clusim.formats.topologies.remarks import read_remarks
from clusim.formats.topologies.wiring import wire_machine

MAX_COUNT = 1024
MAX_HEAD = 20_000
"""Number of characters of a file in which comments are searched for the node's name."""

_GROUP_TITLE = "a file of mapping groups, a node each"


def read_nccl(text: str, draft: Draft) -> None:
    """Fill `draft` from a topology XML."""
    root = parse_root(text, draft.where, "system", "nccl-xml")
    draft.settings["description"] = "imported from NCCL topology XML"
    draft.remarks = read_remarks(text, draft.fail)
    wire_machine(_system(root, draft, text), draft)


def _system(root: XmlElement, draft: Draft, text: str) -> ImportedMachine:
    """Return the node of a ``<system>`` element, or of one of its groups."""
    comments = " ".join(
        re.findall(r"<!--(.{0,2000}?)-->", text[:MAX_HEAD], re.DOTALL)[:8]
    )
    machine = ImportedMachine(hint=f"{Path(draft.where).name} {comments}")
    top = root
    groups = root.all("group")
    if groups:
        top = _pick(groups, draft, draft.group)
        machine.hint = f"{top.get('name')} {machine.hint}"
    elif draft.group is not None:
        raise draft.fail("the file does not have groups; omit the group", root.line)
    for element in top.all("cpu"):
        machine.cpus.append(_cpu(element, draft))
    loose = [_device(element, draft) for element in top.all("pci")]
    if loose:
        draft.assume(
            "devices outside of any <cpu>",
            "they belong to a separate CPU",
            "it is not named",
        )
        machine.cpus.append(ImportedCpu(devices=loose, line=top.line))
    if groups:
        _apply_group(top, machine, draft)
    if not machine.cpus:
        raise draft.fail(
            "no <cpu> and no <pci> in <system>; is it a topology of NCCL?", root.line
        )
    return machine


def _cpu(element: XmlElement, draft: Draft) -> ImportedCpu:
    cpu = ImportedCpu(
        numa=element.integer("numaid"),
        arch=element.get("arch"),
        vendor=element.get("vendor"),
        family=element.integer("familyid"),
        model=element.integer("modelid"),
        host=element.get("host_hash"),
        line=element.line,
    )
    for child in element.children:
        if child.tag == "pci":
            cpu.devices.append(_device(child, draft))
        elif child.tag == "nic":
            cpu.nets += _nets(child)
        elif child.tag == "gpu":
            # Some hand-written files omit the enclosing PCI device.
            device = ImportedDevice(
                text=f"gpu {child.get('dev')}", line=child.line, gpu=_gpu(child)
            )
            cpu.devices.append(device)
    return cpu


def _device(element: XmlElement, draft: Draft) -> ImportedDevice:
    text = element.get("busid")
    device = ImportedDevice(
        bus=bus_id(text) if text else "",
        text=printable(text, 20),
        cls=element.bits("class"),
        vendor=element.bits("vendor"),
        device=element.bits("device"),
        subvendor=element.bits("subsystem_vendor"),
        subdevice=element.bits("subsystem_device"),
        **_slot(element),
        told_speed=element.get("told_speed"),
        told_width=element.integer("told_width"),
        line=element.line,
    )
    for child in element.children:
        if child.tag == "pci":
            device.children.append(_device(child, draft))
        elif child.tag == "gpu":
            _add_gpu(device, child)
        elif child.tag == "nic":
            _add_nics(device, child)
        elif child.tag == "slot":
            device.children.append(
                ImportedDevice(text=f"slot {child.get('id')}", line=child.line)
            )
    return device


def _slot(element: XmlElement) -> dict[str, Any]:
    """Return the speed and the lanes of a device's PCIe link."""
    return {
        "speed": element.attributes.get("link_speed"),
        "width": element.integer("link_width"),
    }


def _add_gpu(device: ImportedDevice, element: XmlElement) -> None:
    gpu = _gpu(element)
    if device.cls is None and not device.text:
        # A mapping group: several GPUs and NICs below one nameless switch.
        text = f"gpu {element.get('dev')}"
        device.children.append(
            ImportedDevice(text=text, gpu=gpu, line=element.line, **_slot(element))
        )
    elif device.gpu is None:
        device.gpu = gpu
    else:
        device.children.append(
            ImportedDevice(
                text=device.text, cls=device.cls, gpu=gpu, line=element.line
            )
        )


def _add_nics(device: ImportedDevice, element: XmlElement) -> None:
    nets = _nets(element)
    if not nets and element.get("id"):
        name = printable(element.get("id"), 40)
        nets = [Net(name, speed_mbps=element.integer("speed"), line=element.line)]
        device.children.append(
            ImportedDevice(text=name, nets=nets, line=element.line, **_slot(element))
        )
    elif device.cls is None and not device.text:
        device.children.append(
            ImportedDevice(text="nic", nets=nets, line=element.line)
        )
    else:
        device.nets += nets


def _flag(element: XmlElement, name: str) -> bool | None:
    value = element.integer(name)
    return None if value is None else bool(value)


def _gpu(element: XmlElement) -> ImportedGpu:
    gpu = ImportedGpu(
        dev=element.integer("dev"),
        rank=element.integer("rank"),
        sm=element.integer("sm"),
        gcn=element.get("gcn"),
        gdr=_flag(element, "gdr"),
        line=element.line,
    )
    gpu.peers = _peers(element)
    for child in element.all("told"):
        gpu.told = _peers(child)
    for child in element.all("c2c"):
        gpu.c2c_MBps += (child.integer("bw") or 0) * (child.integer("count") or 1)
    gpu.stated = gpu.sm is not None or bool(gpu.gcn) or bool(gpu.peers)
    return gpu


def _peers(element: XmlElement) -> list[Peer]:
    """Return the links to other GPUs and to switches that an element lists."""
    result: list[Peer] = []
    for child in element.all("nvlink", "xgmi"):
        count = child.integer("count")
        count = 1 if count is None else count
        if not 0 <= count <= MAX_COUNT:
            raise child.fail(
                f"count={count} of <{child.tag}>: must be 0 to {MAX_COUNT} links"
            )
        if count:
            target = child.get("target")
            peer = Peer(
                bus_id(target),
                count,
                child.bits("tclass"),
                child.tag == "xgmi",
                child.line,
            )
            peer.text = printable(target, 20)
            result.append(peer)
    return result


def _nets(element: XmlElement) -> list[Net]:
    result: list[Net] = []
    for child in element.all("net"):
        net = Net(
            name=printable(child.get("name"), 40),
            dev=child.integer("dev"),
            speed_mbps=child.integer("speed"),
            gdr=_flag(child, "gdr"),
            guid=child.get("guid"),
            port=child.integer("port"),
            collective=bool(child.integer("coll")),
            line=child.line,
        )
        same = next(
            (other for other in result if other.name == net.name and net.name), None
        )
        if same is not None and same.collective != net.collective:
            same.collective = True  # listed again for in-network reductions
        else:
            result.append(net)
    return result


def _pick(
    groups: list[XmlElement], draft: Draft, requested: str | None
) -> XmlElement:
    names = [element.get("name") for element in groups]
    listing = ", ".join(
        f"{i}: {printable(name, 80)}" for i, name in enumerate(names)
    )
    if requested is None:
        draft.assume(
            f"{len(groups)} groups",
            f"group 0 was taken: {printable(names[0], 120)}",
            f"{_GROUP_TITLE}; --group 0 to {len(groups) - 1} or a name chooses",
            settles="`clusim topo import --group NAME`",
        )
        return groups[0]
    if requested.isdecimal() and int(requested[:6]) < len(groups):
        return groups[int(requested[:6])]
    for element in groups:
        if requested in element.get("name").split("|"):
            return element
    raise draft.fail(f"no group {printable(requested)!r}; there are {listing}")


_GROUP_NAME = re.compile(
    r"(?P<gpu>[a-z][0-9a-z]+)_(?P<gpus>[0-9]{1,3})_(?P<arch>x86_64|[a-z0-9]+)_"
    r"(?:(?P<vendor>[A-Za-z]+)_)?(?P<prefix>[a-z][a-z0-9]*)_(?P<nics>[0-9]{1,3})_"
    r"(?P<net>[A-Za-z]+)_(?P<rates>[0-9-]+)_.*"
)


def _apply_group(
    element: XmlElement, machine: ImportedMachine, draft: Draft
) -> None:
    """Read the name of a group: GPU and CPU models, and the rate of each NIC."""
    for cpu in machine.cpus:
        for device in list(cpu.walk()):
            _fill_slots(device, draft)
    match = _GROUP_NAME.fullmatch(element.get("name").partition("|")[0])
    if match is None:
        return
    rates = [int(rate[:9]) for rate in match["rates"].split("-") if rate]
    placed: set[int] = set()
    for cpu in machine.cpus:
        cpu.arch, cpu.vendor = match["arch"], match["vendor"] or ""
        for device in cpu.walk():
            if device.gpu is not None:
                device.gpu.gcn = match["gpu"]
            for net in device.nets:
                index = net.name.rpartition("_")[2]
                if index.isdecimal() and int(index[:6]) < len(rates):
                    placed.add(int(index[:6]))
                    if net.speed_mbps is None:
                        net.speed_mbps = rates[int(index[:6])] * 1000
                infiniband = match["net"].lower() == "infiniband"
                device.cls = PciClass.INFINIBAND if infiniband else PciClass.ETHERNET
    named = [net.name for device in machine.walk() for net in device.nets]
    if any(not name for name in named):
        return
    missing = [
        f"{match['prefix']}_{i}" for i in range(len(rates)) if i not in placed
    ]
    if missing:
        draft.assume(
            sorted(missing, key=natural),
            "ignored",
            "the group's name counts it, but its position is not in the group",
        )


def _fill_slots(device: ImportedDevice, draft: Draft) -> None:
    """Assign the slots of each switch: the first half are GPUs, the others NICs (assumed)."""
    slots = [child for child in device.children if child.text.startswith("slot ")]
    for number, slot in enumerate(slots):
        if number < (len(slots) + 1) // 2:
            slot.gpu = ImportedGpu(stated=False, line=slot.line)
        else:
            slot.nets = [Net(line=slot.line)]
    if slots:
        draft.assume(
            [slot.text for slot in slots],
            "of the slots of a switch, the first half are GPUs and the others NICs",
            "only slot numbers in the file",
        )
