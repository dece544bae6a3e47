"""ASTRA-sim's network files: dimensions (ring, full mesh, switch) with rate and latency.

``topology``, ``npus_count``, ``bandwidth`` [GB/s] and ``latency`` [ns] of the current YAML, and
``topologies-per-dim``, ``units-count``, ``links-count``, ``link-bandwidth``, ``link-latency`` of the older JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import Any

from clusim.base.limits import number, printable
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.presets import given_chip, hinted_chip, known_chip
from clusim.topology.yamltext import parse

MAX_NPUS = 16_384
_SHAPES = {
    "ring": "ring",
    "fullyconnected": "full",
    "fully_connected": "full",
    "fully-connected": "full",
    "switch": "switch",
}


@dataclass(frozen=True, slots=True)
class _Dim:
    shape: str
    size: int
    GBps: float
    ns: float
    links: int = 1


def read_astra(text: str, draft: Draft) -> None:
    """Fill `draft` from the text."""
    data = _load(text, draft)
    dims = _dims(data, draft)
    count = prod(dim.size for dim in dims)
    if count > MAX_NPUS:
        raise draft.fail(f"{count} NPUs; the limit is {MAX_NPUS}")
    draft.settings["description"] = (
        "imported from an ASTRA-sim network file: "
        + " x ".join(f"{dim.shape} of {dim.size}" for dim in dims)
    )
    relay = len(dims) > 1 or dims[0].shape == "ring"
    _add_npus(count, relay, draft)
    if relay:
        draft.settings["routing"] = "dimension-order"
        draft.assume(
            "all GPUs",
            "they forward packets of others in 100ns, dimension by dimension",
            "not in the file; ASTRA-sim counts hops only",
        )
    draft.assume(
        "links",
        "bandwidth per link and direction in GB/s, latency in ns",
        "ASTRA-sim's units; packets as on Ethernet, not in its files",
    )
    for axis in range(len(dims)):
        _add_dim(dims, axis, draft, tagged=relay)


def _load(text: str, draft: Draft) -> dict[str, Any]:
    data: Any
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        data = draft.json(text, "network file")
    else:
        data = parse(text, draft.where).data
    if not isinstance(data, dict):
        raise draft.fail(
            "must be a mapping with topology, npus_count, bandwidth, latency"
        )
    return data


def _dims(data: dict[str, Any], draft: Draft) -> list[_Dim]:
    old = "topologies-per-dim" in data or "units-count" in data
    names = (
        ("topologies-per-dim", "units-count", "link-bandwidth", "link-latency")
        if old
        else ("topology", "npus_count", "bandwidth", "latency")
    )
    shapes, sizes, rates, delays = (_list(data, name, draft) for name in names)
    if not len(shapes) == len(sizes) == len(rates) == len(delays):
        raise draft.fail(
            f"{', '.join(names)}: must have one entry per dimension, equally many"
        )
    links = data.get("links-count")
    links = (
        links
        if isinstance(links, list) and len(links) == len(shapes)
        else [None] * len(shapes)
    )
    return [
        _dim(names, row, draft)
        for row in zip(shapes, sizes, rates, delays, links, strict=True)
    ]


def _list(data: dict[str, Any], name: str, draft: Draft) -> list[Any]:
    value = data.get(name)
    if value is None:
        raise draft.fail(f"{name!r} is missing; write one entry per dimension")
    value = value if isinstance(value, list) else [value]
    if not 1 <= len(value) <= 8:
        raise draft.fail(f"{name}: {len(value)} dimensions; must be 1 to 8")
    return value


def _dim(names: tuple[str, ...], row: tuple[Any, ...], draft: Draft) -> _Dim:
    word, size, rate, delay, links = row
    shape = _SHAPES.get(str(word).lower())
    if shape is None:
        listing = "Ring, FullyConnected, Switch"
        raise draft.fail(
            f"{names[0]}: {printable(word)!r} is not known; there are {listing}"
        )
    if (
        not isinstance(size, int)
        or isinstance(size, bool)
        or not 1 <= size <= MAX_NPUS
    ):
        raise draft.fail(
            f"{names[1]}: {printable(size)!r} must be 1 to {MAX_NPUS} NPUs"
        )
    rate, delay = number(rate), number(delay)
    if rate is None or not 0 < rate < 1e6:
        raise draft.fail(f"{names[2]}: must be above 0 GB/s, and less than 10^6")
    if delay is None or not 0 <= delay < 1e12:
        raise draft.fail(f"{names[3]}: must be 0 ns or more")
    count = links if isinstance(links, int) and not isinstance(links, bool) else None
    links_each = {"ring": 2, "full": max(1, size - 1), "switch": 1}[shape]
    return _Dim(
        shape,
        size,
        rate,
        delay,
        max(1, min(1024, count // links_each)) if count else 1,
    )


def _add_npus(count: int, relay: bool, draft: Draft) -> None:
    gpus = [f"gpu{index}" for index in range(count)]
    name = given_chip(draft) or hinted_chip(draft, gpus, "not in the file")
    name = known_chip(draft, name, "all GPUs")
    keys: dict[str, Any] = {"relay": True, "latency": "100ns"} if relay else {}
    for gpu in gpus:
        draft.node(gpu, "gpu", chip=name, **keys)


def _add_dim(dims: list[_Dim], axis: int, draft: Draft, *, tagged: bool) -> None:
    """Add the links of one dimension; the index of the first dimension varies fastest."""
    dim = dims[axis]
    if dim.size == 1:
        return
    stride = prod(d.size for d in dims[:axis])
    keys: dict[str, Any] = {
        "type": "ethernet400",
        "rate": f"{dim.GBps:.12g} GB/s",
        "latency": f"{dim.ns:.12g}ns",
        "class": f"dim{axis}",
        "count": dim.links,
    }
    if dim.ns * 1000 < 1 or dim.ns * 1000 != int(dim.ns * 1000):
        keys["latency"] = f"{max(1, round(dim.ns * 1000))}ps"
    if tagged:
        keys["dim"] = axis + 1
    ranges = [range(d.size) if i != axis else range(1) for i, d in enumerate(dims)]
    for group, place in enumerate(product(*reversed(ranges))):
        base = sum(
            c * prod(d.size for d in dims[:i]) for i, c in enumerate(reversed(place))
        )
        members = [f"gpu{base + i * stride}" for i in range(dim.size)]
        if dim.shape == "switch":
            hub = draft.node(
                f"switch{axis}.{group}",
                "switch",
                switch="generic",
                tier=f"dim{axis}",
            )
            for member in members:
                draft.link(member, hub, **keys)
        elif dim.shape == "full" or dim.size == 2:
            for a, b in combinations(members, 2):
                draft.link(a, b, **keys)
        else:
            for i, member in enumerate(members):
                wrap = {"dateline": "both"} if i == dim.size - 1 else {}
                draft.link(member, members[(i + 1) % dim.size], **keys, **wrap)
