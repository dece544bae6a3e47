"""The machines of measured rows: a preset, what the words of its hardware change of the chip, GPUs per machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from clusim.base.errors import InputError
from clusim.base.units import parse_size
from clusim.hardware import GPUS, Gpu, gpu_by_words
from clusim.simulation.setup import Setup, loaded
from clusim.topology import Fabric, loads
from clusim.topology.loading import joined
from clusim.validation.steps.rows import StepRow

_PRESETS = (
    (("a100 pcie",), "a100-pcie-x8"),
    (("a100 40gb", "a100-40", "p4d"), "azure-ndv4"),
    (("a100",), "dgx-a100"),
    (("gb300",), "gb300-nvl72"),
    (("gb200",), "gb200-nvl72"),
    (("b300",), "hgx-b300"),
    (("b200",), "hgx-b200"),
    (("h200",), "dgx-h200"),
    (("h800",), "hgx-h800"),
    (("h100",), "dgx-h100"),
    (("v100",), "dgx-1v"),
    (("mi300x",), "mi300x"),
    (("l40s",), "l40s-x8"),
)
"""Words of the column hardware -> the preset whose machines are like it; its chip is that of the words."""

_SIZE = re.compile(r"(?<![\w.])(?:\d+-)?(\d+)\s*GB(?!/s)\b", re.IGNORECASE)
_RATE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*TB/s", re.IGNORECASE)
_POWER = re.compile(r"(?<![\w.])(\d+)\s*W(?:\s+limit)?\b")
_USED = ("dgx", "hgx", "sxm", "nvidia", "limit", "1", "eos")
"""Words of hardware that say no more than the names of machines and chips do."""

ROUNDED = 0.08
"""How far a chip's memory may be from the number of GB that people name it by."""


@dataclass(frozen=True, slots=True)
class RowMachines:
    """The machines of a row.

    Attributes
    ----------
    topology : str
        Preset they are like.
    each : int
        GPUs of every machine that take part.
    nodes : int
        Number of machines.
    chip : tuple of (str, value)
        What replaces the chip of the preset, as in a topology's ``chips``; empty is nothing.
    """

    topology: str
    each: int
    nodes: int
    chip: tuple[tuple[str, Any], ...] = ()

    def setup(self, nodes: int) -> Setup:
        """Return so many of them, joined by the preset's network."""
        if not self.chip:
            return Setup(self.topology, nodes if nodes > 1 else None)
        return Setup(_changed(self.topology, self.chip, nodes))

    def placed(self, gpus: int) -> tuple[int, list[int] | None]:
        """Return the machines that so many GPUs need, and which GPUs they are; None is all of these machines."""
        nodes = min(self.nodes, -(-gpus // self.each))
        while nodes < self.nodes and gpus % nodes:
            nodes += 1
        has = _ranks(self.topology)
        if gpus == nodes * has or gpus % nodes or gpus // nodes > has:
            return nodes, None
        own = range(gpus // nodes)
        return nodes, [has * machine + gpu for machine in range(nodes) for gpu in own]


def machines_of(row: StepRow, notes: list[str]) -> RowMachines:
    """Return the machines of a row; what its words do not say, or what is not used of them, is added to `notes`.

    Raises
    ------
    InputError
        No preset is like it, or its words contradict each other: a memory that no such chip has, without its rate.
    """
    preset = _preset(row)
    has, name = _ranks(preset), _chip_of(preset)
    named = gpu_by_words(row.hardware)
    gpu = named[0] if named is not None and named[0] is not None else GPUS[name]
    if (gpu.architecture.name, gpu.form) != (GPUS[name].architecture.name, GPUS[name].form):
        raise InputError(f"hardware {row.hardware!r}: {preset} has {name}, no {gpu.name}")
    chip: dict[str, Any] = {} if gpu.name == name else {"base": gpu.name}
    chip |= _said(row, gpu)
    if chip:
        chip = {"base": gpu.name} | chip
        said = ", ".join(f"{key} {value}" for key, value in chip.items())
        notes.append(f"chip as the column hardware says: {said}")
    rest = _POWER.sub(" ", _RATE.sub(" ", _SIZE.sub(" ", row.hardware)))
    names = {*gpu.name.split("-"), *f"{gpu.model} {gpu.form}".lower().split(), *_USED}
    unused = [word for word in re.findall(r"\w+", rest) if word.lower() not in names]
    if unused:
        notes.append(f"hardware: {', '.join(unused)} not used")
    nodes = max(1, -(-row.n_gpus // has))
    while nodes < row.n_gpus and row.n_gpus % nodes:
        nodes += 1
    return RowMachines(preset, max(1, row.n_gpus // nodes), nodes, tuple(chip.items()))


def _preset(row: StepRow) -> str:
    word = row.hardware.lower()
    for names, preset in _PRESETS:
        if any(name in word for name in names):
            return preset
    raise InputError(f"hardware {row.hardware!r}: no preset is like it")


def _said(row: StepRow, gpu: Gpu) -> dict[str, Any]:
    """Return the figures of a chip that the words of a row give and that the chip does not have."""
    found: dict[str, Any] = {}
    rate, power = _RATE.search(row.hardware), _POWER.search(row.hardware)
    if rate is not None:
        found["memory_rate"] = f"{float(rate[1]) * 1000:g} GB/s"
    if power is not None:
        found["power"] = float(power[1])
    for size in _SIZE.finditer(row.hardware):
        there = parse_size(str(gpu.figures["memory"].value))
        said = int(size[1]) * 10**9
        if min(abs(said - there), abs(int(size[1]) * 2**30 - there)) <= ROUNDED * there:
            continue
        if rate is None:
            raise InputError(
                f"hardware {row.hardware!r}: {gpu.name} has {there / 2**30:.0f} GiB, not {size[1]} GB; name another"
                " chip, or say the rate of its memory (TB/s)"
            )
        found["memory"] = f"{size[1]}GB"
    return found


@lru_cache(maxsize=64)
def _ranks(preset: str) -> int:
    return loaded(preset, None).num_ranks


@lru_cache(maxsize=64)
def _chip_of(preset: str) -> str:
    machine = loaded(preset, None)
    chips = [node.endpoint.chip for node in machine.nodes if node.endpoint is not None]
    return next(chip for chip in chips if chip in GPUS)


@lru_cache(maxsize=16)
def _changed(preset: str, chip: tuple[tuple[str, Any], ...], nodes: int) -> Fabric:
    """Return so many machines of a preset with another chip in the place of its GPUs."""
    data = yaml.safe_load(loaded(preset, None).source_text)
    own = str(dict(chip)["base"])
    if len(chip) > 1:
        own = f"{own}-as-said"
        data["chips"] = {**data.get("chips", {}), own: dict(chip)}
    for node in data["nodes"].values():
        if node.get("chip") in GPUS:
            node["chip"] = own
    return joined(loads(yaml.safe_dump(data, sort_keys=False), preset), nodes)
