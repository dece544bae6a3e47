"""Shared parts of importers: the description they fill, its assumptions and its use.

A `Draft` collects graph nodes and links in the keys of topology files. `Draft.assume` notes each value that the
imported file does not contain: where it applies, the assumed value and the reason. `Draft.finish` returns the
`Imported` result, which can be turned into a fabric or written as a topology file, with the assumptions as comments
at its top and ranges where graph nodes and links repeat.

Files do not contain the number of channels, rings along direct links and peer-to-peer paths either; NCCL determines
them at run time. Rings are searched such that no two share a wire, as in NCCL's search on meshes.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import yaml

from clusim.base.errors import TopologyError, one_line
from clusim.base.json_schema import JsonObject
from clusim.base.limits import fail, json_problem, natural, printable
from clusim.base.records import dataclass
from clusim.formats.topologies.remarks import Remarks
from clusim.hardware import SWITCHES, Cpu, gpu
from clusim.topology.model import key_of

if TYPE_CHECKING:
    from clusim.topology.model import Fabric

WIDTH = 110
_PLACE = re.compile(r"(.*?)(0|[1-9][0-9]{0,6})")


def topology_text(
    data: dict[str, Any], title: str, assumptions: Iterable[object]
) -> str:
    """Return the topology file of a description that was read from `title`."""
    return "".join(_lines(data, title, list(assumptions)))


def _lines(
    data: dict[str, Any], title: str, assumptions: list[object]
) -> Iterator[str]:
    yield f"# {one_line(str(data['name']))}: imported from {title}.\n"
    if assumptions:
        yield "#\n# Missing in the file, and assumed:\n"
    for assumption in assumptions:
        yield textwrap.fill(
            one_line(str(assumption)),
            WIDTH,
            initial_indent="# - ",
            subsequent_indent="#   ",
        )
        yield "\n"
    for key, value in data.items():
        if key == "nodes":
            yield "nodes:\n"
            for name, keys in _runs(value.items()):
                yield f"  {_flow(name)}: {_flow(keys)}\n"
        elif key == "links":
            yield "links:\n" if value else "links: []\n"
            for link in value:
                yield f"  - {_flow(link)}\n"
        elif isinstance(value, dict) and value:
            yield f"{key}:\n"
            for name, item in value.items():
                yield f"  {_flow(name)}: {_flow(item)}\n"
        else:
            yield f"{key}: {_flow(value)}\n"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=10**9
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _runs(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield names with their values; consecutive numbers with equal values are joined: ``gpu0..7``."""
    stem, first, last, value = "", -1, -1, None
    for name, item in [*items, ("", None)]:
        match = _PLACE.fullmatch(name)
        if (
            match
            and last >= 0
            and (match[1], int(match[2]), item) == (stem, last + 1, value)
        ):
            last += 1
            continue
        if last >= 0:
            yield (
                f"{stem}{first}" if first == last else f"{stem}{first}..{last}",
                value,
            )
        if match:
            stem, first, value = match[1], int(match[2]), item
        elif name:
            yield name, item
        last = first if match else -1


MAX_NODES = 65_536
MAX_LINKS = 1_000_000

CHIP_OPTION = "`clusim topo import --chip NAME`"
"""Option that sets the type of the GPUs."""


@dataclass(frozen=True, slots=True)
class Assumption(JsonObject):
    """Assumed value that the file does not contain.

    Attributes
    ----------
    where : str
        The graph nodes, links or lines that it concerns.
    what : str
        The assumed value.
    why : str
        The reason, with the source of the number if it has one.
    settles : str
        The input that settles it, if every result depends on it; empty if it has little effect.
    """

    KEYS = ("where", "what", "why")

    where: str
    what: str
    why: str
    settles: str = ""

    def __str__(self) -> str:
        """Write the assumption on one line."""
        return f"{self.where}: {self.what} ({self.why})"


@dataclass(frozen=True, slots=True)
class Imported:
    """A description read from a file of another tool.

    Attributes
    ----------
    kind : str
        Kind of the file, one of `clusim.formats.topologies.KINDS`.
    title : str
        The kind in words.
    data : dict
        The description, with the keys of topology files.
    assumptions : tuple of Assumption
        Values that the file does not contain.
    counts : dict
        Contents of the description: number of ``gpus``, ``nics``, ``nvlinks`` ...
    """

    kind: str
    title: str
    data: dict[str, Any]
    assumptions: tuple[Assumption, ...]
    counts: Mapping[str, int]

    @property
    def name(self) -> str:
        """Return the name of the system."""
        return str(self.data.get("name") or "imported")

    def to_yaml(self) -> str:
        """Return a topology file, the assumptions as comments at its top."""
        return topology_text(self.data, self.title, self.assumptions)

    def fabric(self) -> Fabric:
        """Return the fabric of the description."""
        from clusim.topology.loading import build

        return build(self)


