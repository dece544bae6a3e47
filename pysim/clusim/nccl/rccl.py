"""RCCL, AMD's collective library: its differences from NCCL as data of an architecture and a release.

**Model** RCCL is a branch of NCCL with the same algorithms and release numbers. It differs in the bandwidth of links,
in rings that replace the search on known nodes, in the number of channels, in FIFOs and workgroups, in its cost
model (`clusim.nccl.rcclcosts`), and in MSCCL's plans for all-reduces of some sizes. ``rccl.yaml`` has the data and
their sources. **Not modelled** MSCCL's other plans (a note names them), and elements other than float32, which decide
whether chunks divide a size; MSCCL++; rings of odd numbers of nodes and trees along rails; the direct all-gather and
the channels by size of ROCm 7.1; ``NCCL_RINGS``; dies of other architectures, which get NCCL's plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from clusim.base.datafiles import read
from clusim.base.records import dataclass
from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.hardware.figures import plain
from clusim.nccl.constants import Version, release_of

_DATA = read(Path(__file__).with_name("rccl.yaml"))

Three = tuple[float, float, float]
"""LL, LL128 and Simple."""


class Fifo(NamedTuple):
    """FIFO of a connection: total, a line, the data of a line, the grain of chunks [bytes]."""

    total_bytes: int
    line_bytes: int
    data_bytes: int
    grain_bytes: int


class AllPairs(NamedTuple):
    """A plan of MSCCL: sizes [bytes], protocol, channels, chunks of a loop, and whether every rank reduces all data."""

    least_bytes: int
    most_bytes: int
    protocol: Protocol
    channels: int
    chunks: int
    one_pass: bool


class SizeRule(NamedTuple):
    """Protocol by size over nodes: the largest sizes of LL and LL128 [bytes].

    All-gather and reduce-scatter count the size per rank; the limit of LL128 grows by `growth_bytes` for each doubling
    of two nodes. `threads` are the bytes per thread and rank before another channel is used, of LL and LL128.
    """

    ll_bytes: int
    ll128_bytes: int
    growth_bytes: int = 0
    threads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants of RCCL's cost model for a kind of node.

    Attributes
    ----------
    hop_us : mapping
        ``nvlink`` (xGMI), ``pcie`` or ``network`` -> algorithm -> latency of a step [us].
    share : mapping
        ``two`` (up to two nodes) or ``more`` -> algorithm -> share of the bus bandwidth.
    tree_correction, ring_correction : mapping
        Protocol -> factor on the bandwidth by the binary logarithm of size / 64 B; of rings only over nodes.
    sizes : mapping
        Collective -> protocol by size over nodes; empty before ROCm 7.
    """

    hop_us: Mapping[str, Mapping[Algorithm, Three]]
    share: Mapping[str, Mapping[Algorithm, Three]]
    tree_correction: Mapping[Protocol, tuple[float, ...]]
    ring_correction: Mapping[Protocol, tuple[float, ...]]
    sizes: Mapping[Collective, SizeRule] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node in RCCL's table of rings.

    Attributes
    ----------
    links : mapping
        Pair of GPUs -> parallel links.
    orders : tuple of tuple of int
        GPUs of each ring, in order.
    tuning : mapping
        Architecture -> section of the cost model.
    ll128 : tuple of int or None
        First release that uses LL128 on it.
    """

    name: str
    gpus: int
    nics: int
    links: Mapping[tuple[int, int], int]
    orders: tuple[tuple[int, ...], ...]
    tuning: Mapping[str, str]
    ll128: tuple[int, int] | None


@dataclass(frozen=True, slots=True, repr=False)
class Rccl:
    """RCCL of a release on GPUs of an architecture.

    Attributes
    ----------
    rocm : str
        First ROCm with the release.
    link_GBps : float
        Bandwidth of an xGMI link [GB/s].
    most, copies : tuple of int
        Most channels, and copies of searched channels, on one node and on several.
    copies_by_ranks : mapping
        Ranks of a communicator on one node -> copies of the searched channels.
    least_channels : int
        Channels up to which searched channels are copied.
    extra_crossings : int
        Steps between nodes that the cost model adds to the steps of a ring for an all-reduce.
    tree_channels : int
        Most channels of one tree.
    lanes : tuple of int
        Channels of messages between two GPUs per link, and their factor on one node.
    rooted_ll : float
        Factor on the bandwidth of LL of broadcast and reduce on one node.
    tree_simple : bool
        True if Tree Simple exists on one node.
    ll128 : tuple of int
        First release that may use LL128.
    """

    architecture: str
    version: Version
    rocm: str
    gfx: str
    link_GBps: float
    most: tuple[int, int]
    copies: tuple[int, int]
    tree_channels: int
    lanes: tuple[int, int]
    ll128: tuple[int, int]
    rooted_ll: float
    tree_simple: bool
    copies_by_ranks: Mapping[int, int] = field(default_factory=dict)
    least_channels: int = 0
    extra_crossings: int = 0

    def __repr__(self) -> str:
        return f"RCCL {self.version} on {self.gfx}"

    @property
    def name(self) -> str:
        """Return library, release, ROCm and target, for people."""
        return f"RCCL {self.version} (ROCm {self.rocm}, {self.gfx})"

    def has_cost_model(self, node: KnownNode | None) -> bool:
        """Return True if RCCL has a cost model of a node on this architecture."""
        return node is not None and self.architecture in node.tuning

    def tuning(self, node: KnownNode | None) -> Tuning:
        """Return the cost model for a node; a node that is not known has the untuned one."""
        name = (
            node.tuning[self.architecture]
            if node is not None and self.has_cost_model(node)
            else UNTUNED
        )
        return _tuning(name, self.version[:2])

    def copies_of(self, num_ranks: int, num_nodes: int, searched: int) -> int:
        """Return the copies of the searched channels (``nc`` of init.cc)."""
        copies = self.copies[num_nodes > 1]
        if num_nodes == 1:
            copies = self.copies_by_ranks.get(num_ranks, copies)
        return max(copies, self.least_channels // searched)

    def channels(self, num_ranks: int, num_nodes: int, searched: int) -> int:
        """Return the channels of a communicator: searched channels doubled if they fit, or copied."""
        limit = self.most[num_nodes > 1]
        doubled = 2 * searched if searched <= limit // 2 else searched
        copies = min(
            max(1, limit // searched), self.copies_of(num_ranks, num_nodes, searched)
        )
        return max(min(limit, doubled), copies * searched)

    def all_pairs(self, node: KnownNode | None, num_bytes: int) -> AllPairs | None:
        """Return the plan of MSCCL for an all-reduce of float32 out of place; None leaves it to the tuner."""
        table = _DATA["msccl"]
        if (
            node is None
            or node.name != table["node"]
            or self.architecture != table["architecture"]
        ):
            return None
        rows: list[Any] = []
        for text, of_release in table["releases"].items():
            rows = of_release if release_of(text) <= self.version[:2] else rows
        for low, high, protocol, *row in rows:
            plan = AllPairs(low, high, Protocol[protocol.upper()], *row)
            if low <= num_bytes <= high and num_bytes % (4 * plan.chunks) == 0:
                return plan
        return None

    def missing(self, node: KnownNode | None) -> list[str]:
        """Return notes on default algorithms of RCCL that are not modelled."""
        lines = []
        for row in _DATA["not_modelled"]:
            first, last = map(release_of, row["releases"])
            if (
                node is None
                or node.name != row["node"]
                or self.architecture not in row["architectures"]
            ):
                continue
            if first <= self.version[:2] <= last:
                low, high = row["bytes"]
                lines.append(
                    f"{self.name}: {row['name']}, its default for {row['collective']} of {low} to {high} B on this"
                    f" node, is not modelled; the plan corresponds to {row['without']}"
                )
        return lines


UNTUNED = "untuned"
"""Section of the cost model for nodes that RCCL does not recognise."""

RELEASES: Mapping[str, str] = _DATA["releases"]
"""Release of RCCL -> its ROCm, oldest first."""

FIFO = {Protocol[name.upper()]: Fifo(*row) for name, row in _DATA["fifo"].items()}
"""FIFO of each protocol."""

THREADS: int = _DATA["threads"]
"""Threads of a workgroup."""

BASE_US: Three = tuple(_DATA["base_us"])
"""Latency before the first step of LL, LL128 and Simple [us]."""

SPEEDS: tuple[float, ...] = tuple(_DATA["speeds"])
"""Bandwidths of a channel that the search tries [GB/s]."""


def library_of(architectures: Sequence[str], version: Version) -> Rccl | None:
    """Return RCCL if all GPUs are of an architecture with data, otherwise None for NCCL.

    Parameters
    ----------
    version : Version
        Requested release; later releases than RCCL's newest are treated as its newest.
    """
    only = set(architectures)
    if len(only) != 1 or not only <= set(_DATA["architectures"]):
        return None
    (architecture,) = only
    entry = dict(_DATA["architectures"][architecture])
    newest = max(map(release_of, _DATA["releases"]))
    release = version if version[:2] <= newest else Version(*newest)
    releases = {release_of(text): rocm for text, rocm in _DATA["releases"].items()}
    first = max(
        (one for one in releases if one <= release[:2]), default=min(releases)
    )
    return Rccl(
        **{
            key: plain(value)
            for key, value in entry.items()
            if key not in ("ll128", "copies_by_ranks")
        },
        architecture=architecture,
        version=release,
        rocm=releases[first],
        extra_crossings=next(
            count
            for text, count in reversed(_DATA["extra_crossings"].items())
            if release_of(text) <= max(release[:2], min(releases))
        ),
        ll128=release_of(entry["ll128"]),
        copies_by_ranks={
            int(n): c for n, c in entry.get("copies_by_ranks", {}).items()
        },
    )


def recognise(
    num_nics: int, links: Mapping[tuple[int, int], int], num_gpus: int
) -> tuple[KnownNode, tuple[int, ...]] | None:
    """Return the known node with these links, and this node's GPUs by its places.

    Parameters
    ----------
    links : mapping
        Pair of GPUs, the lower first -> parallel links.
    """
    for node in _nodes():
        if (node.gpus, node.nics) != (num_gpus, num_nics) or sorted(
            node.links.values()
        ) != sorted(links.values()):
            continue
        place = _match_order(node.links, links, num_gpus)
        if place is not None:
            return node, place
    return None


def _match_order(
    pattern: Mapping[tuple[int, int], int],
    links: Mapping[tuple[int, int], int],
    count: int,
) -> tuple[int, ...] | None:
    """Return the first order of GPUs, lexicographically, in which `links` equal `pattern`."""

    def between(table: Mapping[tuple[int, int], int], a: int, b: int) -> int:
        return table.get((min(a, b), max(a, b)), 0)

    def extend_order(place: tuple[int, ...]) -> tuple[int, ...] | None:
        at = len(place)
        if at == count:
            return place
        for gpu in range(count):
            if gpu not in place and all(
                between(pattern, at, other) == between(links, gpu, place[other])
                for other in range(at)
            ):
                complete = extend_order((*place, gpu))
                if complete is not None:
                    return complete
        return None

    return extend_order(())


@cache
def _nodes() -> tuple[KnownNode, ...]:
    return tuple(_node(entry) for entry in _DATA["nodes"])


def _node(entry: Mapping[str, Any]) -> KnownNode:
    count, links = entry["gpus"], {}
    for number, text in entry["links"].items():
        full = [f"{a}{b}" for a in range(count) for b in range(a + 1, count)]
        for pair in full if text == "full" else text.split():
            links[int(pair[0]), int(pair[1])] = int(number)
    rings = [tuple(map(int, text)) for text in entry["rings"]]
    if entry.get("reversed"):
        rings += [ring[::-1] for ring in rings]
    shift = entry.get("shift", 0)
    orders = tuple(
        rings[(at + turn * shift) % len(rings)]
        for turn in range(entry.get("repeats", 1))
        for at in range(len(rings))
    )
    ll128 = release_of(entry["ll128"]) if "ll128" in entry else None
    return KnownNode(
        entry["name"], count, entry["nics"], links, orders, entry["tuning"], ll128
    )


@cache
def _tuning(name: str, release: tuple[int, int]) -> Tuning:
    tables: dict[str, Any] = {}
    for first, changes in _releases(name):
        if not tables or first <= release:
            tables |= changes
    names = {
        item.name.lower(): item for item in (*Algorithm, *Protocol, *Collective)
    }
    rules = {
        names[collective]: SizeRule(
            row["ll"],
            row["ll128"],
            row.get("growth", 0),
            tuple(row.get("threads", ())),
        )
        for collective, row in tables.get("sizes", {}).items()
    }

    def rows(key: str) -> Any:
        return {
            where: {names[one]: tuple(row) for one, row in table.items()}
            for where, table in tables[key].items()
        }

    def factors(key: str) -> Any:
        return {names[one]: tuple(row) for one, row in tables[key].items()}

    return Tuning(
        rows("hop_us"),
        rows("share"),
        factors("tree_correction"),
        factors("ring_correction"),
        rules,
    )


def _releases(name: str) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
    for text, changes in _DATA["tuning"][name].items():
        yield release_of(text), changes
