"""Kinds of links and tiers of nodes, with their names in text."""

from __future__ import annotations

from collections.abc import Iterable

_KINDS = {
    "c2c": "NVLink-C2C",
    "dram": "host memory",
    "efa": "EFA",
    "ethernet": "Ethernet",
    "infiniband": "InfiniBand",
    "numa": "links between CPUs",
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "roce": "RoCE",
    "slingshot": "Slingshot",
    "trunk": "trunks of NVSwitches",
    "xgmi": "xGMI",
}

_NODES = {
    "gpu": "GPU",
    "memory": "memory",
    "nic": "NIC",
    "nvswitch": "NVSwitch",
    "pcie": "PCIe switch",
    "root": "CPU",
    "host": "host",
    "router": "router",
}

_MACHINE_KINDS = frozenset(
    ("c2c", "dram", "numa", "nvlink", "pcie", "trunk", "xgmi")
)
"""Kinds of links inside a node."""


def kind_of(wire_class: str) -> str:
    """Return the kind of link of a class of wires: ``nvlink`` of ``nvlink gpu->switch``."""
    return wire_class.rpartition(" ")[0] or wire_class


def link_name(kind: str) -> str:
    """Return the name of a link type in a sentence."""
    return _KINDS.get(kind, kind)


def is_network(kind: str) -> bool:
    """Return True if a kind of link joins nodes."""
    return kind not in _MACHINE_KINDS


def between_switches(wire_class: str) -> bool:
    """Return True if the wires of a class join switches of the network between nodes."""
    ends = wire_class.rpartition(" ")[2].split("->")
    return is_network(kind_of(wire_class)) and not {"gpu", "host", "nic"} & set(ends)


def wire_class_name(wire_class: str) -> str:
    """Return a class of wires in words: ``InfiniBand from NIC to leaf switch``."""
    kind, (source, _, target) = (
        kind_of(wire_class),
        wire_class.rpartition(" ")[2].partition("->"),
    )
    if not target or kind not in _KINDS:
        return wire_class
    return f"{link_name(kind)} from {_node(kind, source)} to {_node(kind, target)}"


def tier_of(wire_class: str) -> str:
    """Return the tier of a class of wires: ``infiniband leaf->nic`` is part of ``nic-leaf``."""
    one, _, two = wire_class.rpartition(" ")[2].partition("->")
    return "-".join(sorted((one, two), key=_height)) if two else one


_HEIGHTS = (
    "gpu",
    "host",
    "memory",
    "nvswitch",
    "pcie",
    "root",
    "nic",
    "leaf",
    "switch",
    "spine",
    "core",
)


def _height(tier: str) -> tuple[int, str]:
    return (_HEIGHTS.index(tier) if tier in _HEIGHTS else len(_HEIGHTS), tier)


def link_class_name(wire_class: str) -> str:
    """Return the links of a class in words, both directions: ``NVLink, GPU-NVSwitch``."""
    kind, (low, dash, high) = kind_of(wire_class), tier_of(wire_class).partition("-")
    if not dash or kind not in _KINDS:
        return wire_class
    return f"{link_name(kind)}, {_node(kind, low)}-{_node(kind, high)}"


def _node(kind: str, tier: str) -> str:
    if tier == "switch" and kind in ("nvlink", "trunk"):
        return "NVSwitch"
    return _NODES.get(tier, tier if tier == "switch" else f"{tier} switch")


def several(words: Iterable[str], last: str = "and") -> str:
    """Join words as a sentence does: ``a, b and c``."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
