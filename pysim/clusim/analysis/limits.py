"""What held a run back: the wire that was busiest, why wires stood still, what crossed which class of wire."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clusim.result import Result, counted_share

__all__ = ["ClassTraffic", "Limit", "WireUse", "busiest_wires", "class_traffic", "limit"]


@dataclass(frozen=True, slots=True)
class WireUse:
    """How one wire spent the run, as parts of its time.

    Attributes
    ----------
    busy, no_credit, nothing : float
        It served packets; it stood still for want of credit; it had nothing to send. They add up to 1.
    contended : float
        The part of `busy` in which another packet had to wait for its turn.
    carried_bytes : int
        With headers, padding and control [bytes].
    """

    name: str
    wire_class: str
    rate_Bps: float
    busy: float
    no_credit: float
    nothing: float
    contended: float
    carried_bytes: int


@dataclass(frozen=True, slots=True)
class Limit:
    """The wire no schedule of the same packets could do without.

    Attributes
    ----------
    name, wire_class : str
        The wire that was busy longest.
    reached : float
        Part of the run in which it was busy: 1 means that the run cannot be faster without moving less over it.
    payload_share : float
        Payload in what it carried; headers, flit padding and control bytes are the rest.
    busbw_bound_GBps : float or None
        Bus bandwidth if that wire had never been idle; None if the run is not one finished collective.
    """

    name: str
    wire_class: str
    reached: float
    payload_share: float
    busbw_bound_GBps: float | None


@dataclass(frozen=True, slots=True)
class ClassTraffic:
    """What one class of wires carried in all.

    Attributes
    ----------
    payload_bytes, wire_bytes : int
        Without and with headers, padding and control [bytes].
    asked_bytes : float or None
        What the definition of bus bandwidth counts for all ranks together [bytes]; None if the run is not one
        finished collective.
    mean_busy, max_busy : float
        Utilisation over the wires of the class.
    """

    wire_class: str
    wires: int
    payload_bytes: int
    wire_bytes: int
    asked_bytes: float | None
    mean_busy: float
    max_busy: float


def wire_use(result: Result, wire: int) -> WireUse:
    """Return how `wire` spent the run."""
    row, time_ps = result.wires.counters[wire], max(1, result.time_ps)
    busy, credit = int(row["busy_ps"]) / time_ps, int(row["stall_credit_ps"]) / time_ps
    waiting = int(row["stall_arbitration_ps"]) / time_ps
    return WireUse(
        name=result.wires.names[wire],
        wire_class=result.wires.classes[wire],
        rate_Bps=float(result.wires.rate_Bps[wire]),
        busy=busy,
        no_credit=credit,
        nothing=max(0.0, 1.0 - busy - credit),
        contended=waiting,
        carried_bytes=int(row["bytes"]) + int(row["control_bytes"]),
    )


def busiest_wires(result: Result, count: int = 5) -> list[WireUse]:
    """Return the `count` busiest wires, busiest first; ties by wire id."""
    order = np.argsort(-result.wires.counters["busy_ps"], kind="stable")[:count]
    return [wire_use(result, int(w)) for w in order if result.wires.counters["packets"][w]]


def limit(result: Result) -> Limit | None:
    """Return the limiting wire, or None if nothing crossed any wire."""
    counters = result.wires.counters
    if not len(counters) or not counters["busy_ps"].any():
        return None
    wire = int(np.argmax(counters["busy_ps"]))
    row = counters[wire]
    reached = int(row["busy_ps"]) / max(1, result.time_ps)
    carried = int(row["bytes"]) + int(row["control_bytes"])
    return Limit(
        name=result.wires.names[wire],
        wire_class=result.wires.classes[wire],
        reached=reached,
        payload_share=int(row["payload"]) / max(1, carried),
        busbw_bound_GBps=result.busbw_GBps / reached if result.has_bandwidth else None,
    )


def class_traffic(result: Result) -> list[ClassTraffic]:
    """Return what crossed each class of wires, in order of first appearance."""
    asked = None
    if (call := result.call) is not None and result.complete:
        asked = call.size_bytes * counted_share(call.operation, call.ranks)
    counters, busy = result.wires.counters, result.utilisation
    table = []
    for name in dict.fromkeys(result.wires.classes):
        mine = np.array([c == name for c in result.wires.classes])
        rows = counters[mine]
        if not rows["packets"].any():
            continue
        table.append(
            ClassTraffic(
                wire_class=name,
                wires=int(mine.sum()),
                payload_bytes=int(rows["payload"].sum()),
                wire_bytes=int(rows["bytes"].sum() + rows["control_bytes"].sum()),
                asked_bytes=asked,
                mean_busy=float(busy[mine].mean()),
                max_busy=float(busy[mine].max()),
            )
        )
    return table
