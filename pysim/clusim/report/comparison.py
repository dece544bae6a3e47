"""Page that compares runs: bottlenecks, times and bandwidths, differences, busy wires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusim.analysis.diff import judged_trace
from clusim.analysis.limits import class_traffic
from clusim.base.terms.links import link_class_name as links_joined
from clusim.base.units import format_time
from clusim.report.html import page_policy, page_script, page_style
from clusim.report.markup import Content, Markup, element, fill, join_markup, table
from clusim.report.summary_text import title as title_of
from clusim.report.verdictcard import AxisRow, axis, strip, verdict_card
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result

Loads = dict[str, tuple[float, float]]
"""Links of a class in words -> mean and largest part of the time in which its wires were busy."""


@dataclass(frozen=True)
class Compared:
    """A run on the page.

    Attributes
    ----------
    name : str
        Label on the page.
    time_ps : int
        Its time [ps]; 0 if it cannot run.
    verdict : Verdict or None
        Bottleneck verdict.
    busbw_GBps : float or None
        Bus bandwidth as defined by nccl-tests [10^9 bytes/s], of one collective.
    facts : dict of str to str
        System, plan, faults and other settings by name.
    loads : dict
        Utilisation of wires by class.
    held_ps : int or None
        Time with the plan of the baseline run [ps].
    told : tuple of str
        Notes.
    """

    name: str
    time_ps: int
    verdict: Verdict | None = None
    busbw_GBps: float | None = None
    facts: dict[str, str] = field(default_factory=dict)
    loads: Loads = field(default_factory=dict)
    held_ps: int | None = None
    told: tuple[str, ...] = ()


def run_on_page(name: str, result: Result) -> Compared:
    """Return a result as a run on the page."""
    origin, call = result.provenance, result.call
    facts = {"What": title_of(result), "Machine": origin.fabric}
    if call is not None:
        plan_words = f"{call.algorithm}, {call.protocol}, {call.channels} channels"
        facts |= {"Plan": plan_words, "Ranks": str(call.ranks)}
    facts |= {
        "Faults": "; ".join(origin.faults) or "none",
        "Notes": "; ".join(origin.notes) or "none",
        "Granularity": origin.granularity_note or origin.granularity,
        "Seed": str(origin.seed),
        "Engine": f"{origin.engine}, clusim {origin.version}",
        "Topology and schedule": _digest(origin.fabric_text, origin.schedule_text),
        "Command": origin.command or "from Python",
    }
    sized = call is not None and call.size_bytes and result.has_bandwidth
    busbw = result.busbw_GBps if sized else None
    notes = () if result.complete else ("unfinished: this is how far the run got",)
    verdict = result.verdict
    return Compared(
        name, result.time_ps, verdict, busbw, facts, wire_loads(result), told=notes
    )


def read_compared(paths: Sequence[Path], names: Sequence[str]) -> list[Compared]:
    """Read traces as runs on the page; a trace created for it is named by its run's words."""
    result = []
    for name, path in zip(names, paths, strict=True):
        run = run_on_page(name, judged_trace(path))
        if str(path) != name:
            run = replace(run, facts=run.facts | {"Command": f"clusim run {name}"})
        result.append(run)
    return result


def wire_loads(result: Result) -> Loads:
    """Return the utilisation of a run's links by class, both directions together."""
    results: dict[str, tuple[float, int, float]] = {}
    for row in class_traffic(result):
        key = links_joined(row.wire_class)
        busy, wires, largest_busy = results.get(key, (0.0, 0, 0.0))
        results[key] = (
            busy + row.mean_busy * row.wires,
            wires + row.wires,
            max(largest_busy, row.max_busy),
        )
    return {
        key: (busy / wires, largest_busy)
        for key, (busy, wires, largest_busy) in results.items()
        if largest_busy
    }


def comparison_page(
    title: str, groups: Sequence[tuple[str, Sequence[Compared]]], time: str = ""
) -> str:
    """Return the page.

    Parameters
    ----------
    groups : sequence of (str, sequence of Compared)
        Title and runs of a group, compared with its first run; the title is empty for a single group.
    time : str
        Name of the compared time.
    """
    parts = []
    for of, runs in groups:
        parts += [element("h2", of, class_="group")] if of else []
        sections = (
            _verdicts(runs),
            _times(runs, time),
            _differences(runs),
            _loads(runs),
        )
        parts += [element("section", part) for part in sections if part.html]
    return plain_page(title, join_markup(parts, "\n"))


