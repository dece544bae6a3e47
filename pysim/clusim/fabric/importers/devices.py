"""Which chip, processor and adapter a PCI identity stands for, and what is known of each.

**Hardware** PCI vendor, device and class numbers, compute capabilities (``sm``), AMD's ``gcn`` numbers, CPU families.
**Model** Each maps to a preset of `clusim.hardware` by name.
**Not modelled** Board variants of one chip: clocks, power limits, memory sizes.
**Parameters** The tables below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from clusim.hardware import CHIPS as PRESETS

__all__ = [
    "CHIPS",
    "PCIE_GTS",
    "Chip",
    "Processor",
    "chip_by_hint",
    "chip_by_id",
    "chip_by_name",
    "chip_by_sm",
    "nic_model",
    "processor",
]

PCIE_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Signalling rate of a lane per PCIe generation [GT/s]."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU as importers need it.

    Attributes
    ----------
    gen, width : int
        PCIe generation and lanes of the card.
    link : str
        Type of its GPU-to-GPU links, empty if it has none.
    links : int
        How many of them.
    planes : tuple of int
        Links to each NVSwitch of the usual machine; empty: there is none.
    switch : str
        Type of that NVSwitch.
    architecture : str
        Whose protocols the collectives take, as the preset says.
    """

    gen: int = 4
    width: int = 16
    link: str = ""
    links: int = 0
    planes: tuple[int, ...] = ()
    switch: str = ""
    architecture: str = ""


_A100: dict[str, Any] = {"link": "nvlink3", "links": 12, "planes": (2,) * 6, "switch": "nvswitch2"}
_H100: dict[str, Any] = {
    "link": "nvlink4",
    "links": 18,
    "planes": (5, 4, 4, 5),
    "switch": "nvswitch3",
}
_H800: dict[str, Any] = {
    "link": "nvlink4",
    "links": 8,
    "planes": (2, 2, 2, 2),
    "switch": "nvswitch3",
}
_B200: dict[str, Any] = {"link": "nvlink5", "links": 18, "planes": (9, 9), "switch": "nvswitch4"}
_NVL72: dict[str, Any] = {
    "link": "nvlink5",
    "links": 18,
    "planes": (1,) * 18,
    "switch": "nvswitch4",
}


_WIRED: dict[str, Chip] = {
    "p100-sxm2": Chip(3, link="nvlink1", links=4),
    "p100-pcie": Chip(3),
    "v100-sxm2": Chip(3, link="nvlink2", links=6),
    "v100-sxm3": Chip(3, link="nvlink2", links=6, planes=(1,) * 6, switch="nvswitch1"),
    "v100-pcie": Chip(3),
    "t4": Chip(3),
    "rtx-2080ti": Chip(3, link="nvlink2", links=2),
    "titan-rtx": Chip(3, link="nvlink2", links=2),
    "a100-sxm4-40gb": Chip(4, **_A100),
    "a100-sxm4-80gb": Chip(4, **_A100),
    "a800-sxm4-80gb": Chip(4, **_A100 | {"links": 8, "planes": (1, 1, 1, 1, 2, 2)}),
    "a100-pcie-40gb": Chip(link="nvlink3", links=12),
    "a100-pcie-80gb": Chip(link="nvlink3", links=12),
    "a30": Chip(4, link="nvlink3", links=4),
    "a10": Chip(),
    "a40": Chip(link="nvlink3-bridge", links=4),
    "rtx-a6000": Chip(link="nvlink3-bridge", links=4),
    "rtx-3090": Chip(link="nvlink3-bridge", links=4),
    "rtx-4090": Chip(),
    "rtx-6000-ada": Chip(4),
    "l4": Chip(),
    "l20": Chip(),
    "l40": Chip(4),
    "l40s": Chip(),
    "h100-sxm5": Chip(5, **_H100),
    "h100-pcie": Chip(5, link="nvlink4", links=12),
    "h100-nvl": Chip(5, link="nvlink4", links=12),
    "h800-sxm5": Chip(5, **_H800),
    "h20-sxm5": Chip(5, **_H100),
    "h200-sxm5": Chip(5, **_H100),
    "h200-nvl": Chip(5, link="nvlink4", links=18),
    "gh200": Chip(5, link="nvlink4", links=18),
    "b200-sxm": Chip(5, **_B200),
    "b300-sxm": Chip(6, **_B200),
    "gb200": Chip(5, **_NVL72),
    "gb300": Chip(6, **_NVL72),
    "rtx-5090": Chip(5),
    "rtx-pro-6000": Chip(5),
    "mi50": Chip(link="xgmi-mi50", links=2),
    "mi60": Chip(4, link="xgmi-mi50", links=2),
    "mi100": Chip(link="xgmi-mi100", links=3),
    "mi210": Chip(4, link="xgmi-mi250x", links=3),
    "mi250-gcd": Chip(4, link="xgmi-mi250x", links=7),
    "mi250x-gcd": Chip(link="xgmi-mi250x", links=8),
    "mi300a": Chip(5, link="xgmi-mi300x", links=6),
    "mi300x": Chip(5, link="xgmi-mi300x", links=7),
    "mi325x": Chip(5, link="xgmi-mi300x", links=7),
    "mi355x": Chip(5, link="xgmi-mi355x", links=7),
}

