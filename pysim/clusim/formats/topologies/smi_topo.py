"""Importer of `nvidia-smi topo -m` (and ``-p2p``) and `rocm-smi --showtopo`.

Builds a PCIe tree that fits the distances.

The matrices contain the kind of path between each pair of devices: PIX at most one switch, PXB several
switches, PHB the host bridge of a CPU, NODE host bridges of one NUMA node, SYS across NUMA nodes, NV#
that number of NVLinks. Devices with PIX between each other share a switch, groups with PXB share a
switch one level up, and all devices of a NUMA node share a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

from clusim.base.limits import natural
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.identify import (
    HIDDEN,
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    Net,
    PciClass,
    halves,
    switch_above,
)
from clusim.formats.topologies.smi_matrix import P2P, parse_matrix
from clusim.formats.topologies.smi_nvlink import (
    LEVELS,
    Matrix,
    is_gpu,
    named_gpus,
    parse_rocm,
)
from clusim.formats.topologies.wiring import wire_machine
from clusim.hardware import GPUS, stand_ins

USUAL_PCIE = 4
"""PCIe generation of unnamed GPUs without NVLinks in a table."""

MOST_LINKS = 18
"""Largest number of NVLinks of a GPU; a larger total over its pairs implies NVSwitches."""


def read_smi(text: str, draft: Draft) -> None:
    """Fill `draft` from the text of nvidia-smi."""
    matrix = parse_matrix(text, draft.where)
    draft.settings["description"] = "imported from nvidia-smi topo -m"
    machine = ImportedMachine(hint=f"{Path(draft.where).name} {matrix.around}")
    devices = _devices(matrix, text)
    if any(word in P2P for word in matrix.words.values()):
        _from_p2p(matrix, draft)
    else:
        _symmetric(matrix, draft)
        _add_nvlinks(machine, matrix, devices, draft)
    _add_tree(machine, matrix, devices, draft)
    wire_machine(machine, draft)


def read_rocm(text: str, draft: Draft) -> None:
    """Fill `draft` from the text of rocm-smi."""
    matrix, peers = parse_rocm(text, draft.where)
    draft.settings["description"] = "imported from rocm-smi --showtopo"
    machine = ImportedMachine(hint=f"{Path(draft.where).name} ")
    devices = _devices(matrix, text)
    _add_xgmi(machine, devices, peers)
    _add_tree(machine, matrix, devices, draft)
    wire_machine(machine, draft)


def _devices(matrix: Matrix, text: str) -> dict[str, ImportedDevice]:
    """Return the devices of a table by name, with the products that the text names."""
    products = named_gpus(text)
    return {name: _device(matrix, name, products) for name in matrix.names}


def _device(
    matrix: Matrix, name: str, products: Mapping[int, str]
) -> ImportedDevice:
    if is_gpu(name):
        number = int(name[3:])
        product = products.get(number, "")
        gpu = ImportedGpu(dev=number, product=product, asked=True)
        return ImportedDevice(bus=f"{name}", text=name, gpu=gpu)
    device_name = matrix.legend.get(name, name)
    net = Net(
        name=device_name,
        dev=int(name[3:]) if re.fullmatch(r"NIC[0-9]{1,6}", name) else None,
    )
    return ImportedDevice(text=device_name, cls=_nic_class(device_name), nets=[net])


def _nic_class(name: str) -> int:
    ethernet = re.match(r"(eth|en|roce|bond|rdmap|mlx5_bond)", name)
    return PciClass.ETHERNET if ethernet else PciClass.INFINIBAND


def _symmetric(matrix: Matrix, draft: Draft) -> None:
    """Use the shorter path if the halves of the table differ, and note the GPUs without a row."""
    rows = {name for name, _ in matrix.words}
    missing = [name.lower() for name in matrix.gpus if name not in rows]
    if missing and rows:
        draft.assume(
            missing,
            "its paths, from the rows of the others",
            "its row is missing in the table",
        )
    for a, b in combinations(matrix.names, 2):
        one, two = matrix.words.get((a, b)), matrix.words.get((b, a))
        if one is None or two is None or one == two:
            continue
        key = {
            word: (not word.startswith("NV"), LEVELS.get(word, 0), word)
            for word in (one, two)
        }
        best = min((one, two), key=lambda word: key[word])
        matrix.words[a, b] = matrix.words[b, a] = best
        draft.assume(
            f"{a}-{b}".lower(),
            best,
            f"asymmetric: the table has {one} one way and {two} the other",
        )


def _add_nvlinks(
    machine: ImportedMachine,
    matrix: Matrix,
    devices: dict[str, ImportedDevice],
    draft: Draft,
) -> None:
    gpus = matrix.gpus
    counts = {
        (a, b): n for a, b in combinations(gpus, 2) if (n := matrix.nvlinks(a, b))
    }
    totals = {g: sum(n for pair, n in counts.items() if g in pair) for g in gpus}
    max_links = max(totals.values(), default=0)
    per_pair = max(counts.values(), default=0)
    switched = max_links > MOST_LINKS or (per_pair >= MOST_LINKS and len(gpus) == 2)
    machine.guess = _guess(switched, per_pair if switched else max_links, len(gpus))
    if switched:
        for name in gpus:
            links = max((n for pair, n in counts.items() if name in pair), default=0)
            if links:
                devices[name].join(HIDDEN, links, PciClass.NVSWITCH)
        return
    if counts and len(gpus) == 2 and per_pair == 12:
        draft.assume(
            "gpu0-gpu1",
            "12 links between the two",
            "a pair of bridged cards; two GPUs of a node with NVSwitches look the same",
        )
    for (a, b), count in counts.items():
        devices[a].join(devices[b].bus, count)
        devices[b].join(devices[a].bus, count)


def _guess(switched: bool, links: int, gpus: int) -> tuple[str, str]:
    if switched:
        usual = stand_ins("switch")
        same = [gpu for gpu in GPUS.values() if gpu.planes and gpu.links == links]
        newest = max(
            same, key=lambda gpu: gpu.compute_capability, default=usual[max(usual)]
        )
        chip = usual.get(links, newest)
        alike = [
            gpu.name for gpu in same if gpu.architecture is not chip.architecture
        ]
        alternatives = (
            f"; {' and '.join(alike)} has the same number; choose with --chip"
            if alike
            else ""
        )
        return (
            chip.name,
            f"{links} NVLinks from every GPU to NVSwitches{alternatives}",
        )
    if links == 0:
        card = stand_ins("card")[USUAL_PCIE]
        return card.name, "no NVLinks; the table does not name the GPU, --chip does"
    table = stand_ins("pair" if gpus == 2 else "mesh")
    chip = table[min((n for n in table if n >= links), default=max(table))]
    return (
        chip.name,
        f"{links} NVLinks per GPU; the table does not name the GPU, --chip does",
    )


def _add_xgmi(
    machine: ImportedMachine,
    devices: dict[str, ImportedDevice],
    peers: dict[tuple[str, str], int],
) -> None:
    totals: dict[str, int] = {}
    for (a, b), count in peers.items():
        devices[a].join(devices[b].bus, count, 0x038000, xgmi=True)
        totals[a] = totals.get(a, 0) + count
    max_links = max(totals.values(), default=0)
    table = stand_ins("xgmi")
    min_links = max(max_links, 4 if len(devices) > 8 else min(table))
    name = table[max(n for n in table if n <= min_links)].name
    machine.guess = (
        name,
        f"{max_links} xGMI links per GPU; the tables do not name it, --chip does",
    )


def _from_p2p(matrix: Matrix, draft: Draft) -> None:
    """Turn a table of working pairs into distances: these share switches, others only a CPU."""
    for pair, word in matrix.words.items():
        matrix.words[pair] = "PXB" if word == "OK" else "PHB"
    draft.assume(
        "all hardware",
        "GPUs that can reach each other share PCIe switches, the others only a CPU; no NVLinks",
        "a table of topo -p2p does not contain links; import topo -m instead",
    )


class _Groups:
    """Union-find over names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.parent = {name: name for name in names}

    def find(self, name: str) -> str:
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def join(self, a: str, *others: str) -> None:
        for other in others:
            self.parent[self.find(other)] = self.find(a)

    def join_equal(self, keys: Mapping[str, object]) -> list[tuple[str, str]]:
        """Join names with equal keys; return the first and each further name that were apart."""
        first: dict[object, str] = {}
        pairs = [(first.setdefault(key, name), name) for name, key in keys.items()]
        result = []
        for a, b in pairs:
            if self.find(a) != self.find(b):
                result.append((a, b))
                self.join(a, b)
        return result

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        result: dict[str, list[str]] = {}
        for name in names:
            result.setdefault(self.find(name), []).append(name)
        return list(result.values())


