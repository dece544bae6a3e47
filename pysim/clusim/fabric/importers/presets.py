"""Names of the hardware presets that importers refer to, and definitions for what has no preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusim.fabric.importers.common import Draft, fail, printable
from clusim.fabric.importers.devices import CHIPS, Chip, Processor, chip_by_name, nic_model
from clusim.fabric.importers.machine import Device, Net
from clusim.fabric.problems import did_you_mean
from clusim.hardware import LINKS, SWITCHES

__all__ = [
    "Adapter",
    "adapter_of",
    "c2c_link",
    "direct_keys",
    "gpu_pcie",
    "known_chip",
    "named_chip",
    "network_of",
    "nic_keys",
    "numa_link",
    "nvlink_keys",
    "pcie_switch",
    "pcie_type",
]


def known_chip(draft: Draft, name: str, where: str) -> str:
    """Return the chip's name; with GPUs of another architecture all use the protocols of the first."""
    architecture = CHIPS[name].architecture
    for keys in draft.nodes.values():
        first = CHIPS[keys["chip"]].architecture if keys["kind"] == "gpu" else architecture
        if first != architecture and "architecture" not in draft.settings:
            draft.settings["architecture"] = first
            draft.assume(where, f"the protocols of {first}", f"{name} is {architecture}")
    return name


def named_chip(draft: Draft, text: str) -> str:
    """Return the chip that a user names."""
    found = chip_by_name(text)
    if found is None:
        raise fail(draft.where, 0, f"no chip {printable(text)!r}{did_you_mean(text, CHIPS)}")
    return found


def pcie_type(gen: int, lanes: int) -> str:
    """Return the link type of a PCIe connection."""
    return f"pcie-gen{gen}-x{lanes}"


def gpu_pcie(link: str) -> str:
    """Return the type of the same connection when a GPU is at its end."""
    return f"{link}-gpu" if f"{link}-gpu" in LINKS else link


_PCIE_SWITCHES = {
    (0x1000, 0xC010): "pex88096",
    (0x1000, 0xC030): "pex89144",
    (0x10B5, 0x8747): "plx-pex8747",
    (0x10B5, 0x8764): "plx-pex8764",
    (0x10B5, 0x8796): "plx-pex8796",
    (0x10B5, 0x9797): "plx-pex9797",
    (0x11F8, 0x4000): "pm8536",
    (0x11F8, 0x8536): "pm8536",
    (0x15B3, 0x197C): "cx8-switch",
}


def pcie_switch(vendor: int | None, device: int | None) -> tuple[str, str]:
    """Return the type of a PCIe switch, and why it was taken (empty if the file names it)."""
    name = _PCIE_SWITCHES.get((vendor or 0, device or 0), "")
    if name in SWITCHES:
        return name, ""
    if vendor in (None, 0xFFFF) or device is None:
        return "pcie-switch", "the file does not name the switch"
    return "pcie-switch", f"no figures of the switch 0x{vendor:04x}:0x{device:04x}"


def numa_link(processor: Processor) -> dict[str, Any]:
    """Return the keys of a link between two CPUs."""
    return {"type": processor.numa}


def c2c_link(rate_MBps: int) -> dict[str, Any]:
    """Return the keys of a coherent link between a GPU and its CPU."""
    return {"type": "nvlink-c2c", "rate": f"{min(rate_MBps, 10**7)} MB/s"}


def nvlink_keys(chip: Chip, *, xgmi: bool = False) -> dict[str, Any]:
    """Return the keys of a link between GPUs, or between a GPU and an NVSwitch."""
    if chip.link and chip.link.startswith("xgmi") == xgmi:
        return {"type": chip.link}
    if xgmi:
        return {"type": "xgmi-mi300x" if chip.gen >= 5 else "xgmi-mi100"}
    return {"type": f"nvlink{_NEWEST[chip.architecture]}"}


def direct_keys(chip: Chip, *, xgmi: bool = False) -> dict[str, Any]:
    """Return the keys of a link from GPU to GPU, without a switch between."""
    return {**nvlink_keys(chip, xgmi=xgmi), "latency": DIRECT_LATENCY}


DIRECT_LATENCY = "275ns"
"""Egress of 150 to 200 ns and twice a SerDes of 50 ns; links to switches are half a way each."""

_NEWEST = {"pascal": 1, "volta": 2, "ampere": 3, "ada": 4, "hopper": 4, "blackwell": 5, "cdna": 4}
"""Generation of NVLink of an architecture, for a chip that is not known to have any."""

