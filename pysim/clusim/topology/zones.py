"""Routes of fabrics that join machines: one small table per machine, one for the network between them.

**Hardware** A GPU server routes over NVLink and PCIe by address; InfiniBand and Ethernet switches route by the address
of a network port. Neither knows the other's table.
**Model** Every node has a zone, the number of its machine, or `NETWORK` for the switches in between. Inside a zone
the targets are its own endpoints and NICs; network switches and uplinks of NICs know only NICs. Packets between
machines are steered from NIC to NIC, so nothing else is ever looked up. In a zone NICs are targets and senders, but
never forward from one PCIe or network wire to another: traffic of two GPUs never takes a detour over an adapter.
**Not modelled** Machines joined without NICs, or by cables from NIC to NIC.

Machines that are alike (same wiring in the same order) are routed once; `uplinks` routes the network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.engine.image import empty
from clusim.topology.routing import RouteTable, Wiring, route
from clusim.topology.uplinks import route_network
from clusim.topology.zonetables import Machines, RoutingTables, Zoned, ZoneRoutes

Array = NDArray[Any]


def lay_out(wiring: Wiring, zoned: Zoned) -> ZoneRoutes:
    """Return the routes of a fabric whose targets are `wiring.targets`, endpoints before NICs."""
    machines = _machines(wiring, zoned)
    num_nodes, num_targets = len(zoned.zone), len(wiring.targets)
    targets = empty("targets", num_targets)
    targets["node"] = wiring.targets
    targets["zone"] = zoned.zone[wiring.targets]
    spread = (
        np.arange(num_targets) - machines.target_lo[zoned.zone[wiring.targets[machines.targets]]]
    )
    targets["local"][machines.targets] = spread
    found = ZoneRoutes(
        targets=targets,
        route_lo=np.zeros(num_nodes, np.uint64),
        wide_lo=np.zeros(num_nodes, np.uint64),
        wide_stride=np.zeros(num_nodes, np.uint32),
        routes=np.zeros(0, np.uint32),
        group_off=np.zeros(1, np.uint32),
        group_wires=np.zeros(0, np.uint32),
        machines=machines,
    )
    tables = RoutingTables()
    _route_machines(wiring, zoned, found, tables)
    route_network(wiring, zoned, found, tables)
    routes, group_off, group_wires = tables.finish()
    return replace(found, routes=routes, group_off=group_off, group_wires=group_wires)


def _machines(wiring: Wiring, zoned: Zoned) -> Machines:
    num_zones = int(zoned.zone.max(initial=-1)) + 1
    edges = np.arange(num_zones + 1)
    inside = np.flatnonzero(zoned.zone >= 0)
    nodes = inside[np.argsort(zoned.zone[inside], kind="stable")]
    node_lo = np.searchsorted(zoned.zone[nodes], edges)
    home = zoned.zone[wiring.targets]
    order = np.argsort(home, kind="stable")
    position = np.zeros(len(zoned.zone), np.int64)
    position[nodes] = np.arange(len(nodes)) - node_lo[zoned.zone[nodes]]
    return Machines(
        nodes=nodes,
        node_lo=node_lo,
        targets=order,
        target_lo=np.searchsorted(home[order], edges),
        position=position,
        template=np.zeros(num_zones, np.int64),
        plane=np.full(len(wiring.targets), -1, np.int64),
        planes=[],
    )


def _route_machines(wiring: Wiring, zoned: Zoned, found: ZoneRoutes, tables: RoutingTables) -> None:
    """Route each distinct machine once and copy its rows to all that are alike."""
    machines = found.machines
    inside = np.flatnonzero(
        (zoned.zone[wiring.src] == zoned.zone[wiring.dst]) & (zoned.zone[wiring.src] >= 0)
    )
    wires = inside[np.argsort(zoned.zone[wiring.src[inside]], kind="stable")]
    num_zones = len(machines.template)
    wire_lo = np.searchsorted(zoned.zone[wiring.src[wires]], np.arange(num_zones + 1))
    passing = wiring.forwards & ~zoned.nic
    ends = np.stack(
        [
            machines.position[wiring.src[wires]],
            machines.position[wiring.dst[wires]],
            wiring.dim[wires],
            wiring.weight[wires],
        ],
        axis=1,
    )
    forwards = passing[machines.nodes]
    homes = machines.position[wiring.targets[machines.targets]]
    alike: dict[tuple[bytes, bytes, bytes], list[int]] = {}
    for zone in range(num_zones):
        key = (
            ends[wire_lo[zone] : wire_lo[zone + 1]].tobytes(),
            forwards[machines.node_lo[zone] : machines.node_lo[zone + 1]].tobytes(),
            homes[machines.target_lo[zone] : machines.target_lo[zone + 1]].tobytes(),
        )
        alike.setdefault(key, []).append(zone)
    for template, zones in enumerate(alike.values()):
        first = zones[0]
        own = ends[wire_lo[first] : wire_lo[first + 1]]
        table = route(
            Wiring(
                src=own[:, 0],
                dst=own[:, 1],
                dim=own[:, 2],
                weight=own[:, 3],
                forwards=forwards[machines.node_lo[first] : machines.node_lo[first + 1]],
                targets=homes[machines.target_lo[first] : machines.target_lo[first + 1]],
            ),
            dimension_order=zoned.dimension_order,
        )
        members = np.array(zones)
        machines.template[members] = template
        _tile(table, members, wires[wire_lo[members][:, None] + np.arange(len(own))], found, tables)


def _tile(
    table: RouteTable, zones: Array, wires: Array, found: ZoneRoutes, tables: RoutingTables
) -> None:
    """Append a copy of `table` for each of `zones`; `wires` [zone, local wire] are its wires."""
    machines = found.machines
    copies = np.arange(len(zones))[:, None]
    groups = len(table.group_off) - 1
    sizes = np.tile(np.diff(table.group_off.astype(np.int64)), len(zones))
    base = tables.add_groups(sizes, wires[:, table.group_wires])
    begin = tables.add_routes(tables.shifted(table.routes[None, :], base + copies * groups))
    first = int(zones[0])
    size = int(machines.node_lo[first + 1] - machines.node_lo[first])
    columns = int(machines.target_lo[first + 1] - machines.target_lo[first])
    nodes = machines.nodes[machines.node_lo[zones][:, None] + np.arange(size)]
    found.route_lo[nodes] = begin + copies * table.routes.size + np.arange(size) * columns
