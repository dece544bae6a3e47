"""HTML page of a replay: bottleneck, measured and simulated times on one axis, calls."""

from __future__ import annotations

from pathlib import Path

from clusim.base.units import format_size, format_time
from clusim.replays.report import CallResult, Replay
from clusim.report.comparison import plain_page
from clusim.report.markup import Content, element, joined
from clusim.report.sections import table
from clusim.report.verdictcard import AxisRow, axis, verdict_card

SHOWN_CALLS = 60
"""Distinct calls on the axis, in descending order of their total time."""

HEAD = (
    *("Communicator", "Operation", "#Size", "#Ranks", "#Calls", "Plan"),
    *("#Simulated", "#busbw GB/s", "#Measured", "#Error"),
)


def replay_page(found: Replay) -> str:
    """Return the page of a replay."""
    parts: list[Content] = []
    if found.verdict is not None:
        parts.append(verdict_card(found.verdict))
    whole = format_time(found.total_ps)
    if found.recorded_ps >= 0:
        whole += f", recorded {format_time(found.recorded_ps)}"
    told = [f"{found.num_ranks} ranks, {found.total_calls:,} calls: {whole}"]
    if found.unfinished is not None:
        told.append(found.unfinished.words(found.total_ps))
    told += [*found.doubts, *found.faults, *found.notes]
    parts.append(element("div", *(element("p", line) for line in told), class_="summary"))
    longest = sorted(found.calls, key=lambda call: -call.time_ps * call.count)[:SHOWN_CALLS]
    parts += _times(found, longest)
    rows = [_cells(call) for call in found.calls]
    parts += [element("h2", "Calls"), table(HEAD, rows)]
    title = f"Replay of {Path(found.source).name} on {found.fabric}"
    return plain_page(title, joined((element("section", part) for part in parts), "\n"))


def _times(found: Replay, calls: list[CallResult]) -> list[Content]:
    """Return simulated and measured times of calls on one axis."""
    if not calls:
        return []
    measured = [call for call in found.calls if call.measured_us]
    head = "Measured against simulated" if measured else "Times of calls"
    legend = [element("span", element("b", class_="work"), " simulated")]
    if measured:
        legend.append(element("span", element("b", class_="measured"), " measured"))
    few = len(found.calls) - len(calls)
    hint = "One call of each kind, on a logarithmic axis." + (
        f" {few} kinds with less time in all are in the table only." if few else ""
    )
    rows = [_row(call) for call in calls]
    drawn = axis(rows, lambda ps: format_time(round(ps)), log=True)
    parts = (element("p", hint, class_="hint"), element("p", *legend, class_="legend"))
    return [element("h2", head), *parts, drawn]


def _row(call: CallResult) -> AxisRow:
    name = f"{call.operation} {format_size(call.bytes)}"
    remark = f"communicator {call.comm}, {call.num_ranks} ranks, {call.count} calls"
    words = format_time(call.time_ps)
    if call.measured_us and call.error is not None:
        words += f", measured {format_time(round(call.measured_us * 1e6))} ({call.error:+.1%})"
        return AxisRow(name, remark, call.time_ps, words, (("measured", call.measured_us * 1e6),))
    return AxisRow(name, remark, call.time_ps, words)


def _cells(call: CallResult) -> tuple[str | int, ...]:
    measured = "" if not call.measured_us else format_time(round(call.measured_us * 1e6))
    error = "" if call.error is None else f"{call.error:+.1%}"
    plan = f"{call.algorithm}, {call.protocol}, {call.channels} channels"
    size = f"{format_size(call.bytes)} {call.dtype}"
    return (
        *(call.comm, call.operation, size, call.num_ranks, call.count, plan),
        *(format_time(call.time_ps), f"{call.busbw:.2f}", measured, error),
    )
