"""Systems of measured rows: presets with the chips, rates and powers that a row states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from clusim.base.errors import InputError
from clusim.base.units import parse_size
from clusim.hardware import GPUS, Gpu
from clusim.hardware.product_names import gpu_by_words
from clusim.simulation.setup import Setup, loaded
from clusim.topology import Fabric, join_nodes, loads
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
"""Words of the column hardware -> the preset with similar nodes; its chip is replaced by the column's."""

_SIZE = re.compile(r"(?<![\w.])(?:\d+-)?(\d+)\s*GB(?!/s)\b", re.IGNORECASE)
_RATE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*TB/s", re.IGNORECASE)
_POWER = re.compile(r"(?<![\w.])(\d+)\s*W(?:\s+limit)?\b")
_USED = ("dgx", "hgx", "sxm", "nvidia", "limit", "1", "eos")
"""Words of hardware without information beyond the names of systems and chips."""

_HBM2E = re.compile(r"(?<!\w)(HBM2e|lower power)(?!\w)", re.IGNORECASE)
HBM2E_H100 = {"memory_rate": "2400 GB/s", "power": 500.0}
"""H100 SXM with 96 GB of HBM2e, as TorchTitan publishes its nodes (benchmarks/llama3_h100_202412_torchtitan.md)."""

ROUNDED = 0.08
"""Tolerance between a GPU's memory and the GB in its common name."""

AS_SAID = "-as-said"
"""Suffix of a GPU with figures from a row."""


@dataclass(frozen=True, slots=True)
class RowMachines:
    """The system of a row.

    Attributes
    ----------
    topology : str
        Most similar preset.
    each : int
        Participating GPUs per node.
    nodes : int
        Number of nodes.
    chip : tuple of (str, value)
        Replacement of the preset's chip, as in a topology's ``chips``; empty keeps it.
    """

    topology: str
    each: int
    nodes: int
    chip: tuple[tuple[str, Any], ...] = ()

    def setup(self, nodes: int) -> Setup:
        """Return the setup of `nodes` nodes, joined by the preset's network."""
        if not self.chip:
            return Setup(self.topology, nodes if nodes > 1 else None)
        return Setup(_replace_chip(self.topology, self.chip, nodes))

    def place_gpus(self, gpus: int) -> tuple[int, list[int] | None]:
        """Return the nodes for a number of GPUs, and the GPUs used; None is all their GPUs."""
        nodes = min(self.nodes, -(-gpus // self.each))
        while nodes < self.nodes and gpus % nodes:
            nodes += 1
        has = _ranks(self.topology)
        if gpus == nodes * has or gpus % nodes or gpus // nodes > has:
            return nodes, None
        local_gpus = range(gpus // nodes)
        return nodes, [
            has * machine + gpu for machine in range(nodes) for gpu in local_gpus
        ]


def machines_of(row: StepRow, notes: list[str]) -> RowMachines:
    """Return the system of a row; adds changes of the chip and unused words to `notes`.

    Raises
    ------
    InputError
        No preset is similar, or its words contradict each other: a memory that no such chip has, without its rate.
    """
    preset = _preset(row)
    has, name = _ranks(preset), _chip_of(preset)
    named = gpu_by_words(row.hardware)
    gpu = named[0] if named is not None and named[0] is not None else GPUS[name]
    if (gpu.architecture.name, gpu.form) != (
        GPUS[name].architecture.name,
        GPUS[name].form,
    ):
        raise InputError(
            f"hardware {row.hardware!r}: {preset} has {name}, no {gpu.name}"
        )
    chip: dict[str, Any] = {} if gpu.name == name else {"base": gpu.name}
    chip |= _chip_parameters(row, gpu)
    remainder = _POWER.sub(" ", _RATE.sub(" ", _SIZE.sub(" ", row.hardware)))
    if "memory_rate" in chip and _RATE.search(row.hardware) is None:
        remainder = _HBM2E.sub(" ", remainder)
        notes.append(
            "assumed, as TorchTitan's H100 with 96 GB of HBM2e: 2.4 TB/s, limit of 500 W"
        )
    if chip:
        chip = {"base": gpu.name} | chip
        description = ", ".join(f"{key} {value}" for key, value in chip.items())
        notes.append(f"chip by the column hardware: {description}")
    names = {
        *gpu.name.split("-"),
        *f"{gpu.model} {gpu.form}".lower().split(),
        *_USED,
    }
    unused = [
        word for word in re.findall(r"\w+", remainder) if word.lower() not in names
    ]
    if unused:
        notes.append(f"hardware: {', '.join(unused)} not used")
    nodes = max(1, -(-row.n_gpus // has))
    while nodes < row.n_gpus and row.n_gpus % nodes:
        nodes += 1
    return RowMachines(
        preset, max(1, row.n_gpus // nodes), nodes, tuple(chip.items())
    )


def _preset(row: StepRow) -> str:
    word = row.hardware.lower()
    for names, preset in _PRESETS:
        if any(name in word for name in names):
            return preset
    raise InputError(f"hardware {row.hardware!r}: no matching preset")


def _chip_parameters(row: StepRow, gpu: Gpu) -> dict[str, Any]:
    """Return the parameters in the words of a row that differ from the chip's."""
    result: dict[str, Any] = {}
    rate, power = _RATE.search(row.hardware), _POWER.search(row.hardware)
    if rate is not None:
        result["memory_rate"] = f"{float(rate[1]) * 1000:g} GB/s"
    if power is not None:
        result["power"] = float(power[1])
    for size in _SIZE.finditer(row.hardware):
        memory_bytes = parse_size(str(gpu.figures["memory"].value))
        stated_bytes = int(size[1]) * 10**9
        if (
            min(
                abs(stated_bytes - memory_bytes),
                abs(int(size[1]) * 2**30 - memory_bytes),
            )
            <= ROUNDED * memory_bytes
        ):
            continue
        if (
            rate is None
            and gpu.name == "h100-sxm5"
            and "hbm2e" in row.hardware.lower()
        ):
            result = HBM2E_H100 | result
        elif rate is None:
            raise InputError(
                f"hardware {row.hardware!r}: {gpu.name} has {memory_bytes / 2**30:.0f} GiB, not {size[1]} GB;"
                " name another chip, or add its memory rate (TB/s)"
            )
        result["memory"] = f"{size[1]}GB"
    return result


@lru_cache(maxsize=64)
def _ranks(preset: str) -> int:
    return loaded(preset, None).num_ranks


@lru_cache(maxsize=64)
def _chip_of(preset: str) -> str:
    machine = loaded(preset, None)
    chips = [
        node.endpoint.chip for node in machine.nodes if node.endpoint is not None
    ]
    return next(chip for chip in chips if chip in GPUS)


@lru_cache(maxsize=16)
def _replace_chip(
    preset: str, chip: tuple[tuple[str, Any], ...], nodes: int
) -> Fabric:
    """Return `nodes` nodes of a preset with another chip in place of its GPUs."""
    data = yaml.safe_load(loaded(preset, None).source_text)
    chip_name = str(dict(chip)["base"])
    if len(chip) > 1:
        chip_name = f"{chip_name}{AS_SAID}"
        data["chips"] = {**data.get("chips", {}), chip_name: dict(chip)}
    for node in data["nodes"].values():
        if node.get("chip") in GPUS:
            node["chip"] = chip_name
    return join_nodes(loads(yaml.safe_dump(data, sort_keys=False), preset), nodes)
