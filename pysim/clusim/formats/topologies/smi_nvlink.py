"""Importer of `nvidia-smi nvlink`: states (-s), capabilities (-c), remote ends (-p, -R).

A text may contain several reports of one node. Only -p and -R contain the remote end of a link, as a PCI
address. The text does not contain the GPUs' addresses, but `nvidia-smi` numbers GPUs in the order of
their addresses.

`rocm-smi --showtopo`: link types and hops between GPUs, and their NUMA nodes.

Table of the paths between the devices of a node, printed by nvidia-smi and rocm-smi.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import field
from pathlib import Path

from clusim.base.limits import fail, printable
from clusim.base.records import dataclass
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.identify import (
    HIDDEN,
    BusId,
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    PciClass,
    bus_id,
    halves,
)
from clusim.formats.topologies.wiring import wire_machine
from clusim.hardware.product_names import gpu_by_product

LEVELS = {"PIX": 1, "PSB": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
"""PCIe distance of two devices, by its word."""

MAX_DEVICES = 512

NVLINK = re.compile(r"NV([0-9]{1,3})")


@dataclass(slots=True)
class Matrix:
    """The table: device names, the word for every pair, NUMA nodes, nearby CPUs, NIC names.

    `around` is the text before the table.
    """

    names: list[str] = field(default_factory=list)
    words: dict[tuple[str, str], str] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)
    near: dict[str, str] = field(default_factory=dict)
    around: str = ""
    legend: dict[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs."""
        return [name for name in self.names if is_gpu(name)]

    def word(self, a: str, b: str) -> str:
        """Return the path between two devices, empty if it is missing in the file."""
        return self.words.get((a, b)) or self.words.get((b, a), "")

    def level(self, a: str, b: str) -> int:
        """Return the PCIe distance of two devices, 0 if the file does not contain it."""
        return LEVELS.get(self.word(a, b), 0)

    def nvlinks(self, a: str, b: str) -> int:
        """Return the number of NVLinks between two GPUs."""
        match = NVLINK.fullmatch(self.word(a, b))
        return int(match[1]) if match else 0


def is_gpu(name: str) -> bool:
    """Return True if this is the name of a GPU in a table."""
    return re.fullmatch(r"GPU[0-9]{1,4}", name) is not None


_NUMA = re.compile(r"GPU\[([0-9]{1,4})\]\s*:.*Numa Node:\s*(-?[0-9]{1,4})")


def parse_rocm(text: str, where: str) -> tuple[Matrix, dict[tuple[str, str], int]]:
    """Return the distances in a text, and the number of xGMI links of pairs with one hop."""
    matrix = Matrix()
    tables: dict[str, dict[tuple[str, str], str]] = {}
    section = ""
    columns: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        title = re.search(r"(Weight|Hops|Link Type) between two GPUs", line)
        if title or line.startswith("="):
            section, columns = (title[1], []) if title else ("", [])
            continue
        match = _NUMA.search(line)
        if match and int(match[2]) >= 0:
            matrix.numa[f"GPU{int(match[1])}"] = int(match[2])
        words = line.split()
        if not section or not words or not re.fullmatch(r"GPU[0-9]{1,4}", words[0]):
            continue
        if not columns:
            columns = [
                word for word in words if re.fullmatch(r"GPU[0-9]{1,4}", word)
            ]
            if len(columns) > MAX_DEVICES:
                raise fail(
                    where, number, f"more than {MAX_DEVICES} GPUs; that is the limit"
                )
            matrix.names = list(dict.fromkeys([*matrix.names, *columns]))
            continue
        cells = words[1 : 1 + len(columns)]
        if len(cells) < len(columns) or words[0] not in columns:
            raise fail(
                where,
                number,
                f"row {words[0]} does not fit the table; is it cut off?",
            )
        table = tables.setdefault(section, {})
        for other, cell in zip(columns, cells, strict=True):
            if other != words[0]:
                table[words[0], other] = cell.upper()
    types = tables.get("Link Type", {})
    if not matrix.names or not types:
        raise fail(
            where,
            0,
            "no table 'Link Type between two GPUs'; use the output of --showtopo",
        )
    return matrix, _links(matrix, types, tables.get("Hops", {}))


