"""Topology files of SimAI's and HPCC's ns-3: counts, switch ids, and one line per link.

SimAI: ``nodes gpus_per_server nvswitches switches links gpu_type``, with GPUs first, then NVSwitches,
then network switches. A link from a GPU to a network switch implies a NIC, which becomes a separate
graph node here. HPCC and ASTRA-sim's ns-3: ``nodes switches links``, hosts and switches.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from clusim.base.errors import UnitError
from clusim.base.limits import number, printable
from clusim.base.units import parse_rate, parse_time
from clusim.formats.topologies.common import MAX_NODES, Draft
from clusim.formats.topologies.identify import (
    ImportedDevice,
    Net,
    PciClass,
    processor,
)
from clusim.formats.topologies.presets import (
    adapter_of,
    add_memory,
    check_rate,
    given_chip,
    gpu_pcie,
    known_chip,
    network_link,
    pcie_type,
    product_chip,
    unnamed_chip,
)
from clusim.hardware import gpu
from clusim.topology.node import NETWORK

_ETHERNET = ImportedDevice(cls=PciClass.ETHERNET)
HOST, _ = processor("", "", None, None)


@dataclass(frozen=True, slots=True)
class _Row:
    a: int
    b: int
    rate: str
    latency: str
    error: float
    line: int


@dataclass(slots=True)
class _File:
    nodes: int
    per_server: int
    nvswitches: list[int]
    switches: list[int]
    rows: list[_Row]
    chip: str
    hosts: bool


def read_simai(text: str, draft: Draft) -> None:
    """Fill `draft` from the text."""
    file = _parse(text, draft)
    names, zones = _name_nodes(file, draft)
    if file.hosts:
        draft.settings["description"] = "imported from an ns-3 topology file"
        for row in file.rows:
            draft.link(names[row.a], names[row.b], **_keys(row, "ethernet400"))
        draft.assume(
            "packets", "as on Ethernet: 64 B around 4096 B", "not in the file"
        )
        return
    draft.settings["description"] = "imported from a SimAI topology file"
    _Servers(file, draft, names, zones).run()


def _parse(text: str, draft: Draft) -> _File:
    lines = [
        (i, line.split())
        for i, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if not lines:
        raise draft.fail("empty; the first line has the counts of nodes and links")
    number_, head = lines[0]
    hosts = len(head) == 3
    counts = [int(word) for word in head[:5] if word.isdecimal() and len(word) < 8]
    if len(counts) != (3 if hosts else 5) or len(head) not in (3, 5, 6):
        raise draft.fail(
            "must be: nodes gpus_per_server nvswitches switches links gpu_type, or nodes switches links",
            number_,
        )
    if hosts:
        nodes, switches, links = counts
        per_server, nvswitches = 0, 0
    else:
        nodes, per_server, nvswitches, switches, links = counts
    if not 1 <= nodes <= MAX_NODES:
        raise draft.fail(f"{nodes} nodes; must be 1 to {MAX_NODES}", number_)
    ids: list[int] = []
    rest = lines[1:]
    while rest and len(ids) < nvswitches + switches:
        number_, words = rest.pop(0)
        ids += [_id(word, nodes, draft, number_) for word in words]
    if len(ids) != nvswitches + switches or len(set(ids)) != len(ids):
        raise draft.fail(
            f"must list {nvswitches + switches} switches; lists {len(ids)}", number_
        )
    rows = [_row(words, nodes, draft, i) for i, words in rest]
    if len(rows) != links:
        draft.assume(
            "links",
            f"{len(rows)}, the number of listed links",
            f"{links} in the first line",
        )
    kind = head[5] if len(head) == 6 else ""
    return _File(
        nodes, per_server, ids[:nvswitches], ids[nvswitches:], rows, kind, hosts
    )


def _id(word: str, nodes: int, draft: Draft, line: int) -> int:
    if not word.isdecimal() or len(word) > 7 or int(word) >= nodes:
        raise draft.fail(
            f"unknown node {printable(word)!r}; choose 0 to {nodes - 1}", line
        )
    return int(word)


def _row(words: list[str], nodes: int, draft: Draft, line: int) -> _Row:
    if len(words) < 4:
        raise draft.fail(
            "a link must have: source, destination, rate, latency, error", line
        )
    a, b = (_id(word, nodes, draft, line) for word in words[:2])
    if a == b:
        raise draft.fail(f"links {a} to itself", line)
    error = number(words[4]) if len(words) > 4 else 0.0
    if error is None or not 0 <= error < 1:
        raise draft.fail(f"error rate {printable(words[4])!r}: must be 0 to 1", line)
    try:
        check_rate(words[2])
        latency = words[3] if parse_time(words[3]) >= 1 else "1ps"
    except UnitError as problem:
        raise draft.fail(str(problem), line) from None
    return _Row(a, b, words[2], latency, error, line)


def _keys(row: _Row, kind: str) -> dict[str, Any]:
    keys: dict[str, Any] = {"type": kind, "rate": row.rate, "latency": row.latency}
    if row.error:
        keys["error_rate"] = row.error
    return keys


def _name_nodes(file: _File, draft: Draft) -> tuple[list[str], list[int]]:
    """Add GPUs (or hosts) and switches; return the name and the node of every id."""
    names, zones = [""] * file.nodes, [NETWORK] * file.nodes
    nvswitches, switches = set(file.nvswitches), set(file.switches)
    ends = [
        i for i in range(file.nodes) if i not in nvswitches and i not in switches
    ]
    if file.hosts:
        for number_, i in enumerate(ends):
            names[i] = draft.node(f"host{number_}", "host")
        for number_, i in enumerate(file.switches):
            names[i] = draft.node(f"switch{number_}", "switch", switch="ethernet")
        return names, zones
    name = given_chip(draft)
    if not name and re.search(r"[0-9]", file.chip):
        name = product_chip(draft, file.chip)
    if not name:
        name = unnamed_chip()
        draft.assume(
            "all GPUs",
            f"chip {name}",
            f"{printable(file.chip) or 'no GPU'} in the file",
        )
    preset = known_chip(draft, name, "all GPUs")
    per = file.per_server or len(ends)
    is_split = len(ends) > per
    for number_, i in enumerate(ends):
        zones[i] = number_ // per
        prefix = f"n{zones[i]}/" if is_split else ""
        name = f"{prefix}gpu{number_ % per}"
        names[i] = draft.node(name, "gpu", chip=preset, zone=zones[i])
    return names, zones


class _Servers:
    """SimAI's nodes: NVSwitches inside, and a NIC for every link of a GPU into the network."""

    def __init__(
        self, file: _File, draft: Draft, names: list[str], zones: list[int]
    ) -> None:
        self.file = file
        self.draft = draft
        self.names = names
        self.zones = zones
        self.nvlink = set(file.nvswitches)
        self.network = set(file.switches)
        self.gpus = [
            i for i in range(file.nodes) if i not in self.nvlink | self.network
        ]
        self.nics: Counter[str] = Counter()
        self.slots: dict[int, str] = {}
        first = str(next(iter(draft.nodes.values()))["chip"])
        self.chip = gpu(first)

    def run(self) -> None:
        self._place_nvswitches()
        self._tier_switches()
        self._add_hosts()
        for row in self.file.rows:
            ends = {row.a, row.b}
            gpus = ends - self.nvlink - self.network
            if ends & self.network and gpus:
                self._add_adapter(row, gpus.pop())
                continue
            inside = len(gpus) == 2 or (ends & self.nvlink and gpus)
            kind = (
                self.chip.link or "nvlink4"
                if inside
                else network_link("roce", row.rate)
            )
            self.draft.link(self.names[row.a], self.names[row.b], **_keys(row, kind))

    def _place_nvswitches(self) -> None:
        homes: dict[int, int] = {}
        for row in self.file.rows:
            for i, other in ((row.a, row.b), (row.b, row.a)):
                if (
                    i in self.nvlink
                    and other not in self.nvlink
                    and other not in self.network
                ):
                    homes.setdefault(i, self.zones[other])
        several_nodes = max(self.zones, default=0) > 0
        counts: Counter[int] = Counter()
        switch = self.chip.switch or "nvswitch3"
        for i in self.file.nvswitches:
            zone = self.zones[i] = homes.get(i, 0)
            name = (
                f"n{zone}/nvswitch{counts[zone]}"
                if several_nodes
                else f"nvswitch{counts[zone]}"
            )
            counts[zone] += 1
            self.names[i] = self.draft.node(name, "switch", switch=switch, zone=zone)
        if self.file.nvswitches:
            self.draft.assume(
                "NVSwitches",
                "one fat link per GPU, of the rate in the file",
                "SimAI joins the links of a GPU into one",
            )

    def _tier_switches(self) -> None:
        """Name switches by their distance from the GPUs: leaf, spine, core."""
        level: dict[int, int] = {}
        border = set(self.gpus)
        neighbours: dict[int, set[int]] = {}
        for row in self.file.rows:
            neighbours.setdefault(row.a, set()).add(row.b)
            neighbours.setdefault(row.b, set()).add(row.a)
        for depth in range(1, 8):
            border = {
                o for i in border for o in neighbours.get(i, ()) if o in self.network
            } - set(level)
            level.update(dict.fromkeys(border, depth))
        tiers = {1: "leaf", 2: "spine", 3: "core"}
        counts: Counter[str] = Counter()
        for i in self.file.switches:
            tier = tiers.get(level.get(i, 3), "core")
            keys: dict[str, Any] = {
                "switch": "ethernet",
                "tier": tier,
                "zone": NETWORK,
            }
            self.names[i] = self.draft.node(
                f"{tier}{counts[tier]}", "switch", **keys
            )
            counts[tier] += 1
        if self.file.switches:
            self.draft.assume(
                "network switches",
                "type ethernet",
                "no latency or radix of switches in the file",
            )

    def _add_adapter(self, row: _Row, gpu: int) -> None:
        """Add a NIC between a GPU and its network switch."""
        other = row.b if gpu == row.a else row.a
        gbps = parse_rate(row.rate).bytes_per_s * 8e-9
        adapter = adapter_of(
            Net(speed_mbps=max(1, round(gbps * 1000))), _ETHERNET, self.chip.pcie
        )
        prefix = self.names[gpu].rpartition("gpu")[0]
        name = f"{prefix}nic{self.nics[prefix]}"
        self.nics[prefix] += 1
        self.draft.node(name, "nic", nic=adapter.name, zone=self.zones[gpu])
        self.draft.link(name, self.slots[gpu], type=pcie_type(self.chip.pcie, 16))
        self.draft.link(
            name, self.names[other], **_keys(row, network_link("roce", row.rate))
        )
        self.draft.assume(
            "adapters",
            f"{adapter.name} next to its GPU, PCIe Gen{self.chip.pcie} x16",
            "SimAI's links of GPUs to network switches have the NIC inside",
        )

    def _add_hosts(self) -> None:
        """Add parts of a node that the file omits: a CPU with memory, and a PCIe switch per GPU."""
        if not self.network:
            return
        slot = pcie_type(self.chip.pcie, 16)
        for i in self.gpus:
            zone = self.zones[i]
            prefix, _, name = self.names[i].rpartition("gpu")
            cpu = f"{prefix}cpu0"
            if cpu not in self.draft.nodes:
                self.draft.node(cpu, "switch", switch=HOST.name, zone=zone)
                add_memory(self.draft, cpu, HOST, zone=zone)
            switch = f"{prefix}pcie{name}"
            self.draft.node(switch, "switch", switch="pcie-switch", zone=zone)
            self.slots[i] = switch
            self.draft.link(self.names[i], switch, type=gpu_pcie(slot))
            self.draft.link(switch, cpu, type=slot)
        self.draft.assume(
            "CPUs and PCIe",
            f"a CPU for each node, a PCIe Gen{self.chip.pcie} switch for each GPU and its NICs",
            "not in SimAI's files",
        )
