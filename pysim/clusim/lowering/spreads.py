"""Spreading of packets over paths, and receivers that accept packets in order, as rows of an image.

**Hardware** Switches with adaptive routing choose a path per packet, or per flowlet (Vanini et al., "Let it flow",
NSDI 2017). Routers of dragonflies compare a shortest path with a detour (UGAL: Kim et al., "Technology-driven,
highly-scalable dragonfly topology", ISCA 2008). Routers of tori use all shortest paths on one virtual channel, and
dimension order without deadlock on others, to escape (J. Duato, "A new theory of deadlock-free adaptive routing in
wormhole networks", 1993; IBM Blue Gene). RoCE and InfiniBand NICs drop early packets of a queue pair, or keep some;
NICs with out-of-order delivery (SRD, Slingshot, ConnectX-5 and later) place each packet in memory on arrival. Where
switches drop packets, all accept them in order, and repeat lost ones.
**Model** One spread per return latency of NAKs and size of reorder buffer (contract, section 6); chance decides among
equal queues. Detours turn at a random endpoint, or NIC in a cluster; they use two further virtual channels after it.
**Not modelled** Order among connections that share a queue pair over PXN; NAKs wait for no link.
**Parameters** `Forwarding.choice`, `NicTraits.adaptive`, `NicTraits.reorder_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.engine.abi import NONE, Load, Policy
from clusim.engine.image import empty
from clusim.engine.ranges import LATENCY_END_PS, NVC
from clusim.lowering.hops import Leg
from clusim.topology import Fabric, FabricArrays
from clusim.topology.model import PathChoice
from clusim.topology.node import NicTraits
from clusim.topology.rows import total_vcs, trim_bytes

Routing = Literal[
    "auto", "ecmp", "spray", "adaptive", "credit", "flowlet", "ugal", "minimal"
]
"""Paths of flows or packets; ``ecmp`` is one path per flow, ``auto`` the topology's choice."""

BY_LOAD = ("adaptive", "credit", "flowlet", "ugal", "minimal")
"""Routings by load: chance decides among equal wires."""

_POLICIES = {"spray": Policy.STRIPE, "ecmp": Policy.PINNED, "flowlet": Policy.PINNED}

DETOUR_VCS = 2
"""Virtual channels of a dragonfly's shortest path, which a detour uses twice."""


def check_routing(routing: str, gap_ps: int | None) -> None:
    """Raise `InputError` if a word is not a `Routing`, or if flowlets lack a gap, or others have one."""
    if routing not in get_args(Routing):
        raise InputError(
            f"routing {routing!r}: unknown; one of {', '.join(get_args(Routing))}"
        )
    if (gap_ps is not None) != (routing == "flowlet"):
        word = "needs" if gap_ps is None else "is without"
        raise InputError(f"routing {routing}: {word} a gap (--flowlet-gap)")
    if not 0 < (1 if gap_ps is None else gap_ps) < LATENCY_END_PS:
        raise InputError(f"gap {gap_ps}: must be above 0 and at most 20 h")


def policy_of(routing: str) -> Policy:
    """Return the policy of flows with a routing other than ``auto``."""
    return _POLICIES.get(routing, Policy.ADAPTIVE)


class Receiver(NamedTuple):
    """End of a flow.

    Attributes
    ----------
    nak_ps : int
        Time from the refusal of a packet to the sender [ps].
    reorder_bytes : int or None
        Early packets that it keeps [bytes]; None accepts any order.
    timeout_ps, retries : int
        Timeout of retransmission [ps], or 0 without; timeouts in a row that the sender bears.
    selective, trimmed : bool
        The sender repeats missing packets only; it uses headers of trimmed packets.
    """

    nak_ps: int
    reorder_bytes: int | None
    timeout_ps: int = 0
    retries: int = 0
    selective: bool = False
    trimmed: bool = False


