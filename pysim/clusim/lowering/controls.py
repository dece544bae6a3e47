"""Rate controls of NICs: rows of an image, their sender policies, and the change of the policy of all NICs.

**Model** A NIC has DCQCN, a sender policy (`clusim.policies`) in its place, or neither. A policy for all NICs keeps the
figures of their rate control, such as the delay of notifications; NICs without one have the figures of DCQCN's article
(`clusim.topology.node.RateControl`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.engine.abi import NONE, Policy
from clusim.engine.image import Image, empty
from clusim.policies.choice import BoundSender, Sender, find_policy, parse_policy
from clusim.policies.kinds import PATH
from clusim.topology import Fabric
from clusim.topology.arrays import FabricArrays
from clusim.topology.node import NETWORK, NicTraits, RateControl

Row = tuple[int, ...]


def control_row(
    control: RateControl, line_Bps: float, sender: Sender | None, receiver: int
) -> Row:
    """Return a rate control on a wire of `line_Bps`, with a policy; rates in bytes per 2^30 ps.

    `receiver` is one more than the row of a further policy of receivers, or 0.
    """

    def rate(value_Bps: float) -> int:
        return max(1, round(value_Bps * 2**30 / 1e12))

    return (
        control.alpha_timer_ps,
        control.increase_timer_ps,
        control.cnp_interval_ps,
        control.cnp_delay_ps,
        control.byte_counter,
        rate(line_Bps),
        rate(min(control.min_Bps, line_Bps)),
        rate(control.additive_Bps),
        rate(control.hyper_Bps),
        control.g_65536,
        control.fast_recovery,
        control.kept_65536,
        control.clamp,
        0 if sender is None else find_policy(sender.name).mode,
        receiver,
    )


class ControlTable:
    """Rate controls of an image, each row once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Row, Sender | None], int] = {}

    def add(self, nic: NicTraits, line_Bps: float) -> int:
        """Return the row of a NIC's rate control on a wire of `line_Bps`."""
        control = nic.rate_control
        assert control is not None
        receiver = 0
        if control.receiver is not None:
            row = control_row(control, line_Bps, control.receiver, 0)
            receiver = 1 + self._number(row, control.receiver)
        row = control_row(control, line_Bps, control.sender, receiver)
        return self._number(row, control.sender)

    def _number(self, row: Row, sender: Sender | None) -> int:
        return self._rows.setdefault((row, sender), len(self._rows))

    def tables(self) -> dict[str, Any]:
        """Return ``controls`` and ``senders`` of an image."""
        rows: Array = np.array(
            [row for row, _ in self._rows], empty("controls").dtype
        )
        names = rows.dtype.names or ()
        senders = tuple(
            None
            if sender is None
            else BoundSender(sender, tuple(zip(names, row, strict=True)))
            for row, sender in self._rows
        )
        return {"controls": rows, "senders": senders if any(senders) else ()}


def put_policies(
    arrays: FabricArrays, wires: Array, tables: dict[str, Any]
) -> dict[str, Any]:
    """Set the policies of the queues and schedules of switches on `wires`.

    Returns
    -------
    dict
        ``nodes``, ``controls``, ``senders`` and ``schedules`` with their rows.
    """
    fabric, schedules, nodes = arrays.fabric, arrays.schedules, arrays.nodes
    tables, rows = _add_rows(tables, [node.path_policy for node in fabric.nodes])
    if any(rows):
        nodes = nodes.copy()
        nodes["policy"] = rows
    tables, rows = _add_rows(tables, [link.queue_policy for link in fabric.links])
    wires["policy"] = np.where(
        _leave_switches(fabric, wires), _spread(fabric, rows), 0
    )
    tables, rows = _add_rows(tables, [link.schedule_policy for link in fabric.links])
    chosen = sorted({*rows} - {0})
    more = empty("schedules", len(chosen))
    more["quantum"], more["policy"] = 1, chosen
    number = {row: len(schedules) + 1 + k for k, row in enumerate(chosen)}
    numbers = _spread(fabric, [number.get(row, 0) for row in rows])
    by_policy = _leave_switches(fabric, wires) & (numbers > 0)
    wires["schedule"] = np.where(by_policy, numbers, wires["schedule"])
    schedules = np.concatenate((schedules, more))
    return tables | {"nodes": nodes, "schedules": schedules}


def _leave_switches(fabric: Fabric, wires: Array) -> Array:
    """True for wires out of switches."""
    switches = np.array([node.kind == "switch" for node in fabric.nodes], bool)
    result: Array = switches[wires["src"]]
    return result


def _spread(fabric: Fabric, numbers: list[int]) -> Array:
    """Return a number for each wire, of its link."""
    times = [2 * link.count for link in fabric.links]
    return np.repeat(np.array(numbers, np.uint32), times)


