"""Processors and NICs of a file: CPU families and models, PCI vendor and device numbers."""

from __future__ import annotations

from clusim.base.errors import InputError
from clusim.formats.values import printable
from clusim.hardware import ADAPTER_IDS, PROCESSORS, Cpu
from clusim.hardware.pcie import GENERATIONS

PCIE_GTS = {generation: float(row[0]) for generation, row in GENERATIONS.items()}
"""Signalling rate of a lane per PCIe generation [GT/s]."""

_AMD = {143: 0x17, 23: 0x17, 24: 0x17, 159: 0x17, 175: 0x19, 25: 0x19, 191: 0x1A, 26: 0x1A}
"""CPU family by `familyid`: NCCL's base + 16 x extended family (143), or their sum (23)."""


def processor(arch: str, vendor: str, family: int | None, model: int | None) -> tuple[Cpu, str]:
    """Return the model of a CPU, and the reason if it is assumed (empty if the file names it)."""
    arch, vendor = arch.lower(), vendor.lower()
    if arch in ("ppc64", "ppc64le"):
        return _usual("power"), ""
    if arch in ("arm64", "aarch64", "arm"):
        return _arm(vendor, model), ""
    if "amd" in vendor or "hygon" in vendor:
        number = _AMD.get(family or 0)
        found = _by_cpuid("amd", number, 0 if model is None and number != 0x17 else model)
        said = "the file gives no family" if family is None else f"AMD family {family} is not known"
        known = number is not None
        return found or _usual("amd"), "" if known else f"{said}; taken as EPYC Rome"
    if "intel" in vendor:
        found = _by_cpuid("intel", 6, model)
        said = "the file gives no model" if model is None else f"Intel model {model} is not known"
        return found or _usual("intel"), "" if found else f"{said}; taken as Ice Lake"
    return _usual("other"), "the file does not name the processor; --cpu does"


def _usual(vendor: str) -> Cpu:
    return next(cpu for cpu in PROCESSORS.values() if cpu.vendor == vendor and cpu.usual)


def _arm(vendor: str, model: int | None) -> Cpu:
    named = (c for c in PROCESSORS.values() if c.vendor == "arm" and c.maker and c.maker in vendor)
    return next(named, None) or _by_cpuid("arm", 0, model) or _usual("arm")


def _by_cpuid(vendor: str, family: int | None, model: int | None) -> Cpu | None:
    for cpu in PROCESSORS.values():
        for own, first, last in cpu.cpuid if cpu.vendor == vendor else ():
            if own == family and model is not None and first <= model <= last:
                return cpu
    return None


def named_processor(name: str) -> Cpu:
    """Return the processor called `name`; the error lists the known names."""
    if name not in PROCESSORS:
        known = ", ".join(PROCESSORS)
        raise InputError(f"no processor {printable(name)!r}; there are {known}")
    return PROCESSORS[name]


def nic_model(vendor: int | None, device: int | None) -> tuple[str, bool, int]:
    """Return family, Ethernet-only flag and port rate [Gb/s]; ('', False, 0) if unknown."""
    found = ADAPTER_IDS.get((vendor or 0, device or 0))
    return (found.family, found.ethernet, found.gbps) if found else ("", False, 0)
