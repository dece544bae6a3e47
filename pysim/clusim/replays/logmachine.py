"""System of a log: built from NCCL's topology lines and compared with the nearest preset.

If both agree (GPUs, path types and rates between them, NICs), the preset is used, since it contains more than a log.
Otherwise the system of the log is built, and assumptions that the log does not support are listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clusim.base.errors import ClusimError
from clusim.formats.logs import Log
from clusim.formats.logs.jobranks import JobRanks
from clusim.formats.logs.raw_log import Member
from clusim.formats.topologies.common import Imported
from clusim.formats.topologies.nccl_print import read_print
from clusim.hardware import Gpu
from clusim.hardware.product_names import gpu_by_product
from clusim.nccl.constants import Version, nvlink_GBps
from clusim.nccl.system import System
from clusim.nccl.topology import build_system
from clusim.replays.machine_match import Guess
from clusim.topology import Fabric, join_nodes, load
from clusim.topology.cluster_names import machine_traits


@dataclass(slots=True)
class LogMachine:
    """System of a replay: preset name or fabric, how it was found, unsupported assumptions."""

    topology: str | Path | Fabric
    lines: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def machine_of_log(
    log: Log, ranks: JobRanks, guess: Guess, version: Version
) -> LogMachine:
    """Return the system of a log; `guess` is the nearest preset."""
    reasons = [f"  {reason}" for reason in guess.reasons]
    preset = LogMachine(
        guess.topology, [f"{guess.topology}: concluded from", *reasons], guess.doubts
    )
    result = printed_machine(log, guess.topology, version)
    if result is None:
        return preset
    place, imported, member = result
    printed = imported.fabric()
    if ranks.most_per_machine > printed.num_ranks:
        preset.lines.append(
            f"  {place} prints {printed.num_ranks} GPUs of a node, the job has"
            f" {ranks.most_per_machine} on one: not used"
        )
        return preset
    differences = list(
        _differences(printed, load(guess.topology), version, _numbers(log, member))
    )
    if not differences and not _other_chip(log, guess):
        preset.lines.insert(1, f"  NCCL's topology print ({place}) is the same")
        preset.doubts = []
        return preset
    machine = join_nodes(printed, len(ranks.machines))
    chip = _chip(log, guess.topology).name
    named = any(name for gpus in log.hosts.values() for name in gpus)
    lines = [
        f"{machine.name}: NCCL's topology print ({place})",
        *(f"  unlike {guess.topology}: {text}" for text in differences[:4]),
        f"  GPUs: {chip}, {'as the log names them' if named else f'as in {guess.topology}'}",
        *(f"  not in the log: {item}" for item in imported.assumptions),
    ]
    doubts = (
        []
        if named
        else [f"the log does not name its GPUs: {chip} is assumed; set --topology"]
    )
    return LogMachine(machine, lines, doubts)


def printed_machine(
    log: Log, preset: str, version: Version
) -> tuple[str, Imported, Member] | None:
    """Return the most complete topology print of a log and its place; None if invalid.

    Parameters
    ----------
    preset : str
        Preset whose GPUs are assumed if the log does not name them.
    """
    members = [member for member in log.facts.members if member.system]
    if not members:
        return None
    member = max(
        members, key=lambda m: sum(node.name.startswith("GPU/") for node in m.system)
    )
    place = log.facts.place(member.line)
    chip = _chip(log, preset)
    rate = nvlink_GBps(chip.compute_capability, version)
    host = log.facts.processes[member.process].host
    adapters = [
        (name, path.rpartition("/")[2])
        for name, path in log.facts.nics.get(host, {}).items()
    ]
    try:
        result = read_print(
            member.system,
            place,
            chip.name,
            lambda bw: max(1, round(bw / rate)),
            adapters,
        )
        result.fabric()
    except ClusimError:
        return None
    return place, result, member


def _chip(log: Log, preset: str) -> Gpu:
    """Return the GPU model named by nccl-tests, otherwise the preset's."""
    names = sorted({name for gpus in log.hosts.values() for name in gpus if name})
    for name in names:
        result = gpu_by_product(name)
        if result is not None:
            return result
    return next(traits.chip for traits in machine_traits() if traits.name == preset)


def _other_chip(log: Log, guess: Guess) -> bool:
    usual = next(
        traits.chip for traits in machine_traits() if traits.name == guess.topology
    )
    return _chip(log, guess.topology).model != usual.model


def _numbers(log: Log, member: Member) -> list[int]:
    """Return the driver's numbers of the GPUs that are printed; 0, 1, ... if unknown."""
    count = sum(
        node.name.startswith("GPU/") and node.link == "PCI" for node in member.system
    )
    host = log.facts.processes[member.process].host
    number_of = {
        m.bus: m.nvml
        for m in log.facts.members
        if m.nvml >= 0 and m.bus >= 0 and log.facts.processes[m.process].host == host
    }
    numbers = sorted(number_of.values())
    return (
        numbers if len(numbers) == count == len(set(numbers)) else list(range(count))
    )


def _differences(
    printed: Fabric, preset: Fabric, version: Version, numbers: list[int]
) -> Iterator[str]:
    """Yield differences that NCCL would see between two nodes: paths between GPUs, NICs."""
    if max(numbers) >= preset.num_ranks:
        yield f"{len(numbers)} GPUs up to number {max(numbers)}, not {preset.num_ranks}"
        return
    one = build_system(printed, version)
    two = build_system(preset, version, ranks=numbers)
    for a in range(len(one.gpus)):
        if (rate := _host(one, a)) != (usual := _host(two, a)):
            yield f"GPU {a} is joined to its CPU at {rate:g} GB/s, not {usual:g}"
        for b in range(a + 1, len(one.gpus)):
            mine, other = _path(one, a, b), _path(two, a, b)
            if mine != other:
                yield f"GPUs {a} and {b} are {mine}, not {other}"
    if one.adapters:
        rates = [
            [net.speed_GBps for net in system.adapters] for system in (one, two)
        ]
        alike = len(rates[0]) == len(rates[1]) and all(
            abs(x - y) <= 0.13 * y for x, y in zip(*map(sorted, rates), strict=True)
        )
        if not alike:
            texts = [
                " ".join(f"{rate:g}" for rate in node_rates) or "none"
                for node_rates in rates
            ]
            yield f"NICs of {texts[0]} GB/s, not {texts[1]}"


def _host(system: System, gpu: int) -> float:
    """Return the rate of the path to the nearest CPU [GB/s]."""
    routes = (system.route(system.gpus[gpu], cpu) for cpu in system.cpus)
    return max((route.rate for route in routes if route is not None), default=0.0)


def _path(system: System, a: int, b: int) -> str:
    route = system.route(system.gpus[a], system.gpus[b])
    return "apart" if route is None else f"{route.type.name} at {route.rate:g} GB/s"