def _links(
    matrix: Matrix,
    types: dict[tuple[str, str], str],
    hops: dict[tuple[str, str], str],
) -> dict[tuple[str, str], int]:
    links: dict[tuple[str, str], int] = {}
    for pair, kind in types.items():
        if kind == "XGMI" and hops.get(pair, "1") == "1":
            links[pair] = 1
        elif kind != "XGMI":
            a, b = pair
            same_numa = a in matrix.numa and matrix.numa.get(a) == matrix.numa.get(b)
            matrix.words[pair] = "NODE" if same_numa else "SYS"
    matrix.numa = {
        name: numa for name, numa in matrix.numa.items() if name in matrix.names
    }
    return links


GPU_LINE = re.compile(
    r"^[^\S\n]*GPU[ ]?([0-9]{1,4}): ([A-Za-z][^\n(]{1,80}?)[^\S\n]*(?:\(UUID[^\n]*)?$",
    re.M,
)
_TABLE_ROW = re.compile(
    r"^\|[ ]{1,4}([0-9]{1,4})[ ]{2,4}([A-Za-z][^\n|]{1,60}?)[ ]{1,60}(?:On|Off|N/A)[ ]{0,4}\|",
    re.M,
)
_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]{1,2}"
LINK_LINE = re.compile(
    r"^[^\S\n]*Link ([0-9]{1,3})(?:: (?:(?P<rate>[0-9.]{1,12}) GB/s|(?P<down><inactive>)"
    rf"|(?:Remote Device )?(?P<remote>{_ADDRESS})(?:: Link (?P<there>[0-9]{{1,3}}))?)"
    r"|, P2P is supported: (?P<able>true|false))",
    re.M,
)


