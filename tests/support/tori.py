"""Random meshes and tori, also twisted, as topologies of a user: shuffled links, with or without dimensions."""

from __future__ import annotations

import random
from itertools import product

from clusim.base.errors import TopologyError
from clusim.topology import Fabric, FabricBuilder
from clusim.topology.tori import check_twist, neighbours


def random_torus(rng: random.Random, most: int = 48) -> tuple[Fabric, str]:
    """Return a mesh or torus with small buffers and at most `most` hosts, and its description."""
    shape = _shape(rng, most)
    wrap = rng.random() < 0.8
    twist = wrap and rng.random() < 0.5 and _can_twist(shape)
    given = rng.random() < 0.5
    words = f"{shape} wrap={wrap} twist={twist} dims={'given' if given else 'found'}"
    net = FabricBuilder("torus", routing="dimension-order")
    kind = {"rate": "50 GB/s", "latency": "20ns", "buffer": f"{rng.choice([5, 9, 33])}KiB"}
    net.define("link_types", "cable", format="ethernet", **{"class": "cable"}, **kind)
    places = list(product(*map(range, shape)))
    name = {place: "r" + ".".join(map(str, place)) for place in places}
    for number, place in enumerate(places):
        net.host(f"host{number}")
        net.switch(name[place], switch="generic")
        net.link(f"host{number}", name[place], type="cable")
    links = list(neighbours(shape, wrap=wrap, twist=twist))
    rng.shuffle(links)
    for place, following, axis, _ in links:
        ends = [name[place], name[following]]
        rng.shuffle(ends)
        net.link(*ends, type="cable", **({"dim": axis + 1} if given else {}))
    return net.build(), words


def _shape(rng: random.Random, most: int) -> tuple[int, ...]:
    while True:
        shape = tuple(rng.randint(2, 8) for _ in range(rng.choice([1, 2, 2, 3])))
        count = 1
        for size in shape:
            count *= size
        if 3 <= count <= most:
            return shape


def _can_twist(shape: tuple[int, ...]) -> bool:
    try:
        check_twist(shape)
    except TopologyError:
        return False
    return True
