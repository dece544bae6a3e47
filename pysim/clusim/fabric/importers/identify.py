"""Which chip a GPU is: by what the user says, its PCI identity, its compute capability, words in the file, a guess."""

from __future__ import annotations

import re

from clusim.fabric.importers.common import printable
from clusim.fabric.importers.devices import CHIPS, PCIE_GTS, chip_by_hint, chip_by_id, chip_by_sm
from clusim.fabric.importers.machine import Device, Gpu, Machine

__all__ = ["generation", "gts", "identify"]

_CARDS = {1: "p100-pcie", 2: "p100-pcie", 3: "v100-pcie", 4: "a100-pcie-80gb", 5: "h100-pcie"}
"""A card of each PCIe generation, for files that say nothing else."""


def gts(speed: str | None) -> float | None:
    """Return the signalling rate that a file gives (``16.0 GT/s PCIe``, ``8 GT/s``) [GT/s]; None if it gives none."""
    match = re.match(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s", speed or "")
    value = float(match[1]) if match else 0.0
    return value or None


def generation(speed: str | None) -> int | None:
    """Return the PCIe generation next to the rate that a file gives; None if it gives none."""
    rate = gts(speed)
    if rate is None:
        return None
    return min(PCIE_GTS, key=lambda gen: abs(PCIE_GTS[gen] - rate))


def identify(machine: Machine, device: Device, forced: str | None) -> tuple[str, str]:
    """Return the chip of a GPU, and why it was taken (empty if the file says it)."""
    gpu = device.gpu or Gpu()
    known = chip_by_id(device.vendor, device.device)
    if forced is not None:
        differs = known is not None and known != forced
        return forced, f"as asked for; the file says {known}" if differs else ""
    if known is not None:
        return known, ""
    hint = chip_by_hint(machine.hint)
    said = f"gcn {printable(gpu.gcn, 16)}" if gpu.gcn else f"sm {gpu.sm}"
    usual = chip_by_sm(gpu.sm, gpu.gcn)
    if usual is not None:
        if hint and CHIPS[hint[0]].architecture == CHIPS[usual].architecture:
            return hint[0], f"{said}, and the file's name or comments say {hint[1]!r}"
        return usual, f"{said}; the file does not name the board, --chip does"
    if gpu.gcn or gpu.sm is not None:
        return _card(
            device
        ), f"{said} is not known; a card of its PCIe generation, --chip names another"
    if hint:
        return hint[0], f"the file's name or comments say {hint[1]!r}"
    if machine.guess is not None:
        return machine.guess
    return _card(
        device
    ), "the file does not say; a card of its PCIe generation, --chip names another"


def _card(device: Device) -> str:
    return _CARDS.get(generation(device.speed) or 4, "h100-pcie")