def receiver_of(
    fabric: Fabric, sending: NicTraits | None, nak_ps: int, order: int | None
) -> Receiver:
    """Return the end of a flow from a NIC to a receiver that keeps early packets of `order` bytes, or all.

    In a topology that drops packets the NIC repeats them, and the receiver accepts them in order.
    """
    if sending is None or not fabric.dropping:
        return Receiver(1, None) if order is None else Receiver(nak_ps, order)
    in_order = sending.plugin == "verbs" and not trim_bytes(fabric)
    mode = sending.retransmission or ("go-back-n" if in_order else "selective")
    selective, times = mode == "selective", (sending.timeout_ps, sending.retries)
    return Receiver(
        nak_ps, order or 0, *times, selective, selective and trim_bytes(fabric) > 0
    )


@dataclass(frozen=True, slots=True)
class Spreading:
    """Spreading of packets.

    Attributes
    ----------
    routing : str
        Routing of the flows, not ``auto``.
    gap_ps : int or None
        ``flowlet``: shortest pause of a flow before a new path [ps].
    """

    routing: str
    gap_ps: int | None = None

    def num_vcs(self, fabric: Fabric) -> int:
        """Return the number of virtual channels on a topology."""
        if self.routing == "minimal":
            return _minimal_vc(fabric) + 1
        return max(
            total_vcs(fabric), 2 * DETOUR_VCS if self.routing == "ugal" else 1
        )

    def _check_minimal(self, arrays: FabricArrays) -> None:
        name, needed = arrays.fabric.name, self.num_vcs(arrays.fabric)
        if not arrays.wires["dim"].any():
            raise InputError(
                f"routing minimal: {name} is not a torus or mesh in dimension order"
            )
        if needed > NVC[1]:
            raise InputError(
                f"routing minimal: {name} needs {needed} virtual channels; at most {NVC[1]}"
            )

    def rows(
        self, arrays: FabricArrays, receivers: Sequence[Receiver], nics: bool
    ) -> tuple[Array, Array]:
        """Return the spreads, and the spread of each flow.

        Parameters
        ----------
        arrays : FabricArrays
            Topology.
        receivers : sequence of Receiver
            Receiver of each flow.
        nics : bool
            True if the flows cross NICs.

        Returns
        -------
        spreads : ndarray
            Rows of an image.
        numbers : ndarray of uint32, shape (flows,)
            Rows of the flows, or NONE.
        """
        by_load, fabric = self.routing in BY_LOAD, arrays.fabric
        if (
            self.routing in ("ugal", "minimal")
            and total_vcs(fabric) > fabric.num_vcs
        ):
            raise InputError(
                f"routing {self.routing}: {fabric.name} has traffic classes or trims"
            )
        kinds: dict[Receiver, int] = {}
        numbers = np.full(len(receivers), NONE, np.uint32)
        for flow, receiver in enumerate(receivers):
            if receiver.reorder_bytes is not None:
                numbers[flow] = kinds.setdefault(receiver, len(kinds))
            elif by_load:
                numbers[flow] = kinds.setdefault(Receiver(1, None), len(kinds))
        spreads = empty("spreads", len(kinds))
        if not kinds:
            return spreads, numbers
        spreads["nak_ps"] = [kind.nak_ps for kind in kinds]
        spreads["ordered"] = [kind.reorder_bytes is not None for kind in kinds]
        spreads["reorder_bytes"] = [kind.reorder_bytes or 0 for kind in kinds]
        for name in ("timeout_ps", "retries", "selective", "trimmed"):
            spreads[name] = [getattr(kind, name) for kind in kinds]
        spreads["gap_ps"] = self.gap_ps or 0
        if self.routing == "minimal":
            self._check_minimal(arrays)
            spreads["minimal_vc"] = _minimal_vc(arrays.fabric)
        if self.routing in ("credit", "flowlet", "minimal"):
            spreads["estimate"] = Load.CREDIT
        if self.routing == "ugal":
            spreads["detour_lo"] = len(arrays.endpoints) if nics else 0
            spreads["detour_hi"] = (
                len(arrays.targets) if nics else len(arrays.endpoints)
            )
            spreads["detour_vcs"] = DETOUR_VCS
        return spreads, numbers