_CX_IB = {
    ("cx4", 100): "cx4-edr",
    ("cx5", 100): "cx5-edr",
    ("cx6", 56): "cx6-fdr",
    ("cx6", 100): "cx6-hdr100",
    ("cx6", 200): "cx6-hdr",
    ("cx7", 200): "cx7-ndr200",
    ("cx7", 400): "cx7-ndr",
    ("cx8", 800): "cx8-xdr",
    ("bf3", 400): "bf3-ndr",
    ("", 56): "cx3-fdr",
    ("", 100): "cx5-edr",
    ("", 200): "cx6-hdr",
    ("", 400): "cx7-ndr",
    ("", 800): "cx8-xdr",
}
_CX_ROCE = {
    ("cx4", 25): "cx4-roce25",
    ("cx5", 100): "cx5-roce100",
    ("cx6", 100): "cx6-roce100",
    ("cx6", 200): "cx6-roce200",
    ("cx7", 200): "cx7-roce200",
    ("cx7", 400): "cx7-roce400",
    ("cx8", 800): "cx8-roce800",
    ("bf3", 400): "bf3",
    ("", 25): "cx4-roce25",
    ("", 100): "cx5-roce100",
    ("", 200): "cx6-roce200",
    ("", 400): "cx7-roce400",
    ("", 800): "cx8-roce800",
}
_OTHERS = {
    "efa": {25: "efa-25g", 100: "efa-100g", 200: "efa-200g", 400: "efa-400g"},
    "slingshot": {200: "cassini-200g"},
    "tcp": {25: "ena-25g"},
}
_USUAL_Gbps = {3: 100, 4: 200, 5: 400, 6: 800}
"""Rate of the adapters that machines of a PCIe generation usually have [Gb/s]."""

SLOW_Gbps = 10
"""Ethernet up to here is for management: TCP."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What an interface is.

    Attributes
    ----------
    name : str
        Its preset.
    kind : str
        Network it is for: ``ib``, ``roce``, ``efa``, ``slingshot``, ``tcp``.
    gbps : float
        Rate [Gb/s].
    why : str
        Why it was taken; empty if the file says.
    """

    name: str
    kind: str
    gbps: float
    why: str


def adapter_of(net: Net, device: Device | None, generation: int) -> Adapter:
    """Return what an interface is; `generation` is the PCIe generation of the GPUs, for files that say nothing."""
    family, ethernet, gbps = nic_model(device.vendor, device.device) if device else ("", False, 0)
    given = max(0.001, net.speed_mbps / 1000) if net.speed_mbps else float(gbps)
    infiniband = device is not None and (device.cls or 0) >> 8 == 0x0207 and not ethernet
    rate = given or float(_USUAL_Gbps.get(generation, 200))
    kind = {"efa": "efa", "cassini": "slingshot"}.get(family, "ib" if infiniband else "roce")
    why = ""
    if device is None or (kind == "roce" and not family and given and rate <= SLOW_Gbps):
        kind = "tcp"
        why = "an interface of the kernel" if device is None else f"{rate:g} Gb/s: for management"
    if kind in _OTHERS:
        table = _OTHERS[kind]
    else:
        source = _CX_IB if kind == "ib" else _CX_ROCE
        table = {speed: name for (model, speed), name in source.items() if model == family}
        table = table or {speed: name for (model, speed), name in source.items() if not model}
        shown = f"{rate:g} Gb/s {'InfiniBand' if kind == 'ib' else 'Ethernet'}"
        if not given:
            why = f"the file gives neither adapter nor rate; usual with PCIe Gen{generation}"
        elif not family:
            why = f"{shown}; the file does not name the adapter"
        elif min(abs(speed - rate) for speed in table) > 1:
            why = f"the nearest we have to {shown}"
    return Adapter(_nearest(table, rate), kind, rate, why)


def _nearest(table: Mapping[int, str], gbps: float) -> str:
    return table[min(table, key=lambda rate: (abs(rate - gbps), rate))]


def nic_keys(draft: Draft, adapter: Adapter, gpudirect: bool | None) -> dict[str, Any]:
    """Return the keys of an adapter's node."""
    if gpudirect is False and adapter.kind != "tcp":
        own = draft.define(
            "nics", f"{adapter.name}-no-gdr", {"base": adapter.name, "gpudirect": False}
        )
        return {"nic": own}
    return {"nic": adapter.name}


_NETWORKS = {
    "ib": {56: "ib-fdr", 100: "ib-edr", 200: "ib-hdr", 400: "ib-ndr", 800: "ib-xdr"},
    "roce": {rate: f"roce-{rate}" for rate in (25, 40, 50, 100, 200, 400, 800)},
    "efa": {rate: f"efa-{rate}" for rate in (25, 50, 100, 200, 400)},
    "slingshot": {rate: f"slingshot-{rate}" for rate in (100, 200, 400)},
    "tcp": {rate: f"roce-{rate}" for rate in (25, 40, 50, 100)},
}
_NET_SWITCHES = {
    "ib-fdr": "switchx2",
    "ib-edr": "switch-ib2",
    "ib-hdr": "quantum",
    "ib-ndr": "quantum2",
    "ib-xdr": "quantum-x800",
    "efa": "efa-fabric",
    "slingshot": "rosetta",
    "roce": "ethernet",
    "tcp": "ethernet",
}


def network_of(adapters: Mapping[str, Adapter]) -> tuple[dict[str, Any], list[str]] | None:
    """Return what the fastest adapters of a machine are usually joined by, and which ones take part."""
    if not adapters:
        return None
    kind, rate = max(
        ((a.kind, a.gbps) for a in adapters.values()), key=lambda key: (key[0] != "tcp", key[1])
    )
    link = _nearest(_NETWORKS[kind], rate)
    members = [name for name, a in adapters.items() if (a.kind, a.gbps) == (kind, rate)]
    switch = _NET_SWITCHES.get(link) or _NET_SWITCHES[kind]
    return {"kind": "rail", "link": link, "switch": switch}, members
