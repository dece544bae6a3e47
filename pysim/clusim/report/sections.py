"""Sections of the page, complete without a script: words, tables, frames of the plots."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clusim.analysis.blame import alike
from clusim.analysis.limits import WireUse, busiest_wires, class_traffic
from clusim.base.tables import ColumnTable, group_values
from clusim.base.terms.glossary import glossary
from clusim.base.terms.links import kind_of, link_name, several
from clusim.base.units import format_rate, format_size, format_time
from clusim.report.call_rows import CallRow, call_rows
from clusim.report.flowcurves import FlowCurves, flows_svg
from clusim.report.lanes import Shares
from clusim.report.markup import (
    Cells,
    Content,
    Markup,
    element,
    fill,
    join_markup,
    latency_svg,
    machine_svg,
    table,
)
from clusim.report.page_data import Feed
from clusim.report.runreport import note_lines
from clusim.report.summary_text import key_numbers, sentences
from clusim.report.verdictcard import strip, verdict_card

SHOWN_TEXT = 24_000
"""Characters of a topology or schedule that a report quotes."""

SHOWN_RANKS = 24
"""Maximum number of ranks with individual overlap rows."""

SHOWN_BLAME = 12
SHOWN_FLOWS = 12
"""Flows with a row: the slowest."""

LEAST_BLAME = 0.002
"""Rows of blame that are shown, and the least share of the run to be shown."""

GROUPS = {"work": "work", "cost": "latencies and fixed costs", "stall": "lost"}


def sections(feed: Feed) -> Markup:
    """Return the body of the page."""
    parts = [_summary(feed)]
    if feed.blame is not None and len(feed.blame):
        parts.append(_blame(feed.blame))
    if len(feed.result.wires.names):
        parts += [_machine(feed), _heatmap(feed)]
    if feed.lanes.ranks:
        parts.append(fill("timeline.html"))
    if feed.path is not None:
        parts.append(fill("path.html"))
    if (feed.shares.compute + feed.shares.both).any():
        parts.append(_overlap(feed.shares, feed.result.time_ps))
    rows = call_rows(feed.calls)
    if rows:
        parts.append(_calls(rows))
    if feed.result.messages is not None:
        parts.append(_latency(feed))
    curves = FlowCurves.of(feed.result)
    if feed.flows is not None and curves is not None:
        parts.append(_flows(feed.flows, curves))
    if feed.servers is not None:
        parts.append(_servers(feed.servers))
    parts += [_wires(feed), _provenance(feed)]
    return join_markup(
        (element("section", "\n", part, "\n") for part in parts), "\n"
    )


def _summary(feed: Feed) -> Markup:
    result = feed.result
    cards = join_markup(
        element(
            "li",
            element("span", name),
            element("strong", value),
            element("span", remark),
        )
        for name, value, remark in key_numbers(result, feed.shares)
    )
    notes = [] if result.complete else ["unfinished: this is how far the run got"]
    notes += note_lines(result.provenance.faults, result.provenance.notes)
    paragraphs = join_markup(element("p", line) for line in notes)
    parts = [verdict_card(result.verdict), element("ul", cards, class_="numbers")]
    if result.verdict.figures:
        parts.reverse()
    return join_markup([*parts, element("div", paragraphs, class_="summary")], "\n")


def _blame(blame: ColumnTable) -> Markup:
    """Return the time breakdown of the critical path: the three groups, and the longest rows."""
    rows = alike(blame)
    total = max(1, blame.facts["time_ps"])
    groups = {name: blame.facts[f"{name}_ps"] / total for name in GROUPS}
    words = ", ".join(f"{part:.1%} {GROUPS[name]}" for name, part in groups.items())
    largest_rows = [row for row in rows if row["share"] >= LEAST_BLAME][:SHOWN_BLAME]
    bars = [
        element("span", "all"),
        strip(list(groups.items()), words),
        element("span", format_time(total)),
    ]
    for row in largest_rows:
        title = f"{row['resource']}: {row['reason']}"
        bars += [
            element(
                "span",
                row["resource"],
                element("small", row["reason"]),
                class_="what",
                title=title,
            ),
            strip([(row["group"], row["share"])], title, "bar bare"),
            element("span", f"{row['share']:.1%}, {format_time(row['time_ps'])}"),
        ]
    hidden_share = 1 - sum(row["share"] for row in largest_rows)
    some = (
        f" {len(rows) - len(largest_rows)} smaller parts, {hidden_share:.1%} together, are not shown."
        if len(rows) > len(largest_rows)
        else ""
    )
    return fill("blame.html", some=some, bars=join_markup(bars))


def _legend() -> Markup:
    full_scale = element("span", "100 %", class_="most")
    return element("span", "0", element("i"), full_scale, class_="legend scale")


def _machine(feed: Feed) -> Markup:
    picture = feed.picture
    hint = "Each line is one direction of the links between two boxes, drawn to the right of its way."
    if any(size > 1 for size in picture.lines.sizes):
        hint += " Parallel links are one line, coloured by their mean."
    if picture.hidden:
        hint += f" {picture.hidden:,} wires inside boxes are not drawn."
    if picture.bar:
        hint += " Bars inside a node are its internal links, by kind."
    hint += _widths(feed) + _not_shown(feed)
    return fill(
        "machine.html",
        hint=hint,
        measures=_options((name, words) for name, words, _ in feed.measures),
        legend=_legend(),
        picture=machine_svg(picture, feed.result.wires.rate_Bps),
    )


def _widths(feed: Feed) -> str:
    """Return the legend of line widths."""
    lines = feed.picture.lines
    rates = lines.total(feed.result.wires.rate_Bps) if len(lines) else np.zeros(0)
    if not len(rates) or rates.min() == rates.max():
        return ""
    low, high = (format_rate(float(rate)) for rate in (rates.min(), rates.max()))
    return f" Wide lines have more bandwidth, from {low} to {high}."


def _not_shown(feed: Feed) -> str:
    """Return a sentence that lists the classes of wires omitted from pictures."""
    if not feed.idle_classes:
        return ""
    used = set(feed.result.wires.classes)
    kinds = dict.fromkeys(map(kind_of, feed.idle_classes))
    used_kinds = {kind_of(name) for name in used}
    names = [
        f"the rest of {link_name(kind)}" if kind in used_kinds else link_name(kind)
        for kind in kinds
    ]
    return f" Not shown, without traffic: {several(names)}."


def _options(pairs: Iterable[tuple[str, str]]) -> Markup:
    return join_markup(
        element("option", words, value=value) for value, words in pairs
    )


def _heatmap(feed: Feed) -> Markup:
    classes = dict.fromkeys(feed.rows.classes)
    wires, rows = len(feed.result.wires.names), len(feed.rows)
    caption = (
        f"{wires:,} wires"
        if wires == rows
        else f"{wires:,} wires in {rows:,} rows of neighbours"
    )
    bins = feed.result.bins.edge_ps
    if len(bins) > 1:
        caption += f", bins of {format_time(int(bins[1] - bins[0]))}"
    caption += _not_shown(feed).rstrip(".").replace(" Not", "; not")
    return fill(
        "heatmap.html",
        what=caption,
        classes=_class_options(classes),
        legend=_legend(),
    )


def _class_options(classes: Iterable[str]) -> Markup:
    """Return the classes of wires to choose from; kinds of links with several can be chosen, too."""
    groups = group_values((kind_of(name), name) for name in classes)
    parts = []
    for kind, names in groups.items():
        options = _options((name, name.replace("->", " → ")) for name in names)
        if len(names) > 1 < len(groups):
            parts.append(_options([(kind, f"all {link_name(kind)}")]))
        parts.append(options)
    return join_markup(parts)


def _overlap(shares: Shares, time_ps: int) -> Markup:
    """Return overlap bars of the mean and the ranks.

    Of many ranks only those with most and least exposed communication are shown.
    """
    parts = np.stack(
        [shares.compute, shares.both, shares.exposed, shares.idle]
    ) / max(1, time_ps)
    ranks = list(range(len(shares.ranks)))
    if len(ranks) > SHOWN_RANKS:
        by_exposed = np.argsort(-shares.exposed, kind="stable").tolist()
        ranks = by_exposed[: SHOWN_RANKS // 2] + by_exposed[-SHOWN_RANKS // 2 :]
    rows = (
        [_bar("mean", parts.mean(axis=1).tolist())] if len(shares.ranks) > 1 else []
    )
    rows += [_bar(f"rank {shares.ranks[r]}", parts[:, r].tolist()) for r in ranks]
    some = (
        ""
        if len(ranks) == len(shares.ranks)
        else " The ranks with most and with least exposed communication are shown."
    )
    return fill("overlap.html", some=some, bars=join_markup(rows))


def _bar(name: str, parts: list[float]) -> Markup:
    names = ("computation only", "both", "exposed", "neither")
    words = ", ".join(
        f"{part:.1%} {name}" for part, name in zip(parts, names, strict=True)
    )
    bar = strip(
        list(zip(("compute", "both", "exposed", "idle"), parts, strict=True)), words
    )
    return join_markup(
        [element("span", name), bar, element("span", f"{parts[2]:.1%} exposed")]
    )


def _section(heading: str, *parts: Content) -> Markup:
    return join_markup([element("h2", heading), *parts])


def _calls(rows: list[CallRow]) -> Markup:
    several = any(row.count > 1 for row in rows)
    head = [
        "Collective",
        "Algorithm",
        "Stream",
        "#Size",
        "#Ranks",
        "#Channels",
        "#Start",
    ]
    head += (
        ["#Calls", "#Shortest", "#Mean time", "#Longest"] if several else ["#Time"]
    )
    head += ["#busbw GB/s", "#Of its limit", "#Exposed"]
    lines: list[Cells] = []
    for row in rows:
        size = f"{format_size(row.size_bytes)} {row.dtype}"
        cells: list[str | int] = [
            row.operation,
            row.algorithm,
            row.stream,
            size,
            row.ranks,
        ]
        cells += [row.channels, format_time(row.start_ps)]
        times = [
            format_time(round(t)) for t in (row.least_ps, row.mean_ps, row.most_ps)
        ]
        cells += [row.count, *times] if several else [times[1]]
        cells += [
            f"{row.busbw_GBps:.2f}",
            f"{row.limit_busy:.1%}",
            format_time(round(row.exposed_ps)),
        ]
        lines.append(cells)
    hint = (
        "From the start of a call's first rank to the end of its last. The limit is the bandwidth if the fullest wire"
        " had never been idle; exposed is the time that no computation hid, mean over the ranks."
    )
    if several:
        hint += " Calls of one kind share a row: bandwidth, limit and exposed time are means."
    return _section(
        "Collectives", element("p", hint, class_="hint"), table(head, lines)
    )


def _latency(feed: Feed) -> Markup:
    messages = feed.result.messages
    assert messages is not None
    hint = "From the moment a message is due until its last byte is visible."
    picture = element("figure", latency_svg(messages))
    return _section(
        "Latency of messages", element("p", hint, class_="hint"), picture
    )


def _flows(flows: ColumnTable, curves: FlowCurves) -> Markup:
    """Return the flows with rate control: their curves, and the slowest flows."""
    head = [
        "Slowest flows",
        "Rate control",
        "#Payload",
        "#GB/s",
        "#Of its port",
        "#Held",
        "#Marked",
        "#Round trip",
        "#Window",
        "Fullest wire",
        "#Busy",
        "#Queue",
    ]
    slowest = sorted(flows.rows(), key=lambda row: float(row["rate_GBps"]))[
        :SHOWN_FLOWS
    ]
    rows: list[Cells] = []
    for row in slowest:
        trip_ps = row["rtt_ps"]
        window_bytes = row["window_bytes"]
        cells = [
            row["flow"],
            row["control"],
            format_size(row["sent_bytes"]),
            f"{row['rate_GBps']:.2f}",
            f"{row['line']:.1%}",
            f"{row['held']:.1%}",
            f"{row['marked']:.1%}",
            "" if trip_ps is None else format_time(trip_ps),
            "" if window_bytes is None else format_size(window_bytes),
            row["wire"],
            f"{row['busy']:.1%}",
            format_size(row["queue_max_bytes"]),
        ]
        rows.append(cells)
    hint = (
        "A flow is held while its rate is below that of its NIC's port, or its window is full. Rates are from its first"
        " to its last payload, round trip and window medians."
    )
    summary = join_markup(
        element("p", f"{note[:1].upper()}{note[1:]}.") for note in flows.notes
    )
    picture = element("figure", flows_svg(curves))
    parts = (element("p", hint, class_="hint"), summary, picture, table(head, rows))
    return _section("Rate control", *parts)


def _rate(use: WireUse) -> str:
    """Return the rate of a wire, and the rate that faults left."""
    if use.effective_Bps < use.rate_Bps * (1 - 1e-9):
        return f"{format_rate(use.effective_Bps)} of {format_rate(use.rate_Bps)}"
    return format_rate(use.rate_Bps)


def _servers(servers: ColumnTable) -> Markup:
    """Return the serial servers by class, the fullest first."""
    head = [
        "Class",
        "#Servers",
        "#Busiest",
        "#Mean",
        "#Full",
        "Which",
        "Faster with",
    ]
    rows = [
        (row["name"], row["servers"], f"{row['busy']:.1%}", f"{row['mean']:.1%}", row["full"],
         row["busiest"], row["remedies"])
        for row in servers.rows()
    ]  # fmt: skip
    hint = "Each serves one thing at a time, so that no run is shorter than the busy time of its busiest server."
    return _section("Servers", element("p", hint, class_="hint"), table(head, rows))


def _wires(feed: Feed) -> Markup:
    busiest = [
        (use.name, use.wire_class, _rate(use), f"{use.busy:.1%}", f"{use.no_credit:.1%}",
         f"{use.nothing:.1%}", f"{use.contended:.1%}", format_size(use.carried_bytes))
        for use in busiest_wires(feed.result, 12)
    ]  # fmt: skip
    classes = [
        (row.wire_class, row.wires, f"{row.mean_busy:.1%}", f"{row.max_busy:.1%}",
         format_size(row.payload_bytes), format_size(row.wire_bytes))
        for row in class_traffic(feed.result)
    ]  # fmt: skip
    if not busiest:
        return _section("Wires", element("p", "Nothing crossed any wire."))
    head = [
        "Busiest wires",
        "Class",
        "#Rate",
        "#Busy",
        "#No credit",
        "#Nothing to send",
    ]
    head += ["#Contended", "#Carried"]
    kinds = [
        "Class of wires",
        "#Wires",
        "#Busy, mean",
        "#Busy, most",
        "#Payload",
        "#On the wire",
    ]
    statements = join_markup(
        element("p", line, class_="hint")
        for line in sentences(feed.result, feed.shares, feed.idle_classes)
    )
    return _section(
        "Wires",
        statements,
        table(head, busiest),
        element("br"),
        table(kinds, classes),
    )


def _provenance(feed: Feed) -> Markup:
    result = feed.result
    origin = result.provenance
    rows: list[Cells] = [
        ("Command", origin.command or "from Python"),
        ("Fabric", origin.fabric),
        ("Engine", f"{origin.engine}, clusim {origin.version}"),
        ("Granularity", origin.granularity_note or origin.granularity),
        ("Seed", origin.seed),
        ("Packets", result.hops_words()),
    ]
    if result.complete:
        rows += [
            ("Fingerprint", f"{result.fingerprint:016x}"),
            ("Wall time", f"{result.wall_s:.3f} s"),
        ]
    quotes = [("Topology", origin.fabric_text), ("Schedule", origin.schedule_text)]
    quoted = join_markup(
        element(
            "details", element("summary", name), element("pre", _clip_text(text))
        )
        for name, text in quotes
        if text.strip()
    )
    facts = table(["What", "Value"], rows, "wide facts")
    return _section("Inputs and provenance", facts, quoted, _terms())


def _terms() -> Markup:
    """Return the glossary, closed."""
    rows: list[Cells] = [
        item for group in glossary().values() for item in group.items()
    ]
    definitions = table(["Term", "Meaning"], rows, "wide facts")
    return element("details", element("summary", "Glossary"), definitions)


def _clip_text(text: str) -> str:
    if len(text) <= SHOWN_TEXT:
        return text
    return f"{text[:SHOWN_TEXT]}\n... {len(text) - SHOWN_TEXT:,} more characters are in the trace"
