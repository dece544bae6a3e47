"""The GPUs there are, and how one is found: by name, PCI identity, capability, what it stands for."""

from __future__ import annotations

from collections.abc import Iterable

from clusim.base.errors import InputError, suggest
from clusim.hardware import architectures, gpus
from clusim.hardware.architecture import Architecture
from clusim.hardware.gpu import Gpu
from clusim.hardware.registry import objects_of

FAMILIES: dict[str, Architecture] = {
    item.name: item for _, item in objects_of(architectures, Architecture, "ARCHITECTURE")
}
"""Architectures by name."""


def _found() -> dict[str, Gpu]:
    """Return the GPUs, first what people mean by a short name: the usual chip, then modules, then cards."""
    claimed: dict[object, str] = {}
    found: list[Gpu] = []
    for file, item in objects_of(gpus, Gpu, "GPU"):
        wanted = item.name.replace("-", "_") + ".py"
        if file != wanted:
            raise InputError(f"{file}: name is {item.name!r}; the file must be called {wanted}")
        for claim in _claims(item):
            if claim in claimed:
                raise InputError(f"{file}: {claim} is taken by {claimed[claim]}")
            claimed[claim] = file
        found.append(item)
    found.sort(key=lambda item: (not item.usual, item.form != "sxm", item.name))
    return {item.name: item for item in found}


def _claims(item: Gpu) -> Iterable[str]:
    """Yield what only one GPU can be."""
    yield f"name {item.name!r}"
    yield from (f"PCI id {vendor:04x}:{device:04x}" for vendor, device in item.pci_ids)
    yield from (f"stands_for {what!r}" for what in item.stands_for)
    if item.usual and item.gfx:
        yield from (f"usual of gfx{number}" for number in item.gfx)
    elif item.usual:
        yield f"usual of compute capability {item.compute_capability / 10:g}"


GPUS: dict[str, Gpu] = _found()
"""GPUs by name."""

_BY_PCI = {identity: item for item in GPUS.values() for identity in item.pci_ids}
_STANDING = {what: item for item in GPUS.values() for what in item.stands_for}


def gpu(name: str) -> Gpu:
    """Return the GPU called `name`; the error has the nearest names."""
    if name not in GPUS:
        raise InputError(f"no GPU is called {name!r}{suggest(name, GPUS)}")
    return GPUS[name]


def gpu_by_pci(vendor: int | None, device: int | None) -> Gpu | None:
    """Return the GPU of a PCI vendor and device number."""
    return _BY_PCI.get((vendor or 0, device or 0))


def gpu_by_capability(capability: int | None) -> Gpu | None:
    """Return the usual GPU of a CUDA compute capability times ten."""
    same = (
        i for i in GPUS.values() if i.usual and not i.gfx and i.compute_capability == capability
    )
    return next(same, None)


def gpu_by_gfx(text: str, units: int | None = None) -> Gpu | None:
    """Return the GPU of AMD's number (``908``, ``gfx942``): the one with so many CUs, or the usual one."""
    number = text.lower().removeprefix("gfx").partition(":")[0]
    same = [item for item in GPUS.values() if number in item.gfx]
    exact = (item for item in same if item.sms == units)
    return next(exact, next((item for item in same if item.usual), None))


def stand_in(kind: str, number: int | None = None) -> Gpu | None:
    """Return what an unnamed GPU is taken for (`Gpu.stands_for`); None if nothing stands for it."""
    return _STANDING.get(kind if number is None else f"{kind}:{number}")


def standing(kind: str) -> dict[int, Gpu]:
    """Return what stands for a kind of place, by number of links or generation."""
    found = (what.split(":") for what in _STANDING if what.startswith(f"{kind}:"))
    return {int(number): _STANDING[f"{kind}:{number}"] for _, number in sorted(found)}