def _minimal_vc(fabric: Fabric) -> int:
    """Return the virtual channel of minimal paths, after those of the topology and of responses after a dateline."""
    return max(fabric.num_vcs, fabric.response_vc + 2)


class SpreadTable(NamedTuple):
    """Spreads of an image, the row of each leg or NONE (uint32), and the number of virtual channels."""

    rows: Array
    numbers: Array
    num_vcs: int


def spreads_of(arrays: FabricArrays, legs: Sequence[Leg]) -> SpreadTable:
    """Return the spreads of the legs with several paths."""
    lossy, fabric = bool(arrays.fabric.dropping), arrays.fabric
    several = [
        number
        for number, leg in enumerate(legs)
        if leg.routing not in (None, "ecmp") or (lossy and leg.nic is not None)
    ]
    numbers = np.full(len(legs), NONE, np.uint32)
    if not several:
        return SpreadTable(empty("spreads"), numbers, total_vcs(arrays.fabric))
    words = [legs[number].routing or "ecmp" for number in several]
    main = next((word for word in words if word != "ecmp"), "ecmp")
    spreading = Spreading(main, fabric.forwarding.gap_ps)
    ends = [
        receiver_of(fabric, leg.nic, leg.nak_ps, leg.reorder_bytes)
        for leg in (legs[number] for number in several)
    ]
    nics = any(legs[number].via_last != NONE for number in several)
    rows, numbers[several] = spreading.rows(arrays, ends, nics)
    return SpreadTable(rows, numbers, spreading.num_vcs(arrays.fabric))


def reroute(
    fabric: Fabric,
    routing: str = "auto",
    gap_ps: int | None = None,
    order: int | str | None = None,
) -> Fabric:
    """Return the topology with other paths between its nodes.

    Parameters
    ----------
    routing : str
        A `Routing`; ``auto`` keeps the topology's.
    gap_ps : int or None
        ``flowlet``: shortest pause of a flow before a new path [ps].
    order : int or str or None
        Early packets that every NIC keeps [bytes], or ``any``; None keeps those of the NICs.

    Raises
    ------
    InputError
        Another word, a missing or superfluous gap, or a choice without a network or an order without NICs.
    """
    routing = routing.strip().lower()
    check_routing(routing, gap_ps)
    cache: dict[Any, Fabric] = fabric.cache.setdefault("rerouted", {})
    key = routing, gap_ps, order
    if key in cache:
        return cache[key]
    changes: dict[str, Any] = {}
    if routing != "auto":
        if not _has_network(fabric):
            raise InputError(
                f"routing {routing}: {fabric.name} lacks a network between nodes"
            )
        choice = cast("PathChoice", "hash" if routing == "ecmp" else routing)
        changes["forwarding"] = replace(
            fabric.forwarding, choice=choice, gap_ps=gap_ps
        )
    if order is not None:
        if not any(node.nic is not None for node in fabric.nodes):
            raise InputError(f"reorder {order}: {fabric.name} lacks NICs")
        reorder_bytes = None if order == "any" else int(order)
        changes["nodes"] = tuple(
            node
            if node.nic is None
            else replace(node, nic=replace(node.nic, reorder_bytes=reorder_bytes))
            for node in fabric.nodes
        )
    cache[key] = replace(fabric, **changes) if changes else fabric
    return cache[key]


def _has_network(fabric: Fabric) -> bool:
    """Return True if there are hosts, or NICs with links other than PCIe."""
    kinds = {node.name: node.kind for node in fabric.nodes}
    ends = (
        (kinds[link.a], kinds[link.b]) for link in fabric.links if link.cls != "pcie"
    )
    return "host" in kinds.values() or any("nic" in pair for pair in ends)
