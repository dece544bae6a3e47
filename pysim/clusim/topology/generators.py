"""Well-known networks by formula.

``fat-tree:k=8``, ``torus:4x4x4``, ``mesh:8x8``, ``dragonfly:h=2``, ``ring:8``, ``star:16``, ``tree:8``,
``fully-connected:8``. Endpoints are ideal hosts. The defaults are usual in comparisons of
packet-level simulators: 400 Gb/s links of 500 ns, packets of 4096 B with 64 B of header,
store-and-forward switches with zero latency.

In rings, meshes and tori every host has a separate router, connected by a link of 1 ns that is as fast
as all other links of the router together (``host_rate``, ``host_latency``), so that the network is the
limit and not the injection. They route dimension-order; the wrap-around links of a torus and the global
links of a dragonfly are datelines, so both are free of deadlock on the two virtual channels of the
default. Their input buffers hold, per virtual channel, one bandwidth-delay product for each output that
packets of an input may wait for: 2n in n dimensions (all directions but theirs, and the host). With less, packets
that wait for a busy output stop those for idle outputs. `twist` twists a torus (`tori`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from itertools import combinations, product
from math import prod
from typing import Any

from clusim.base.errors import ClusimError, TopologyError
from clusim.base.records import dataclass
from clusim.base.units import Rate, parse_rate, parse_size, parse_time
from clusim.engine.abi import KINDS
from clusim.topology.keys import did_you_mean
from clusim.topology.model import Fabric, Link
from clusim.topology.node import Endpoint, Node
from clusim.topology.packets import Format
from clusim.topology.tori import check_twist, neighbours

MAX_NODES = 65_536
MAX_LINKS = 1_000_000

Arguments = dict[str, int]


@dataclass(slots=True)
class _Sketch:
    """Network under construction: common link and switch properties, graph nodes, links."""

    rate: Rate = field(default_factory=lambda: parse_rate("400 Gb/s"))
    latency_ps: int = 500_000
    switch_latency_ps: int = 1
    buffer_bytes: int = 0
    twist: bool = False
    header_bytes: int = 64
    packet_bytes: int = 4096
    ack_bytes: int = 0
    store_and_forward: bool = True
    vcs: int = 2
    host_rate: Rate | None = None
    host_latency_ps: int = 1_000
    endpoint: Endpoint = field(default_factory=Endpoint)
    nodes: list[Node] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def host(self, name: str) -> str:
        """Add a host."""
        self.nodes.append(Node(name, "host", 1, endpoint=self.endpoint, tier="host"))
        return name

    def switch(self, name: str, tier: str) -> str:
        """Add a switch."""
        latency = self.switch_latency_ps
        self.nodes.append(
            Node(name, "switch", latency, self.store_and_forward, tier=tier)
        )
        return name

    def link(self, a: str, b: str, cls: str, **overrides: Any) -> None:
        """Add a link of the common kind; `overrides` overrides fields of `Link`."""
        rate, latency_ps, buffer_bytes = (
            self.rate,
            self.latency_ps,
            self.buffer_bytes,
        )
        link = Link(
            a, b, 1, rate, latency_ps, "packet", buffer_bytes, cls=cls, **overrides
        )
        self.links.append(link)

    def host_link(self, host: str, router: str, radix: int) -> None:
        """Connect a host to its router, as fast as the router's `radix` other links."""
        rate = self.host_rate or self.rate * max(1, radix)
        buffer_bytes = self.buffer_bytes * max(1, radix)
        link = Link(
            host,
            router,
            1,
            rate,
            self.host_latency_ps,
            "packet",
            buffer_bytes,
            cls="host",
        )
        self.links.append(link)

    def loop_bytes(self) -> int:
        """Return the bytes in the credit loop of a link, in full packets: its bandwidth-delay product.

        Serialisation at both ends of the link, its latency there and back, and the switch.
        """
        packet = self.header_bytes + self.packet_bytes
        loop_ps = 2 * self.latency_ps + self.switch_latency_ps
        return packet * (2 + -(-loop_ps * self.rate.num // (self.rate.den * packet)))

    def format(self) -> Format:
        """Return the packet format of all links."""
        return Format(
            "packet",
            flit_bytes=1,
            header_bytes=(self.header_bytes,) * KINDS,
            control_256=(self.ack_bytes * 256,) + (0,) * (KINDS - 1),
            payload_bytes=dict.fromkeys(("sm", "ce", "nic"), self.packet_bytes),
        )


def _fat_tree(sketch: _Sketch, args: Arguments) -> None:
    """Build a k-ary fat tree of three levels.

    An edge switch has `oversub` hosts per uplink.
    """
    k, oversub = args["k"], args["oversub"]
    if k % 2:
        raise TopologyError(f"k={k}: must be even, for example k={k + 1}")
    half = k // 2
    per_edge = half * oversub
    _limit(k * half * per_edge + 2 * k * half + half * half)
    hosts = [sketch.host(f"host{i}") for i in range(k * half * per_edge)]
    edges = [sketch.switch(f"edge{i}", "edge") for i in range(k * half)]
    middle = [sketch.switch(f"agg{i}", "aggregation") for i in range(k * half)]
    cores = [sketch.switch(f"core{i}", "core") for i in range(half * half)]
    for index, host in enumerate(hosts):
        sketch.link(host, edges[index // per_edge], "host")
    for pod, e, a in product(range(k), range(half), range(half)):
        sketch.link(
            edges[pod * half + e], middle[pod * half + a], "edge-aggregation"
        )
    for pod, a, c in product(range(k), range(half), range(half)):
        sketch.link(middle[pod * half + a], cores[a * half + c], "aggregation-core")


def group_pairs(groups: int, ports: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the links between any two groups of a dragonfly: both groups, and a port of each."""
    num_others = groups - 1
    for i, j in combinations(range(groups), 2):
        for copy in range(ports // num_others):
            yield i, j, copy * num_others + j - 1, copy * num_others + i


def _grid(sketch: _Sketch, shape: tuple[int, ...], *, wrap: bool) -> None:
    """Build an n-dimensional mesh or torus; the last coordinate varies fastest."""
    if sketch.twist:
        check_twist(shape)
    _limit(2 * prod(shape))
    places = list(product(*(range(size) for size in shape)))
    suffix = {place: ".".join(map(str, place)) for place in places}
    for index, _ in enumerate(places):
        sketch.host(f"host{index}")
    for place in places:
        sketch.switch(f"router{suffix[place]}", "router")
    radix = sum(min(2, size - 1) if wrap or size < 3 else 2 for size in shape)
    for index, place in enumerate(places):
        sketch.host_link(f"host{index}", f"router{suffix[place]}", radix)
    for place, following, axis, last in neighbours(
        shape, wrap=wrap, twist=sketch.twist
    ):
        a, b = f"router{suffix[place]}", f"router{suffix[following]}"
        sketch.link(a, b, f"dim{axis}", dim=axis + 1, dateline=(last, last))


def _dragonfly(sketch: _Sketch, args: Arguments) -> None:
    """Build groups of `a` fully connected routers with `p` hosts and `h` global links each.

    Routing is minimal.
    """
    h = args["h"]
    p, a = args.get("p", h), args.get("a", 2 * h)
    groups = args.get("groups", a * h + 1)
    if not 2 <= groups <= a * h + 1:
        raise TopologyError(
            f"groups={groups}: must be 2..{a * h + 1} with a={a} routers of h={h} global links"
        )
    _limit(groups * a * (p + 1))
    for index in range(groups * a * p):
        sketch.host(f"host{index}")
    routers = [
        [sketch.switch(f"router{g}.{r}", "router") for r in range(a)]
        for g in range(groups)
    ]
    for index in range(groups * a * p):
        sketch.link(
            f"host{index}", routers[index // (a * p)][index // p % a], "host"
        )
    for group in routers:
        for r, s in combinations(range(a), 2):
            sketch.link(group[r], group[s], "local")
    for i, j, one, two in group_pairs(groups, a * h):
        ends = routers[i][one // h], routers[j][two // h]
        sketch.link(*ends, "global", weight=4, dateline=(True, True))


def _star(sketch: _Sketch, args: Arguments) -> None:
    """Build hosts around one switch."""
    count = args["n"]
    _limit(count + 1)
    hosts = [sketch.host(f"host{i}") for i in range(count)]
    hub = sketch.switch("hub", "switch")
    for host in hosts:
        sketch.link(host, hub, "host")


def _tree(sketch: _Sketch, args: Arguments) -> None:
    """Build a tree of switches with up to `arity` children each; the hosts are its leaves, at one depth.

    All links are equally fast: the root's links limit traffic between its subtrees.
    """
    count, arity = args["n"], args["arity"]
    if count < 2 or arity < 2:
        raise TopologyError(f"n={count}, arity={arity}: must be at least 2")
    _limit(2 * count + 32)
    below, cls, level = [sketch.host(f"host{i}") for i in range(count)], "host", 0
    while len(below) > 1:
        switches = [
            sketch.switch(f"switch{level}.{i}", "switch")
            for i in range(-(-len(below) // arity))
        ]
        for number, node in enumerate(below):
            sketch.link(node, switches[number // arity], cls)
        below, cls, level = switches, f"level{level + 1}", level + 1


def _fully_connected(sketch: _Sketch, args: Arguments) -> None:
    """Build a link between any two hosts."""
    count = args["n"]
    _limit(count)
    if count > 1024:
        raise TopologyError(
            f"n={count}: more than {MAX_LINKS // 2} links; at most 1024 hosts"
        )
    hosts = [sketch.host(f"host{i}") for i in range(count)]
    for a, b in combinations(hosts, 2):
        sketch.link(a, b, "direct")


def _limit(nodes: int) -> None:
    if nodes > MAX_NODES:
        raise TopologyError(f"{nodes} nodes; the limit is {MAX_NODES}")


@dataclass(frozen=True, slots=True)
class _Generator:
    """Generator: its function and arguments.

    `arguments` maps names to defaults: None if required, 0 if optional without default.
    """

    draw: Callable[[_Sketch, Arguments], None]
    arguments: Mapping[str, int | None]
    example: str
    grid: bool | None = None  # for shapes such as 4x4: True if it wraps around


def _no_draw(_sketch: _Sketch, _args: Arguments) -> None:
    """Leave grids to their shape, from which they are drawn."""


GENERATORS: Mapping[str, _Generator] = {
    "fat-tree": _Generator(
        _fat_tree, {"k": None, "oversub": 1}, "fat-tree:k=8,oversub=2"
    ),
    "torus": _Generator(_no_draw, {}, "torus:4x4x4", grid=True),
    "mesh": _Generator(_no_draw, {}, "mesh:8x8", grid=False),
    "ring": _Generator(_no_draw, {}, "ring:8", grid=True),
    "dragonfly": _Generator(
        _dragonfly, {"h": None, "p": 0, "a": 0, "groups": 0}, "dragonfly:h=2"
    ),
    "star": _Generator(_star, {"n": None}, "star:16"),
    "tree": _Generator(_tree, {"n": None, "arity": 2}, "tree:8:2"),
    "fully-connected": _Generator(
        _fully_connected, {"n": None}, "fully-connected:8"
    ),
}
"""Generators by name."""


def _latency(text: object) -> int:
    return max(1, parse_time(str(text)))


def _flag(text: object) -> bool:
    if str(text).lower() in ("1", "true", "yes", "on"):
        return True
    if str(text).lower() in ("0", "false", "no", "off"):
        return False
    raise TopologyError(f"{text!r}: must be yes or no")


def _rate(text: object) -> Rate:
    rate = parse_rate(str(text))
    if rate.num == 0:
        raise TopologyError(f"{text!r}: zero bandwidth; set a rate above 0")
    return rate


def _bytes(low: int, high: int) -> Callable[[object], int]:
    def read(text: object) -> int:
        size = parse_size(str(text))
        if not low <= size <= high:
            raise TopologyError(f"{text!r}: must be {low}..{high} bytes")
        return size

    return read


def _vcs(text: object) -> int:
    count = _integer("vcs", str(text))
    if count > 16:
        raise TopologyError(f"{count}: at most 16 virtual channels")
    return count


_OPTIONS: Mapping[str, tuple[str, Callable[[object], object]]] = {
    "rate": ("rate", _rate),
    "latency": ("latency_ps", _latency),
    "switch_latency": ("switch_latency_ps", _latency),
    "buffer": ("buffer_bytes", _bytes(1, 2**40)),
    "header": ("header_bytes", _bytes(0, 2**16)),
    "packet": ("packet_bytes", _bytes(1, 2**20)),
    "ack": ("ack_bytes", _bytes(0, 2**16)),
    "store_and_forward": ("store_and_forward", _flag),
    "vcs": ("vcs", _vcs),
    "host_rate": ("host_rate", _rate),
    "host_latency": ("host_latency_ps", _latency),
    "twist": ("twist", _flag),
}
"""Options of every generator: attribute and reader."""


def is_generator(spec: str) -> bool:
    """True if `spec` names a generator (its arguments may still be wrong)."""
    return spec.partition(":")[0] in GENERATORS


def generate(spec: str, **options: object) -> Fabric:
    """Return the network of a `spec`.

    Examples: ``"fat-tree:k=8,oversub=2"``, ``"torus:4x4,rate=100GB/s"``.

    Parameters
    ----------
    spec : str
        ``name:arguments``, options may follow after commas.
    **options
        ``rate``, ``latency``, ``switch_latency``, ``buffer``, ``header``, ``packet``, ``ack`` (bytes a
        packet owes to the reverse wire), ``store_and_forward``, ``vcs``, ``host_rate``, ``host_latency``,
        ``twist``; they override `spec`.
    """
    name, _, arguments = spec.partition(":")
    if name not in GENERATORS:
        raise TopologyError(
            f"{spec!r}: no such generator{did_you_mean(name, GENERATORS)}"
        )
    try:
        return _generate(spec, name, arguments, options)
    except ClusimError as error:
        excerpt = spec if len(spec) <= 80 else f"{spec[:77]}..."
        raise TopologyError(f"{excerpt}: {error}") from None


def _generate(
    spec: str, name: str, text: str, options: Mapping[str, object]
) -> Fabric:
    from clusim.topology.components import preset_endpoint, preset_protocols

    title = spec + "".join(f",{key}={value}" for key, value in options.items())
    generator = GENERATORS[name]
    shape, args, keywords = _arguments(generator, text)
    keywords.update(options)
    sketch = _Sketch(endpoint=preset_endpoint("host"))
    for key, value in keywords.items():
        _known_option(generator, key)
        attribute, read = _OPTIONS[key]
        try:
            setattr(sketch, attribute, read(value))
        except ClusimError as error:
            raise TopologyError(f"{key}: {error}") from None
    if sketch.twist and not generator.grid:
        raise TopologyError(f"twist: only of tori, not of {name}")
    sketch.buffer_bytes = (
        sketch.buffer_bytes or sketch.loop_bytes() * 2 * len(shape) or 131_072
    )
    if generator.grid is not None:
        _grid(sketch, shape, wrap=generator.grid)
    else:
        generator.draw(sketch, args)
    return Fabric(
        name=title,
        nodes=tuple(sketch.nodes),
        links=tuple(sketch.links),
        formats={"packet": sketch.format()},
        num_vcs=sketch.vcs,
        protocols=preset_protocols("host"),
        routing="dimension-order" if generator.grid is not None else "shortest",
        description=f"generated: {name}",
        sources={"generator": title},
    )


def _known_option(generator: _Generator, key: str, *, sized: bool = True) -> None:
    if key not in _OPTIONS:
        options = [*generator.arguments, *_OPTIONS]
        unsized = generator.grid is not None and not sized
        sizes = f"; sizes are not named: {generator.example}" if unsized else ""
        raise TopologyError(
            f"unknown option {key!r}{did_you_mean(key, options)}{sizes}"
        )


def _arguments(
    generator: _Generator, argument_text: str
) -> tuple[tuple[int, ...], Arguments, dict[str, object]]:
    """Split ``4x4,rate=...`` or ``k=8,...`` into shape, arguments and common options."""
    shape: tuple[int, ...] = ()
    args: Arguments = {
        key: value for key, value in generator.arguments.items() if value
    }
    options: dict[str, object] = {}
    for number, part in enumerate(argument_text.split(",") if argument_text else []):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals and not number and generator.grid is not None:
            shape = tuple(_integer("size", size) for size in key.split("x"))
        elif not equals and not number and list(generator.arguments)[:1]:
            places = list(generator.arguments)
            values = key.split(":")
            if len(values) > len(places):
                raise TopologyError(
                    f"{part!r}: must be {':'.join(places)}; for example {generator.example}"
                )
            args |= {
                name: _integer(name, text)
                for name, text in zip(places, values, strict=False)
            }
        elif not equals:
            raise TopologyError(
                f"{part!r}: must be option=value; for example {generator.example}"
            )
        elif key in generator.arguments:
            args[key] = _integer(key, value)
        else:
            _known_option(generator, key, sized=bool(shape))
            options[key] = value.strip()
    missing = [
        key
        for key, value in generator.arguments.items()
        if value is None and key not in args
    ]
    if missing or (generator.grid is not None and not shape):
        raise TopologyError(
            f"needs {missing[0] if missing else 'sizes'}; for example {generator.example}"
        )
    if generator.grid is not None and (prod(shape) < 2 or len(shape) > 8):
        raise TopologyError("needs at least 2 hosts in at most 8 dimensions")
    return shape, args, options


def _integer(name: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        raise TopologyError(f"{name}={text!r}: must be an integer above 0")
    if len(text) > 6:
        raise TopologyError(
            f"{name}={text[:20]}: too large; the limit is {MAX_NODES} nodes"
        )
    return int(text)
