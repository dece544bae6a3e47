"""Catalogue of GPUs and look-up by name, PCI identity, compute capability or stand-in.

Catalogue of processors, NICs and switches, by name and by PCI identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from clusim.base.datafiles import OnDemand, read
from clusim.base.errors import InputError, suggest
from clusim.base.extensions import Extension, extensions
from clusim.hardware.cpu import Cpu, HostCosts, cpu_of, host_of
from clusim.hardware.gpu import Architecture, Gpu, architecture_of, gpu_of
from clusim.hardware.links import Switch, switch_of
from clusim.hardware.nic import Nic, Pci, Transport, nic_of, pci_of, transport_of


@cache
def _file(name: str) -> dict[str, Any]:
    return read(Path(__file__).with_name(f"{name}.yaml"))


def _hosts() -> dict[str, HostCosts]:
    entries = _file("processors")["hosts"]
    intel = host_of("intel", entries["intel"], None)
    vendors = (vendor for vendor in entries if vendor != "intel")
    return {
        "intel": intel,
        **{name: host_of(name, entries[name], intel) for name in vendors},
    }


PROCESSORS: Mapping[str, Cpu] = OnDemand(
    lambda: {
        name: cpu_of(name, entry)
        for name, entry in _file("processors")["processors"].items()
    }
)
"""Processors by the name of their root complex."""

HOST_COSTS: Mapping[str, HostCosts] = OnDemand(_hosts)
"""Launch costs of hosts, by processor vendor."""

TRANSPORTS: Mapping[str, Transport] = OnDemand(
    lambda: {
        name: transport_of(name, entry, entries["verbs"])
        for entries in [_file("transports")]
        for name, entry in entries.items()
    }
)
"""Transports between NCCL and NICs, by name."""

ADAPTERS: Mapping[str, Nic] = OnDemand(
    lambda: {
        name: nic_of(name, entry, TRANSPORTS)
        for name, entry in _file("nics")["nics"].items()
    }
)
"""NICs by name."""

CROSSBARS: Mapping[str, Switch] = OnDemand(
    lambda: {
        name: switch_of(name, entry) for name, entry in _file("switches").items()
    }
)
"""Switches by name, without root complexes."""

PCIE_SWITCH_IDS: Mapping[tuple[int, int], str] = OnDemand(
    lambda: {
        number: item.name for item in CROSSBARS.values() for number in item.pci_ids
    }
)
"""PCIe switches by PCI vendor and device number."""

USUAL_SWITCHES: Mapping[str, str] = OnDemand(
    lambda: {
        what: item.name for item in CROSSBARS.values() for what in item.usual_for
    }
)
"""Switch that a link, or a kind of network, usually leads to."""

SWITCHES_BY_LINK: Mapping[str, str] = OnDemand(
    lambda: {link: item.name for item in CROSSBARS.values() for link in item.links}
)
"""Switch of a cluster whose description names only the link type."""

ADAPTER_IDS: Mapping[tuple[int, int], Pci] = OnDemand(
    lambda: {
        (item.vendor, item.device): item
        for item in map(pci_of, _file("nics")["pci_ids"])
    }
)
"""NICs by PCI vendor and device numbers."""


def _families() -> dict[str, Architecture]:
    entries = _file("architectures")
    return {
        name: architecture_of(
            name, {**entries.get(entry.get("base", entry.get("like")), {}), **entry}
        )
        for name, entry in entries.items()
    }


FAMILIES: Mapping[str, Architecture] = OnDemand(_families)
"""Architectures by name."""


@cache
def _extension_files() -> dict[str, tuple[Path, Extension]]:
    """Return the files of GPUs in the packages of extensions (group ``clusim.gpus``), by name."""
    result: dict[str, tuple[Path, Extension]] = {}
    for extension in extensions("clusim.gpus").values():
        for folder in extension.attribute("__path__", Iterable):
            for path in sorted(Path(folder).glob("*.yaml")):
                result[path.stem] = (path, extension)
    return result


def _problem(name: str, text: str) -> InputError:
    """Return the error of a GPU's file, with the distribution if it belongs to an extension."""
    if name not in _extension_files():
        return InputError(text)
    return _extension_files()[name][1].failure(text)


def _all_paths() -> dict[str, Path]:
    """Return the file of every GPU, of extensions as well."""
    result = _paths()
    for name, (path, extension) in _extension_files().items():
        if name in result:
            raise extension.failure(f"{path.name}: duplicate of the GPU {name!r}")
        result[name] = path
    return dict(sorted(result.items()))


def _paths() -> dict[str, Path]:
    """Return the file of every shipped GPU and of every GPU in the ``CLUSIM_GPUS`` directories."""
    result: dict[str, Path] = {}
    folders = [
        Path(part)
        for part in os.environ.get("CLUSIM_GPUS", "").split(os.pathsep)
        if part
    ]
    for folder in (Path(__file__).with_name("gpus"), *folders):
        if not folder.is_dir():
            raise InputError(f"CLUSIM_GPUS: {folder} is not a directory")
        for path in sorted(folder.glob("*.py")):
            raise InputError(
                f"{path.name}: GPUs are YAML files; write {path.stem}.yaml"
            )
        for path in sorted(folder.glob("*.yaml")):
            if path.stem in result:
                raise InputError(
                    f"{path}: there is a GPU {path.stem!r} already; rename the file"
                )
            result[path.stem] = path
    return result


