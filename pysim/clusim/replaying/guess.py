"""Which of the shipped machines a log came from, by what its lines say of GPUs, links and adapters.

Every clue rules presets out or speaks for some; the one with most in favour is taken, and each clue is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from clusim.errors import InputError, InternalError
from clusim.formats.logs import Log
from clusim.formats.logs.jobranks import JobRanks
from clusim.hardware import GPUS, Gpu, gpu, gpu_by_product
from clusim.nccl.constants import nvlink_GBps
from clusim.nccl.versions import Version
from clusim.resources import find_topology

__all__ = ["Guess", "infer_machine"]


@dataclass(frozen=True, slots=True)
class _Preset:
    """What a log of a preset shows: GPUs per machine, links between them, network library, bus addresses."""

    name: str
    per_node: int
    links: str
    network: str = ""
    buses: tuple[int, ...] = ()


_PRESETS = (
    _Preset("dgx-h100", 8, "switch", "IB", (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)),
    _Preset("hgx-h100-ndr", 8, "switch", "IB"),
    _Preset("azure-ndv5", 8, "switch", "IB", (1, 2, 3, 8, 9, 0xA, 0xB, 0xC)),
    _Preset("aws-p5", 8, "switch", "OFI", (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)),
    _Preset("gcp-a3-mega", 8, "switch", "FasTrak", (4, 5, 0xA, 0xB, 0x84, 0x85, 0x8A, 0x8B)),
    _Preset("dgx-h200", 8, "switch", "IB"),
    _Preset("aws-p5en", 8, "switch", "OFI"),
    _Preset("hgx-h800", 8, "switch", "IB"),
    _Preset("dgx-a100", 8, "switch", "IB", (0x7, 0xF, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)),
    _Preset("azure-ndv4", 8, "switch", "IB", (1, 2, 3, 4, 0xB, 0xC, 0xD, 0xE)),
    _Preset("aws-p4d", 8, "switch", "OFI"),
    _Preset("polaris", 4, "mesh", "OFI", (0x7, 0x46, 0x85, 0xC7)),
    _Preset("a100x4-mesh", 4, "mesh"),
    _Preset("a100-pcie-x8", 8, "pcie"),
    _Preset("a100-pcie-nvlink-pair", 2, "mesh"),
    _Preset("dgx-1v", 8, "cube", "IB"),
    _Preset("azure-ndv2", 8, "cube", "IB"),
    _Preset("aws-p3dn", 8, "cube", "OFI"),
    _Preset("dgx-2", 16, "switch", "IB"),
    _Preset("dgx-1p", 8, "cube", "IB"),
    _Preset("hgx-b200", 8, "switch", "IB"),
    _Preset("aws-p6-b200", 8, "switch", "OFI"),
    _Preset("hgx-b300", 8, "switch", "IB"),
    _Preset("gb200-nvl72", 72, "switch", "IB"),
    _Preset("gh200x4-mesh", 4, "mesh", "IB"),
    _Preset("alps-gh200", 4, "mesh", "OFI"),
    _Preset("rtx3090x8-edr56", 8, "pcie", "IB"),
    _Preset("rtx4090x8-pcie", 8, "pcie"),
    _Preset("mi300x", 8, "mesh"),
)

_RELEASES: tuple[Version, ...] = (Version(2, 9), Version(2, 17), Version(2, 30))
"""Releases that take an NVLink for different rates."""


@cache
def _chip(preset: str) -> Gpu:
    """Return the GPU of a preset: the first that its file names."""
    path = find_topology(preset)
    text = path.read_text(encoding="utf-8") if path is not None else ""
    match = re.search(r"kind: gpu, chip: ([\w-]+)", text)
    if match is None:
        raise InternalError(f"{preset}: no GPU in its file")
    return gpu(match[1])


@dataclass(slots=True)
class Guess:
    """A preset, and the clues that led to it."""

    topology: str
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Clue:
    text: str
    fits: Callable[[_Preset], bool]
    weight: int
    strict: bool = False


def infer_machine(log: Log, ranks: JobRanks) -> Guess:
    """Return the nearest preset.

    Raises
    ------
    InputError
        Nothing in the log tells the kind of GPU.
    """
    clues = [
        *_gpu_names(log),
        *_bus_addresses(log),
        *_links(log),
        *_transports(log),
        *_network(log, ranks),
        *_counts(ranks),
    ]
    if not any(clue.weight >= 4 for clue in clues):
        raise InputError(
            f"{log.facts.files[0]}: nothing tells the machine (no GPU names, bus addresses of a known machine or"
            " topology print); give --topology, for example --topology dgx-h100"
        )

    def score(preset: _Preset) -> tuple[int, int]:
        found = sum(
            clue.weight if clue.fits(preset) else -2 * clue.strict * clue.weight for clue in clues
        )
        return found, -_PRESETS.index(preset)

    best = max(_PRESETS, key=score)
    reasons = [
        f"{clue.text}{'' if clue.fits(best) else f' (but {best.name} differs)'}"
        for clue in clues
        if clue.fits(best) or clue.weight > 1
    ]
    alike = [p.name for p in _PRESETS if p is not best and score(p)[0] == score(best)[0]]
    if len(ranks.machines) > 1 and not any(clue.text.startswith("network") for clue in clues):
        reasons.append(f"nothing tells the network between machines: that of {best.name} is taken")
    if alike:
        reasons.append(f"as likely by these lines: {', '.join(alike)}")
    return Guess(best.name, reasons)


def _has_gpu(*models: str) -> Callable[[_Preset], bool]:
    return lambda preset: _chip(preset.name).model in models


def _has_network(network: str) -> Callable[[_Preset], bool]:
    return lambda preset: preset.network == network


def _gpu_names(log: Log) -> list[_Clue]:
    names = sorted({name for gpus in log.hosts.values() for name in gpus if name})
    clues = []
    for name in names[:2]:
        found = gpu_by_product(name)
        if found is not None and any(_has_gpu(found.model)(preset) for preset in _PRESETS):
            clues.append(_Clue(f"GPU name {name!r}: {found.model}", _has_gpu(found.model), 8, True))
        else:
            clues.append(_Clue(f"GPU name {name!r}: none of the presets", lambda p: False, 0))
    return clues


def _bus_addresses(log: Log) -> list[_Clue]:
    """Compare bus addresses, most of which are the same in all machines of a kind."""
    seen = {bus for c in log.communicators for bus in c.bus_of.values()}
    short = {bus >> 12 if bus & 0xFFF == 0 else bus for bus in seen}
    short = {bus >> 8 if bus & 0xFF == 0 and bus > 0xFF else bus for bus in short}
    fitting = [p.name for p in _PRESETS if len(short) > 2 and short <= set(p.buses)]
    if not fitting:
        return []
    shown = " ".join(f"{bus:x}" for bus in sorted(short))
    text = f"GPUs at PCI buses {shown}: as in {' and '.join(fitting)}"
    return [_Clue(text, lambda p: p.name in fitting, 5)]


def _system(log: Log) -> list[tuple[str, float, str]]:
    """Return link, bandwidth and end of the lines of the first topology print."""
    for member in log.facts.members:
        if member.system:
            return [(node.link, node.bw, node.name) for node in member.system]
    return []


def _links(log: Log) -> list[_Clue]:
    lines = _system(log)
    if not lines:
        return []
    nvlinks = [(bw, name) for link, bw, name in lines if link == "NVL"]
    if not nvlinks:
        return [_Clue("no NVLink in the topology print: PCIe only", lambda p: p.links == "pcie", 4)]
    if any(name.startswith("NVS") for _, name in nvlinks):
        bw = max(bw for bw, name in nvlinks if name.startswith("NVS"))
        clues = [_Clue("NVSwitch in the topology print", lambda p: p.links == "switch", 3)]
        models = _models_with(bw)
        if models:
            text = f"NVLinks of a GPU carry {bw:g} GB/s: {' or '.join(models)}"
            clues.append(_Clue(text, _has_gpu(*models), 5, True))
        return clues
    return [
        _Clue(
            "NVLink from GPU to GPU in the topology print", lambda p: p.links in ("mesh", "cube"), 3
        )
    ]


def _models_with(rate_GBps: float) -> list[str]:
    """Return the models whose NVLinks to switches NCCL takes for about this rate [GB/s], in any release."""
    found = [
        chip.model
        for chip in GPUS.values()
        if chip.planes
        and any(
            abs(chip.links * nvlink_GBps(chip.compute_capability, version) - rate_GBps)
            < 0.05 * rate_GBps
            for version in _RELEASES
        )
    ]
    return list(dict.fromkeys(found))


def _transports(log: Log) -> list[_Clue]:
    kinds = {route.kind for c in log.communicators for *_, route, _ in log.connections_of(c)}
    nvls = any(m.nvls or m.counts.get("nvls") for m in log.facts.members)
    clues = []
    if "SHM" in kinds and "P2P" not in kinds:
        text = "GPUs talk through host memory (SHM), never directly"
        clues.append(_Clue(text, lambda p: p.links == "pcie", 4))
    if nvls:
        text = "NVLS channels: NVSwitch that reduces"
        reduces = [preset.name for preset in _PRESETS if preset.links == "switch"]
        reduces = [name for name in reduces if _chip(name).multicast]
        clues.append(_Clue(text, lambda p: p.name in reduces, 4, True))
    return clues


def _network(log: Log, ranks: JobRanks) -> list[_Clue]:
    names = {p.network for p in log.facts.processes if p.network}
    names |= {r.how for r in log.facts.routes if r.kind == "NET"}
    text = " ".join(sorted(names))
    for pattern, network in (
        ("Libfabric|OFI", "OFI"),
        ("FasTrak|GPUDirectTCPX", "FasTrak"),
        ("IB", "IB"),
    ):
        if re.search(pattern, text):
            return [_Clue(f"network {text}", _has_network(network), 2)]
    if len(ranks.machines) > 1:
        return [_Clue("several machines", lambda p: bool(p.network), 1)]
    return []


def _counts(ranks: JobRanks) -> list[_Clue]:
    most = max(ranks.most_per_machine, max(ranks.devices, default=0) + 1)
    return [
        _Clue(f"up to {most} GPUs on a machine", lambda p: p.per_node >= most, 2, True),
        *([_Clue("all its GPUs in the job", lambda p: p.per_node == most, 1)] if most >= 4 else []),
    ]
