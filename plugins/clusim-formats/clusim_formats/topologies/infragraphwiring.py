"""Hardware of an InfraGraph file: components as graph nodes, edges as links."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from clusim.base.limits import printable
from clusim.base.units import parse_rate, parse_time
from clusim.formats.topologies.common import CHIP_OPTION, Draft, set_usage
from clusim.formats.topologies.identify import (
    PCIE_GTS,
    ImportedDevice,
    Net,
    PciClass,
    processor,
)
from clusim.formats.topologies.presets import (
    USUAL_MEMORY,
    Adapter,
    adapter_of,
    add_memory,
    direct_keys,
    given_chip,
    gpu_pcie,
    known_chip,
    network_link,
    nvlink_keys,
    pcie_type,
    product_chip,
    set_network,
    unnamed_chip,
)
from clusim.hardware import (
    ADAPTERS,
    CROSSBARS,
    GPUS,
    LINKS,
    MEMORY,
    PROCESSORS,
    USUAL_SWITCHES,
    Cpu,
    Gpu,
)
from clusim.hardware.pcie import x16_rate
from clusim.hardware.product_names import gpu_by_words
from clusim.topology.model import Fabric
from clusim.topology.node import NETWORK
from clusim_formats.topologies.infragraph import (
    InfraEdge,
    InfraNode,
    read_infrastructure,
)
from clusim_formats.topologies.infragraph_roles import InfraGraphRoles
from clusim_formats.topologies.infragraphdump import (
    contract_passive,
    dump_infragraph,
)

_WRITTEN = re.compile(r"(?:^| )([0-9]{1,5}) x ([a-z0-9.-]{2,60})$")
"""Description of a link written by clusim: number of parallel links, and their type."""

_GENERATION = re.compile(
    r"gen[ _-]?([3-6])|pcie?[ _-]?([3-6])\b|\b([3-6])\.0\b", re.IGNORECASE
)
_LANES = re.compile(r"\bx(1|2|4|8|16)\b")
_INFINIBAND = re.compile(r"\bib\b|infiniband|[hnex]dr", re.IGNORECASE)


def read_infragraph(text: str, draft: Draft) -> None:
    """Fill `draft` from the text of a file."""
    _Reader(read_infrastructure(text, draft.where), draft).run()


def dump(fabric: Fabric) -> str:
    """Return a topology as InfraGraph, for ``clusim topo export``."""
    return dump_infragraph(fabric)


@dataclass(slots=True)
class _Reader(InfraGraphRoles):
    cpus: dict[str, Cpu] = field(default_factory=dict)
    adapters: dict[str, Adapter] = field(default_factory=dict)

    def run(self) -> None:
        graph, draft = self.graph, self.draft
        draft.name = printable(graph.name, 100) or draft.name
        draft.settings["description"] = "imported from an InfraGraph file"
        for where, value, why, settles in graph.notes:
            draft.assume(where, value, why, settles=settles)
        self.find_roles()
        self.edges, notes = contract_passive(graph, self.roles)
        for where, why in notes:
            draft.assume(where, "ignored", why)
        self.split_switches()
        self.drop_control()
        self.name_nodes()
        for label in self.roles:
            self._node(label, graph.nodes[label])
        for edge in self.edges:
            self._link(edge)
        self._memories()
        self._usage()

    def _node(self, label: str, node: InfraNode) -> None:
        name, role = self.names[label], self.roles[label]
        zone = NETWORK if role == "network" else self.zones.get(node.instance, 0)
        self.draft.source(
            name, f"{label}{f', {node.description}' if node.description else ''}"
        )
        kind, keys = role, {}
        if role == "gpu":
            keys = {"chip": known_chip(self.draft, self._chip(name, node), name)}
        elif role == "nic":
            keys = {"nic": self._adapter(label, name, node)}
        elif role == "memory":
            keys = {"chip": self._memory(label, name, node)}
        elif role == "cpu":
            kind, keys = "switch", {"switch": self._cpu(label).name}
        elif role != "host":
            kind, keys = "switch", self._switch(label, name, node)
        self.draft.node(name, kind, **keys, zone=zone)

    def _chip(self, name: str, node: InfraNode) -> str:
        for key in ("chip", "model", "product"):
            if key in node.attributes and not self.draft.chip:
                return product_chip(self.draft, node.attributes[key])
        if self.draft.chip:
            return given_chip(self.draft)
        result = gpu_by_words(node.description) or gpu_by_words(node.device)
        if result is not None and result[0] is not None:
            self.draft.assume(
                name, f"chip {result[0].name}", f"{result[1]!r} in its description"
            )
            return result[0].name
        aside = f"{result[1]!r} is not known; " if result else ""
        why = f"{aside}the file names no GPU; --chip does"
        chip = unnamed_chip()
        self.draft.assume(name, f"chip {chip}", why, settles=CHIP_OPTION)
        return chip

    def _cpu(self, label: str) -> Cpu:
        if label not in self.cpus:
            self.cpus[label], why = self._processor(
                self.graph.nodes[label].description
            )
            if why:
                name = self.names[label]
                self.draft.assume(name, f"processor {self.cpus[label].name}", why)
        return self.cpus[label]

    def _processor(self, text: str) -> tuple[Cpu, str]:
        if self.draft.cpu is not None:
            return self.draft.cpu, ""
        words = set(re.findall(r"[a-z0-9]+", text.lower()))
        if text in PROCESSORS:
            return PROCESSORS[text], ""

        def alike(item: Cpu) -> int:
            key = f"{item.name} {item.figures['store_and_forward'].source.partition(':')[0]}"
            generic = {
                "xeon",
                "epyc",
                "cpu",
                "unknown",
                "other",
                "arm",
                "servers",
                "nvidia",
            }
            return len(
                words & (set(re.findall(r"[a-z0-9]+", key.lower())) - generic)
            )

        best = max(PROCESSORS.values(), key=alike)
        if alike(best):
            return best, f"{printable(text, 60)!r} in its description"
        vendor = next((v for v in ("amd", "intel", "nvidia") if v in words), "")
        arch = "arm64" if words & {"arm", "arm64", "aarch64", "nvidia"} else ""
        result, why = processor(arch, vendor, None, None)
        return result, why or f"{printable(text, 60)!r} in its description"

    def _memory(self, label: str, name: str, node: InfraNode) -> str:
        if node.description in MEMORY:
            return node.description
        ends = [
            e.b if e.a == label else e.a for e in self.edges if label in (e.a, e.b)
        ]
        cpu = next((end for end in ends if self.roles[end] == "cpu"), None)
        chip = self._cpu(cpu).memory if cpu else "ddr4-3200x8"
        self.draft.assume(name, f"memory {chip}", "the usual one of its processor")
        return chip

    def _switch(self, label: str, name: str, node: InfraNode) -> dict[str, Any]:
        role = self.roles[label]
        edges = [edge for edge in self.edges if label in (edge.a, edge.b)]
        ends = {self.roles[end] for edge in edges for end in (edge.a, edge.b)}
        tier = (
            {"tier": "leaf" if ends - {role} else "spine"}
            if role in ("network", "fabric")
            else {}
        )
        if node.description in CROSSBARS:
            return {"switch": node.description, **tier}
        if role == "nvswitch":
            switch = next(
                (chip.switch for chip in self._chips() if chip.switch), "nvswitch3"
            )
            self.draft.assume(
                name, f"switch {switch}", "as in usual nodes with its GPUs"
            )
            return {"switch": switch}
        if role == "pcie":
            self.draft.assume(
                name, "PCIe switch pcie-switch", "the file does not name the switch"
            )
            return {"switch": "pcie-switch"}
        types = [self._network_type(edge) for edge in edges] or ["ethernet400"]
        switch = USUAL_SWITCHES.get(types[0], "ethernet")
        self.draft.assume(name, f"switch {switch}", f"the usual one with {types[0]}")
        return {"switch": switch, **tier}

    def _adapter(self, label: str, name: str, node: InfraNode) -> str:
        if node.description in ADAPTERS:
            nic = ADAPTERS[node.description]
            self.adapters[name] = Adapter(nic.name, nic.kind, nic.gbps, "")
            return nic.name
        nets = [e for e in self.edges if label in (e.a, e.b) and self._is_network(e)]
        rates = [
            parse_rate(edge.link.rate).bytes_per_s * 8e-6
            for edge in nets
            if edge.link.rate
        ]
        speed = re.search(r"\b([1-9][0-9]{0,2})\s*G", node.description)
        mbps = max(rates, default=1000.0 * int(speed[1]) if speed else 0.0)
        text = " ".join([node.description, *(edge.link.text for edge in nets)])
        device = ImportedDevice(
            cls=PciClass.INFINIBAND
            if _INFINIBAND.search(text)
            else PciClass.ETHERNET
        )
        result = adapter_of(
            Net(speed_mbps=round(mbps) or None), device, self._newest()
        )
        self.adapters[name] = result
        if result.why:
            self.draft.assume(name, f"NIC {result.name}", result.why)
        return result.name

    def _chips(self) -> list[Gpu]:
        """Return the models of the GPUs added until now."""
        nodes = self.draft.nodes.values()
        return [GPUS[str(keys["chip"])] for keys in nodes if keys["kind"] == "gpu"]

    def _newest(self) -> int:
        """Return the newest PCIe generation of the GPUs added until now."""
        return max((chip.pcie for chip in self._chips()), default=4)

    # Links.

    def _is_network(self, edge: InfraEdge) -> bool:
        roles = {self.roles[edge.a], self.roles[edge.b]}
        return bool(roles & {"network", "fabric"}) or roles <= {"nic", "host"}

    def _link(self, edge: InfraEdge) -> None:
        roles = {self.roles[edge.a], self.roles[edge.b]}
        one, two = self.names[edge.a], self.names[edge.b]
        if parsed := _parse_description(edge):
            keys: dict[str, Any] = {"type": parsed[1], "count": parsed[0]}
        elif self._is_network(edge):
            keys = {"type": self._network_type(edge)}
        elif self._is_nvlink(edge):
            keys = self._nvlink(edge)
        elif roles == {"cpu"}:
            keys = {"type": self._cpu(edge.a).numa}
        elif "memory" in roles:
            memory = one if self.roles[edge.a] == "memory" else two
            keys = {"type": f"dram-{self.draft.nodes[memory]['chip']}"}
        elif roles == {"gpu", "cpu"} and re.search(
            r"c2c", edge.link.text, re.IGNORECASE
        ):
            keys = {"type": "nvlink-c2c"}
        else:
            keys = {"type": self._pcie(edge)}
        self.draft.link(one, two, **self._figures(keys, edge))

    def _figures(self, keys: dict[str, Any], edge: InfraEdge) -> dict[str, Any]:
        """Add rate and latency of the file if they differ from the link type."""
        preset = LINKS[keys["type"]]
        where = f"{self.names[edge.a]}-{self.names[edge.b]}"
        usual = parse_rate(str(preset["rate"].value)).bytes_per_s
        if edge.link.rate:
            bytes_per_s = parse_rate(edge.link.rate).bytes_per_s / int(
                keys.get("count", 1)
            )
            if abs(bytes_per_s - usual) > 1e-5 * usual:
                keys["rate"] = f"{bytes_per_s / 1e9:.12g} GB/s"
        elif not edge.link.transfers:
            self.draft.assume(
                where, f"the rate of {keys['type']}", "no bandwidth in the file"
            )
        if edge.link.latency:
            if parse_time(edge.link.latency) != parse_time(
                str(keys.get("latency", preset["latency"].value))
            ):
                keys["latency"] = edge.link.latency
        else:
            self.draft.assume(
                where, f"the latency of {keys['type']}", "no latency in the file"
            )
        return keys

    def _nvlink(self, edge: InfraEdge) -> dict[str, Any]:
        ends = [end for end in (edge.a, edge.b) if self.roles[end] == "gpu"]
        if not ends:
            return {"type": "nvlink3"}
        chip = GPUS[str(self.draft.nodes[self.names[ends[0]]]["chip"])]
        keys = direct_keys(chip) if len(ends) == 2 else nvlink_keys(chip)
        if not edge.link.rate and chip.links:
            edges = [
                e for e in self.edges if ends[0] in (e.a, e.b) and self._is_nvlink(e)
            ]
            links_each, remainder = divmod(chip.links, len(edges))
            counts = [links_each + (at < remainder) for at in range(len(edges))]
            if len(chip.planes) == len(edges):
                counts = list(chip.planes)
            keys["count"] = max(1, counts[edges.index(edge)])
            value = f"{keys['count']} links"
            self.draft.assume(
                f"{self.names[edge.a]}-{self.names[edge.b]}", value,
                f"{chip.name} has {chip.links}, divided among its {len(edges)} edges",
            )  # fmt: skip
        return keys

    def _is_nvlink(self, edge: InfraEdge) -> bool:
        return {self.roles[edge.a], self.roles[edge.b]} <= {"gpu", "nvswitch"}

    def _network_type(self, edge: InfraEdge) -> str:
        if parsed := _parse_description(edge):
            return parsed[1]
        kind = "ib" if _INFINIBAND.search(edge.link.text) else "roce"
        return network_link(kind, edge.link.rate or "400 Gb/s")

    def _pcie(self, edge: InfraEdge) -> str:
        gpus = [e for e in (edge.a, edge.b) if self.roles[e] == "gpu"]
        gen_match, lanes = (
            _GENERATION.search(edge.link.text),
            _LANES.search(edge.link.text),
        )
        width = int(lanes[1]) if lanes else 16
        if edge.link.transfers:
            generation = min(
                PCIE_GTS, key=lambda gen: abs(PCIE_GTS[gen] - edge.link.transfers)
            )
        elif edge.link.rate:
            rate = parse_rate(edge.link.rate).bytes_per_s
            generation = min(
                PCIE_GTS, key=lambda gen: abs(_x16(gen) * width / 16 - rate)
            )
        elif gen_match:
            generation = int(gen_match[1] or gen_match[2] or gen_match[3])
        else:
            generation = self._newest()
            value = f"PCIe generation {generation}"
            name = f"{self.names[edge.a]}-{self.names[edge.b]}"
            self.draft.assume(name, value, "not in the file; as its GPUs")
        link = pcie_type(generation, width)
        return gpu_pcie(link) if gpus else link

    # Hardware that a file omits.

    def _memories(self) -> None:
        """Add memory to every CPU if the file does not contain memory."""
        if any(role == "memory" for role in self.roles.values()):
            return
        for label, cpu in self.cpus.items():
            zone = self.zones[self.graph.nodes[label].instance]
            name = add_memory(self.draft, self.names[label], cpu, zone=zone)
            self.draft.assume(name, *USUAL_MEMORY)

    def _usage(self) -> None:
        """Set channels and levels as NCCL would on the first node; add its usual network."""
        alone = len(self.zones) == 1
        prefix = "" if alone else "n0/"
        one = Draft(self.draft.where, self.draft.name)
        for name, keys in self.draft.nodes.items():
            if name.startswith(prefix) and keys.get("zone", 0) == 0:
                one.nodes[name.removeprefix(prefix)] = keys
        for link in self.draft.links:
            ends = {key: link[key].removeprefix(prefix) for key in ("from", "to")}
            if ends["from"] in one.nodes and ends["to"] in one.nodes:
                one.links.append({**link, **ends})
        gpus = [name for name, keys in one.nodes.items() if keys["kind"] == "gpu"]
        if not gpus:
            return
        set_usage(one, gpus, str(one.nodes[gpus[0]]["chip"]))
        if not alone:
            one.settings.pop("rings", None)
        self.draft.settings.update(one.settings)
        for note, names in one.notes.items():
            if alone or note[0] != "rings":
                self.draft.notes.setdefault(note, []).extend(names)
        if alone and "network" not in self.roles.values():
            set_network(self.draft, self.adapters)


def _parse_description(edge: InfraEdge) -> tuple[int, str] | None:
    """Return the number of links and their type if clusim wrote the description of an edge."""
    match = _WRITTEN.search(edge.link.text)
    return (int(match[1]), match[2]) if match and match[2] in LINKS else None


def _x16(generation: int) -> float:
    return parse_rate(str(x16_rate(generation, 16))).bytes_per_s
