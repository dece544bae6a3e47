"""Choice of a path for each packet: by load, for a flowlet, or over a detour (section 6, spreads)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusim.engine.abi import Kind, Load
from clusim.engine.reference.model import Model
from clusim.engine.reference.packets import Packet, Transfer
from clusim.engine.reference.specs import hash32

if TYPE_CHECKING:
    from clusim.engine.reference.machine import Machine


def load_bytes(machine: Machine, transfer: Transfer, wire: int) -> int:
    """Return the load of a wire, as the packets of a transfer estimate it [bytes]."""
    state = machine.wires[wire]
    total = state.counters.queued_bytes
    by_credit = (
        transfer.spread is not None and transfer.spread.estimate == Load.CREDIT
    )
    if by_credit and state.pause is None:
        total += sum(state.spec.buffer_bytes - credit for credit in state.credit)
    return total


def least_loaded(
    machine: Machine, packet: Packet, wires: tuple[int, ...], node: int
) -> tuple[int, int]:
    """Return the least load among the usable `wires` out of a node, and its wire."""
    transfer, start = packet.transfer, 0
    if transfer.spread is not None:
        start = hash32(machine.model.seed, node, packet.key) % len(wires)
    ranks = {
        wire: wire if transfer.spread is None else (number - start) % len(wires)
        for number, wire in enumerate(wires)
    }
    found = min(
        (load_bytes(machine, transfer, wire), ranks[wire], wire) for wire in wires
    )
    return found[0], found[2]


def choose(
    machine: Machine, packet: Packet, target: int, wires: tuple[int, ...], node: int
) -> int:
    """Return the wire of a packet that chooses by load among at least two usable wires."""
    transfer = packet.transfer
    gap_ps = 0 if transfer.spread is None else transfer.spread.gap_ps
    key = (node, target, transfer.flow)
    wire, last_ps = machine.flowlets.get(key, (None, 0))
    if gap_ps == 0 or wire not in wires or machine.now_ps - last_ps >= gap_ps:
        wire = least_loaded(machine, packet, wires, node)[1]
    if gap_ps:
        machine.flowlets[key] = (wire, machine.now_ps)
    return wire


def _hops(
    model: Model, node: int, target: int, before: bool = False
) -> tuple[int, int] | None:
    """Return the hops along first wires from a node to a target, and their end; None without a way.

    With `before` the way ends at the last node before the target.
    """
    goal, hops = model.targets[target].node, 0
    while node != goal:
        group = model.routes(node, target)
        if group is None:
            return None
        following = model.wires[group[0]].dst
        if before and following == goal:
            break
        node, hops = following, hops + 1
    return hops, node


def minimal_wire(machine: Machine, packet: Packet, node: int) -> int | None:
    """Return the least loaded wire of a minimal path that has credit for a packet; None without one."""
    model, spread = machine.model, packet.transfer.spread
    assert spread is not None
    here, target = model.nodes[node], packet.targets[0]
    hops = _hops(model, node, target)
    if here.endpoint is not None or here.bridge or hops is None:
        return None
    found = []
    for wire in (state for state in machine.wires if state.spec.src == node):
        onward = _hops(model, wire.spec.dst, target)
        if (
            wire.spec.dim == 0
            or wire.down
            or wire.pause is not None
            or onward is None
        ):
            continue
        if (
            model.nodes[wire.spec.dst].endpoint is not None
            or onward[0] + 1 != hops[0]
        ):
            continue
        promised = machine.promised.get((wire.index, spread.minimal_vc), 0)
        size = packet.wire_bytes(model, wire.index)
        if wire.credit[spread.minimal_vc] - promised >= size:
            chance = hash32(model.seed, wire.index, packet.key)
            found.append(
                (
                    load_bytes(machine, packet.transfer, wire.index),
                    chance,
                    wire.index,
                )
            )
    return min(found)[2] if found else None


def _begin(machine: Machine, packet: Packet, node: int) -> None:
    """Begin a detour if it is shorter, by bytes times hops (UGAL)."""
    model, spread = machine.model, packet.transfer.spread
    assert spread is not None
    low, high = spread.detours
    over = low + hash32(model.seed, node, packet.key) % (high - low)
    there, direct = (
        _hops(model, node, over, before=True),
        _hops(model, node, packet.targets[0]),
    )
    if there is None or there[0] == 0 or direct is None:
        return
    back = _hops(model, there[1], packet.targets[0])
    assert back is not None
    loads = [
        least_loaded(
            machine, packet, machine.usable(model.route(node, target)), node
        )[0]
        for target in (packet.targets[0], over)
    ]
    if loads[0] * direct[0] > loads[1] * (there[0] + back[0]) + spread.bias_bytes:
        packet.targets, packet.away = (over, *packet.targets), True


def _end(model: Model, packet: Packet, node: int) -> None:
    """End the detour of a packet beside its turning point, or at the node of its target."""
    assert packet.transfer.spread is not None
    over, *rest = packet.targets
    following = model.wires[model.route(node, over)[0]].dst
    if following != model.targets[over].node and node != model.targets[rest[0]].node:
        return
    packet.targets, packet.away = tuple(rest), False
    packet.first_vc = min(
        packet.first_vc + packet.transfer.spread.detour_vcs, model.nvc - 1
    )
    packet.vc = packet.first_vc


def turn(machine: Machine, packet: Packet, node: int) -> None:
    """Let a packet that arrived at `node` end a detour, or decide on one once."""
    spread, terms = packet.transfer.spread, packet.transfer.terms
    if (
        spread is None
        or not packet.adaptive
        or spread.detours[0] == spread.detours[1]
    ):
        return
    if packet.away:
        _end(machine.model, packet, node)
        return
    has_first, left = terms.kind == Kind.FETCH, len(packet.targets)
    fetched = has_first and left == len(terms.targets)
    here = machine.model.nodes[node]
    if packet.decided or fetched or here.endpoint is not None or here.bridge:
        return
    packet.decided = True
    if left > 1 or len(terms.targets) - has_first == 1:
        _begin(machine, packet, node)