@dataclass(slots=True)
class Draft:
    """An incomplete description.

    Attributes
    ----------
    where : str
        Name of the file, for errors.
    settings : dict
        Top-level keys other than nodes and links.
    notes : dict
        Assumed value, reason and settling input -> the places that it concerns.
    chip : str
        Model of the GPUs given by the user; empty: as in the file.
    cpu : Cpu or None
        Processors given by the user; None: as in the file.
    group : str or None
        Number or name of the node to import from a file with several.
    remarks : Remarks
        Facts in the comment of an export by clusim.
    """

    where: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    chip: str = ""
    cpu: Cpu | None = None
    group: str | None = None
    remarks: Remarks = field(default_factory=Remarks)

    def fail(self, message: str, line: int = 0) -> TopologyError:
        """Return the error `message` at a line of the file; line 0 is the file in general."""
        return fail(self.where, line, message)

    def json(self, text: str, noun: str) -> Any:
        """Return the data of a JSON text; `noun` names it in the error about its depth."""
        try:
            return json.loads(text)
        except RecursionError:
            raise self.fail(f"nested too deep; is it a {noun}?") from None
        except ValueError as error:
            line = getattr(error, "lineno", 0)
            raise self.fail(f"not valid JSON: {json_problem(error)}", line) from None

    def node(self, name: str, kind: str, **keys: Any) -> str:
        """Add a graph node; return its name. Zone 0 is the default and omitted."""
        if name in self.nodes:
            raise self.fail(
                f"two nodes are called {printable(name)!r}; names are unique"
            )
        if len(self.nodes) >= MAX_NODES:
            raise self.fail(f"more than {MAX_NODES} nodes; that is the limit")
        if keys.get("zone") == 0:
            del keys["zone"]
        self.nodes[name] = {"kind": kind, **keys}
        return name

    def link(self, a: str, b: str, **keys: Any) -> None:
        """Join two nodes."""
        if len(self.links) >= MAX_LINKS:
            raise self.fail(f"more than {MAX_LINKS} links; that is the limit")
        keys = {key: value for key, value in keys.items() if value is not None}
        if keys.get("count") == 1:
            del keys["count"]
        self.links.append({"from": a, "to": b, **keys})

    def define(self, section: str, name: str, keys: Mapping[str, Any]) -> str:
        """Define a type in the description; return its name."""
        self.settings.setdefault(section, {}).setdefault(name, dict(keys))
        return name

    def source(self, element: str, text: str) -> None:
        """Note the origin of an element, or its name in the file."""
        self.settings.setdefault("sources", {})[element] = printable(text, 400)

    def assume(
        self, where: str | Iterable[str], value: str, why: str, *, settles: str = ""
    ) -> None:
        """Note an assumed value; equal notes of several nodes are joined.

        Parameters
        ----------
        settles : str
            The input that settles it, if every result depends on it.
        """
        names = [where] if isinstance(where, str) else list(where)
        self.notes.setdefault((value, why, settles), []).extend(names)

    def finish(self, kind: str, title: str) -> Imported:
        """Return the result."""
        assumptions = tuple(
            Assumption(_compact_names(names), value, why, settles)
            for (value, why, settles), names in self.notes.items()
        )
        for number, item in enumerate(item for item in assumptions if item.settles):
            self.source(key_of(number), f"{item}; {item.settles} settles it")
        data = {
            "name": self.name,
            **self.settings,
            "nodes": self.nodes,
            "links": self.links,
        }
        return Imported(kind, title, data, assumptions, _counts(data))


def _compact_names(names: list[str]) -> str:
    """Write names compactly, ``gpu0..7, nic2``: numbered names sorted, others in file order."""
    result = list(dict.fromkeys(names))
    if not all(map(_PLACE.fullmatch, result)):
        return ", ".join(result)
    return ", ".join(
        name
        for name, _ in _runs((name, None) for name in sorted(result, key=natural))
    )


_TIERS = {"root": "cpus", "nvswitch": "nvswitches", "pcie": "pcie_switches"}


