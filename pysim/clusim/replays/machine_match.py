"""Detection of the preset of a log, by its GPUs, links and NICs.

Each clue excludes presets or supports some. The preset with the highest score is chosen, on a tie the most common,
and every clue is reported. Each preset's file lists its signature in logs (`clusim.topology.cluster_names`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clusim.base.errors import InputError, one_line
from clusim.formats.logs import Log
from clusim.formats.logs.jobranks import JobRanks
from clusim.hardware import GPUS
from clusim.hardware.identity import unknown_gpu
from clusim.hardware.product_names import gpu_by_product
from clusim.nccl.constants import FEATURES, LATEST, OLDEST, Version, nvlink_GBps
from clusim.topology.cluster_names import Traits, machine_traits

_RELEASES: tuple[Version, ...] = (
    OLDEST,
    Version(*FEATURES["nvlink of 22 GB/s"]),
    LATEST,
)
"""NCCL versions that assume different rates of an NVLink."""


@dataclass(slots=True)
class Guess:
    """Detected preset, with the clues for it and against it."""

    topology: str
    reasons: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Clue:
    text: str
    fits: Callable[[Traits], bool]
    weight: int
    strict: bool = False


def infer_machine(log: Log, ranks: JobRanks) -> Guess:
    """Return the nearest preset.

    Raises
    ------
    InputError
        The log does not identify the GPUs, or names a GPU that is unknown or in no preset.
    """
    presets = machine_traits()
    clues = [
        *_gpu_names(log, presets),
        *_platform(log, presets),
        *_bus_addresses(log, presets),
        *_links(log),
        *_transports(log),
        *_network(log, ranks),
        *_counts(ranks),
    ]
    if not any(clue.weight >= 4 for clue in clues):
        usual = (
            "mi300x"
            if log.facts.library == "RCCL" or log.facts.kernels
            else "dgx-h100"
        )
        named = sorted(
            {name for gpus in log.hosts.values() for name in gpus if name}
        )
        if named:
            message = f"no preset has the GPU {one_line(named[0][:60])}; set the system with --topology"
            raise InputError(f"{log.facts.files[0]}: {message}")
        raise InputError(
            f"{log.facts.files[0]}: unknown system (no GPU names, bus addresses of a known node or topology"
            f" print); set --topology, for example --topology {usual}"
        )

    def score(preset: Traits) -> int:
        return sum(
            clue.weight if clue.fits(preset) else -2 * clue.strict * clue.weight
            for clue in clues
        )

    best = max(presets, key=score)
    reasons = [
        f"{clue.text}{'' if clue.fits(best) else f' (but {best.name} differs)'}"
        for clue in clues
        if clue.fits(best) or clue.weight > 1
    ]
    alike = [p.name for p in presets if p is not best and score(p) == score(best)]
    if len(ranks.machines) > 1 and not any(
        clue.text.startswith("network") for clue in clues
    ):
        reasons.append(
            f"no network between nodes in the log: that of {best.name} assumed"
        )
    if alike:
        reasons.append(f"as likely by these lines: {', '.join(alike)}")
    doubts = [
        f"{clue.text}, but the nearest preset {best.name} differs; set the system with --topology"
        for clue in clues
        if clue.strict and not clue.fits(best)
    ]
    return Guess(best.name, reasons, doubts)


def _has_gpu(*models: str) -> Callable[[Traits], bool]:
    return lambda preset: preset.chip.model in models


def _has_network(network: str) -> Callable[[Traits], bool]:
    return lambda preset: preset.network == network


def _gpu_names(log: Log, presets: Sequence[Traits]) -> list[_Clue]:
    names = sorted({name for gpus in log.hosts.values() for name in gpus if name})
    clues = []
    for name in names:
        if gpu_by_product(name) is None:
            message = f"{unknown_gpu(name)}; set the system with --topology"
            raise InputError(f"{log.facts.files[0]}: {message}")
    for name in names[:2]:
        result = gpu_by_product(name)
        if result is not None and any(
            _has_gpu(result.model)(preset) for preset in presets
        ):
            clues.append(
                _Clue(
                    f"GPU name {name!r}: {result.model}",
                    _has_gpu(result.model),
                    8,
                    True,
                )
            )
        else:
            clues.append(
                _Clue(
                    f"GPU name {name!r}: not in a preset", lambda p: False, 2, True
                )
            )
    return clues


def _is_one_of(names: Sequence[str]) -> Callable[[Traits], bool]:
    return lambda preset: preset.name in names


def _platform(log: Log, presets: Sequence[Traits]) -> list[_Clue]:
    """Match the platform that a network plugin prints with the product in a preset's description."""
    clues = []
    for name in sorted(log.facts.platforms):
        fitting = [
            preset.name
            for preset in presets
            if name in preset.description.replace(",", " ").split()
        ]
        if fitting:
            text = f"network plugin: platform {name}"
            clues.append(_Clue(text, _is_one_of(fitting), 8, True))
    return clues


