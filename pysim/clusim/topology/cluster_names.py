"""Clusters by name: ``aws-p5:nodes=4``, ``superpod-h100:nodes=32``, ``rail:node=dgx-h100,nodes=16,spines=4``.

Signatures of presets, read from their files only: no topology is built.

Logs are matched with nodes by signature. The visible properties of a preset (GPUs, their links, NICs)
are read from its file; ``logs`` and ``superpod`` contain the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from clusim.base import resources
from clusim.base.errors import TopologyError
from clusim.base.records import dataclass
from clusim.hardware.catalog import ADAPTERS, GPUS, TRANSPORTS
from clusim.hardware.gpu import Gpu
from clusim.topology.cabling import names_of
from clusim.topology.catalogue import Catalogue
from clusim.topology.check_links import HOST_CLASSES
from clusim.topology.generators import GENERATORS
from clusim.topology.keys import did_you_mean
from clusim.topology.quantities import Spec
from clusim.topology.schema import NETWORK_KINDS, LengthsSpec, NetworkSpec, Topology
from clusim.topology.validate import describe

LinkedBy = Literal["switch", "peer", "pcie"]
"""Connection of a node's GPUs: NVSwitches, links between GPUs, PCIe only."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a preset's nodes that a log shows.

    Attributes
    ----------
    gpus : int
        GPUs of a node.
    chip : Gpu
        The first kind of GPU.
    network : str
        NCCL's name of the network; empty is unknown.
    buses : frozenset of int
        PCI buses of its GPUs.
    description : str
        Of the preset; its first words name the product.
    common : int
        Priority if several presets match a log: the preset with the highest value is chosen.
    """

    name: str
    gpus: int
    chip: Gpu
    linked_by: LinkedBy
    network: str
    buses: frozenset[int]
    common: int
    description: str


def machine_traits() -> list[Traits]:
    """Return the presets that are nodes with GPUs, the most common first."""
    result = [traits for file in _files() if (traits := _traits(*file)) is not None]
    return sorted(result, key=lambda traits: (-traits.common, traits.name))


def superpods() -> dict[str, str]:
    """Return the names of scalable units (``superpod-h100``) with the preset of their nodes."""
    named = ((_describe_cluster(*file)[0].superpod, file[0]) for file in _files())
    return {unit: preset for unit, preset in named if unit is not None}


def _files() -> list[tuple[str, Path, int]]:
    """Return name, path and time of change [ns] of every preset."""
    return [
        (n, p, p.stat().st_mtime_ns)
        for n, p in resources.shipped_topologies().items()
    ]


@lru_cache(maxsize=256)
def _describe_cluster(
    name: str, path: Path, _changed: int
) -> tuple[Topology, Catalogue]:
    topology, problems = describe(path.read_text("utf-8"), path.name, name)
    return topology, Catalogue(topology, problems)


@lru_cache(maxsize=256)
def _traits(name: str, path: Path, changed: int) -> Traits | None:
    topology, catalogue = _describe_cluster(name, path, changed)
    nodes = topology.nodes.values()
    named = [
        node.chip for node in nodes if node.kind == "gpu" and node.chip is not None
    ]
    chip = next((_standard(name, topology.chips, GPUS) for name in named), None)
    if chip is None:
        return None
    kinds = {
        name: node.kind
        for key, node in topology.nodes.items()
        for name in names_of(key)
    }
    adapters = [
        _standard(node.nic, topology.nics, ADAPTERS) for node in nodes if node.nic
    ]
    usual = next(
        (
            TRANSPORTS[adapter.plugin].in_logs
            for adapter in adapters
            if adapter is not None
        ),
        "",
    )
    network = topology.logs.network or usual
    return Traits(
        name,
        list(kinds.values()).count("gpu"),
        chip,
        _linked_by(topology, catalogue, kinds),
        "" if network == "none" else network,
        frozenset(topology.logs.buses),
        topology.logs.common,
        topology.description or "",
    )


def _standard(
    name: str, specs: Mapping[str, Spec], entries: Mapping[str, T]
) -> T | None:
    """Return the object of `clusim.hardware` of a type or of its base."""
    names: set[str] = set()
    while name in specs and name not in names:
        names.add(name)
        name = str(getattr(specs[name], "base", None) or "")
    return entries.get(name)


def _linked_by(
    topology: Topology, catalogue: Catalogue, kinds: Mapping[str, str]
) -> LinkedBy:
    """Return the connection of GPUs, from links of other classes than links of hosts."""
    ends = []
    for number, link in enumerate(topology.links):
        names = [*names_of(link.from_), *names_of(link.to)]
        base = link.type or link.base
        kind = (
            catalogue.resolve("link_types", base, ("links", number))
            if base
            else link
        )
        if (
            "gpu" in (met := {kinds.get(name, "") for name in names})
            and kind is not None
        ):
            ends += [met] if (link.class_ or kind.class_) not in HOST_CLASSES else []
    catalogue.problems.raise_if_any()
    if {"gpu", "switch"} in ends:
        return "switch"
    return "peer" if {"gpu"} in ends else "pcie"


_LENGTH = "_length"


def is_cluster_name(name: str) -> bool:
    """True if a name contains a number of nodes, or denotes a cluster."""
    head, _, arguments = name.partition(":")
    keys = {part.partition("=")[0].strip() for part in arguments.split(",")}
    if "nodes" in keys or (head in NETWORK_KINDS and "node" in keys):
        return True
    return head not in GENERATORS and head in superpods()


def cluster_data(name: str, nodes: int | None = None) -> dict[str, Any]:
    """Return the topology file of a cluster name; `nodes` overrides the number in the name.

    Its name is the cluster name, from which it can be generated again.
    """
    head, _, arguments = name.partition(":")
    pairs = _pairs(arguments)
    network: dict[str, Any] = {}
    if head in (units := superpods()):
        node = units[head]
        network = {"kind": "superpod"}
    elif head in NETWORK_KINDS and "node" in pairs:
        node = pairs.pop("node")
        network = {"kind": head}
    else:
        node = head
    if nodes is None and "nodes" not in pairs:
        raise TopologyError(f"needs nodes; for example {head}:nodes=32")
    count = nodes if nodes is not None else _number("nodes", pairs["nodes"])
    pairs.pop("nodes", None)
    for key, text in pairs.items():
        _set(network, key, text)
    cluster: dict[str, Any] = {"node": node, "nodes": count}
    if network:
        cluster["network"] = network
    canonical = f"{head}:" + ",".join(
        [f"node={node}"] * (head in NETWORK_KINDS)
        + [f"nodes={count}", *(f"{key}={text}" for key, text in pairs.items())]
    )
    return {"name": canonical, "cluster": cluster}


def _pairs(arguments: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for part in arguments.split(",") if arguments else []:
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals or not value:
            raise TopologyError(
                f"{part!r}: must be option=value; for example nodes=32"
            )
        if key in result:
            raise TopologyError(f"{key}: given twice")
        result[key] = value
    return result


def _set(network: dict[str, Any], key: str, text: str) -> None:
    tiers = [info.alias or tier for tier, info in LengthsSpec.model_fields.items()]
    if key.endswith(_LENGTH) and key.removesuffix(_LENGTH) in tiers:
        network.setdefault("lengths", {})[key.removesuffix(_LENGTH)] = text
        return
    keys = [key for key in NetworkSpec.model_fields if key != "lengths"]
    if key not in keys:
        lengths = [f"{tier}{_LENGTH}" for tier in tiers]
        raise TopologyError(
            f"unknown option {key!r}{did_you_mean(key, ['nodes', *keys, *lengths])}"
        )
    if key == "shape":
        network[key] = [_number(key, size) for size in text.split("x")]
    elif "oversubscription" in key:
        network[key] = _ratio(key, text)
    elif key in ("kind", "link", "trunk", "switch", "spine_switch", "core_switch"):
        network[key] = text
    else:
        network[key] = _number(key, text)


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise TopologyError(
            f"{key}={text[:20]!r}: must be an integer, at most 999999"
        )
    return int(text)


def _ratio(key: str, text: str) -> float:
    upper, _, lower = text.partition(":")
    try:
        value = float(upper) / float(lower or "1")
    except (ValueError, ZeroDivisionError):
        raise TopologyError(
            f"{key}={text[:20]!r}: must be a number such as 2 or 3:1"
        ) from None
    return value