def _group_by_level(
    matrix: Matrix, names: list[str], level: int, draft: Draft
) -> _Groups:
    groups = _Groups(names)
    for a, b in combinations(names, 2):
        if 0 < matrix.level(a, b) <= level:
            groups.join(a, b)
    word = next(key for key, value in LEVELS.items() if value == level)
    for members in groups.groups(names):
        odd = [
            f"{a}-{b}"
            for a, b in combinations(members, 2)
            if matrix.level(a, b) > level
        ]
        if odd:
            draft.assume(
                [pair.lower() for pair in odd],
                f"as near as {word}",
                f"the table contradicts itself: both are {word} or nearer to a third device",
            )
    return groups


def _add_tree(
    machine: ImportedMachine,
    matrix: Matrix,
    devices: dict[str, ImportedDevice],
    draft: Draft,
) -> None:
    names = matrix.names
    pix = _group_by_level(matrix, names, 1, draft)
    pxb = _group_by_level(matrix, names, 2, draft)
    roots = _Groups(names)
    for a, b in combinations(names, 2):
        if 0 < matrix.level(a, b) <= 4:
            roots.join(a, b)
    for a, b in roots.join_equal(matrix.numa):
        if matrix.level(a, b) == 5:
            draft.assume(
                f"{a}-{b}".lower(),
                f"both at the CPU of NUMA node {matrix.numa[a]}",
                "SYS in the table, but the same NUMA node: host bridges of one CPU",
            )
    clusters = _join_clusters(matrix, roots, draft)
    placed = _by_affinity(matrix, roots, draft)
    levels = any(matrix.level(a, b) for a, b in combinations(names, 2))
    if not (levels or matrix.numa or placed):
        # Only NVLinks are known: half of the GPUs at each of two CPUs, as in most nodes.
        for part in halves(names):
            roots.join(*part)
        draft.assume("CPUs", "half of the GPUs at each of two", "not in the table")
    for members in sorted(
        roots.groups(names), key=lambda group: min(names.index(n) for n in group)
    ):
        numas = [
            matrix.numa[name] // clusters for name in members if name in matrix.numa
        ]
        below = [_below(pix.groups(outer), devices) for outer in pxb.groups(members)]
        machine.cpus.append(
            ImportedCpu(numa=numas[0] if numas else None, devices=below)
        )
    cpu_numas = {cpu.numa for cpu in machine.cpus}
    if len(cpu_numas) != len(machine.cpus) or None in cpu_numas:
        for position, cpu in enumerate(machine.cpus):
            cpu.numa = position
    unknown = [
        name.lower()
        for name in matrix.gpus
        if not any(matrix.level(name, o) for o in names if o != name)
    ]
    if unknown:
        draft.assume(
            unknown,
            "a separate slot at its CPU",
            "the table shows NVLinks only, not where the GPU is in the PCIe tree",
        )


