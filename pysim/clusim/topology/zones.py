"""Routes of topologies with several nodes: one small table per node, one for the network.

**Hardware** A GPU server routes over NVLink and PCIe by address; InfiniBand and Ethernet switches route
by the address of a network port. The two tables are independent.
**Model** Every graph node has a zone, the number of its node, or `NETWORK` for the switches in between.
Inside a zone the targets are its endpoints and NICs; network switches and uplinks of NICs route only to
NICs. Packets between nodes are steered from NIC to NIC, so no other look-ups occur. In a zone NICs are
targets and senders, but never forward from one PCIe or network wire to another: traffic between two GPUs
never detours over a NIC. Equal nodes (same wiring in the same order) are routed once. In the network,
NICs on the same switches differ only at these, so the search runs towards sets of switches, and its
columns are then copied to the NICs. A NIC with ports on several switches is part of the search, because
some may be nearer than others.
**Not modelled** Nodes joined without NICs, or by cables from NIC to NIC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import NONE
from clusim.engine.image import empty
from clusim.topology.routing import RouteTable, Wiring, route
from clusim.topology.routing_tables import Machines, RoutingTables, Zoned, ZoneRoutes

KEPT_BYTES = 1 << 20
"""Largest routing table of a node that is kept: times are compared on the same node with other figures."""


def route_network(
    wiring: Wiring, zoned: Zoned, offsets: ZoneRoutes, tables: RoutingTables
) -> None:
    """Append routes towards NICs of other nodes to `tables`, with their offsets in `offsets`."""
    _Network(wiring, zoned, offsets, tables).route()


class _Network:
    """Switches between nodes and the NICs on them.

    Attributes
    ----------
    down, up : ndarray
        Wires from network switches to NICs and back, ordered by their two graph nodes.
    spots : ndarray
        NICs by their set of switches: `spots[i]` is the set of target `i`, or -1.
    sets : list of tuple
        The switches of each set.
    """

    def __init__(
        self,
        wiring: Wiring,
        zoned: Zoned,
        offsets: ZoneRoutes,
        tables: RoutingTables,
    ) -> None:
        self.wiring, self.zoned, self.found, self.tables = (
            wiring,
            zoned,
            offsets,
            tables,
        )
        self.outside = zoned.zone < 0
        self.switches = np.flatnonzero(self.outside)
        into = ~self.outside[wiring.dst] & self.outside[wiring.src]
        away = ~self.outside[wiring.src] & self.outside[wiring.dst]
        self.down = self._order_wires(np.flatnonzero(into), wiring.src, wiring.dst)
        self.up = self._order_wires(np.flatnonzero(away), wiring.src, wiring.dst)
        self.target_at = np.full(len(zoned.zone), -1, np.int64)
        nics = np.flatnonzero(zoned.nic[wiring.targets])
        self.target_at[wiring.targets[nics]] = nics
        self.columns = np.arange(len(nics))
        self.first_nic = int(nics[0]) if len(nics) else len(wiring.targets)
        self.sets: list[tuple[int, ...]] = []
        self.spots = self._find_spots(len(nics))

    @staticmethod
    def _order_wires(wires: Array, one: Array, two: Array) -> Array:
        return wires[np.lexsort((wires, two[wires], one[wires]))]

    def _find_spots(self, count: int) -> Array:
        """Number the sets of switches of NICs, in order of the first NIC of each."""
        nic = self.target_at[self.wiring.src[self.up]] - self.first_nic
        switch = self.wiring.dst[self.up]
        spots = np.full(count, -1, np.int64)
        numbers: dict[tuple[int, ...], int] = {}
        edges = np.flatnonzero(np.diff(nic, prepend=-1, append=-1))
        for lo, hi in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            key = tuple(dict.fromkeys(switch[lo:hi].tolist()))
            spots[nic[lo]] = numbers.setdefault(key, len(numbers))
        self.sets = list(numbers)
        return spots

    def route(self) -> None:
        """Set the wide routes of every graph node."""
        result, tables = self.found, self.tables
        result.targets["wide"] = len(self.columns)
        result.targets["wide"][self.first_nic :] = self.columns
        nowhere = tables.add_routes(np.array([NONE]))
        result.wide_lo[:] = nowhere
        result.route_lo[self.switches] = nowhere
        if not len(self.switches):
            return
        self._planes()
        table = self._search()
        self._switch_rows(table)
        self._uplinks(table)

    def _planes(self) -> None:
        """Set the connected parts of the network that every NIC reaches."""
        wiring, machines = self.wiring, self.found.machines
        between = self.outside[wiring.src] & self.outside[wiring.dst]
        src, dst = wiring.src[between], wiring.dst[between]
        part = np.arange(len(self.outside))
        while True:
            low = np.minimum(part[src], part[dst])
            if (part[src] == part[dst]).all():
                break
            np.minimum.at(part, part[src], low)
            np.minimum.at(part, part[dst], low)
            part = part[part]
        planes: dict[frozenset[int], int] = {}
        for members in self.sets:
            planes.setdefault(frozenset(part[list(members)].tolist()), len(planes))
        machines.planes.extend(planes)
        of_set = [
            planes[frozenset(part[list(members)].tolist())] for members in self.sets
        ]
        plane = np.where(self.spots >= 0, np.array([*of_set, -1])[self.spots], -1)
        machines.plane[self.first_nic :] = plane

    def _search(self) -> Array:
        """Return the table [switch or set, set of switches] -> group.

        Rows of sets name their switches (as ``-2 - switch``).
        """
        wiring = self.wiring
        index = np.full(len(self.outside), -1, np.int64)
        index[self.switches] = np.arange(len(self.switches))
        between = np.flatnonzero(self.outside[wiring.src] & self.outside[wiring.dst])
        several = [
            number for number, members in enumerate(self.sets) if len(members) > 1
        ]
        stubs = [
            (len(self.switches) + i, s)
            for i, n in enumerate(several)
            for s in self.sets[n]
        ]
        stub = np.array(stubs, np.int64).reshape(-1, 2)
        starts = [(s, n) for n, members in enumerate(self.sets) for s in members]
        start = np.array(starts, np.int64).reshape(-1, 2)
        table = route(
            Wiring(
                src=np.concatenate((index[wiring.src[between]], stub[:, 0])),
                dst=np.concatenate((index[wiring.dst[between]], index[stub[:, 1]])),
                dim=np.concatenate(
                    (wiring.dim[between], np.zeros(len(stub), np.int64))
                ),
                weight=np.concatenate(
                    (wiring.weight[between], np.ones(len(stub), np.int64))
                ),
                forwards=np.arange(len(self.switches) + len(several))
                < len(self.switches),
                targets=index[start[:, 0]],
                columns=start[:, 1],
            ),
            dimension_order=self.zoned.network_dimension_order,
        )
        self.several = several
        self.local_wires = np.concatenate((between, -2 - stub[:, 1]))
        self.network_table = table
        return (
            table.routes.reshape(-1, len(self.sets))
            if self.sets
            else table.routes[:, None]
        )

    def _switch_rows(self, table: Array) -> None:
        """Write the rows of switches: a column per NIC, and one for all other targets."""
        wiring, tables, result = self.wiring, self.tables, self.found
        local = self.network_table
        used = len(self.switches)
        groups = int(table[:used].max(where=table[:used] != NONE, initial=0)) + 1
        groups = groups if (table[:used] != NONE).any() else 0
        sizes = np.diff(local.group_off.astype(np.int64))[:groups]
        base = tables.add_groups(
            sizes, self.local_wires[local.group_wires[: local.group_off[groups]]]
        )
        rows = np.full((used, len(self.columns) + 1), NONE, np.uint32)
        hanging = np.flatnonzero(self.spots >= 0)
        rows[:, hanging] = tables.shift(table[:used], base).astype(np.uint32)[
            :, self.spots[hanging]
        ]
        switch = np.searchsorted(self.switches, wiring.src[self.down])
        nic = self.target_at[wiring.dst[self.down]] - self.first_nic
        pair = switch * (len(self.columns) + 1) + nic
        edges = np.flatnonzero(np.diff(pair, prepend=-1))
        last = tables.add_groups(np.diff(edges, append=len(pair)), self.down)
        rows.ravel()[pair[edges]] = last + np.arange(len(edges))
        begin = tables.add_routes(rows)
        result.wide_lo[self.switches] = begin + np.arange(used) * rows.shape[1]
        result.wide_stride[self.switches] = 1

    def _uplinks(self, table: Array) -> None:
        """Set the uplink routes of every NIC: one group if all wires are equivalent, else a row."""
        wiring, tables, result = self.wiring, self.tables, self.found
        node = wiring.src[self.up]
        edges = np.flatnonzero(np.diff(node, prepend=-1))
        first = tables.add_groups(np.diff(edges, append=len(node)), self.up)
        begin = tables.add_routes(first + np.arange(len(edges)))
        result.wide_lo[node[edges]] = begin + np.arange(len(edges))
        for stub, number in enumerate(self.several):
            row = table[len(self.switches) + stub]
            if len(np.unique(row[np.arange(len(row)) != number])) > 1:
                self._choosy(number, row)

    def _choosy(self, number: int, row: Array) -> None:
        """Write rows for the NICs of one set of switches that differ in distance to some targets."""
        local, tables, result = self.network_table, self.tables, self.found
        width = len(self.columns) + 1
        for nic in np.flatnonzero(self.spots == number):
            node = int(self.wiring.targets[self.first_nic + nic])
            uplinks = self.up[self.wiring.src[self.up] == node]
            groups: dict[int, int] = {NONE: NONE}
            for group in np.unique(row).tolist():
                if group != NONE:
                    lo, hi = local.group_off[group], local.group_off[group + 1]
                    ends = -2 - self.local_wires[local.group_wires[lo:hi]]
                    wires = uplinks[np.isin(self.wiring.dst[uplinks], ends)]
                    groups[group] = tables.add_groups(np.array([len(wires)]), wires)
            entries = np.full(width, NONE, np.int64)
            hanging = np.flatnonzero(self.spots >= 0)
            entries[hanging] = [
                groups[int(row[spot])] for spot in self.spots[hanging]
            ]
            result.wide_lo[node] = tables.add_routes(entries)
            result.wide_stride[node] = 1


def lay_out(wiring: Wiring, zoned: Zoned) -> ZoneRoutes:
    """Return the routes of a topology with targets `wiring.targets`, endpoints before NICs."""
    machines = _machines(wiring, zoned)
    num_nodes, num_targets = len(zoned.zone), len(wiring.targets)
    targets = empty("targets", num_targets)
    targets["node"] = wiring.targets
    targets["zone"] = zoned.zone[wiring.targets]
    spread = (
        np.arange(num_targets)
        - machines.target_lo[zoned.zone[wiring.targets[machines.targets]]]
    )
    targets["local"][machines.targets] = spread
    result = ZoneRoutes(
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
    _route_machines(wiring, zoned, result, tables)
    route_network(wiring, zoned, result, tables)
    routes, group_off, group_wires = tables.finish()
    return replace(
        result, routes=routes, group_off=group_off, group_wires=group_wires
    )


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


@lru_cache(maxsize=16)
def _table(
    ends: bytes, forwards: bytes, targets: bytes, dimension_order: bool
) -> RouteTable:
    """Return the routes within a node.

    Parameters
    ----------
    ends : bytes
        Source, destination, dimension and weight of each wire, as int64.
    """
    src, dst, dim, weight = np.frombuffer(ends, np.int64).reshape(-1, 4).T
    wiring = Wiring(
        src=src,
        dst=dst,
        dim=dim,
        weight=weight,
        forwards=np.frombuffer(forwards, bool),
        targets=np.frombuffer(targets, np.int64),
    )
    return route(wiring, dimension_order=dimension_order)


def _route_machines(
    wiring: Wiring, zoned: Zoned, offsets: ZoneRoutes, tables: RoutingTables
) -> None:
    """Route each distinct node once and copy its rows to all equal nodes."""
    machines = offsets.machines
    inside = np.flatnonzero(
        (zoned.zone[wiring.src] == zoned.zone[wiring.dst])
        & (zoned.zone[wiring.src] >= 0)
    )
    wires = inside[np.argsort(zoned.zone[wiring.src[inside]], kind="stable")]
    num_zones = len(machines.template)
    wire_lo = np.searchsorted(
        zoned.zone[wiring.src[wires]], np.arange(num_zones + 1)
    )
    passing = wiring.forwards & ~zoned.nic
    ends = np.stack(
        [
            machines.position[wiring.src[wires]],
            machines.position[wiring.dst[wires]],
            wiring.dim[wires],
            wiring.weight[wires],
        ],
        axis=1,
    ).astype(np.int64)
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
    for template, (key, zones) in enumerate(alike.items()):
        is_small = len(key[1]) * len(key[2]) <= KEPT_BYTES
        table_of: Callable[..., RouteTable] = (
            _table if is_small else _table.__wrapped__
        )
        table = table_of(*key, zoned.dimension_order)
        members = np.array(zones)
        machines.template[members] = template
        _tile(
            table,
            members,
            wires[
                wire_lo[members][:, None]
                + np.arange(wire_lo[zones[0] + 1] - wire_lo[zones[0]])
            ],
            offsets,
            tables,
        )


def _tile(
    table: RouteTable,
    zones: Array,
    wires: Array,
    offsets: ZoneRoutes,
    tables: RoutingTables,
) -> None:
    """Append a copy of `table` for each of `zones`; `wires` [zone, local wire] are its wires."""
    machines = offsets.machines
    copies = np.arange(len(zones))[:, None]
    groups = len(table.group_off) - 1
    sizes = np.tile(np.diff(table.group_off.astype(np.int64)), len(zones))
    base = tables.add_groups(sizes, wires[:, table.group_wires])
    begin = tables.add_routes(
        tables.shift(table.routes[None, :], base + copies * groups)
    )
    first = int(zones[0])
    size = int(machines.node_lo[first + 1] - machines.node_lo[first])
    columns = int(machines.target_lo[first + 1] - machines.target_lo[first])
    nodes = machines.nodes[machines.node_lo[zones][:, None] + np.arange(size)]
    offsets.route_lo[nodes] = (
        begin + copies * table.routes.size + np.arange(size) * columns
    )