CHIPS: dict[str, Chip] = {
    name: replace(chip, architecture=str(PRESETS[name]["architecture"].value))
    for name, chip in _WIRED.items()
}
"""GPUs by name, each a preset of `clusim.hardware`, and how the machines they are in are wired."""

_BY_ID = {
    (0x10DE, 0x15F9): "p100-sxm2",
    (0x10DE, 0x15F7): "p100-pcie",
    (0x10DE, 0x15F8): "p100-pcie",
    (0x10DE, 0x1DB1): "v100-sxm2",
    (0x10DE, 0x1DB5): "v100-sxm2",
    (0x10DE, 0x1DB8): "v100-sxm3",
    (0x10DE, 0x1DB4): "v100-pcie",
    (0x10DE, 0x1DB6): "v100-pcie",
    (0x10DE, 0x1EB8): "t4",
    (0x10DE, 0x1E04): "rtx-2080ti",
    (0x10DE, 0x1E07): "rtx-2080ti",
    (0x10DE, 0x1E02): "titan-rtx",
    (0x10DE, 0x20B0): "a100-sxm4-40gb",
    (0x10DE, 0x20B2): "a100-sxm4-80gb",
    (0x10DE, 0x20F3): "a800-sxm4-80gb",
    (0x10DE, 0x20F1): "a100-pcie-40gb",
    (0x10DE, 0x20B5): "a100-pcie-80gb",
    (0x10DE, 0x20F5): "a100-pcie-80gb",
    (0x10DE, 0x20B7): "a30",
    (0x10DE, 0x2235): "a40",
    (0x10DE, 0x2236): "a10",
    (0x10DE, 0x2237): "a10",
    (0x10DE, 0x2230): "rtx-a6000",
    (0x10DE, 0x2204): "rtx-3090",
    (0x10DE, 0x2203): "rtx-3090",
    (0x10DE, 0x2684): "rtx-4090",
    (0x10DE, 0x26B1): "rtx-6000-ada",
    (0x10DE, 0x27B8): "l4",
    (0x10DE, 0x26BA): "l20",
    (0x10DE, 0x26B5): "l40",
    (0x10DE, 0x26B9): "l40s",
    (0x10DE, 0x2330): "h100-sxm5",
    (0x10DE, 0x2331): "h100-pcie",
    (0x10DE, 0x2324): "h800-sxm5",
    (0x10DE, 0x2329): "h20-sxm5",
    (0x10DE, 0x2335): "h200-sxm5",
    (0x10DE, 0x233B): "h200-nvl",
    (0x10DE, 0x2342): "gh200",
    (0x10DE, 0x2348): "gh200",
    (0x10DE, 0x2901): "b200-sxm",
    (0x10DE, 0x2941): "gb200",
    (0x10DE, 0x3182): "b300-sxm",
    (0x10DE, 0x2B85): "rtx-5090",
    (0x10DE, 0x2BB1): "rtx-pro-6000",
    (0x10DE, 0x2BB5): "rtx-pro-6000",
    (0x1002, 0x66A1): "mi50",
    (0x1002, 0x66A0): "mi60",
    (0x1002, 0x738C): "mi100",
    (0x1002, 0x738E): "mi100",
    (0x1002, 0x740F): "mi210",
    (0x1002, 0x740C): "mi250-gcd",
    (0x1002, 0x7408): "mi250x-gcd",
    (0x1002, 0x74A0): "mi300a",
    (0x1002, 0x74A1): "mi300x",
    (0x1002, 0x74B5): "mi300x",
    (0x1002, 0x74A5): "mi325x",
    (0x1002, 0x75A3): "mi355x",
}
_BY_SM = {
    60: "p100-sxm2",
    70: "v100-sxm2",
    75: "t4",
    80: "a100-sxm4-80gb",
    86: "rtx-3090",
    89: "rtx-4090",
    90: "h100-sxm5",
    100: "b200-sxm",
    103: "b300-sxm",
    120: "rtx-5090",
}
_BY_GCN = {
    "906": "mi60",
    "908": "mi100",
    "910": "mi250-gcd",
    "90a": "mi250-gcd",
    "936": "mi100",
    "940": "mi300a",
    "941": "mi300x",
    "942": "mi300x",
    "950": "mi355x",
}
# What machine and chip names in a file's name, comment or group look like.
_HINTS = (
    (r"p4de|nd_?m?_?a100.*80|ndmv4", "a100-sxm4-80gb"),
    (r"p4d|nda100v4|ndv4|nd.?a100", "a100-sxm4-40gb"),
    (r"ncv4|nc.?a100", "a100-pcie-80gb"),
    (r"p5en|h200", "h200-sxm5"),
    (r"gh200", "gh200"),
    (r"h100.?pcie", "h100-pcie"),
    (r"p5|ndv5|h100", "h100-sxm5"),
    (r"gb200|nvl72", "gb200"),
    (r"p6|b200", "b200-sxm"),
    (r"b300", "b300-sxm"),
    (r"p3dn|p3|ndv2|dgx.?1v?|v100", "v100-sxm2"),
    (r"dgx.?2", "v100-sxm3"),
    (r"p100", "p100-sxm2"),
    (r"a100.?pcie", "a100-pcie-80gb"),
    (r"a100", "a100-sxm4-80gb"),
    (r"a6000", "rtx-a6000"),
    (r"3090", "rtx-3090"),
    (r"4090", "rtx-4090"),
    (r"5090", "rtx-5090"),
    (r"2080", "rtx-2080ti"),
    (r"l40s", "l40s"),
    (r"l40", "l40"),
    (r"l20", "l20"),
    (r"mi300x", "mi300x"),
    (r"mi325x", "mi325x"),
    (r"mi250x", "mi250x-gcd"),
    (r"mi250-gcd", "mi250-gcd"),
    (r"mi210", "mi210"),
    (r"mi100", "mi100"),
    (r"mi60", "mi60"),
    (r"mi50", "mi50"),
)


