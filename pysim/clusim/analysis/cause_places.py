"""Places of the causes of a run: resource and instance of a charge, and the census of each class.

They are counted from the run: wires by class, NICs, ranks with programs, proxy threads and reduction units of its
image, with the counters and faults of its wires.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from clusim.analysis.charge import Charge
from clusim.analysis.critical import Traced
from clusim.analysis.flows import FlowUse
from clusim.analysis.network import Network
from clusim.analysis.servers import Servers
from clusim.analysis.walk import Step
from clusim.engine.abi import NONE, FaultKind
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import AS_BUSY, SHOWN_PLACES, Census, wire_key
from clusim.results.servers import outstanding

_OWNER = re.compile(r" (?:of|at|to) | \d.*")
"""Start of the instance in the resource of a charge: ``CTAs of rank 3``, ``flags 0->1``."""

_NODE = re.compile(r"n(\d+)/(.+)")

_NAMES = {
    "proxies": "proxy threads",
    "reduction unit": "reduction units",
    "rank": "CTAs",
}
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
    traced : Traced
        The run, with its counters.
    servers : Servers
        Its serial servers.
    """

    def __init__(self, traced: Traced, servers: Servers) -> None:
        self._network: Network = traced.network
        self._rates = traced.result.wires
        self._image = self._network.image
        self._censuses: dict[str, Census] = {}
        self._servers = servers
        self._traced = traced
        self.timeouts = traced.timeouts

    @cached_property
    def flows(self) -> FlowUse:
        """Flows of the run with rate control."""
        return FlowUse(self._traced)

    def of(self, charge: Charge, step: Step) -> tuple[str, str]:
        """Return the resource and the instance of a charge."""
        if charge.cause is CauseKind.RATE:
            return charge.resource, self.flows.flows.name_of(step.connection)
        if charge.cause is CauseKind.TIMEOUT:
            return charge.resource, instance_name(
                self.timeouts.sender_of(step.connection)
            )
        if charge.wire >= 0:
            return self.of_wire(charge.wire)
        resource = _OWNER.split(charge.resource, maxsplit=1)[0]
        resource, place = (
            _NAMES.get(resource, resource),
            self._servers.place_of(step.endpoint),
        )
        if charge.cause is CauseKind.UNIT:
            place = charge.resource.partition(" of ")[2]
        elif charge.cause is CauseKind.PROXY:
            place = self._thread(step)
        elif step.endpoint not in self._network.with_rank:
            resource += _AT_HOSTS
        return resource, place

    def of_wire(self, wire: int) -> tuple[str, str]:
        """Return the link class of a wire, and its link or NIC."""
        return self._network.classes[wire], self._wire_place(wire)

    def _thread(self, step: Step) -> str:
        """Return the rank with the host thread that works on a step, or the endpoint of a NIC's program."""
        thread = int(self._image["instances"]["thread"][step.instance])
        return self._servers.place_of(step.endpoint if thread == NONE else thread)

    def _wire_place(self, wire: int) -> str:
        network = self._network
        name = network.classes[wire]
        if wire_key(name)[0] is not CauseKind.NIC:
            return network.link(wire)
        end = "src" if name.rpartition(" ")[2].startswith("nic-") else "dst"
        return instance_name(network.nodes[int(network.wires[end][wire])])

    def census(self, key: tuple[CauseKind, str], resource: str) -> Census:
        """Count the instances of a resource of a cause."""
        kind, servers = key[0], self._servers
        if kind is CauseKind.RATE:
            return self.flows.census(key[1])
        if kind is CauseKind.TIMEOUT:
            waits = self.timeouts.by_nic.items()
            return _server_census(
                "NICs", {instance_name(nic): ps for nic, ps in waits}
            )
        if resource in self._classes:
            if resource not in self._censuses:
                self._censuses[resource] = self._wires(resource)
            return self._censuses[resource]
        if kind is CauseKind.PROXY:
            return _server_census("proxy threads", servers.threads)
        if kind is CauseKind.UNIT:
            return _server_census("reduction units", servers.units)
        if resource.endswith(_AT_HOSTS):
            hosts = len(self._image["endpoints"]) - len(self._network.with_rank)
            return Census("hosts", hosts)
        if resource == "CTAs" and kind in (CauseKind.CTA, CauseKind.STEP):
            return _server_census("ranks", servers.ctas, self._slow)
        return Census("ranks", len(self._ranks), notes=self._slow)

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
            self._servers.place_of(end): f"slow x{slow[end] / 1024:.3g}"
            for end in np.flatnonzero(slow > 1024).tolist()
        }

    def _instances(self, name: str) -> dict[str, list[int]]:
        """Return the instances of a link class, each with its wires."""
        rows: dict[str, list[int]] = {}
        for wire in np.flatnonzero(
            np.array(self._network.classes, object) == name
        ).tolist():
            rows.setdefault(self._wire_place(wire), []).append(wire)
        return rows

    def _wires(self, name: str) -> Census:
        """Count the instances of a link class, by load and by faults."""
        rows, counters = self._instances(name), self._rates.counters
        rate_shares = self._rates.effective_Bps / np.maximum(
            self._rates.rate_Bps, 1e-300
        )
        busy = {
            place: int(counters["busy_ps"][wires].max())
            for place, wires in rows.items()
        }
        busiest = max(busy.values(), default=0)
        limiting = [
            place for place in rows if busiest and busy[place] >= AS_BUSY * busiest
        ]
        down = [
            place for place, wires in rows.items() if not rate_shares[wires].any()
        ]
        notes = {
            place: f"at {float(rate_shares[wires].mean()):.0%} of its rate"
            for place, wires in rows.items()
            if 0 < rate_shares[wires].mean() < 1 - 1e-9
        }
        parts: tuple[str, ...] = ()
        if down and self._carries_more(rows, limiting, down):
            parts = tuple(self._parts_down(rows, down))
        unit = "NICs" if wire_key(name)[0] is CauseKind.NIC else "links"
        named = _deviating_instances(busy, notes)
        return Census(
            unit, len(rows), tuple(limiting), named, len(down), parts, notes
        )

    def _carries_more(
        self, rows: dict[str, list[int]], some: list[str], down: list[str]
    ) -> bool:
        """Return True if instances carry more than the mean of a class, failed instances included."""
        counters = self._rates.counters
        total = counters["bytes"].astype(np.int64) + counters[
            "control_bytes"
        ].astype(np.int64)
        carried = {place: int(total[wires].sum()) for place, wires in rows.items()}
        if not some or len(down) == len(rows):
            return False
        mean = sum(carried[place] for place in some) / len(some)
        return mean > sum(carried.values()) / len(rows)

    def _parts_down(
        self, rows: dict[str, list[int]], down: list[str]
    ) -> Iterable[str]:
        """Yield the graph nodes without a remaining link, or without one of a class, then further links."""
        network, lost = self._network, set(down)
        alive = np.flatnonzero(self._rates.effective_Bps > 0)
        living = {
            *network.wires["src"][alive].tolist(),
            *network.wires["dst"][alive].tolist(),
        }
        ends: dict[int, set[str]] = defaultdict(set)
        for place, wires in rows.items():
            for wire in wires:
                for end in ("src", "dst"):
                    ends[int(network.wires[end][wire])].add(place)
        dead = {node: places for node, places in ends.items() if places <= lost}
        named: set[str] = set()
        for node in sorted(
            dead, key=lambda node: (node in living, -len(dead[node]), node)
        ):
            places = dead[node]
            if places <= named or (node in living and len(places) == 1):
                continue
            named |= places
            yield instance_name(network.nodes[node])
        yield from (place for place in down if place not in named)


def _server_census(
    unit: str, busy: Mapping[str, float], notes: Mapping[str, str] = {}
) -> Census:
    """Count servers by their busy time."""
    busiest = max(busy.values(), default=0.0)
    limiting = tuple(
        place for place, ps in busy.items() if busiest and ps >= AS_BUSY * busiest
    )
    return Census(
        unit,
        len(busy),
        limiting or None,
        _deviating_instances(busy, notes),
        notes=notes,
    )


def _deviating_instances(
    busy: Mapping[str, float], notes: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the instances that differ from their class: fuller by more than its spread, or with a note."""
    named = outstanding(busy, SHOWN_PLACES, AS_BUSY)
    noted = [place for place in notes if place not in named]
    names = named + tuple(noted)
    return names if len(names) <= SHOWN_PLACES else named
