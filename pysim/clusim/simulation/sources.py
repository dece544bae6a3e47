"""Sources of synthetic traffic between nodes: NICs, routing, order at the receivers, rate control.

**Hardware** A NIC keeps the rate of each queue pair (DCQCN), on one path or on many.
**Model** A source is a queue pair with a separate rate. Without a given routing, messages follow the paths of
a collective's data: the topology's choice between nodes, all NVLinks in turn inside.
**Not modelled** Queue pairs in excess of the slots of an endpoint share sources, and their rates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import NONE
from clusim.lowering.controls import ControlTable
from clusim.lowering.rank_paths import places_of
from clusim.lowering.spreads import Receiver, Spreading, policy_of, receiver_of
from clusim.results.result import Messages
from clusim.topology import FabricArrays
from clusim.topology.node import NicTraits
from clusim.topology.rows import class_vcs

INSIDE = "spray"
"""Routing inside a node: packets alternate over the parallel links."""


class PathChoices(NamedTuple):
    """Rows of an image for the paths of sources.

    Attributes
    ----------
    policy : ndarray
        Policy of each source.
    spreads, spread : ndarray
        Spreads, and the row of each source or NONE.
    controls, control : dict, ndarray
        Tables of rate controls and sender policies, and the row of each source or NONE.
    vc : ndarray
        Virtual channel of each source, of the class of its NIC.
    num_vcs : int
        Virtual channels.
    """

    policy: Array
    spreads: Array
    spread: Array
    controls: dict[str, Any]
    control: Array
    vc: Array
    num_vcs: int


def nics_crossed(arrays: FabricArrays, messages: Messages) -> Array:
    """Return the NICs that every message crosses, [messages, 2]; NONE inside a node."""
    result = np.full((len(messages.source), 2), NONE, np.uint32)
    if not len(arrays.nic_targets):
        return result
    pairs = np.stack((messages.source, messages.destination), axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    vias = [arrays.vias(a, b) or (NONE, NONE) for a, b in distinct.tolist()]
    result[:] = np.array(vias, np.uint32).reshape(-1, 2)[inverse.ravel()]
    return result


def routing_between(
    arrays: FabricArrays, source: int, destination: int, nic: int
) -> str:
    """Return the routing of messages from one rank to another over a NIC (target, or NONE), as of collectives."""
    traits = _nic_at(arrays, nic)
    if traits is not None:
        return arrays.fabric.forwarding.routing(traits.adaptive)
    return places_of(arrays).hosts_routing(source, destination) or INSIDE


def describe_routing(arrays: FabricArrays) -> str:
    """Describe the routing of a topology without a given one: inside nodes and between them."""
    words = []
    for other in dict.fromkeys((1, arrays.num_ranks - 1)):
        vias = arrays.vias(0, other)
        words.append(routing_between(arrays, 0, other, vias[0] if vias else NONE))
    if words[0] == words[-1]:
        return f"{words[0]} routing"
    return f"{words[-1]} routing between nodes, {words[0]} inside"


class Sources(NamedTuple):
    """Sources: sending and receiving rank of their first messages, and the NICs that these cross."""

    source: Array
    destination: Array
    vias: Array

    @classmethod
    def of_first(cls, messages: Messages, first: Array, vias: Array) -> Sources:
        """Return the sources with these first messages, given the NICs of all messages."""
        return cls(messages.source[first], messages.destination[first], vias[first])

    def choices(
        self, arrays: FabricArrays, spreading: Spreading, order: int | str | None
    ) -> PathChoices:
        """Return the rows of an image; a `spreading` by ``auto`` is the topology's.

        `order` is the reorder buffer of all receivers [bytes], or ``any``, or None for the buffers of their
        NICs.
        """
        words = [spreading.routing] * len(self.source)
        if spreading.routing == "auto":
            places = zip(
                *(column.tolist() for column in self[:2]),
                self.vias[:, 0].tolist(),
                strict=True,
            )
            words = [routing_between(arrays, *place) for place in places]
            spreading = Spreading(
                _main_routing(words), arrays.fabric.forwarding.gap_ps
            )
        spread = np.full(len(words), NONE, np.uint32)
        chosen = [
            number for number, word in enumerate(words) if word == spreading.routing
        ]
        ends = [self._receiver(arrays, number, order) for number in chosen]
        if (
            spreading.routing == "ecmp"
            and order is None
            and not arrays.fabric.dropping
        ):
            ends = [Receiver(1, None)] * len(ends)  # one path keeps the order
        crossed = bool((self.vias != NONE).any())
        spreads, spread[chosen] = spreading.rows(arrays, ends, crossed)
        controls, control = rate_controls(arrays, self.vias[:, 0])
        policy = np.array([policy_of(word) for word in words], np.uint8)
        vcs = spreading.num_vcs(arrays.fabric)
        nics = (_nic_at(arrays, target) for target in self.vias[:, 0].tolist())
        classes = [0 if nic is None else nic.traffic_class for nic in nics]
        vc = class_vcs(arrays.fabric, np.array(classes, np.int64))
        return PathChoices(policy, spreads, spread, controls, control, vc, vcs)

    def _receiver(
        self, arrays: FabricArrays, number: int, order: int | str | None
    ) -> Receiver:
        sending, receiving = (_nic_at(arrays, int(via)) for via in self.vias[number])
        if order is None:
            order = None if receiving is None else receiving.reorder_bytes
        size = order if isinstance(order, int) else None
        if size is None and (sending is None or not arrays.fabric.dropping):
            return Receiver(1, None)
        back = arrays.path(int(self.destination[number]), int(self.source[number]))
        return receiver_of(arrays.fabric, sending, arrays.latency_ps(back), size)


def _main_routing(words: list[str]) -> str:
    """Return the routing between nodes, or that inside if all sources send inside."""
    return next((word for word in words if word != INSIDE), INSIDE)


def _nic_at(arrays: FabricArrays, target: int) -> NicTraits | None:
    """Return the traits of the NIC at a target; None without one."""
    return (
        None
        if target == NONE
        else arrays.fabric.nodes[int(arrays.targets["node"][target])].nic
    )


def rate_controls(arrays: FabricArrays, nics: Array) -> tuple[dict[str, Any], Array]:
    """Return rate controls, and the number of each source's control, given NICs `nics` (NONE: without)."""
    table = ControlTable()
    control_of: dict[int, int] = {NONE: NONE}
    for target in dict.fromkeys(nics.tolist()):
        traits = _nic_at(arrays, target)
        if traits is None or traits.rate_control is None:
            control_of[target] = NONE
            continue
        wires = arrays.wires[arrays.wires_from(int(arrays.targets["node"][target]))]
        lines = wires[arrays.nodes["zone"][wires["dst"]] == NONE]
        line_Bps = max(lines["rate_num"] / lines["rate_den"], default=0.0) * 1e12
        control_of[target] = table.add(traits, line_Bps) if line_Bps else NONE
    numbers = np.array([control_of[target] for target in nics.tolist()], np.uint32)
    return table.tables(), numbers