def _add_rows(
    tables: dict[str, Any], policies: list[Sender | None]
) -> tuple[dict[str, Any], list[int]]:
    """Return ``controls`` and ``senders`` with rows for policies, and one more than the row of each; 0 without."""
    controls = tables["controls"]
    senders = tables["senders"] or (None,) * len(controls)
    names = controls.dtype.names or ()
    chosen: dict[Sender | None, int] = {None: 0}
    for sender in policies:
        if sender is None or sender in chosen:
            continue
        mode = find_policy(sender.name).mode
        fixed = {"sender": mode, "receiver": 0}
        row = tuple(fixed.get(name, 1) for name in names)
        controls = np.append(controls, np.array([row], controls.dtype))
        bound = BoundSender(sender, tuple(zip(names, row, strict=True)))
        senders = (*senders, bound)
        chosen[sender] = len(controls)
    if len(chosen) > 1:
        tables = tables | {"controls": controls, "senders": senders}
    return tables, [chosen[sender] for sender in policies]


def _with_switches(fabric: Fabric, kind: str, sender: Sender | None) -> Fabric:
    """Return the topology with a policy of a kind of all switches between nodes, or without one.

    In topologies of hosts these are all switches.
    """
    switches = [node for node in fabric.nodes if node.kind == "switch"]
    network = {node.name for node in switches if node.zone == NETWORK}
    if all(node.kind in ("host", "switch") for node in fabric.nodes):
        network = {node.name for node in switches}
    if not network:
        raise InputError(
            f"policy {kind}: {fabric.name} lacks switches between nodes, which have it"
        )
    policy: dict[str, Any] = {f"{kind}_policy": sender}
    if kind == PATH.name:
        nodes = tuple(
            replace(node, **policy) if node.name in network else node
            for node in fabric.nodes
        )
        return replace(fabric, nodes=nodes)
    links = tuple(
        replace(link, **policy) if {link.a, link.b} & network else link
        for link in fabric.links
    )
    return replace(fabric, links=links)


def with_policy(fabric: Fabric, text: str) -> Fabric:
    """Return the topology with the policy of a text for all its NICs, or all network switches.

    Parameters
    ----------
    text : str
        ``sender=NAME``, ``sender=file.py:Class``, ``sender=none``, or another kind, such as ``queue=...``; several
        after commas; empty keeps the topology's.

    Raises
    ------
    InputError
        Another kind, an unknown policy, or a topology without NICs or switches between nodes.
    """
    if not text:
        return fabric
    cache: dict[str, Fabric] = fabric.cache.setdefault("policies", {})
    if text not in cache:
        chosen, changed = parse_policy(text), fabric
        of_nics: dict[str, Sender | None] = {
            kind: chosen[kind] for kind in ("sender", "receiver") if kind in chosen
        }
        for kind, sender in chosen.items():
            if kind not in of_nics:
                changed = _with_switches(changed, kind, sender)
        if of_nics:
            changed = _with_nics(changed, text, of_nics)
        cache[text] = changed
    return cache[text]


def _with_nics(
    fabric: Fabric, text: str, chosen: dict[str, Sender | None]
) -> Fabric:
    """Return the topology with policies of senders, receivers or both of all NICs."""
    if not any(node.nic is not None for node in fabric.nodes):
        raise InputError(
            f"policy {text}: {fabric.name} lacks NICs, which have {' and '.join(chosen)}s"
        )
    both = [sender for sender in chosen.values() if sender is not None]
    sender, receiver = (*both, None, None)[:2]
    nodes = tuple(
        node
        if node.nic is None
        else replace(node, nic=_with_sender(node.nic, sender, receiver))
        for node in fabric.nodes
    )
    # A changed system of a run has the run's policy already.
    return fabric if nodes == fabric.nodes else replace(fabric, nodes=nodes)


def policy_notes(text: str, image: Image) -> tuple[str, ...]:
    """Return the notes on the sender policies of an image, or on a policy (as of `with_policy`) without flows."""
    names = sorted(
        {bound.sender.name for bound in image.senders if bound is not None}
    )
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(find_policy(name).kind.name, []).append(name)
    if names:
        notes = [f"{kind} policy: {', '.join(of)}" for kind, of in kinds.items()]
        if idle := [name for name in names if not _may_choose(image, name)]:
            why = "no flow has one path by hash (--routing ecmp)"
            notes.append(f"without effect: path of policy {', '.join(idle)}: {why}")
        return tuple(notes)
    if text == "sender=none":
        return ("sender policy: none",)
    return (f"obeyed, without effect on this run: --policy {text}",) if text else ()


def _may_choose(image: Image, name: str) -> bool:
    """False if a policy chooses paths, and all its flows are on others."""
    if not find_policy(name).chooses_path:
        return True
    rows = [
        row
        for row, bound in enumerate(image.senders)
        if bound and bound.sender.name == name
    ]
    conns, sources = image.conns, image.sources
    by_hash = (
        (conns["policy"] == Policy.PINNED)
        & (conns["path"] == NONE)
        & (conns["split"] == 0)
    )
    chosen = np.isin(conns["control"], rows) & by_hash
    return bool(
        chosen.any()
        or (
            np.isin(sources["control"], rows) & (sources["policy"] == Policy.PINNED)
        ).any()
    )


def _with_sender(
    nic: NicTraits, sender: Sender | None, receiver: Sender | None
) -> NicTraits:
    """Return a NIC with a policy of senders or receivers, with both, or without rate control."""
    if sender is None:
        return replace(nic, rate_control=None)
    control = nic.rate_control or RateControl()
    return replace(
        nic, rate_control=replace(control, sender=sender, receiver=receiver)
    )
