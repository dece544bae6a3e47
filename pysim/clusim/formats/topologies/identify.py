"""Which chip a GPU is: by what the user says, its PCI identity, its compute capability, words in the file, a guess."""

from __future__ import annotations

import re

from clusim.formats.topologies.devices import PCIE_GTS
from clusim.formats.topologies.importedmachine import ImportedDevice, ImportedGpu, ImportedMachine
from clusim.formats.values import printable
from clusim.hardware import (
    gpu_by_capability,
    gpu_by_gfx,
    gpu_by_pci,
    gpu_by_words,
    standing,
)

__all__ = ["generation", "gts", "identify"]


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


def identify(
    machine: ImportedMachine, device: ImportedDevice, forced: str | None
) -> tuple[str, str]:
    """Return the chip of a GPU, and why it was taken (empty if the file says it)."""
    gpu = device.gpu or ImportedGpu()
    known = gpu_by_pci(device.vendor, device.device)
    if forced is not None:
        differs = known is not None and known.name != forced
        said = known.name if known is not None else ""
        return forced, f"as asked for; the file says {said}" if differs else ""
    if known is not None:
        return known.name, ""
    hint = gpu_by_words(machine.hint)
    said = f"gcn {printable(gpu.gcn, 16)}" if gpu.gcn else f"sm {gpu.sm}"
    usual = gpu_by_gfx(gpu.gcn, gpu.sm) if gpu.gcn else gpu_by_capability(gpu.sm)
    if usual is not None:
        if hint and hint[0].architecture is usual.architecture:
            return hint[0].name, f"{said}, and the file's name or comments say {hint[1]!r}"
        return usual.name, f"{said}; the file does not name the board, --chip does"
    if gpu.gcn or gpu.sm is not None:
        return _card(
            device
        ), f"{said} is not known; a card of its PCIe generation, --chip names another"
    if hint:
        return hint[0].name, f"the file's name or comments say {hint[1]!r}"
    if machine.guess is not None:
        return machine.guess
    return _card(
        device
    ), "the file does not say; a card of its PCIe generation, --chip names another"


def _card(device: ImportedDevice) -> str:
    """Return a card of the device's PCIe generation, for files that say nothing else."""
    cards = standing("card")
    return cards[min(generation(device.speed) or 4, max(cards))].name
