"""Text reports of results, printed by `clusim run`, `traffic` and `info`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from clusim.analysis.flowrates import FlowRates, LatencySummary, summarise
from clusim.analysis.limits import (
    ClassTraffic,
    TierTraffic,
    WireUse,
    broken_wires,
    busiest_wires,
    class_traffic,
    tier_traffic,
)
from clusim.base.tables import text_table
from clusim.base.units import format_size, format_time
from clusim.report.headline import collective_head, ended_rows, head_lines, pairs
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.results.resultjson import in_order_text


def collective_report(result: Result) -> str:
    """Return the report of a run of collectives."""
    return f"{collective_head(result)}\n\n{collective_rest(result)}"


def collective_rest(result: Result) -> str:
    """Return the report of a run of collectives after `clusim.report.headline.collective_head`."""
    return _join_parts(_parts_below(result))


def traffic_report(result: Result, rates: FlowRates | None = None) -> str:
    """Return the report of a run of synthetic traffic; `rates` are those of given flows."""
    rows = [("time", format_time(result.time_ps)), *ended_rows(result)]
    if rates is None:
        return _report(result, rows + _latency_rows(summarise(result)))
    throughput_GBps = summarise(result).throughput_GBps
    rows += [("throughput", f"{throughput_GBps:.2f} GB/s")]
    fairness = f"{rates.fairness:.4f} (Jain's index of the {_fair_rates(rates)})"
    return _report(result, [*rows, ("fairness", fairness)], _flow_table(rates))


def _fair_rates(rates: FlowRates) -> str:
    if rates.steady_from_ps is None or rates.steady_to_ps is None:
        return "mean rates"
    ends = format_time(rates.steady_from_ps), format_time(rates.steady_to_ps)
    return f"steady rates, {ends[0]} to {ends[1]}"


MOST_FLOWS = 24
"""Flows in the table of a report."""


def _flow_table(rates: FlowRates) -> list[str]:
    """Return the table of the first flows."""
    rows = []
    for flow in rates.flows[:MOST_FLOWS]:
        ends = (
            format_time(flow.start_ps),
            "-" if flow.end_ps is None else format_time(flow.end_ps),
        )
        steady = "-" if flow.steady_GBps is None else f"{flow.steady_GBps:.3f}"
        name = f"{flow.source} -> {flow.destination}"
        rows.append(
            (
                name,
                format_size(flow.size_bytes),
                *ends,
                f"{flow.mean_GBps:.3f}",
                steady,
            )
        )
    head = ("flow", "size", "start", "end", "mean GB/s", "steady GB/s")
    lines = text_table("  {:<..}  {:>..} {:>10} {:>10} {:>10} {:>12}", [head, *rows])
    hidden = len(rates.flows) - MOST_FLOWS
    return lines + ([f"  and {hidden} more flows (--json)"] if hidden > 0 else [])


def _report(
    result: Result, rows: list[tuple[str, str]], table: Sequence[str] = ()
) -> str:
    """Return a report: common parts around the given `rows` and `table`."""
    return _join_parts(
        [head_lines(result), pairs(rows), list(table), *_parts_below(result)]
    )


def _parts_below(result: Result) -> list[list[str]]:
    notes = [
        f"  {line}"
        for line in note_lines(result.provenance.faults, result.provenance.notes)
    ]
    bottleneck = verdict_lines(result.verdict)
    if result.followed:
        foot = ("simulated", result.provenance.granularity_note)
        wall = (
            "wall time",
            f"{result.wall_s:.3f} s on the {result.provenance.engine} engine",
        )
        return [notes, bottleneck, pairs([foot, wall])]
    return [
        notes,
        bottleneck,
        _wire_table(busiest_wires(result), broken_wires(result)),
        _tier_table(tier_traffic(result)),
        _class_table(class_traffic(result)),
        pairs(_foot(result)),
    ]


def _join_parts(parts: list[list[str]]) -> str:
    return "\n\n".join("\n".join(part) for part in parts if part)


def verdict_lines(verdict: Verdict, head: str = "bottleneck") -> list[str]:
    """Return a verdict as lines below each other."""
    first, *details = verdict.lines()
    return [
        f"  {head}: {first}",
        *(f"  {'':{len(head)}}  {line}" for line in details),
    ]


def note_lines(faults: Iterable[str], notes: Iterable[str]) -> list[str]:
    """Return faults and notes on the plan, a line each."""
    lines = [f"fault: {text}" for text in faults]
    return [*lines, *(f"note:  {text}" for text in notes)]


def _latency_rows(latency: LatencySummary) -> list[tuple[str, str]]:
    names = ("p50", "p90", "p99", "p99.9", "max")
    times = [
        getattr(latency, f"latency_{name.replace('.', '_')}_ps") for name in names
    ]
    percentiles = ", ".join(
        f"{name} {format_time(at)}" for name, at in zip(names, times, strict=True)
    )
    return [
        (
            "throughput",
            f"{latency.throughput_GBps:.2f} GB/s, {latency.per_source_GBps:.3f} per source",
        ),
        (
            "messages",
            f"{latency.messages:,} of {format_size(latency.message_bytes)}",
        ),
        ("latency", percentiles),
    ]


MOST_BROKEN = 8
"""Maximum number of faulty wires in the table, in addition to the busiest."""


def _wire_table(uses: list[WireUse], broken: list[WireUse]) -> list[str]:
    """Return a table of the busiest and the faulty wires.

    Faulty wires have a column for the remaining rate.
    """
    if not uses:
        return ["  nothing crossed any wire"]
    busiest_names = {use.name for use in uses}
    more_broken = [use for use in broken if use.name not in busiest_names]
    uses = [*uses, *more_broken[:MOST_BROKEN]]
    rows = []
    for use in uses:
        effective_GBps = (use.effective_Bps / 1e9,) if broken else ()
        parts = (use.busy, use.no_credit, use.nothing, use.contended)
        rows.append((use.name, use.rate_Bps / 1e9, *effective_GBps, *parts))
    width = max(12, *(len(use.name) for use in uses))
    head = ("busiest wires", "GB/s", *(["effective"] if broken else []))
    head += ("busy", "credit stall", "idle", "contended")
    layout = f"  {{:<{width}}}  {{:>8.2f}}{' {:>9.2f}' * bool(broken)} {{:>7.1%}} {{:>13.1%}} {{:>7.1%}} {{:>10.1%}}"
    more = len(more_broken) - MOST_BROKEN
    return [
        *text_table(layout, [head, *rows]),
        *([f"  and {more} more broken wires"] if more > 0 else []),
    ]


def _tier_table(table: list[TierTraffic]) -> list[str]:
    """Return the table of tiers, if there are several; empty columns are omitted."""
    if len(table) < 2:
        return []
    words = ("pauses", "marks", "drops", "trims", "replays")
    extra = [name for name in words if any(getattr(row, name) for row in table)]
    rows = []
    for row in table:
        shares = (row.mean_busy, row.max_busy, row.no_credit)
        more = (getattr(row, name) for name in extra)
        rows.append(
            (
                row.tier,
                row.wires,
                *shares,
                row.packets,
                format_size(row.wire_bytes),
                *more,
            )
        )
    head = [
        "tier",
        "wires",
        "busy",
        "busiest",
        "credit stall",
        "packets",
        "on wires",
        *extra,
    ]
    layout = (
        "  {:<13..}  {:>5} {:>7.1%} {:>7.1%} {:>13.1%} {:>14,} {:>11}"
        + " {:>9,}" * len(extra)
    )
    return text_table(layout, [head, *rows])


def _class_table(table: list[ClassTraffic]) -> list[str]:
    if not table:
        return []
    with_asked = bool(table[0].asked_bytes)
    broken = any(row.effective_GBps < row.rate_GBps * (1 - 1e-9) for row in table)
    head = ["link class", "wires", "busy", "payload", "on wires"]
    head += ["payload/busbw"] if with_asked else []
    head += ["GB/s", "effective"] if broken else []
    rows = []
    for row in table:
        sizes = format_size(row.payload_bytes), format_size(row.wire_bytes)
        share = (row.payload_bytes / row.asked_bytes,) if row.asked_bytes else ()
        rates = (row.rate_GBps, row.effective_GBps) if broken else ()
        rows.append(
            [row.wire_class, row.wires, row.mean_busy, *sizes, *share, *rates]
        )
    layout = "  {:<13..}  {:>5} {:>7.1%} {:>11} {:>11}" + " {:>14.1%}" * with_asked
    return text_table(layout + " {:>10.2f} {:>10.2f}" * broken, [head, *rows])


def _foot(result: Result) -> list[tuple[str, str]]:
    wall_s = result.wall_s
    engine = {"c": "C"}.get(result.provenance.engine, result.provenance.engine)
    speed = f"{wall_s:.3f} s ({engine} engine"
    if wall_s > 0 and result.time_ps:
        slower = wall_s * 1e12 / result.time_ps
        speed += f", {result.rate_words()}, {slower:,.0f}x slower than real time"
    rows = [
        ("packets", result.hops_words()),
        ("granularity", result.provenance.granularity_note),
    ]
    if result.complete:
        rows += [
            ("wall time", f"{speed})"),
            ("fingerprint", f"{result.fingerprint:016x}"),
        ]
    if result.verified is not None:
        word = "correct" if result.verified else "WRONG"
        rows.append(
            (
                "data",
                f"{word}{': ' if result.verify_note else ''}{result.verify_note}",
            )
        )
    if np.any(result.wires.counters["replays"]):
        rows.append(("replays", f"{int(result.wires.counters['replays'].sum()):,}"))
    if order := in_order_text(result.in_order):
        rows.append(("order", order))
    return rows
