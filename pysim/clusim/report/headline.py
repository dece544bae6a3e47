"""First lines of the text report of a run, printed before the diagnosis: work, time and bandwidths."""

from __future__ import annotations

from collections.abc import Sequence

from clusim.base.tables import text_table
from clusim.base.units import format_size, format_time
from clusim.results.result import Result


def collective_head(result: Result, more: Sequence[tuple[str, str]] = ()) -> str:
    """Return the first lines of a run of collectives; `more` are further rows of label and text."""
    rows = [("time", format_time(result.time_ps)), *ended_rows(result)]
    if result.call is None and result.tasks.names:
        rows.append(("tasks", str(len(result.tasks.names))))
    elif result.call is not None and result.call.size_bytes and result.complete:
        rows.append(("algbw", f"{_GBps(result.algbw_GBps)} GB/s"))
        rows.append(("busbw", f"{_GBps(result.busbw_GBps)} GB/s"))
    return "\n".join((*head_lines(result), "", *pairs([*rows, *more])))


def ended_rows(result: Result) -> list[tuple[str, str]]:
    """Return the text of a run that was ended early."""
    ended = result.unfinished
    if ended is None:
        return []
    expected_ps = ended.expected_ps(result.time_ps)
    share = f"{ended.part_done:.1%}"
    if expected_ps is not None:
        share += f"; {format_time(expected_ps)} in total at the same progress"
    rows = [("ended by", ended.why), ("work done", share)]
    rows.append(("at least", format_time(ended.least_ps)))
    if result.wall_s > 0:
        rate = f"{format_time(round(result.time_ps / result.wall_s))} a second, {result.rate_words()}"
        rows.append(("simulated", rate))
    return rows


def _GBps(rate: float) -> str:
    """Write a bandwidth; a very small one by its first digits, not as 0.00."""
    return f"{rate:.2f}" if rate >= 0.1 or not rate else f"{rate:.3g}"


def head_lines(result: Result) -> list[str]:
    """Return the lines that name the work and the system."""
    where = result.provenance.fabric
    note = (
        [] if result.complete else ["", "  unfinished: this is how far the run got"]
    )
    call = result.call
    if call is None:
        # Traffic has no tasks; a trace contains its messages only if it is complete.
        tasks = len(result.tasks.names)
        subject = f"{tasks} tasks" if tasks else result.provenance.schedule_text
        return [f"{subject} on {where}", *note]
    subject = call.operation
    if call.size_bytes:
        subject += f" {format_size(call.size_bytes)} {call.dtype}"
    how = f"{call.algorithm}, {call.protocol}, {call.channels} channels"
    return [f"{subject} over {call.ranks} ranks of {where} ({how})", *note]


def pairs(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return names with their values as lines."""
    return text_table("  {:<..}  {}", rows)