def _counts(data: Mapping[str, Any]) -> dict[str, int]:
    """Count GPUs, NICs, switches, and links by type."""
    counts = dict.fromkeys(
        ("gpus", "hosts", "nics", "cpus", "pcie_switches", "nvswitches"), 0
    )
    for name, keys in data["nodes"].items():
        which = f"{keys['kind']}s"
        if keys["kind"] == "switch":
            switch = str(keys.get("switch"))
            tier = "nvswitch" if switch.startswith("nvswitch") else keys.get("tier")
            if tier is None and "tier" in SWITCHES.get(switch, {}):
                tier = SWITCHES[switch]["tier"].value
            which = (
                "cards"
                if name.startswith("card")
                else _TIERS.get(str(tier), "switches")
            )
        if which != "memorys":
            counts[which] = counts.get(which, 0) + 1
    for link in data["links"]:
        word = re.match(r"[a-z]+", str(link.get("type") or link.get("class", "")))
        name = word[0] if word else "other"
        if name == "nvlink" and str(link.get("type")).startswith("nvlink-c2c"):
            name = "c2c"
        if name == "xgmi" and not str(link.get("type")).startswith("xgmi-"):
            name = "numa"
        name = "numa" if name in ("qpi", "upi", "power", "grace") else name
        counts[f"{name}_links"] = counts.get(f"{name}_links", 0) + int(
            link.get("count", 1)
        )
    return counts


MAX_RING_GPUS = 32
MAX_STEPS = 60_000
"""Maximum steps of the search, which then keeps the rings found until then."""

Capacity = Counter[tuple[int, int]]
"""Number of unused links by source and target GPU."""


def set_usage(draft: Draft, gpus: list[str], chip: str) -> None:
    """Set channels, rings and peer-to-peer level of a node with these GPUs."""
    index = {name: number for number, name in enumerate(gpus)}
    mesh: Capacity = Counter()
    switched = False
    for link in draft.links:
        a, b = link["from"], link["to"]
        if a in index and b in index:
            mesh[index[a], index[b]] += int(link.get("count", 1))
            mesh[index[b], index[a]] += int(link.get("count", 1))
        switched = switched or b.startswith("nvswitch")
    rings = (
        find_rings(len(gpus), mesh) if mesh and len(gpus) <= MAX_RING_GPUS else []
    )
    if switched:
        links = gpu(chip).links
        _channels(draft, 24 if links >= 8 else 12, "NCCL's choice with NVSwitches")
    elif rings:
        draft.settings["rings"] = rings
        draft.assume(
            "rings",
            f"{len(rings)}, along the direct links of GPUs",
            "found as NCCL does; not in the file",
        )
        _channels(draft, min(32, 2 * len(rings)), "two for each ring, as NCCL does")
    elif mesh and len(gpus) == 2:
        _channels(draft, min(32, 2 * mesh[0, 1]), "two for each link, as NCCL does")
    else:
        _channels(draft, 2, "NCCL's choice over PCIe")
    _peer_level(draft, gpus, chip)


def _channels(draft: Draft, count: int, why: str) -> None:
    draft.settings["channels"] = {"default": count}
    draft.assume("channels", str(count), why)


def _peer_level(draft: Draft, gpus: list[str], chip: str) -> None:
    roots = {
        str(keys["switch"])
        for name, keys in draft.nodes.items()
        if name.startswith("cpu")
    }
    if not gpu(chip).figures["peer_access"].value:
        draft.settings["p2p_level"] = "nvl"
        draft.assume(
            "peer to peer",
            "over NVLink only",
            "NVIDIA's driver does not support it over PCIe for GeForce cards",
        )
    elif len(gpus) <= 2 and roots and all(root.startswith("epyc") for root in roots):
        draft.settings["p2p_level"] = "sys"
        draft.assume(
            "peer to peer",
            "over any path",
            "NCCL's default for two GPUs on AMD processors",
        )


def find_rings(count: int, mesh: Capacity) -> list[list[int]]:
    """Return rings through all of `count` GPUs without a shared wire, each with its reverse."""
    if count < 3:
        return []
    unused = Counter(mesh)
    rings: list[list[int]] = []
    steps = MAX_STEPS
    while steps > 0 and 2 * len(rings) < 64:
        ring, steps = _cycle(count, unused, steps)
        if not ring:
            break
        for path in (ring, [ring[0], *reversed(ring[1:])]):
            rings.append(path)
            for a, b in zip(path, [*path[1:], path[0]], strict=True):
                unused[a, b] -= 1
    return rings


def _cycle(count: int, unused: Capacity, steps: int) -> tuple[list[int], int]:
    """Return a cycle through all GPUs, and the remaining steps.

    Depth-first search within `steps` that prefers the links with the most remaining capacity.
    """
    neighbours = {
        a: sorted(
            (b for b in range(count) if unused[a, b] > 0),
            key=lambda b: (-unused[a, b], b),
        )
        for a in range(count)
    }
    path, choices, used = [0], [iter(neighbours[0])], {0}
    while path:
        steps -= 1
        if steps <= 0:
            return [], 0
        if len(path) == count and unused[path[-1], 0] > 0:
            return path, steps
        following = next((b for b in choices[-1] if b not in used), None)
        if following is None:
            choices.pop()
            used.discard(path.pop())
        else:
            path.append(following)
            used.add(following)
            choices.append(iter(neighbours[following]))
    return [], steps