def chip_by_id(vendor: int | None, device: int | None) -> str | None:
    """Return the chip of a PCI vendor and device number."""
    if vendor is None or device is None:
        return None
    return _BY_ID.get((vendor, device))


def chip_by_sm(sm: int | None, gcn: str | None) -> str | None:
    """Return the usual chip of a compute capability, or of AMD's number (``908``, ``gfx942``)."""
    if gcn:
        name = _BY_GCN.get(gcn.lower().removeprefix("gfx").partition(":")[0])
        return "mi50" if name == "mi60" and sm == 60 else name
    return _BY_SM.get(sm or 0)


def chip_by_hint(text: str) -> tuple[str, str] | None:
    """Return the chip that a word of a file's name or comments stands for, and that word."""
    for pattern, name in _HINTS:
        match = re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9])", text, re.IGNORECASE)
        if match:
            return name, match[0]
    return None


def chip_by_name(text: str) -> str | None:
    """Return the chip that a product name such as ``NVIDIA A100-SXM4-80GB`` or ``H100`` means."""
    word = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if word in CHIPS:
        return word
    if "a100" in word and "40" in word:
        return "a100-pcie-40gb" if "pcie" in word else "a100-sxm4-40gb"
    if "h800" in word:
        return "h800-sxm5"
    if "a800" in word:
        return "a800-sxm4-80gb"
    found = chip_by_hint(text)
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Processor:
    """A CPU socket (or NUMA node) as importers need it.

    Attributes
    ----------
    root : str
        Switch type of its root complex.
    numa : str
        Link type between two sockets, `numa_links` of them.
    memory : str
        Chip of the memory node next to it; the link to it is called after it.
    """

    root: str
    numa: str
    numa_links: int
    memory: str


_PROCESSORS = {
    "xeon-ivb": Processor("xeon-ivb", "qpi-8", 2, "ddr3-1866x4"),
    "xeon-bdw": Processor("xeon-bdw", "qpi", 2, "ddr4-2400x4"),
    "xeon-skl": Processor("xeon-skl", "upi", 2, "ddr4-2666x6"),
    "xeon-icx": Processor("xeon-icx", "upi-11.2", 3, "ddr4-3200x8"),
    "xeon-spr": Processor("xeon-spr", "upi-16", 3, "ddr5-4800x8"),
    "xeon-emr": Processor("xeon-emr", "upi-20", 3, "ddr5-5600x8"),
    "xeon-gnr": Processor("xeon-gnr", "upi-24", 3, "ddr5-6400x12"),
    "epyc-naples": Processor("epyc-naples", "xgmi", 4, "ddr4-2666x8"),
    "epyc-rome": Processor("epyc-rome", "xgmi2", 3, "ddr4-3200x8"),
    "epyc-milan": Processor("epyc-milan", "xgmi2", 3, "ddr4-3200x8"),
    "epyc-genoa": Processor("epyc-genoa", "xgmi3", 3, "ddr5-4800x12"),
    "epyc-turin": Processor("epyc-turin", "xgmi3", 3, "ddr5-6400x12"),
    "power9": Processor("power9", "power9-x", 1, "ddr4-2666x8"),
    "grace": Processor("grace", "grace-c2c", 1, "lpddr5x-grace"),
    "arm": Processor("arm", "upi-11.2", 1, "ddr4-3200x8"),
    "root-complex": Processor("root-complex", "upi-11.2", 2, "ddr4-3200x8"),
}