def _bus_addresses(log: Log, presets: Sequence[Traits]) -> list[_Clue]:
    """Compare PCI bus addresses; most are equal on all nodes of a type."""
    buses = {bus for c in log.communicators for bus in c.bus_of.values()}
    short = {bus >> 12 if bus & 0xFFF == 0 else bus for bus in buses}
    short = {bus >> 8 if bus & 0xFF == 0 and bus > 0xFF else bus for bus in short}
    fitting = [p.name for p in presets if len(short) > 2 and short <= p.buses]
    if not fitting:
        return []
    listing = " ".join(f"{bus:x}" for bus in sorted(short))
    text = f"GPUs at PCI buses {listing}: as in {' and '.join(fitting)}"
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
        return [
            _Clue(
                "no NVLink in the topology print: PCIe only",
                lambda p: p.linked_by == "pcie",
                4,
            )
        ]
    if any(name.startswith("NVS") for _, name in nvlinks):
        bw = max(bw for bw, name in nvlinks if name.startswith("NVS"))
        clues = [
            _Clue(
                "NVSwitch in the topology print",
                lambda p: p.linked_by == "switch",
                3,
            )
        ]
        models = _models_with(bw)
        if models:
            text = f"NVLinks of a GPU carry {bw:g} GB/s: {' or '.join(models)}"
            clues.append(_Clue(text, _has_gpu(*models), 5, True))
        return clues
    return [
        _Clue(
            "NVLink from GPU to GPU in the topology print",
            lambda p: p.linked_by == "peer",
            3,
        )
    ]


def _models_with(rate_GBps: float) -> list[str]:
    """Return the GPU models with about this total rate of NVLinks to switches [GB/s].

    Rates are those that any NCCL version assumes.
    """
    result = [
        chip.model
        for chip in GPUS.values()
        if chip.planes
        and any(
            abs(
                chip.links * nvlink_GBps(chip.compute_capability, version)
                - rate_GBps
            )
            < 0.05 * rate_GBps
            for version in _RELEASES
        )
    ]
    return list(dict.fromkeys(result))


def _transports(log: Log) -> list[_Clue]:
    kinds = {
        route.kind
        for c in log.communicators
        for *_, route, _ in log.connections_of(c)
    }
    nvls = any(m.nvls or m.counts.get("nvls") for m in log.facts.members)
    clues = []
    if "SHM" in kinds and "P2P" not in kinds:
        text = "GPUs talk through host memory (SHM), never directly"
        clues.append(_Clue(text, lambda p: p.linked_by == "pcie", 4))
    if nvls:
        text = "NVLS channels: NVSwitch that reduces"
        clues.append(
            _Clue(
                text, lambda p: p.linked_by == "switch" and p.chip.multicast, 4, True
            )
        )
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
        return [_Clue("several nodes", lambda p: bool(p.network), 1)]
    return []


def _counts(ranks: JobRanks) -> list[_Clue]:
    min_gpus = max(ranks.most_per_machine, max(ranks.devices, default=0) + 1)
    return [
        _Clue(
            f"up to {min_gpus} GPUs on a node", lambda p: p.gpus >= min_gpus, 2, True
        ),
        *(
            [_Clue("all its GPUs in the job", lambda p: p.gpus == min_gpus, 1)]
            if min_gpus >= 4
            else []
        ),
    ]
