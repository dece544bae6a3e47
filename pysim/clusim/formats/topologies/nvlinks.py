"""Links of GPUs to each other, to listed or hidden NVSwitches and to CPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

from clusim.base.limits import natural
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.identify import (
    HIDDEN,
    BusId,
    PciClass,
    Peer,
    PlacedGpu,
)
from clusim.formats.topologies.presets import c2c_link, direct_keys, nvlink_keys
from clusim.hardware import Gpu
from clusim.topology.nccl_overrides import SWITCH

_TRUNKS = 8
"""Links between the two boards of a DGX-2, per pair of NVSwitches."""

TRUNK_LATENCY = "100ns"
"""Twice a SerDes of 50 ns: no GPU at an end, as in the preset of the DGX-2."""


def connect_gpus(draft: Draft, gpus: list[PlacedGpu]) -> None:
    """Add the links that `gpus` name."""
    work = _Links(draft, gpus)
    silent = not any(
        item.gpu.peers or item.gpu.gcn or item.gpu.asked for item in gpus
    )
    if silent and not any(item.gpu.c2c_MBps for item in gpus):
        # NCCL queries the driver about GPUs without NVLinks in the file.
        work.usual()
        return
    for item in gpus:
        for peer in item.gpu.peers:
            work.add(item.name, peer, item.chip)
        if item.gpu.told is not None:
            work.hear(item.name, item.gpu.told)
        if item.gpu.c2c_MBps:
            draft.link(item.name, item.cpu.name, **c2c_link(item.gpu.c2c_MBps))
    work.join_pairs()
    work.join_selves()
    work.complete()
    work.join_switches()
    work.join_hidden()
    work.tell()


class _Links:
    def __init__(self, draft: Draft, gpus: list[PlacedGpu]) -> None:
        self.draft = draft
        self.gpus = {item.name: item for item in gpus}
        self.chip = {item.name: item.chip for item in gpus}
        self.by_bus = {
            item.device.bus: item.name for item in reversed(gpus) if item.device.bus
        }
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.xgmi: set[frozenset[str]] = set()
        self.selves: Counter[str] = Counter()
        self.switches: dict[BusId, Counter[str]] = {}
        self.texts: dict[BusId, str] = {}
        self.hidden: Counter[str] = Counter()
        self.told: dict[str, Counter[str]] = {}

    def add(self, name: str, peer: Peer, chip: Gpu) -> None:
        """Sort one link entry of a GPU by the kind of its remote end."""
        other = self.by_bus.get(peer.target)
        switched = _is_switch(peer)
        to = SWITCH if peer.target == HIDDEN else other
        if to is not None or switched:
            self.told.setdefault(name, Counter())[to or SWITCH] += peer.count
        if peer.target == HIDDEN:
            self.hidden[name] += peer.count
        elif other == name:
            self.selves[name] += peer.count
        elif other is not None:
            self.pairs[name, other] += peer.count
            if peer.xgmi:
                self.xgmi.add(frozenset((name, other)))
        elif peer.tclass == PciClass.NPU_BRIDGE:
            keys = nvlink_keys(chip)
            self.draft.link(name, self.gpus[name].cpu.name, count=peer.count, **keys)
        elif switched or (peer.tclass is None and not peer.xgmi):
            self.switches.setdefault(peer.target, Counter())[name] += peer.count
            self.texts[peer.target] = peer.text
        else:
            self.draft.assume(
                name,
                f"{peer.count} links to {peer.text} ignored",
                "no device of that address in the file: a GPU that was not used",
            )

    def hear(self, name: str, peers: list[Peer]) -> None:
        """Note the links of a GPU that NCCL reads, which differ from the existing links."""
        counts = self.told[name] = Counter()
        for peer in peers:
            to = SWITCH if peer.target == HIDDEN else self.by_bus.get(peer.target)
            if to is not None or _is_switch(peer):
                counts[to or SWITCH] += peer.count

    def join_pairs(self) -> None:
        """Add the links between two GPUs; both list them, and their counts may differ."""
        for a, b in sorted(
            self.pairs, key=lambda pair: (natural(pair[0]), natural(pair[1]))
        ):
            back = self.pairs[b, a]
            if back and natural(b) < natural(a):
                continue
            count = max(self.pairs[a, b], back)
            if back != self.pairs[a, b]:
                self.draft.assume(
                    f"{a}-{b}",
                    f"{count} links",
                    f"asymmetric: {a} names {self.pairs[a, b]}, {b} names {back}; the larger was taken",
                )
            xgmi = frozenset((a, b)) in self.xgmi
            self.draft.link(
                a, b, count=count, **direct_keys(self.chip[a], xgmi=xgmi)
            )

    def complete(self) -> None:
        """Add the links to NVSwitches of GPUs that only an input of NCCL describes.

        NCCL queries the driver for a GPU without links in such a file; a dump has the driver's answer.
        """
        for name, item in self.gpus.items():
            chip, gpu = item.chip, item.gpu
            dumped = gpu.asked or gpu.rank is not None or gpu.sm is not None
            if gpu.peers or dumped or not chip.planes or self.pairs.total():
                continue
            if self.hidden or not self.switches:
                self.hidden[name] = sum(chip.planes)
            else:
                for counts in self.switches.values():
                    counts[name] = max(counts.values())
            self.draft.assume(
                name,
                "links to NVSwitches as the others",
                "the file lists no links and no run's state; NCCL queries the driver",
            )

    def tell(self) -> None:
        """Note the links that NCCL reads if they differ from the existing links."""
        existing: dict[str, Counter[str]] = {name: Counter() for name in self.gpus}
        for link in self.draft.links:
            if str(link.get("type", "")).startswith(("nvlink", "xgmi-")):
                for end, other in (
                    (link["from"], link["to"]),
                    (link["to"], link["from"]),
                ):
                    if end in existing and (
                        other in existing or other.startswith("nvswitch")
                    ):
                        existing[end][other if other in existing else SWITCH] += (
                            link.get("count", 1)
                        )
        for name, item in self.gpus.items():
            overrides = self.told.get(name, Counter())
            if not item.gpu.peers or overrides == existing[name]:
                continue
            self.draft.settings.setdefault("told", {})[name] = dict(overrides)
        if "told" in self.draft.settings:
            self.draft.assume(
                list(self.draft.settings["told"]),
                "NCCL reads other NVLinks than the hardware has",
                "told: in the topology file sets NCCL's search, channels and tuner; data use the links",
            )

    def join_selves(self) -> None:
        """Add the links of GPUs that name themselves as remote end (bridges in virtual machines)."""
        waiting: list[str] = []
        for name in self.gpus:
            if not self.selves[name]:
                continue
            partner = next(
                (o for o in waiting if self.selves[o] == self.selves[name]), None
            )
            if partner is None:
                waiting.append(name)
                continue
            waiting.remove(partner)
            count = self.selves[name]
            self.draft.link(
                partner, name, count=count, **direct_keys(self.chip[name])
            )
            self.draft.assume(
                [f"{partner}-{name}"],
                f"{count} links join the two",
                "both name themselves as the other end, which cannot be; neighbours are bridged",
            )
        for name in waiting:
            self.draft.assume(
                name,
                f"{self.selves[name]} links ignored",
                "it names itself as the other end, and no other GPU can be paired with it",
            )

    def join_switches(self) -> None:
        """Add the NVSwitches that the file names."""
        order = sorted(self.switches, key=lambda bus: natural(self.texts[bus]))
        members: dict[str, frozenset[str]] = {}
        for index, bus in enumerate(order):
            name = f"nvswitch{index}"
            counts = self.switches[bus]
            chip = self.chip[next(iter(counts))]
            self._switch(name, chip)
            self.draft.source(name, self.texts[bus])
            members[name] = frozenset(counts)
            for gpu in sorted(counts, key=natural):
                self.draft.link(
                    gpu, name, count=counts[gpu], **nvlink_keys(self.chip[gpu])
                )
        self._trunks(members)

    def join_hidden(self) -> None:
        """Add the NVSwitches that a virtual machine does not see."""
        names = [name for name in self.gpus if self.hidden[name]]
        if not names:
            return
        chip = self.chip[names[0]]
        planes = chip.planes or (1,)
        first = sum(name.startswith("nvswitch") for name in self.draft.nodes)
        members: dict[str, frozenset[str]] = {}
        for number, board in enumerate(_boards(chip, names)):
            switches = [
                self._switch(f"nvswitch{first + number * len(planes) + plane}", chip)
                for plane in range(len(planes))
            ]
            members |= dict.fromkeys(switches, frozenset(board))
            for name in board:
                counts = _split(self.hidden[name], planes)
                for switch, count in zip(switches, counts, strict=True):
                    if count:
                        self.draft.link(
                            name, switch, count=count, **nvlink_keys(chip)
                        )
            split_text = "/".join(map(str, _split(self.hidden[board[0]], planes)))
            self.draft.assume(
                board,
                f"its {self.hidden[board[0]]} links lead to {len(planes)} NVSwitches, {split_text}",
                "the file does not show the switches; as in the usual node of this chip",
            )
        self._trunks(members)

    def usual(self) -> None:
        """Add the links of the chip's usual node: the file contains no links."""
        names = list(self.gpus)
        chips = {id(chip) for chip in self.chip.values()}
        chip = self.chip[names[0]]
        why = "the file names no GPU links at all; as in the usual node of this chip"
        if len(names) < 2 or len(chips) > 1:
            return
        if chip.planes:
            members = {}
            for number, board in enumerate(_boards(chip, names)):
                for plane, count in enumerate(chip.planes):
                    switch = self._switch(
                        f"nvswitch{number * len(chip.planes) + plane}", chip
                    )
                    members[switch] = frozenset(board)
                    for name in board:
                        self.draft.link(
                            name, switch, count=count, **nvlink_keys(chip)
                        )
            planes_text = "/".join(map(str, chip.planes))
            self.draft.assume(
                names, f"links to {len(chip.planes)} NVSwitches, {planes_text}", why
            )
            self._trunks(members)
        elif chip.cube_mesh and len(names) == 8:
            pairs = Counter(
                (int(pair[0]), int(pair[1])) for pair in chip.cube_mesh.split()
            )
            for (a, b), count in pairs.items():
                self.draft.link(names[a], names[b], count=count, **direct_keys(chip))
            self.draft.assume(names, "links of a hybrid cube mesh (DGX-1)", why)
        elif chip.link.startswith("xgmi") and len(names) - 1 == chip.links:
            for one, two in combinations(names, 2):
                self.draft.link(one, two, **direct_keys(chip, xgmi=True))
            self.draft.assume(names, "an xGMI link between every two", why)
        elif chip.link:
            self.draft.assume(names, "no links between GPUs", "none in the file")

    def _switch(self, name: str, chip: Gpu) -> str:
        usual = {"1": "nvswitch1", "2": "nvswitch1", "3": "nvswitch2"}
        kind = chip.switch or usual.get(chip.link[-1:], "nvswitch3")
        return self.draft.node(name, "switch", switch=kind)

    def _trunks(self, members: Mapping[str, frozenset[str]]) -> None:
        """Join two boards of NVSwitches without a common GPU, which the file cannot describe."""
        groups = list(dict.fromkeys(members.values()))
        if len(groups) != 2 or groups[0] & groups[1]:
            return
        one, two = (
            [s for s, m in members.items() if m == group] for group in groups
        )
        if len(one) != len(two):
            return
        keys = nvlink_keys(self.chip[min(groups[0], key=natural)])
        for a, b in zip(one, two, strict=True):
            trunk = {**keys, "latency": TRUNK_LATENCY, "class": "trunk"}
            self.draft.link(a, b, count=_TRUNKS, **trunk)
        self.draft.assume(
            [*one, *two],
            f"{_TRUNKS} links join each pair of the two boards",
            "the GPUs of a DGX-2 reach the other board so; the file cannot show it",
        )


def _is_switch(peer: Peer) -> bool:
    return (peer.tclass or 0) >> 8 == PciClass.NVSWITCH >> 8


def _boards(chip: Gpu, names: list[str]) -> list[list[str]]:
    """Return the GPUs of each board: a DGX-2 has two of eight GPUs."""
    if chip.switch == "nvswitch1" and len(names) > 8:
        return [names[:8], names[8:]]
    return [names]


def _split(count: int, planes: tuple[int, ...]) -> list[int]:
    """Divide `count` links among planes in the proportion of the usual node."""
    total = sum(planes)
    if count % total == 0:
        return [plane * count // total for plane in planes]
    base, more = divmod(count, len(planes))
    return [base + (index < more) for index in range(len(planes))]
