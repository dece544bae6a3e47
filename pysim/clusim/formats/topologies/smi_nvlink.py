"""`nvidia-smi nvlink -s`: how many NVLinks of every GPU are up, and what the GPUs are called."""

from __future__ import annotations

import re
from pathlib import Path

from clusim.formats.topologies.common import CHIP_OPTION, Draft
from clusim.formats.topologies.importedmachine import (
    HIDDEN,
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    Peer,
)
from clusim.formats.topologies.matrix import MAX_DEVICES
from clusim.formats.topologies.wiring import wire_machine
from clusim.formats.values import fail, printable
from clusim.hardware import gpu_by_product

__all__ = ["GPU_LINE", "LINK_LINE", "named_gpus", "read_nvlink"]

GPU_LINE = re.compile(
    r"^[^\S\n]*GPU[ ]?([0-9]{1,4}): ([A-Za-z][^\n(]{1,80}?)[^\S\n]*(?:\(UUID[^\n]*)?$", re.M
)
LINK_LINE = re.compile(r"^[^\S\n]*Link ([0-9]{1,3}): (?:([0-9.]{1,12}) GB/s|<inactive>)", re.M)


def named_gpus(text: str) -> list[str]:
    """Return the products that lines such as ``GPU 0: NVIDIA A100-SXM4-80GB`` name, in order."""
    return [match[2] for match in GPU_LINE.finditer(text)]


def read_nvlink(text: str, draft: Draft, chip: str | None) -> None:
    """Fill `draft` from the text."""
    draft.settings["description"] = "imported from nvidia-smi nvlink -s"
    found = [(match, int(match[1])) for match in GPU_LINE.finditer(text)]
    numbers = [number for _, number in found]
    if not found or len(set(numbers)) != len(numbers) or len(found) > MAX_DEVICES:
        raise fail(
            draft.where,
            0,
            f"no list of 1 to {MAX_DEVICES} different GPUs: `GPU 0: NAME (UUID: ...)`",
        )
    ends = [match.start() for match, _ in found[1:]] + [len(text)]
    up, down = {}, {}
    for (match, number), end in zip(found, ends, strict=True):
        links = list(LINK_LINE.finditer(text, match.end(), end))
        up[number] = sum(link[2] is not None for link in links)
        down[number] = len(links) - up[number]
    machine = ImportedMachine(hint=Path(draft.where).name)
    product = found[0][0][2]
    known = gpu_by_product(product)
    if known is None and chip is None:
        draft.assume(
            "all GPUs",
            "a card of its kind",
            f"no figures of {printable(product, 60)!r}; --chip names one",
            settles=CHIP_OPTION,
        )
    devices = {
        n: ImportedDevice(bus=f"GPU{n}", text=f"GPU {n}", gpu=ImportedGpu(dev=n, asked=True))
        for n in numbers
    }
    switched = known is not None and bool(known.planes)
    _join(draft, devices, up, switched=switched)
    for number, count in down.items():
        if count and up[number]:
            draft.assume(f"gpu{number}", f"{up[number]} links", f"{count} more are inactive")
    half = -(-len(devices) // 2) if len(devices) > 2 else len(devices)
    order = [devices[number] for number in sorted(devices)]
    for part in (order[:half], order[half:]):
        if part:
            machine.cpus.append(ImportedCpu(numa=len(machine.cpus), devices=part))
    draft.assume(
        "CPUs",
        f"{len(machine.cpus)}, with the GPUs divided among them",
        "the text shows NVLinks only",
    )
    wire_machine(machine, draft, chip or (known.name if known is not None else None))


def _join(
    draft: Draft, devices: dict[int, ImportedDevice], up: dict[int, int], *, switched: bool
) -> None:
    """Give GPUs their links: to NVSwitches, or the same number to every other GPU."""
    for number, device in devices.items():
        gpu, count = device.gpu, up[number]
        if gpu is None or not count:
            continue
        others = [other for other in devices if other != number and up[other]]
        if switched:
            gpu.peers.append(Peer(HIDDEN, count, 0x068000))
        elif others and count >= len(others):
            gpu.peers += [Peer(devices[o].bus, count // len(others), 0x030200) for o in others]
    if not switched and any(up.values()):
        draft.assume(
            [f"gpu{number}" for number in devices],
            "the same number of links to every other GPU",
            "the text says how many links are up, not where they lead; nvidia-smi topo -m does",
        )
