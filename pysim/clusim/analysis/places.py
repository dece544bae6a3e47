"""Places of causes on a critical path: resource and instance of a charge, and a census of each class.

All numbers are counted from the run: wires by class, NICs, ranks with programs, proxy threads and reduction units of
its image, with the counters and faults of its wires.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from clusim.analysis.charge import Charge
from clusim.analysis.critical import Critical
from clusim.analysis.network import Network
from clusim.analysis.walk import Step
from clusim.engine.abi import NONE, FaultKind
from clusim.results.causes import AS_BUSY, CauseKind, Census, wire_key

_OWNER = re.compile(r" (?:of|at|to) | \d.*")
"""Start of the instance in the resource of a charge: ``CTAs of rank 3``, ``flags 0->1``."""

_NODE = re.compile(r"n(\d+)/(.+)")

_NAMES = {"proxies": "proxy threads", "reduction unit": "reduction units", "rank": "CTAs"}
"""Resource of a charge -> name, if they differ; a slow rank has slow CTAs or kernels."""


def instance_name(node: str) -> str:
    """Return the name of a NIC or switch in a sentence: ``nic2 of node 1``."""
    match = _NODE.fullmatch(node)
    return f"{match[2]} of node {match[1]}" if match else node


_AT_HOSTS = " at hosts"
"""End of the resource of endpoints without a rank."""


class CausePlaces:
    """Places of the charges of a run.

    Parameters
    ----------
    run : Critical
        The run, with its counters.
    """

    def __init__(self, run: Critical) -> None:
        self._network: Network = run.traced.network
        self._rates = run.traced.result.wires
        self._image = self._network.image
        self._counted: dict[str, Census] = {}
        self._on_path: dict[str, set[str]] = defaultdict(set)

    def of(self, charge: Charge, step: Step) -> tuple[str, str]:
        """Return the resource and the instance of a charge."""
        if charge.wire >= 0:
            return self.of_wire(charge.wire)
        resource = _OWNER.split(charge.resource, maxsplit=1)[0]
        resource, place = _NAMES.get(resource, resource), self._endpoint(step.endpoint)
        if charge.cause is CauseKind.UNIT:
            place = instance_name(charge.resource.partition(" of ")[2])
        elif step.endpoint not in self._network.with_rank:
            resource += _AT_HOSTS
        self._on_path[resource].add(place)
        return resource, place

    def of_wire(self, wire: int) -> tuple[str, str]:
        """Return the link class of a wire on the path, and its link or NIC."""
        resource, place = self._network.classes[wire], self._wire_place(wire)
        self._on_path[resource].add(place)
        return resource, place

    def _wire_place(self, wire: int) -> str:
        network = self._network
        name = network.classes[wire]
        if wire_key(name)[0] is not CauseKind.NIC:
            return network.link(wire)
        end = "src" if name.rpartition(" ")[2].startswith("nic-") else "dst"
        return instance_name(network.nodes[int(network.wires[end][wire])])

    def _endpoint(self, endpoint: int) -> str:
        network = self._network
        if endpoint in network.with_rank:
            return f"rank {network.ranks[endpoint]}"
        return network.endpoint_name(endpoint)

    def census(self, key: tuple[CauseKind, str], resource: str) -> Census:
        """Count the instances of a resource of a cause, after the last charge."""
        kind, image = key[0], self._image
        if resource in self._classes:
            if resource not in self._counted:
                self._counted[resource] = self._wires(resource)
            return self._counted[resource]
        if kind is CauseKind.PROXY:
            threads = image["instances"]["thread"]
            return Census("proxy threads", len(np.unique(threads[threads != NONE])))
        if kind is CauseKind.UNIT:
            return Census("reduction units", len(image["units"]))
        if resource.endswith(_AT_HOSTS):
            return Census("hosts", len(image["endpoints"]) - len(self._network.with_rank))
        notes = self._slow if resource in ("CTAs", "kernels") else {}
        return Census("ranks", len(self._ranks), notes=notes)

    @cached_property
    def _classes(self) -> frozenset[str]:
        return frozenset(self._network.classes)

    @cached_property
    def _ranks(self) -> set[int]:
        """Endpoints of ranks with programs or kernels."""
        image = self._image
        used = np.union1d(image["instances"]["endpoint"], image["tasks"]["endpoint"])
        return set(used.tolist()) & self._network.with_rank

    @cached_property
    def _slow(self) -> dict[str, str]:
        """Slow ranks, with their largest factor."""
        slow = self._image["endpoints"]["slow_1024"].astype(np.int64)
        for fault in self._image["faults"]:
            if fault["kind"] == FaultKind.SLOW:
                index = int(fault["index"])
                slow[index] = max(slow[index], int(fault["num"]))
        return {
            self._endpoint(end): f"slow x{slow[end] / 1024:.3g}"
            for end in np.flatnonzero(slow > 1024).tolist()
        }

    def _instances(self, name: str) -> dict[str, list[int]]:
        """Return the instances of a link class, each with its wires."""
        rows: dict[str, list[int]] = {}
        for wire in np.flatnonzero(np.array(self._network.classes, object) == name).tolist():
            rows.setdefault(self._wire_place(wire), []).append(wire)
        return rows

    def _wires(self, name: str) -> Census:
        """Count the instances of a link class, by load and by faults."""
        rows, counters = self._instances(name), self._rates.counters
        left = self._rates.effective_Bps / np.maximum(self._rates.rate_Bps, 1e-300)
        busy = {place: int(counters["busy_ps"][wires].max()) for place, wires in rows.items()}
        most = max((busy[place] for place in self._on_path[name] if place in busy), default=0)
        limiting = [place for place in rows if most and busy[place] >= AS_BUSY * most]
        down = [place for place, wires in rows.items() if not left[wires].any()]
        notes = {
            place: f"at {float(left[wires].mean()):.0%} of its rate"
            for place, wires in rows.items()
            if 0 < left[wires].mean() < 1 - 1e-9
        }
        parts: tuple[str, ...] = ()
        if down and self._carries_more(rows, limiting, down):
            parts = tuple(self._parts_down(rows, down))
        unit = "NICs" if wire_key(name)[0] is CauseKind.NIC else "links"
        return Census(unit, len(rows), tuple(limiting), len(down), parts, notes)

    def _carries_more(self, rows: dict[str, list[int]], some: list[str], down: list[str]) -> bool:
        """Return True if instances carry more than the mean of a class, failed instances included."""
        counters = self._rates.counters
        total = counters["bytes"].astype(np.int64) + counters["control_bytes"].astype(np.int64)
        carried = {place: int(total[wires].sum()) for place, wires in rows.items()}
        if not some or len(down) == len(rows):
            return False
        mean = sum(carried[place] for place in some) / len(some)
        return mean > sum(carried.values()) / len(rows)

    def _parts_down(self, rows: dict[str, list[int]], down: list[str]) -> Iterable[str]:
        """Yield the graph nodes without a remaining link, or without one of a class, then further links."""
        network, lost = self._network, set(down)
        alive = np.flatnonzero(self._rates.effective_Bps > 0)
        living = {*network.wires["src"][alive].tolist(), *network.wires["dst"][alive].tolist()}
        ends: dict[int, set[str]] = defaultdict(set)
        for place, wires in rows.items():
            for wire in wires:
                for end in ("src", "dst"):
                    ends[int(network.wires[end][wire])].add(place)
        dead = {node: places for node, places in ends.items() if places <= lost}
        named: set[str] = set()
        for node in sorted(dead, key=lambda node: (node in living, -len(dead[node]), node)):
            places = dead[node]
            if places <= named or (node in living and len(places) == 1):
                continue
            named |= places
            yield instance_name(network.nodes[node])
        yield from (place for place in down if place not in named)
