"""Report of a replay as text and as an HTML page, and doubts about a replay.

The page has the bottleneck, the calls, and measured and simulated times on one axis. Doubts are printed first,
with the option that settles them.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from clusim.base.tables import WIDTH, text_table
from clusim.base.units import format_ranges, format_size, format_time
from clusim.replays.placing import Placed, ReplayRequest
from clusim.replays.report import CallResult, Other, Replay, fastest_memory
from clusim.report.comparison import plain_page
from clusim.report.markup import Content, element, join_markup, table
from clusim.report.runreport import verdict_lines
from clusim.report.verdictcard import AxisRow, axis, verdict_card
from clusim.topology.model import doubt_lines, doubts_of, refuse

FAR = 0.5
"""Median relative error above which predicted times are doubtful."""


def placed_doubts(placed: Placed, hosts: int, ranks: int) -> list[str]:
    """Return doubts about the placement: more ranks than GPUs on a node, assumed chips."""
    result = []
    size = placed.fabric.num_ranks // max(1, placed.fabric.num_zones)
    if ranks > size * hosts:
        result.append(
            f"{ranks} ranks on {hosts} node{'s' * (hosts != 1)}, but one of {placed.fabric.name} has {size} GPUs;"
            " set the system with --topology, the number of nodes with --nodes"
        )
    return [*result, *doubts_of(placed.fabric)]


def gate(replay: Replay, request: ReplayRequest) -> Replay:
    """Add doubts and notes from the measured times.

    Raises
    ------
    InputError
        There are doubts, and `request.strict` is set.
    """
    errors = replay.errors
    if errors and median(errors) > FAR:
        replay.doubts.append(
            f"predicted times are {median(errors):.0%} off the measured ones (median of {len(errors)} calls):"
            f" probably not {replay.fabric}; set the system with --topology, or NCCL's dump of it with --xml"
        )
    replay.notes += _not_compared(replay)
    replay.doubts = list(dict.fromkeys(replay.doubts))
    if request.strict:
        refuse(replay.doubts, replay.source)
    return replay


def _not_compared(replay: Replay) -> list[str]:
    """Return notes on measured times that are not compared, with the reason."""
    lines = []
    wrong = [call for call in replay.calls if call.impossible]
    if wrong:
        call, fastest_GBps = wrong[0], fastest_memory().bytes_per_s / 1e9
        lines.append(
            f"implausible times of {len(wrong)} calls are not compared: {call.operation} of"
            f" {format_size(call.bytes)} in {call.measured_us:g} us, but the memory of no known GPU"
            f" carries more than {fastest_GBps:g} GB/s"
        )
    waits = [
        call
        for call in replay.calls
        if call.waits and call.error is None and not call.impossible
    ]
    if waits:
        ranks = min(call.recorded_by for call in waits)
        lines.append(
            f"measured times of {len(waits)} calls include waiting for ranks that did not record (as few as {ranks} of"
            f" {waits[0].ranks} did): they are upper bounds and not compared"
        )
    return lines


SHOWN_CALLS = 60
"""Distinct calls on the axis, in descending order of their total time."""

HEAD = (
    "Communicator",
    "Operation",
    "#Size",
    "#Ranks",
    "#Calls",
    "Plan",
    "#Simulated",
    "#busbw GB/s",
    "#Measured",
    "#Error",
)


def replay_page(replay: Replay) -> str:
    """Return the page of a replay."""
    parts: list[Content] = []
    if replay.verdict is not None:
        parts.append(verdict_card(replay.verdict))
    total = format_time(replay.total_ps)
    if replay.recorded_ps is not None:
        total += f", recorded {format_time(replay.recorded_ps)}"
    lines = [f"{replay.ranks} ranks, {replay.total_calls:,} calls: {total}"]
    if replay.unfinished is not None:
        lines.append(replay.unfinished.words(replay.total_ps))
    lines += [*replay.doubts, *replay.faults, *replay.notes]
    parts.append(
        element("div", *(element("p", line) for line in lines), class_="summary")
    )
    longest = sorted(replay.calls, key=lambda call: -call.time_ps * call.count)[
        :SHOWN_CALLS
    ]
    parts += _times(replay, longest)
    rows = [_cells(call) for call in replay.calls]
    parts += [element("h2", "Calls"), table(HEAD, rows)]
    title = f"Replay of {Path(replay.source).name} on {replay.fabric}"
    return plain_page(
        title, join_markup((element("section", part) for part in parts), "\n")
    )


def _times(replay: Replay, calls: list[CallResult]) -> list[Content]:
    """Return simulated and measured times of calls on one axis."""
    if not calls:
        return []
    measured = [call for call in replay.calls if call.measured_us]
    head = "Measured against simulated" if measured else "Times of calls"
    legend = [element("span", element("b", class_="work"), " simulated")]
    if measured:
        legend.append(element("span", element("b", class_="measured"), " measured"))
    num_hidden = len(replay.calls) - len(calls)
    hint = "One call of each kind, on a logarithmic axis." + (
        f" {num_hidden} kinds with less time in all are in the table only."
        if num_hidden
        else ""
    )
    rows = [_axis_row(call) for call in calls]
    time_axis = axis(rows, lambda ps: format_time(round(ps)), log=True)
    parts = (
        element("p", hint, class_="hint"),
        element("p", *legend, class_="legend"),
    )
    return [element("h2", head), *parts, time_axis]


def _axis_row(call: CallResult) -> AxisRow:
    name = f"{call.operation} {format_size(call.bytes)}"
    remark = (
        f"communicator {call.communicator}, {call.ranks} ranks, {call.count} calls"
    )
    words = format_time(call.time_ps)
    if call.measured_us and call.error is not None:
        words += f", measured {format_time(round(call.measured_us * 1e6))} ({call.error:+.1%})"
        return AxisRow(
            name,
            remark,
            call.time_ps,
            words,
            (("measured", call.measured_us * 1e6),),
        )
    return AxisRow(name, remark, call.time_ps, words)


def _cells(call: CallResult) -> tuple[str | int, ...]:
    measured = (
        "" if not call.measured_us else format_time(round(call.measured_us * 1e6))
    )
    error = "" if call.error is None else f"{call.error:+.1%}"
    plan = f"{call.algorithm}, {call.protocol}, {call.channels} channels"
    size = f"{format_size(call.bytes)} {call.dtype}"
    return (
        call.communicator,
        call.operation,
        size,
        call.ranks,
        call.count,
        plan,
        format_time(call.time_ps),
        f"{call.busbw_GBps:.2f}",
        measured,
        error,
    )


SHOWN = 60
"""Calls that are shown without ``--all``."""


def replay_report(replay: Replay, *, everything: bool = False) -> str:
    """Return the report."""
    lines = [
        *doubt_lines(replay.doubts),
        f"{replay.kind} {replay.source}",
        f"  {replay.ranks} ranks on {replay.machines} node{'s' * (replay.machines != 1)}"
        + (f", NCCL {replay.nccl_version}" if replay.nccl_version else ""),
        "",
        "system",
        *(f"  {line}" for line in replay.machine),
        *(f"  fault: {line}" for line in replay.faults),
    ]
    if replay.notes or replay.skipped:
        lines += ["", "assumed and ignored"]
        lines += [f"  {note}" for note in replay.notes]
        lines += [
            f"  skipped: {count} x {reason}"
            for reason, count in replay.skipped.items()
        ]
    if replay.calls:
        lines += ["", "communicators", *_communicators(replay, everything)]
        lines += ["", "calls", *_calls(replay, everything)]
    if replay.verdict is not None:
        lines += ["", *verdict_lines(replay.verdict)]
    lines += ["", *_totals(replay)]
    return "\n".join(lines)


def _table(rows: list[list[str]], left: tuple[int, ...] = ()) -> list[str]:
    keep = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    cells = [[row[i] for i in keep] for row in rows]
    lines: list[str] = []
    for gap in ("  ", " "):
        layout = "".join(
            f"{gap}{{:<..}}" if i in left else f"{gap}{{:>..}}" for i in keep
        )
        lines = text_table(
            f" {layout}" if gap == " " else layout, cells, strip=False
        )
        if max(map(len, lines)) <= WIDTH:
            break
    return [line.rstrip() for line in lines]


def _communicators(replay: Replay, everything: bool) -> list[str]:
    listed = replay.communicators if everything else replay.communicators[:SHOWN]
    rows = [
        [
            "number",
            "ranks",
            "nodes",
            "channels",
            "calls",
            "time",
            f"on {replay.other}",
            "rings and trees",
        ]
    ]
    for comm in listed:
        rows.append([
            str(comm.number), str(comm.ranks), str(comm.machines), str(comm.channels), str(comm.calls),
            format_time(comm.time_ps), format_time(comm.other_ps) if replay.other else "", comm.graphs,
        ])  # fmt: skip
    more = len(replay.communicators) - len(listed)
    return _table([rows[0], *_merge_symmetric(rows[1:])], (7,)) + (
        [f"  ... {more} more; --all shows them"] if more else []
    )


def _calls(replay: Replay, everything: bool) -> list[str]:
    calls = replay.calls
    if not everything and len(calls) > SHOWN:
        longest = sorted(calls, key=lambda c: -c.time_ps * c.count)[:SHOWN]
        calls = [call for call in calls if any(call is one for one in longest)]
    title = [
        "comm", "operation", "size", "count", "plan", "time", "algbw", "busbw", "measured", "error",
        replay.other or "", "ratio", "plan there", "",
    ]  # fmt: skip
    if len(replay.communicators) == 1:
        title[0] = ""
    rows = [title, *_merge_symmetric([_row(replay, call) for call in calls])]
    text_columns = (1, 4, 12, 13)
    lines = _table(rows, text_columns)
    if len(calls) < len(replay.calls):
        lines.append(
            f"  ... {len(replay.calls) - len(calls)} more with less time; --all shows them"
        )
    return lines


def _merge_symmetric(rows: list[list[str]]) -> list[list[str]]:
    """Return rows with symmetric groups merged: rows that differ only in their communicator."""
    same: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        same.setdefault(tuple(row[1:]), []).append(row[0])
    return [
        [format_ranges([int(comm) for comm in comms]) if comms[0] else "", *fields]
        for fields, comms in same.items()
    ]


def _row(replay: Replay, call: CallResult) -> list[str]:
    measured = call.measured_us
    other = call.other
    return [
        str(call.communicator) if len(replay.communicators) > 1 else "",
        call.operation,
        format_size(call.bytes),
        str(call.count),
        _plan(call) + ("" if call.from_log or call.algorithm == "P2P" else " *"),
        format_time(call.time_ps),
        f"{call.algbw_GBps:.2f}",
        f"{call.busbw_GBps:.2f}",
        "" if measured is None else format_time(round(measured * 1e6)),
        "" if call.error is None else f"{call.error:+.1%}",
        "" if other is None else format_time(other.time_ps),
        "" if other is None else f"x{other.ratio:.2f}",
        "" if other is None else _plan(other),
        call.note,
    ]


def _plan(call: CallResult | Other) -> str:
    """Return the algorithm, protocol and channels of a call."""
    return f"{call.algorithm} {call.protocol} {call.channels}"


def _totals(replay: Replay) -> list[str]:
    lines = [
        f"total  {replay.total_calls} calls, {format_time(replay.total_ps)} on {replay.fabric}"
    ]
    if replay.unfinished is not None:
        ended = replay.unfinished
        lines.append(
            f"  ended by {ended.why}: {ended.part_done:.1%} of the work done"
        )
        lines.append(f"  at least {format_time(ended.least_ps)}")
    if replay.bounds_ps is not None:
        low, high = (format_time(at) for at in replay.bounds_ps)
        lines.append(
            f"  from {low} (no mutual disturbance) to {high} (no concurrency)"
        )
    if replay.compute_ps is not None:
        lines.append(
            f"  computing {format_time(replay.compute_ps)} (mean of all ranks)"
        )
    if replay.recorded_ps is not None:
        lines.append(
            f"  recorded from first to last call: {format_time(replay.recorded_ps)}"
        )
    if replay.other_total_ps is not None:
        ratio = replay.other_total_ps / max(1, replay.total_ps)
        lines.append(
            f"  on {replay.other}: {format_time(replay.other_total_ps)}, {ratio:.2f} times as long"
        )
    errors = replay.errors
    if errors:
        lines.append(
            f"  against {len(errors)} measured sizes: {replay.mean_abs_error:.1%} off on average,"
            f" {max(errors):.1%} at most"
        )
    if any(not c.from_log and c.algorithm != "P2P" for c in replay.calls):
        lines.append("  * chosen by NCCL's tuner; not in the recording")
    if replay.wires:
        listing = ", ".join(f"{name} {part:.1%}" for name, part in replay.wires)
        lines.append(f"  busiest wires: {listing}")
    return lines
