"""Sentences about a result: the run, its time, its limit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusim.analysis.flowrates import summarise
from clusim.analysis.limits import class_traffic, limit, machines_of, wire_use
from clusim.base.terms.links import (
    is_network,
    kind_of,
    link_name,
    several,
    tier_of,
    wire_class_name,
)
from clusim.base.units import format_rate, format_size, format_time
from clusim.report.lanes import Shares
from clusim.results.result import Result

EVEN = 0.05
"""Largest relative difference of utilisation at which wires are reported as evenly loaded."""


def title(result: Result, name: str = "") -> str:
    """Return a short title of the run; `name` is that of its schedule."""
    call, where = result.call, result.provenance.fabric
    if call is not None:
        size = f" {format_size(call.size_bytes)}" if call.size_bytes else ""
        return f"{call.operation}{size} on {where}"
    if result.tasks.names:
        return f"{name or f'{len(result.tasks.names):,} tasks'} on {where}"
    return f"traffic on {where}"


def key_numbers(result: Result, shares: Shares) -> list[tuple[str, str, str]]:
    """Return the few numbers to look at first: name, value, remark."""
    done = "" if result.complete else "unfinished"
    figures = (figure.partition(": ") for figure in result.verdict.figures)
    numbers = [
        (label[:1].upper() + label[1:], value, "") for label, _, value in figures
    ]
    numbers.append(
        ("Time of the run" if numbers else "Time", format_time(result.time_ps), done)
    )
    if result.has_bandwidth and result.call is not None and result.call.size_bytes:
        numbers.append(
            (
                "Bus bandwidth",
                f"{result.busbw_GBps:.1f} GB/s",
                "as nccl-tests define it",
            )
        )
        numbers.append(
            ("Algorithm bandwidth", f"{result.algbw_GBps:.1f} GB/s", "size / time")
        )
    if result.messages is not None:
        latency = summarise(result)
        numbers.append(
            (
                "Throughput",
                f"{latency.throughput_GBps:.1f} GB/s",
                "payload, all sources",
            )
        )
        numbers.append(("Latency, median", format_time(latency.latency_p50_ps), ""))
        numbers.append(("Latency, 99 %", format_time(latency.latency_p99_ps), ""))
    if _computes(shares):
        part = shares.exposed / max(1, result.time_ps)
        numbers.append(
            (
                "Exposed communication",
                f"{part.mean():.1%}",
                f"of the time; worst rank {part.max():.1%}",
            )
        )
    return numbers


def sentences(result: Result, shares: Shares, idle: Sequence[str] = ()) -> list[str]:
    """Return statements about the traffic of wires.

    `idle` lists the classes of wires without traffic.
    """
    statements = [*_balance(result), *_traffic_sentences(result, idle)]
    statements += _stalls(result)
    if _computes(shares):
        statements.append(_overlap(result, shares))
    if result.messages is not None:
        latency = summarise(result)
        statements.append(
            f"Half of the messages lasted at most {format_time(latency.latency_p50_ps)},"
            f" 99 % at most {format_time(latency.latency_p99_ps)},"
            f" the slowest {format_time(latency.latency_max_ps)}."
        )
    if result.verified is not None:
        word = "are correct" if result.verified else "are WRONG"
        statements.append(
            f"The data {word}{f': {result.verify_note}' if result.verify_note else ''}."
        )
    replays = int(result.wires.counters["replays"].sum())
    if replays:
        statements.append(f"{replays:,} packets were sent again after bit errors.")
    return statements


def _computes(shares: Shares) -> bool:
    return bool(len(shares.ranks) and (shares.compute + shares.both).any())


def _traffic_sentences(result: Result, idle: Sequence[str]) -> list[str]:
    """Return sentences on inter-node traffic, utilisation of link classes, and idle classes."""
    statements = []
    rows = class_traffic(result)
    if machines_of(result) > 1:
        out = [
            row
            for row in rows
            if is_network(kind_of(row.wire_class)) and " nic->" in row.wire_class
        ]
        if out:
            payload, links = (
                sum(row.payload_bytes for row in out),
                sum(row.wires for row in out),
            )
            busy = sum(row.mean_busy * row.wires for row in out) / links
            statements.append(
                f"{format_size(payload)} of payload left the nodes through {links} NICs; their links were busy for"
                f" {busy:.1%} of the time on average."
            )
        else:
            statements.append("No data crossed the network between the nodes.")
    kinds: dict[str, tuple[float, int]] = {}
    for row in rows:
        is_named = wire_class_name(row.wire_class) != row.wire_class
        key = kind_of(row.wire_class) if is_named else tier_of(row.wire_class)
        busy, wires = kinds.get(key, (0.0, 0))
        kinds[key] = (busy + row.mean_busy * row.wires, wires + row.wires)
    if len(kinds) > 1:
        parts = [
            f"{link_name(kind)} {busy / wires:.1%}"
            for kind, (busy, wires) in kinds.items()
        ]
        statements.append(
            f"By kind of link, wires were busy on average: {', '.join(parts)}."
        )
    unused = [
        link_name(kind)
        for kind in dict.fromkeys(map(kind_of, idle))
        if kind not in kinds and not (is_network(kind) and machines_of(result) > 1)
    ]
    if unused:
        statements.append(f"Nothing crossed {several(unused, 'or')}.")
    return statements


def _balance(result: Result) -> list[str]:
    """Return a sentence on the load balance within the class of the busiest wire."""
    top, busy = limit(result), result.utilisation
    if top is None:
        return []
    mine = np.array([c == top.wire_class for c in result.wires.classes])
    loads = busy[mine & (result.wires.counters["packets"] > 0)]
    row = next(
        row for row in class_traffic(result) if row.wire_class == top.wire_class
    )
    count = len(loads)
    if count < 2 or row.mean_busy <= 0:
        return []
    unused = int(mine.sum()) - count
    idle_words = f"; {unused} others carried nothing" if unused else ""
    if loads.max() - loads.min() < EVEN * loads.mean():
        return [
            f"All {count} wires of that class that were used carried the same load{idle_words}."
        ]
    return [
        f"Its class is unevenly loaded: {count} wires were busy between {loads.min():.1%} and {loads.max():.1%} of the"
        f" time, {loads.mean():.1%} on average{idle_words}."
    ]


def _stalls(result: Result) -> list[str]:
    counters = result.wires.counters
    worst = int(np.argmax(counters["stall_credit_ps"]))
    use = wire_use(result, worst)
    if use.no_credit < 0.01:
        return []
    return [
        f"{use.name} ({format_rate(use.rate_Bps)}) had a credit stall for {use.no_credit:.1%} of the time,"
        " longer than any other: its receiver is the limit."
    ]


def _overlap(result: Result, shares: Shares) -> str:
    time_ps = max(1, result.time_ps)
    both, exposed = shares.both / time_ps, shares.exposed / time_ps
    hidden = shares.both.sum() / max(
        1, int(shares.both.sum() + shares.exposed.sum())
    )
    computed = float((shares.compute / time_ps + both).mean())
    return (
        f"Ranks computed for {computed:.1%} of the time on average; {hidden:.1%} of the communication was hidden by"
        f" it, and {float(exposed.mean()):.1%} of the run was exposed communication."
    )