def _join_clusters(matrix: Matrix, roots: _Groups, draft: Draft) -> int:
    """Join the NUMA nodes of one socket (NPS of AMD, SNC of Intel) if the processor is given.

    Returns the number of NUMA nodes of a socket. Two sockets are assumed, as a table does not distinguish
    them.
    """
    top = max(matrix.numa.values(), default=0) + 1
    per_cluster = next((n for n in (1, 2, 4) if 2 * n >= top), 1)
    if (
        draft.cpu is None
        or draft.cpu.vendor not in ("amd", "intel")
        or per_cluster == 1
    ):
        return 1
    roots.join_equal(
        {name: numa // per_cluster for name, numa in matrix.numa.items()}
    )
    listing = ", ".join(map(str, sorted(set(matrix.numa.values()))))
    draft.assume(
        "CPUs",
        f"two sockets of {per_cluster} NUMA nodes each",
        f"the table has NUMA nodes {listing}; {draft.cpu.name} divides a socket into up to four",
    )
    gpus = {roots.find(name) for name in matrix.gpus}
    apart = [name for name in matrix.names if roots.find(name) not in gpus]
    if apart:
        roots.join(max(matrix.numa, key=matrix.numa.__getitem__), *apart)
        where = [name.lower() for name in apart]
        draft.assume(where, "at the last socket", "they are in no GPU's NUMA node")
    return per_cluster


def _by_affinity(matrix: Matrix, roots: _Groups, draft: Draft) -> bool:
    """Join devices with the same CPU affinity if NUMA nodes are missing (virtual machines).

    Returns True if this places the GPUs.
    """
    gpus = matrix.gpus
    if matrix.numa or any(name not in matrix.near for name in gpus):
        return False
    affinity = {name: matrix.near[name] for name in gpus}
    for a, b in roots.join_equal(affinity):
        far = "SYS in the table, but " if matrix.level(a, b) else ""
        why = f"{far}both are near processors {affinity[a][:40]}"
        draft.assume(f"{a}-{b}".lower(), "both at one CPU", why)
    occupied = {roots.find(gpu) for gpu in gpus}
    alone = [n for n in matrix.names if roots.find(n) == n and n not in occupied]
    if len(set(affinity.values())) == 1 and alone:
        roots.join(gpus[0], *alone)
        draft.assume(
            [name.lower() for name in alone],
            "at the one CPU",
            "SYS in the table, but all GPUs are near all processors",
        )
    return True


def _below(
    groups: list[list[str]], devices: Mapping[str, ImportedDevice]
) -> ImportedDevice:
    """Return the devices below one port of a CPU; each group shares the nearest switch."""
    parts = [
        [devices[name] for name in sorted(group, key=natural)] for group in groups
    ]
    if len(parts) == 1:
        return parts[0][0] if len(parts[0]) == 1 else switch_above(parts[0])
    alone = next((part for part in parts if len(part) == 1), None)
    return switch_above(
        part[0] if part is alone else switch_above(part) for part in parts
    )