def processor(
    arch: str, vendor: str, family: int | None, model: int | None
) -> tuple[Processor, str]:
    """Return what is known of a CPU, and why it was taken (empty if the file names it)."""
    arch, vendor = arch.lower(), vendor.lower()
    if arch in ("ppc64", "ppc64le"):
        return _PROCESSORS["power9"], ""
    if arch in ("arm64", "aarch64", "arm"):
        return _PROCESSORS["grace" if "nvidia" in vendor or model == 0xD4F else "arm"], ""
    if "amd" in vendor or "hygon" in vendor:
        return _amd(family, model)
    if "intel" in vendor:
        name = _INTEL.get(model or 0)
        said = "the file gives no model" if model is None else f"Intel model {model} is not known"
        why = "" if name else f"{said}; taken as Ice Lake"
        return _PROCESSORS[f"xeon-{name or 'icx'}"], why
    return _PROCESSORS["root-complex"], "the file does not name the processor"


_INTEL = {
    62: "ivb",
    63: "bdw",
    79: "bdw",
    86: "bdw",
    85: "skl",
    106: "icx",
    108: "icx",
    143: "spr",
    207: "emr",
    173: "gnr",
    174: "gnr",
}
_AMD = {143: 0x17, 23: 0x17, 24: 0x17, 159: 0x17, 175: 0x19, 25: 0x19, 191: 0x1A, 26: 0x1A}
"""NCCL writes the base family plus 16 times the extended one (143), people often the sum of both (23)."""


def _amd(family: int | None, model: int | None) -> tuple[Processor, str]:
    which = _AMD.get(family or 0)
    if which == 0x19:
        return _PROCESSORS["epyc-genoa" if (model or 0) >= 0x10 else "epyc-milan"], ""
    if which == 0x1A:
        return _PROCESSORS["epyc-turin"], ""
    if which == 0x17 and model is not None and model < 0x10:
        return _PROCESSORS["epyc-naples"], ""
    said = "the file gives no family" if family is None else f"AMD family {family} is not known"
    why = "" if which else f"{said}; taken as EPYC Rome"
    return _PROCESSORS["epyc-rome"], why


@dataclass(frozen=True, slots=True)
class _NicModel:
    name: str
    ethernet: bool = False
    gbps: int = 0


_NICS = {
    (0x15B3, 0x1013): _NicModel("cx4", gbps=100),
    (0x15B3, 0x1014): _NicModel("cx4", gbps=100),
    (0x15B3, 0x1015): _NicModel("cx4", True, 25),
    (0x15B3, 0x1016): _NicModel("cx4", True, 25),
    (0x15B3, 0x1017): _NicModel("cx5", gbps=100),
    (0x15B3, 0x1018): _NicModel("cx5", gbps=100),
    (0x15B3, 0x1019): _NicModel("cx5", gbps=100),
    (0x15B3, 0x101A): _NicModel("cx5", gbps=100),
    (0x15B3, 0x101B): _NicModel("cx6", gbps=200),
    (0x15B3, 0x101C): _NicModel("cx6", gbps=200),
    (0x15B3, 0x101D): _NicModel("cx6", True, 100),
    (0x15B3, 0x101E): _NicModel("cx7", gbps=200),
    (0x15B3, 0x101F): _NicModel("cx6", True, 25),
    (0x15B3, 0x1021): _NicModel("cx7", gbps=400),
    (0x15B3, 0x1023): _NicModel("cx8", gbps=800),
    (0x15B3, 0xA2D6): _NicModel("cx6", gbps=200),
    (0x15B3, 0xA2DC): _NicModel("bf3", gbps=400),
    (0x1D0F, 0xEFA0): _NicModel("efa", gbps=100),
    (0x1D0F, 0xEFA1): _NicModel("efa", gbps=100),
    (0x1D0F, 0xEFA2): _NicModel("efa", gbps=200),
    (0x1D0F, 0xEFA3): _NicModel("efa", gbps=400),
    (0x17DB, 0x0501): _NicModel("cassini", gbps=200),
}


def nic_model(vendor: int | None, device: int | None) -> tuple[str, bool, int]:
    """Return family, whether it is Ethernet only, and the rate of a port [Gb/s]; ('', False, 0) if unknown."""
    found = _NICS.get((vendor or 0, device or 0))
    return (found.name, found.ethernet, found.gbps) if found else ("", False, 0)
