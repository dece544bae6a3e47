"""The GPUs there are, and how one is found: by name, PCI identity, capability, what it stands for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from clusim.base.errors import InputError, suggest
from clusim.hardware.architecture import Architecture, architecture_of
from clusim.hardware.datafiles import FOLDER, read
from clusim.hardware.gpu import Gpu, gpu_of

FAMILIES: dict[str, Architecture] = {
    name: architecture_of(name, entry)
    for name, entry in read(FOLDER / "architectures.yaml").items()
}
"""Architectures by name."""


def _paths() -> dict[str, Path]:
    """Return the file of every GPU: those that are shipped, and those in the directories of ``CLUSIM_GPUS``."""
    result: dict[str, Path] = {}
    own = [Path(part) for part in os.environ.get("CLUSIM_GPUS", "").split(os.pathsep) if part]
    for folder in (FOLDER / "gpus", *own):
        for path in sorted(folder.glob("*.py")):
            raise InputError(f"{path.name}: GPUs are YAML files; write {path.stem}.yaml")
        for path in sorted(folder.glob("*.yaml")):
            if path.stem in result:
                raise InputError(f"{path}: there is a GPU {path.stem!r} already; rename the file")
            result[path.stem] = path
    return dict(sorted(result.items()))


def _read(
    name: str, paths: Mapping[str, Path], known: dict[str, Gpu], above: tuple[str, ...] = ()
) -> Gpu:
    """Return a GPU after the one that its file starts from."""
    if name in known:
        return known[name]
    entry = read(paths[name])
    try:
        start, base = entry.pop("base", None), None
        if start is not None:
            if start not in paths or start in (*above, name):
                near = suggest(str(start), [item for item in paths if item not in (*above, name)])
                raise InputError(f"base is {start!r}, which is no other GPU{near}")
            base = _read(start, paths, known, (*above, name))
        known[name] = gpu_of(name, entry, FAMILIES, base)
    except InputError as error:
        text = str(error)
        raise InputError(text if ".yaml: " in text else f"{paths[name].name}: {text}") from None
    return known[name]


def _found() -> dict[str, Gpu]:
    """Return the GPUs, first those that a short name means: the usual chip, then modules, then cards."""
    claimed: dict[object, str] = {}
    known: dict[str, Gpu] = {}
    paths = _paths()
    for name, path in paths.items():
        for claim in _claims(_read(name, paths, known)):
            if claim in claimed:
                raise InputError(f"{path.name}: {claim} is taken by {claimed[claim]}")
            claimed[claim] = path.name
    order = sorted(known.values(), key=lambda item: (not item.usual, item.form != "sxm", item.name))
    return {item.name: item for item in order}


def _claims(item: Gpu) -> Iterable[str]:
    """Yield what only one GPU can be."""
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
