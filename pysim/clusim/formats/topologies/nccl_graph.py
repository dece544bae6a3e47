"""Importer of NCCL's graph XML, with its rings and trees.

A graph names GPUs and NICs, the kinds of path between them (``typeintra``, ``typeinter``) and a rate per
channel. The node rebuilt from it is the smallest that carries all channels at once; every part of this
node is an assumption.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from clusim.base.limits import number, printable
from clusim.base.xmltext import XmlElement, parse_root
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.identify import (
    HIDDEN,
    PCIE_GTS,
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    Net,
    PciClass,
    switch_above,
)
from clusim.formats.topologies.wiring import wire_machine
from clusim.hardware import GPUS, Gpu, nccl_link_GBps, stand_ins
from clusim.hardware.product_names import gpu_by_words

RING = 4
"""The ``pattern`` of rings."""

_PORTS_Gbps = (10, 25, 56, 100, 200, 400, 800)
_WHY = "an NCCL graph contains rings and trees, not the hardware"


@dataclass(slots=True)
class _Channels:
    """The channels of one graph: GPUs in order, NICs at both ends."""

    gpus: list[list[int]] = field(default_factory=list)
    nets: list[list[int]] = field(default_factory=list)
    intra: str = ""
    inter: str = ""
    speed: float = 0.0
    net_speed: float = 0.0
    ring: bool = False


def read_nccl_graph(text: str, draft: Draft) -> None:
    """Fill `draft` with a node on which the graphs in the text are possible."""
    root = parse_root(text, draft.where, "graphs", "nccl-graph")
    draft.settings["description"] = "rebuilt from the channels of an NCCL graph"
    graphs = [_channels(element) for element in root.all("graph")]
    used = [graph for graph in graphs if graph.gpus]
    if not used:
        raise draft.fail(
            "an NCCL graph file without channels; cannot be rebuilt", root.line
        )
    best = next((graph for graph in used if graph.ring), used[0])
    gpus = sorted(
        {dev for graph in used for channel in graph.gpus for dev in channel}
    )
    nets = sorted(
        {dev for graph in used for channel in graph.nets for dev in channel}
    )
    if len(gpus) > 4096 or len(nets) > 4096:
        raise draft.fail("more than 4096 GPUs or NICs; that is the limit", root.line)
    draft.assume(
        "all hardware",
        f"{len(gpus)} GPUs and {len(nets)} NICs, joined so that {len(best.gpus)} channels of"
        f" {best.speed:g} GB/s fit ({best.intra or 'LOC'} inside, {best.inter or 'LOC'} to NICs)",
        f"{_WHY}; import the topology XML of the same run instead if possible",
    )
    machine = _machine(best, gpus, nets, draft)
    wire_machine(machine, draft)


def _channels(element: XmlElement) -> _Channels:
    graph = _Channels(
        intra=printable(element.get("typeintra"), 8).upper(),
        inter=printable(element.get("typeinter"), 8).upper(),
        speed=abs(number(element.get("speedintra")) or 0.0),
        net_speed=abs(number(element.get("speedinter")) or 0.0),
        ring=element.integer("pattern") == RING,
    )
    for channel in element.all("channel"):
        gpus = [_dev(child) for child in channel.all("gpu")]
        if gpus:
            graph.gpus.append(gpus)
            graph.nets.append([_dev(child) for child in channel.all("net")])
    return graph


def _dev(element: XmlElement) -> int:
    for name in ("dev", "rank"):
        value = element.integer(name)
        if value is not None and value >= 0:
            return value
    raise element.fail(f"<{element.tag}> without dev; add the number of the device")


def _machine(
    graph: _Channels, gpus: list[int], nets: list[int], draft: Draft
) -> ImportedMachine:
    machine = ImportedMachine(hint=Path(draft.where).name)
    named = gpu_by_words(Path(draft.where).name)
    hint = named[0] if named else None
    devices = {
        dev: ImportedDevice(text=f"gpu {dev}", gpu=ImportedGpu(dev=dev))
        for dev in gpus
    }
    load = max(
        (sum(dev in channel for channel in graph.gpus) for dev in gpus), default=1
    )
    total = load * graph.speed
    nvlink = graph.intra.startswith("NV")
    if nvlink:
        chip = _by_nvlinks(total)
        per_link = nccl_link_GBps(chip.compute_capability)
        if hint is None:
            machine.guess = (
                chip.name,
                f"its channels need {total:g} GB/s of NVLink",
            )
        else:
            chip = hint
        _add_nvlinks(graph, devices, chip, per_link, draft)
    else:
        gen = next((g for g in (3, 4, 5, 6) if total <= 3.03 * 2 ** (g - 1)), 6)
        if hint is None:
            machine.guess = (
                stand_ins("card")[gen].name,
                f"its channels need {total:g} GB/s: PCIe Gen{gen} x16",
            )
        else:
            gen = max(gen, hint.pcie)
        for device in devices.values():
            device.speed, device.width = f"{PCIE_GTS[gen]:g} GT/s", 16
        draft.assume(
            list(map("gpu{}".format, gpus)),
            f"PCIe Gen{gen} x16",
            f"the slowest that carries its channels, {total:g} GB/s",
        )
    _add_tree(machine, graph, devices, nets, draft)
    return machine


def _by_nvlinks(total_GBps: float) -> Gpu:
    """Return the usual chip with enough NVLinks for the channels of a GPU.

    The channels may exceed the NVLinks by a seventh, for old releases.
    """
    usual = [
        chip
        for chip in GPUS.values()
        if chip.usual and chip.form == "sxm" and chip.links
    ]
    rates = {
        chip.links * nccl_link_GBps(chip.compute_capability): chip
        for chip in reversed(usual)
    }
    enough = [rate for rate in rates if total_GBps <= rate * 8 / 7]
    return rates[min(enough, default=max(rates))]


def _add_nvlinks(
    graph: _Channels,
    devices: dict[int, ImportedDevice],
    chip: Gpu,
    per_link: float,
    draft: Draft,
) -> None:
    if chip.planes:
        for device in devices.values():
            device.join(HIDDEN, chip.links, PciClass.NVSWITCH)
        return
    width = max(1, round(graph.speed / per_link)) if per_link else 1
    hops: Counter[tuple[int, int]] = Counter()
    for channel, nets in zip(graph.gpus, graph.nets, strict=True):
        hops.update(pairwise(channel))
        if graph.ring and not nets and len(channel) > 2:
            hops[channel[-1], channel[0]] += 1
    for (a, b), count in hops.items():
        both = min(max(count, hops[b, a]) * width, 64)
        if a != b:
            devices[a].join(f"dev{b}", both)
        if a != b and (b, a) not in hops:
            devices[b].join(f"dev{a}", both)
    for dev, device in devices.items():
        device.bus = f"dev{dev}"
    draft.assume(
        "NVLinks",
        "as many between two GPUs as channels pass in one direction",
        f"channels of {graph.speed:g} GB/s, a link each",
    )


def _add_tree(
    machine: ImportedMachine,
    graph: _Channels,
    devices: dict[int, ImportedDevice],
    nets: list[int],
    draft: Draft,
) -> None:
    """Place GPUs and NICs below switches and CPUs at the distances of the path types."""
    names = list(devices)
    sockets = 2 if graph.intra in ("SYS", "NVL", "NVB") and len(names) > 1 else 1
    half = -(-len(names) // sockets)
    machine.cpus = [ImportedCpu(numa=i) for i in range(sockets)]
    per_switch = {"PIX": len(names), "PXB": 2, "NVL": 2, "NVB": 2}.get(
        graph.intra, 0
    )
    if graph.inter in ("PIX", "PXB") and nets and not per_switch:
        per_switch = 1
    by_switch: dict[int, list[ImportedDevice]] = {}
    for number_, cpu in enumerate(machine.cpus):
        group = names[number_ * half : (number_ + 1) * half]
        by_switch |= dict.fromkeys(group, cpu.devices)
        nodes = [devices[dev] for dev in group]
        if per_switch:
            nodes = [
                switch_above(nodes[at : at + per_switch])
                for at in range(0, len(nodes), per_switch)
            ]
        cpu.devices += [switch_above(nodes)] if graph.intra == "PXB" else nodes
        if per_switch and graph.inter in ("PIX", "PXB"):
            by_switch |= {
                dev: nodes[at // per_switch].children for at, dev in enumerate(group)
            }
    for net in nets:
        used = [
            channel
            for channel, ends in zip(graph.gpus, graph.nets, strict=True)
            if net in ends
        ]
        switch = used[0][0] if used else names[0]
        speed = graph.net_speed * len(used)
        gbps = next((port for port in _PORTS_Gbps if port >= speed * 8 * 0.95), 800)
        ports = [Net(dev=net, speed_mbps=gbps * 1000)]
        device = ImportedDevice(
            text=f"net {net}", cls=PciClass.INFINIBAND, nets=ports
        )
        by_switch[switch].append(device)
        draft.assume(
            f"nic{net}",
            f"{gbps} Gb/s InfiniBand, next to gpu{switch}",
            f"its channels need {speed:g} GB/s, and start at that GPU ({graph.inter or 'LOC'})",
        )
    draft.assume(
        "PCIe switches and CPUs",
        f"{sockets} CPUs"
        + (f", {per_switch} GPUs a switch" if per_switch else ", no switches"),
        f"the paths are of type {graph.intra or 'LOC'} and {graph.inter or 'LOC'}",
    )
