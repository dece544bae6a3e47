"""Faults of a run: failed or degraded wires, slow ranks, and the known topology.

A fault at time 0 is known at the start: routes are computed without the wire, and collectives are planned on
the remaining topology, `known_at_start`. A later fault is not known: its traffic continues over the remaining wires
or stalls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError, TopologyError
from clusim.base.records import dataclass
from clusim.base.units import format_time
from clusim.engine.abi import FaultKind
from clusim.engine.image import empty
from clusim.topology.arrays import FabricArrays, arrays_of
from clusim.topology.arrays import lower as lower_fabric
from clusim.topology.model import Fabric
from clusim.topology.pcie_paths import downward_wires

REPLAY_PS = 1_000_000
"""Replay time of links without `replay_ps`, in addition to a round trip [ps]."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure or slow-down of a wire or rank at `time_ps`.

    Attributes
    ----------
    wire : str or int or None
        Name or id of a wire that gets `factor` times its nominal rate (0 = down), or
    rank : int or None
        the rank with CTAs and kernels that take `factor` times as long.
    bit_errors : float
        Bit error rate of the wire during the full run; packets with an error are sent again.
    text : str
        The user's text of the fault, for messages.
    """

    time_ps: int
    factor: Fraction | float = Fraction(1)
    wire: str | int | None = None
    rank: int | None = None
    bit_errors: float = 0.0
    text: str = ""


def lower_faults(arrays: FabricArrays, faults: Iterable[Fault]) -> Array:
    """Return the fault rows, in order of time."""
    rows = []
    for fault in sorted(faults, key=lambda item: item.time_ps):
        if (
            fault.factor < 0
            or fault.time_ps < 0
            or (fault.wire is None) == (fault.rank is None)
        ):
            raise InputError(
                f"{fault}: needs a wire or a rank, a time >= 0 and a factor >= 0"
            )
        if fault.rank is not None:
            arrays.node_of(fault.rank)
            slow = max(1, round(1024 * Fraction(fault.factor)))
            rows.append(
                (
                    fault.time_ps,
                    slow,
                    1,
                    FaultKind.SLOW,
                    int(arrays.rank_endpoint[fault.rank]),
                )
            )
            continue
        wire = _wire(arrays, fault.wire)
        if fault.bit_errors:
            continue
        row = arrays.wires[wire]
        rate = Fraction(fault.factor) * Fraction(
            int(row["rate_num"]), int(row["rate_den"])
        )
        rows.append(
            (fault.time_ps, rate.numerator, rate.denominator, FaultKind.RATE, wire)
        )
    return np.array(rows, empty("faults").dtype)


def dead_wires(arrays: FabricArrays, faults: Iterable[Fault]) -> list[int]:
    """Return the wires that are down from the start and stay so."""
    down: dict[int, bool] = {}
    for fault in sorted(faults, key=lambda item: item.time_ps):
        if fault.wire is not None and not fault.bit_errors:
            wire = _wire(arrays, fault.wire)
            starts = fault.time_ps == 0 and fault.factor == 0
            if starts or wire in down:
                down[wire] = (
                    starts and down.get(wire, True) if fault.time_ps == 0 else False
                )
    return sorted(wire for wire, stays in down.items() if stays)


def without_wires(arrays: FabricArrays, dead: Sequence[int]) -> FabricArrays:
    """Return a topology with routes that avoid the wires in `dead`."""
    if not dead:
        return arrays
    try:
        return lower_fabric(arrays.fabric, dead)
    except TopologyError as error:
        raise InputError(f"faults: {error}") from error


def worn_wires(arrays: FabricArrays, faults: Iterable[Fault]) -> Array:
    """Return the wires of a topology, with the replay probability of wires with bit errors.

    The probability is that of at least one bit error in the largest packet of the wire's format.
    """
    wires = arrays.wires.copy()
    for fault in faults:
        if not fault.bit_errors:
            continue
        wire = _wire(arrays, fault.wire)
        form = arrays.fabric.formats[arrays.format_names[int(wires["format"][wire])]]
        largest_payload = max(form.payload_bytes.values())
        limit = min((value for value in form.limit_bytes), default=largest_payload)
        bits = 8 * (max(form.header_bytes) + min(largest_payload, limit))
        hit = -np.expm1(bits * np.log1p(-min(fault.bit_errors, 0.999999)))
        wires["error_threshold"][wire] = min(
            max(1, round(float(hit) * 2**32)), 2**32 - 1
        )
        if not wires["replay_ps"][wire]:
            wires["replay_ps"][wire] = REPLAY_PS + 2 * int(wires["latency_ps"][wire])
    return wires


def known_at_start(arrays: FabricArrays, faults: Iterable[Fault]) -> Fabric:
    """Return the topology that planning sees: no link with a direction down at the start."""
    fabric = arrays.fabric
    dead = dead_wires(arrays, faults)
    if not dead:
        return fabric
    ends = np.cumsum([2 * link.count for link in fabric.links])
    gone: dict[int, set[int]] = {}
    for wire in dead:
        gone.setdefault(int(np.searchsorted(ends, wire, side="right")), set()).add(
            wire // 2
        )
    links = tuple(
        replace(link, count=link.count - len(gone.get(index, ())))
        for index, link in enumerate(fabric.links)
        if link.count > len(gone.get(index, ()))
    )
    names = set(fabric.ranks)
    direct = any(
        fabric.links[index].a in names and fabric.links[index].b in names
        for index in gone
    )
    return replace(
        fabric, links=links, ring_orders=None if direct else fabric.ring_orders
    )


def on_redirected(fabric: Fabric, faults: Sequence[Fault]) -> Sequence[Fault]:
    """Return faults of a topology for the one that packets see (`clusim.topology.pcie_paths`)."""
    if not fabric.acs:
        return faults
    arrays, replaced = arrays_of(fabric), downward_wires(fabric)
    wires = [
        None if item.wire is None else _wire(arrays, item.wire) for item in faults
    ]
    return [
        replace(item, wire=wire if wire is None else replaced.get(wire, wire))
        for item, wire in zip(faults, wires, strict=True)
    ]


def describe_faults(
    arrays: FabricArrays, faults: Iterable[Fault], texts: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return a line for every fault: its text, the changed rates and the time.

    Parameters
    ----------
    texts : iterable of str
        Requested faults; one without rows in `faults` was hidden by worse faults of the same time.
    """
    groups: dict[str, list[Fault]] = {" ".join(text.split()): [] for text in texts}
    for fault in faults:
        groups.setdefault(
            fault.text or f"fault of {fault.wire or f'rank {fault.rank}'}", []
        ).append(fault)
    return tuple(
        f"{text}: {_effect(arrays, changes)}" for text, changes in groups.items()
    )