@dataclass(slots=True)
class _Links:
    """NVLinks of a GPU in a text, by their numbers."""

    number: int
    product: str
    up: set[int] = field(default_factory=set)
    down: set[int] = field(default_factory=set)
    able: dict[int, bool] = field(default_factory=dict)
    remote: dict[int, tuple[BusId, str, int | None]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return the number of links that are up; without states, with a remote end or usable."""
        if self.up or self.down:
            return len(self.up)
        return len(self.remote) or sum(self.able.values())

    def targets(self) -> Counter[BusId]:
        """Return the number of active links to each address."""
        down = self.down
        return Counter(
            bus for at, (bus, _, _) in self.remote.items() if at not in down
        )


def named_gpus(text: str) -> dict[int, str]:
    """Return products by GPU number, from ``GPU 0: NAME`` and the table of `nvidia-smi`.

    Old drivers truncate long names in the table (``Tesla V100-SXM2...``); these are skipped.
    """
    result = [*GPU_LINE.finditer(text), *_TABLE_ROW.finditer(text)]
    return {
        int(match[1]): match[2] for match in result if not match[2].endswith("...")
    }


def read_nvlink(text: str, draft: Draft) -> None:
    """Fill `draft` from the text."""
    draft.settings["description"] = "imported from nvidia-smi nvlink"
    result = _parse(text, draft)
    machine = ImportedMachine(hint=Path(draft.where).name)
    product = next(iter(result.values())).product
    chip = gpu_by_product(product)
    devices = {
        n: ImportedDevice(
            bus=f"GPU{n}",
            text=f"GPU {n}",
            gpu=ImportedGpu(dev=n, product=result[n].product, asked=True),
        )
        for n in result
    }
    if any(links.remote for links in result.values()):
        _lead(draft, devices, result)
    else:
        _join(
            draft, devices, result, switched=chip is not None and bool(chip.planes)
        )
    for number, links in result.items():
        if links.down and links.up:
            value = f"{len(links.up)} links"
            draft.assume(
                f"gpu{number}", value, f"{len(links.down)} more are inactive"
            )
        if links.able and not (links.up or links.down or links.remote):
            unable = len(links.able) - links.count
            why = "active links are not in the output of -c"
            if unable:
                why = f"{unable} more cannot be used between GPUs"
            draft.assume(f"gpu{number}", f"{links.count} links", why)
    for part in halves([devices[number] for number in sorted(devices)]):
        machine.cpus.append(ImportedCpu(numa=len(machine.cpus), devices=part))
    draft.assume(
        "CPUs",
        f"{len(machine.cpus)}, with the GPUs divided among them",
        "the text shows NVLinks only",
    )
    wire_machine(machine, draft)


def _parse(text: str, draft: Draft) -> dict[int, _Links]:
    """Return the links of every GPU; a GPU may occur once in each report."""
    heads = list(GPU_LINE.finditer(text))
    ends = [match.start() for match in heads[1:]] + [len(text)]
    result: dict[int, _Links] = {}
    queried: set[tuple[int, str]] = set()
    for match, end in zip(heads, ends, strict=False):
        links = result.setdefault(int(match[1]), _Links(int(match[1]), match[2]))
        kinds = {
            _take(links, line) for line in LINK_LINE.finditer(text, match.end(), end)
        } or {""}
        again = {(links.number, kind) for kind in kinds}
        if (
            queried & again
            or ("" in kinds and len(result) < len(heads))
            or links.product != match[2]
        ):
            result.clear()
            break
        queried |= again
    if not 1 <= len(result) <= MAX_DEVICES:
        raise draft.fail(
            f"no list of 1 to {MAX_DEVICES} different GPUs: `GPU 0: NAME (UUID: ...)`"
        )
    return result


def _take(links: _Links, line: re.Match[str]) -> str:
    """Note a line about a link; return the kind of its report."""
    at = int(line[1])
    if line["able"]:
        links.able[at] = line["able"] == "true"
        return "able"
    if line["remote"]:
        remote_port = int(line["there"]) if line["there"] else None
        links.remote[at] = (bus_id(line["remote"]), line["remote"], remote_port)
        return "remote" if remote_port is not None else "address"
    (links.up if line["rate"] else links.down).add(at)
    return "state"


def _lead(
    draft: Draft, devices: dict[int, ImportedDevice], by_gpu: dict[int, _Links]
) -> None:
    """Add the links of GPUs by their remote ends."""
    texts = {
        bus: text
        for links in by_gpu.values()
        for bus, text, _ in links.remote.values()
    }
    order = sorted(texts, key=lambda bus: bus if isinstance(bus, tuple) else ())
    at = dict(zip(order, sorted(by_gpu), strict=False))
    direct = (
        HIDDEN not in texts and len(order) == len(by_gpu) and _both_ways(by_gpu, at)
    )
    if direct:
        names = ", ".join(
            f"gpu{number} {printable(texts[bus], 20)}" for bus, number in at.items()
        )
        draft.assume(
            "addresses of GPUs", names, "nvidia-smi counts GPUs in their order"
        )
    for number, links in by_gpu.items():
        leads = PciClass.GPU if direct else PciClass.NVSWITCH
        for bus, count in links.targets().items():
            target = devices[at[bus]].bus if direct else bus
            devices[number].join(target, count, leads, text=texts[bus])
    if not direct and HIDDEN not in texts:
        draft.assume(
            [f"gpu{number}" for number in by_gpu],
            f"links to {len(order)} NVSwitches",
            "the addresses at their other ends differ from the GPUs' addresses",
        )


def _both_ways(by_gpu: dict[int, _Links], at: dict[BusId, int]) -> bool:
    """Return True if all links are mutual with GPUs at these addresses.

    Link numbers must match as well if the text contains them.
    """
    counts = Counter(
        (number, at[bus])
        for number, links in by_gpu.items()
        for bus, _, _ in links.remote.values()
    )
    if any(a == b or counts[b, a] != count for (a, b), count in counts.items()):
        return False
    for number, links in by_gpu.items():
        for mine, (bus, _, remote_port) in links.remote.items():
            back = (
                by_gpu[at[bus]].remote.get(remote_port)
                if remote_port is not None
                else None
            )
            came = (
                (number, mine)
                if back is None or back[2] is None
                else (at[back[0]], back[2])
            )
            if came != (number, mine):
                return False
    return True


def _join(
    draft: Draft,
    devices: dict[int, ImportedDevice],
    by_gpu: dict[int, _Links],
    *,
    switched: bool,
) -> None:
    """Add the links of GPUs: to NVSwitches, or the same number to every other GPU."""
    for number, device in devices.items():
        count = by_gpu[number].count
        peers = [
            other for other in devices if other != number and by_gpu[other].count
        ]
        if switched and count:
            device.join(HIDDEN, count, PciClass.NVSWITCH)
        elif peers and count >= len(peers):
            for other in peers:
                device.join(devices[other].bus, count // len(peers))
    if not switched and any(links.count for links in by_gpu.values()):
        draft.assume(
            [f"gpu{number}" for number in devices],
            "the same number of links to every other GPU",
            "the text contains only the number of active links; nvidia-smi nvlink -R and topo -m contain their ends",
        )
