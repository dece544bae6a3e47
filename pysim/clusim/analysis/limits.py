"""Busiest wire, causes of stalls, and traffic by link class and tier.

A class is a kind of wire in one direction between two levels of the network (``infiniband nic->leaf``), a tier
all wires between two levels (``nic-leaf``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from clusim.base.json_schema import JsonObject, Round6
from clusim.base.records import dataclass
from clusim.base.terms.links import between_switches, tier_of
from clusim.base.terms.operations import counted_share
from clusim.results.result import Result


@dataclass(frozen=True, slots=True)
class WireUse:
    """Use of one wire during the run, as shares of its time.

    Attributes
    ----------
    rate_Bps, effective_Bps : float
        Nominal rate, and mean rate over the run with its faults [bytes/s].
    busy, no_credit, nothing : float
        Shares of serving packets, of credit stalls, and of idle time. They add up to 1.
    contended : float
        The part of `busy` in which another packet waited for its turn.
    carried_bytes : int
        With headers, padding and control [bytes].
    """

    name: str
    wire_class: str
    rate_Bps: float
    effective_Bps: float
    busy: float
    no_credit: float
    nothing: float
    contended: float
    carried_bytes: int


@dataclass(frozen=True, slots=True)
class Limit(JsonObject):
    """Busiest wire, which limits every schedule of the same packets.

    Attributes
    ----------
    name, wire_class : str
        The wire that was busy longest.
    reached : float
        Its utilisation: at 1 the run cannot be faster without less traffic on this wire.
    payload_share : float
        Payload as a share of its traffic; the rest are headers, flit padding and control bytes.
    busbw_bound_GBps : float or None
        Bus bandwidth if that wire had never been idle; None if the run is not one finished collective.
    tier_wires, tier_GBps : int, float
        Number of wires of its class in each node (all wires of the class in a single-node system), and their total
        rate [10^9 bytes/s].
    tier_busy : float
        Mean utilisation of the wires of its class.
    rate_GBps, effective_GBps : float
        Rate of the wire, nominal and mean over the run with its faults [10^9 bytes/s].
    tier_effective_GBps : float
        As `tier_GBps`, with the faults of the run.
    """

    name: str
    wire_class: str
    reached: Round6
    payload_share: Round6
    busbw_bound_GBps: Round6 | None
    tier_wires: int = 1
    tier_GBps: Round6 = 0.0
    tier_busy: Round6 = 0.0
    rate_GBps: Round6 = 0.0
    effective_GBps: Round6 = 0.0
    tier_effective_GBps: Round6 = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic(JsonObject):
    """Traffic over some wires.

    Attributes
    ----------
    payload_bytes, wire_bytes : int
        Without and with headers, padding and control [bytes].
    mean_busy, max_busy : float
        Utilisation over the wires.
    packets : int
        Exact packets.
    no_credit : float
        Mean part of the run in which a wire was in a credit stall, or paused.
    pauses, marks, drops, trims, replays : int
        Times a receiver paused its sender, packets marked for congestion, packets (or bursts) dropped, packets sent
        again after bit errors.
    rate_GBps, effective_GBps : float
        Rate of all wires together, nominal and mean over the run with its faults [10^9 bytes/s].
    """

    wires: int
    packets: int
    payload_bytes: int
    wire_bytes: int
    mean_busy: Round6
    max_busy: Round6
    no_credit: Round6
    pauses: int
    marks: int
    drops: int
    trims: int
    replays: int
    rate_GBps: Round6
    effective_GBps: Round6


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTraffic(_Traffic):
    """Traffic of one link class.

    Attributes
    ----------
    asked_bytes : float or None
        Bytes that the definition of bus bandwidth counts for all ranks [bytes]; None if the run is not one finished
        collective.
    """

    KEYS = (
        "wire_class",
        "wires",
        "payload_bytes",
        "wire_bytes",
        "asked_bytes",
        "mean_busy",
        "max_busy",
        "*",
    )

    wire_class: str
    asked_bytes: Round6 | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTraffic(_Traffic):
    """Traffic between two tiers, both directions together.

    Attributes
    ----------
    busiest_over_mean : float
        Bytes of the busiest wire over the mean of all wires in its direction; the larger of both directions.
    """

    KEYS = ("tier", "*", "busiest_over_mean")

    tier: str
    busiest_over_mean: Round6


@dataclass(frozen=True, slots=True)
class BrokenWire(JsonObject):
    """Wire with a fault: its nominal rate, and its mean rate over the run [10^9 bytes/s]."""

    name: str
    rate_GBps: float
    effective_GBps: float


@dataclass(frozen=True, slots=True)
class WireTables(JsonObject):
    """Traffic over the wires of a run.

    Attributes
    ----------
    machines : int
        Number of nodes of the system.
    limit : object or None
        The busiest wire; None if no wire carried traffic.
    tiers, classes : list
        Traffic of each tier, and of each link class.
    broken_wires : list
        Wires with faults.
    """

    machines: int
    limit: Limit | None
    tiers: list[TierTraffic]
    classes: list[ClassTraffic]
    broken_wires: list[BrokenWire]


def wire_use(result: Result, wire: int) -> WireUse:
    """Return the use of `wire` during the run."""
    row, time_ps = result.wires.counters[wire], max(1, result.time_ps)
    busy, credit = (
        int(row["busy_ps"]) / time_ps,
        int(row["stall_credit_ps"]) / time_ps,
    )
    waiting = int(row["stall_arbitration_ps"]) / time_ps
    return WireUse(
        name=result.wires.names[wire],
        wire_class=result.wires.classes[wire],
        rate_Bps=float(result.wires.rate_Bps[wire]),
        effective_Bps=float(result.wires.effective_Bps[wire]),
        busy=busy,
        no_credit=credit,
        nothing=max(0.0, 1.0 - busy - credit),
        contended=waiting,
        carried_bytes=int(row["bytes"]) + int(row["control_bytes"]),
    )


def busiest_wires(result: Result, count: int = 5) -> list[WireUse]:
    """Return the `count` busiest wires, busiest first; ties by wire id."""
    order = np.argsort(-result.wires.counters["busy_ps"], kind="stable")[:count]
    return [
        wire_use(result, int(w))
        for w in order
        if result.wires.counters["packets"][w]
    ]


def broken_wires(result: Result) -> list[WireUse]:
    """Return the wires with a rate below nominal in part of the run, lowest rate first."""
    effective, nominal = result.wires.effective_Bps, result.wires.rate_Bps
    results = np.flatnonzero(effective < nominal * (1 - 1e-9))
    return [
        wire_use(result, int(w))
        for w in results[np.argsort(effective[results], kind="stable")]
    ]


def limit(result: Result) -> Limit | None:
    """Return the busiest wire, or None if no wire carried traffic."""
    counters = result.wires.counters
    if not len(counters) or not counters["busy_ps"].any():
        return None
    wire = int(np.argmax(counters["busy_ps"]))
    row = counters[wire]
    reached = int(row["busy_ps"]) / max(1, result.time_ps)
    carried = int(row["bytes"]) + int(row["control_bytes"])
    name = result.wires.classes[wire]
    mine = np.array([wire_class == name for wire_class in result.wires.classes])
    machines = max(1, machines_of(result))
    return Limit(
        name=result.wires.names[wire],
        wire_class=name,
        reached=reached,
        payload_share=int(row["payload"]) / max(1, carried),
        busbw_bound_GBps=result.busbw_GBps / reached
        if result.has_bandwidth
        else None,
        tier_wires=int(mine.sum()) // machines,
        tier_GBps=float(result.wires.rate_Bps[mine].sum()) / machines / 1e9,
        tier_busy=float(result.utilisation[mine].mean()),
        rate_GBps=float(result.wires.rate_Bps[wire]) / 1e9,
        effective_GBps=float(result.wires.effective_Bps[wire]) / 1e9,
        tier_effective_GBps=float(result.wires.effective_Bps[mine].sum())
        / machines
        / 1e9,
    )


def machines_of(result: Result) -> int:
    """Return the number of nodes of a run, by name prefixes ``n0/``, ``n1/``, ..."""
    results = {
        match[1] for name in result.wires.names if (match := _MACHINE.match(name))
    }
    return max(1, len(results))


_MACHINE = re.compile(r"(?:.*->)?(n\d+)/")


def class_traffic(result: Result) -> list[ClassTraffic]:
    """Return the traffic of each link class with traffic, in order of first appearance."""
    requested = None
    if (call := result.call) is not None and result.complete:
        requested = call.size_bytes * counted_share(call.operation, call.ranks)
    return [
        ClassTraffic(wire_class=name, asked_bytes=requested, **totals)
        for name, totals in _totals(result, result.wires.classes)
    ]


def tier_traffic(result: Result) -> list[TierTraffic]:
    """Return the traffic of each tier with traffic, in order of first appearance."""
    tiers = {name: tier_of(name) for name in dict.fromkeys(result.wires.classes)}
    keys = [tiers[name] for name in result.wires.classes]
    shares: dict[str, float] = {}
    for name, share in _unevenness(result).items():
        shares[tiers[name]] = max(share, shares.get(tiers[name], 0.0))
    return [
        TierTraffic(tier=name, **totals, busiest_over_mean=shares[name])
        for name, totals in _totals(result, keys)
    ]


UNEVEN = 1.1
"""Least ratio of the busiest wire to the mean at which paths are reported as uneven."""

USED = 0.25
"""Least utilisation of that wire."""


def uneven_paths(result: Result) -> list[str]:
    """Return a sentence for each class of wires between switches that is unevenly used."""
    notes = []
    for name, share in _unevenness(result).items():
        if share < UNEVEN or not between_switches(name):
            continue
        mine = [wire for wire, of in enumerate(result.wires.classes) if of == name]
        busy = float(result.utilisation[mine].max())
        if busy >= USED:
            idle = int((result.wires.counters["packets"][mine] == 0).sum())
            notes.append(
                f"{name.rpartition(' ')[2]}, busiest of {len(mine)} wires {share:.2f}x the mean,"
                f" {busy:.1%} busy; {idle} idle"
            )
    return notes


def _unevenness(result: Result) -> dict[str, float]:
    """Return the bytes of the busiest wire over the mean, for each class of wires with traffic."""
    classes = list(dict.fromkeys(result.wires.classes))
    number = {name: place for place, name in enumerate(classes)}
    codes = np.array([number[name] for name in result.wires.classes], np.int64)
    carried = result.wires.counters["bytes"].astype(np.float64)
    highest, total = (
        np.zeros(len(classes)),
        np.bincount(codes, carried, len(classes)),
    )
    np.maximum.at(highest, codes, carried)
    count = np.bincount(codes, minlength=len(classes))
    used = np.flatnonzero(total).tolist()
    return {
        classes[place]: float(highest[place] * count[place] / total[place])
        for place in used
    }


def wire_tables(result: Result) -> WireTables:
    """Return the tables by tier and class and the limit."""
    tables = tier_traffic(result), class_traffic(result), slowed_wires(result)
    return WireTables(machines_of(result), limit(result), *tables)


def slowed_wires(result: Result) -> list[BrokenWire]:
    """Return the wires that faults touched, and the rates that were left."""
    return [
        BrokenWire(use.name, use.rate_Bps / 1e9, use.effective_Bps / 1e9)
        for use in broken_wires(result)
    ]


def _totals(result: Result, keys: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return (key, sums over its wires) for the keys whose wires carried traffic."""
    names = list(dict.fromkeys(keys))
    code = {name: number for number, name in enumerate(names)}
    codes = np.array([code[key] for key in keys], np.int64)
    counters, busy = result.wires.counters, result.utilisation
    stalled = counters["stall_credit_ps"] / max(1, result.time_ps)
    results = []
    for number, name in enumerate(names):
        mine = codes == number
        rows = counters[mine]
        if not rows["packets"].any():
            continue
        totals = {
            "wires": int(mine.sum()),
            "packets": int(rows["packets"].sum()),
            "payload_bytes": int(rows["payload"].sum()),
            "wire_bytes": int(rows["bytes"].sum() + rows["control_bytes"].sum()),
            "mean_busy": float(busy[mine].mean()),
            "max_busy": float(busy[mine].max()),
            "no_credit": float(stalled[mine].mean()),
            "rate_GBps": float(result.wires.rate_Bps[mine].sum()) / 1e9,
            "effective_GBps": float(result.wires.effective_Bps[mine].sum()) / 1e9,
        }
        for counter in ("pauses", "marks", "drops", "trims", "replays"):
            totals[counter] = int(rows[counter].sum())
        results.append((name, totals))
    return results