def plain_page(title: str, body: Content) -> str:
    """Return a page without plots, in the looks of a report."""
    script = page_script("theme.js", "plain.js")
    return fill(
        "plain.html",
        policy=page_policy(script),
        title=title,
        style=Markup(page_style()),
        body=body,
        script=Markup(script),
    ).html


def _digest(*texts: str) -> str:
    from hashlib import sha256

    return sha256("\0".join(texts).encode()).hexdigest()[:12]


def _verdicts(runs: Sequence[Compared]) -> Markup:
    cards = []
    for run in runs:
        hints = [element("p", text, class_="hint") for text in run.told]
        card = (
            verdict_card(run.verdict)
            if run.verdict is not None
            else element("div", element("p", "no verdict"), class_="verdict")
        )
        cards.append(element("article", element("h3", run.name), *hints, card))
    return join_markup(
        [element("h2", "Bottlenecks"), element("div", *cards, class_="cards")]
    )


def _against(run: Compared, base: Compared) -> str:
    if run is base or not base.time_ps:
        return ""
    return f" ({(run.time_ps - base.time_ps) / base.time_ps:+.1%})"


def _times(runs: Sequence[Compared], time: str) -> Markup:
    base = runs[0]
    rows = [
        AxisRow(
            run.name,
            run.facts.get("Plan", ""),
            run.time_ps or None,
            f"{format_time(run.time_ps)}{_against(run, base)}"
            if run.time_ps
            else "cannot run",
            () if run.held_ps is None else (("held", float(run.held_ps)),),
        )
        for run in runs
    ]
    legend: list[Content] = [element("span", element("b", class_="work"), " time")]
    if any(row.marks for row in rows):
        legend.append(
            element(
                "span", element("b", class_="held"), " with the baseline's plan held"
            )
        )
    parts: list[Content] = [element("h2", "Times")]
    parts += [element("p", f"Times: {time}.", class_="hint")] if time else []
    parts += [
        element("p", *legend, class_="legend"),
        axis(rows, lambda ps: format_time(round(ps))),
    ]
    speeds = [
        AxisRow(
            run.name,
            run.facts.get("Plan", ""),
            run.busbw_GBps,
            f"{run.busbw_GBps:.1f} GB/s",
        )
        for run in runs
        if run.busbw_GBps is not None
    ]
    if speeds:
        parts += [
            element("h3", "Bus bandwidth"),
            axis(speeds, lambda speed: f"{speed:g} GB/s"),
        ]
    return join_markup(parts)


def _differences(runs: Sequence[Compared]) -> Markup:
    names = dict.fromkeys(name for run in runs for name in run.facts)
    values = {name: [run.facts.get(name, "-") for run in runs] for name in names}
    differing = {name: row for name, row in values.items() if len(set(row)) > 1}
    alike = [
        f"{name}: {row[0]}" for name, row in values.items() if name not in differing
    ]
    parts: list[Content] = [element("h2", "What differs")]
    if differing:
        head = ["", *(run.name for run in runs)]
        parts.append(
            table(
                head,
                [(name, *row) for name, row in differing.items()],
                "wide facts runs",
            )
        )
    elif len(names) > 1:
        parts.append(element("p", "No setting of the runs."))
    else:
        return join_markup(())
    if alike:
        parts.append(
            element("p", f"The same of all: {'; '.join(alike)}.", class_="hint")
        )
    return join_markup(parts)


def _loads(runs: Sequence[Compared]) -> Markup:
    classes = dict.fromkeys(name for run in runs for name in run.loads)
    if not classes:
        return join_markup(())
    groups = []
    for name in classes:
        bars: list[Content] = []
        for run in runs:
            mean, largest = run.loads.get(name, (0.0, 0.0))
            words = f"{mean:.1%} on average, fullest {largest:.1%}"
            parts = [("work", mean), ("cost", max(0.0, largest - mean))]
            bars += [
                element("span", run.name, class_="what", title=run.name),
                strip(parts, f"{run.name}: {words}"),
                element("span", words),
            ]
        groups.append(
            join_markup(
                [element("h3", name), element("div", *bars, class_="overlap axis")]
            )
        )
    hint = "Part of the time in which wires were busy, both directions: all of a class on average, and its fullest one."
    legend = element(
        "p",
        element("span", element("b", class_="work"), " mean"),
        element("span", element("b", class_="cost"), " fullest wire"),
        class_="legend",
    )
    return join_markup(
        [element("h2", "Wires"), element("p", hint, class_="hint"), legend, *groups]
    )