def _read(
    name: str,
    paths: Mapping[str, Path],
    gpus: dict[str, Gpu],
    above: tuple[str, ...] = (),
) -> Gpu:
    """Return a GPU after the one that its file starts from."""
    if name in gpus:
        return gpus[name]
    entry = read(paths[name])
    try:
        start, base = entry.pop("base", None), None
        if start is not None:
            if start not in paths or start in (*above, name):
                suggestions = suggest(
                    str(start),
                    [item for item in paths if item not in (*above, name)],
                )
                raise InputError(
                    f"base is {start!r}, which is not another GPU{suggestions}"
                )
            base = _read(start, paths, gpus, (*above, name))
        gpus[name] = gpu_of(name, entry, FAMILIES, base)
    except InputError as error:
        text = str(error)
        raise InputError(
            text if ".yaml: " in text else f"{paths[name].name}: {text}"
        ) from None
    return gpus[name]


_READ: dict[str, Gpu] = {}
"""GPUs whose files were read."""


def _of_file(name: str) -> Gpu:
    paths = _paths()
    if name not in paths:
        paths = _all_paths()
    if name not in paths:
        raise KeyError(name)
    return _read_named(name, paths, _READ)


def _read_named(name: str, paths: Mapping[str, Path], gpus: dict[str, Gpu]) -> Gpu:
    """Return a GPU; the error of an extension's file has its distribution."""
    try:
        return _read(name, paths, gpus)
    except InputError as error:
        raise _problem(name, str(error)) from None


def _one(name: str) -> Gpu | None:
    """Return a shipped GPU; None with GPUs of the user, whose files are checked together first.

    Raises
    ------
    KeyError
        No GPU has this name.
    """
    if os.environ.get("CLUSIM_GPUS"):
        return None
    return _READ[name] if name in _READ else _of_file(name)


def _read_gpus() -> dict[str, Gpu]:
    """Return the GPUs in order of preference for short names: usual chip, modules, cards."""
    claimed: dict[object, str] = {}
    gpus: dict[str, Gpu] = {} if os.environ.get("CLUSIM_GPUS") else _READ
    paths = _all_paths()
    for name, path in paths.items():
        for claim in _claims(_read_named(name, paths, gpus)):
            if claim in claimed:
                raise _problem(
                    name, f"{path.name}: {claim} is taken by {claimed[claim]}"
                )
            claimed[claim] = path.name
    order = sorted(
        gpus.values(),
        key=lambda item: (not item.usual, item.form != "sxm", item.name),
    )
    return {item.name: item for item in order}


def _claims(item: Gpu) -> Iterable[str]:
    """Yield the properties that only one GPU may claim."""
    yield from (
        f"PCI id {vendor:04x}:{device:04x}" for vendor, device in item.pci_ids
    )
    yield from (f"stands_for {link!r}" for link in item.stands_for)
    if item.usual and item.gfx:
        yield from (f"usual of gfx{number}" for number in item.gfx)
    elif item.usual:
        kind = "superchip" if item.processor else "usual"
        yield f"{kind} of compute capability {item.compute_capability / 10:g}"


GPUS: Mapping[str, Gpu] = OnDemand(_read_gpus, _one)
"""GPUs by name."""


@cache
def _by_pci() -> dict[tuple[int, int], Gpu]:
    return {identity: item for item in GPUS.values() for identity in item.pci_ids}


@cache
def _read_stand_ins() -> dict[str, Gpu]:
    return {what: item for item in GPUS.values() for what in item.stands_for}


def gpu(name: str) -> Gpu:
    """Return the GPU called `name`; the error has the nearest names."""
    if name not in GPUS:
        raise InputError(f"no GPU is called {name!r}{suggest(name, GPUS)}")
    return GPUS[name]


def gpu_by_pci(vendor: int | None, device: int | None) -> Gpu | None:
    """Return the GPU of a PCI vendor and device number."""
    return _by_pci().get((vendor or 0, device or 0))


def gpu_by_gfx(text: str, units: int | None = None) -> Gpu | None:
    """Return the GPU of an AMD number (``908``, ``gfx942``).

    With `units`, it is the GPU with that number of CUs, otherwise the usual one.
    """
    number = text.lower().removeprefix("gfx").partition(":")[0]
    same = [item for item in GPUS.values() if number in item.gfx]
    exact = (item for item in same if item.sms == units)
    return next(exact, next((item for item in same if item.usual), None))


def gfx_of(item: Gpu) -> str:
    """Return AMD's number of a GPU, by default its architecture's; empty for another vendor."""
    same = (
        one.gfx
        for one in GPUS.values()
        if one.architecture is item.architecture and one.gfx
    )
    numbers = item.gfx or next(same, ())
    return numbers[-1] if numbers else ""


def stand_in(kind: str) -> Gpu | None:
    """Return the stand-in for an unnamed GPU (`Gpu.stands_for`); None if there is none."""
    return _read_stand_ins().get(kind)


def stand_ins(kind: str) -> dict[int, Gpu]:
    """Return the stand-ins of a kind by number of links or PCIe generation."""
    all_stand_ins = _read_stand_ins()
    result = (
        link.split(":") for link in all_stand_ins if link.startswith(f"{kind}:")
    )
    return {
        int(number): all_stand_ins[f"{kind}:{number}"]
        for _, number in sorted(result)
    }