def _effect(arrays: FabricArrays, faults: Sequence[Fault]) -> str:
    if not faults:
        return "a worse fault of the same links or rank counts instead"
    if faults[0].rank is not None:
        words = [f"x{float(f.factor):g} {_since(f.time_ps)}" for f in faults]
        return f"CTAs and kernels of rank {faults[0].rank} take " + ", ".join(words)
    wires = {_wire(arrays, fault.wire) for fault in faults}
    count_text = f"{len(wires)} wire{'s' if len(wires) > 1 else ''}"
    if faults[0].bit_errors:
        return f"{count_text} with a bit error rate of {faults[0].bit_errors:g}"
    changes: dict[tuple[int, float, float], int] = {}
    for fault in sorted(faults, key=lambda item: item.time_ps):
        row = arrays.wires[_wire(arrays, fault.wire)]
        nominal = int(row["rate_num"]) / int(row["rate_den"]) * 1e3
        key = (fault.time_ps, float(fault.factor) * nominal, nominal)
        changes[key] = changes.get(key, 0) + 1
    return "; ".join(
        f"{count} wire{'s' if count > 1 else ''} at {now:.2f} of {nominal:.2f} GB/s {_since(time_ps)}"
        for (time_ps, now, nominal), count in changes.items()
    )


def _since(time_ps: int) -> str:
    return f"from {format_time(time_ps)} on" if time_ps else "from the start"


class FaultedWay(Protocol):
    """Algorithm of a collective under faults."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""

    @property
    def protocol(self) -> str:
        """Protocol of data and flags."""

    @property
    def channels(self) -> int:
        """Channels that share the work."""


def plan_change(healthy: Sequence[FaultedWay], planned: Sequence[FaultedWay]) -> str:
    """Return a message on the changes of plans by the faults known at the start."""
    head = "planned without the links that are down at time 0:"
    pairs = list(zip(healthy, planned, strict=True))
    changed = [
        changes for before, after in pairs if (changes := _changes(before, after))
    ]
    if not changed:
        same = f"{len(planned)} collectives"
        if len(planned) == 1:
            same = f"{planned[0].algorithm}, {planned[0].protocol}, {planned[0].channels} channels"
        return f"{head} {same}, as without faults"
    if len(pairs) == 1:
        return f"{head} {changed[0]}"
    return f"{head} {len(changed)} of {len(pairs)} collectives otherwise, the first with {changed[0]}"


def _changes(before: FaultedWay, after: FaultedWay) -> str:
    return ", ".join(
        f"{name} {getattr(after, name)} instead of {getattr(before, name)}"
        for name in ("algorithm", "protocol", "channels")
        if getattr(after, name) != getattr(before, name)
    )


def _wire(arrays: FabricArrays, wire: str | int | None) -> int:
    names = arrays.wire_names
    if isinstance(wire, int) and 0 <= wire < len(names):
        return wire
    if wire not in names:
        raise InputError(
            f"wire {wire!r}: not on {arrays.fabric.name}; wires are named as {names[0]!r}"
        )
    return names.index(str(wire))
