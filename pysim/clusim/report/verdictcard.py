"""The card that a report begins with: the verdict, its phases as a bar, what to change."""

from __future__ import annotations

from collections.abc import Sequence

from clusim.report.markup import Content, Markup, element, joined
from clusim.results.diagnosis import CauseKind, Phase, Verdict

_LOST = {
    *(CauseKind.STRAGGLER, CauseKind.FAULT, CauseKind.UNEVEN, CauseKind.CONTENTION),
    *(CauseKind.CREDIT, CauseKind.SLOTS, CauseKind.EXPOSED, CauseKind.HOST),
    *(CauseKind.BUBBLE, CauseKind.IDLE),
}
"""Causes of phases in which nothing is done that must be."""


def verdict_card(verdict: Verdict) -> Markup:
    """Return a verdict, in its own words."""
    first, *rest = verdict.lines()
    phases = {f"phase {phase.words()}" for phase in verdict.phases}
    told: list[Content] = [element("h2", "Verdict"), element("p", first, class_="headline")]
    fix = [line for line in rest if line.startswith("fix: ")]
    told += [_said(line) for line in fix]
    if verdict.phases:
        told.append(_phases(verdict))
    told += [_said(line) for line in rest if line not in phases and line not in fix]
    return element("div", *told, class_="verdict")


def _said(line: str) -> Markup:
    head, colon, text = line.partition(": ")
    return element("p", element("b", f"{head}{colon}"), text)


def _phases(verdict: Verdict) -> Markup:
    total = max(1, verdict.time_ps)
    parts = [(_look(phase), (phase.end_ps - phase.start_ps) / total) for phase in verdict.phases]
    words = [phase.words() for phase in verdict.phases]
    rows = (
        element("li", element("i", class_=_look(phase)), text)
        for phase, text in zip(verdict.phases, words, strict=True)
    )
    return joined([strip(parts, "; ".join(words)), element("ol", *rows, class_="phases")])


def _look(phase: Phase) -> str:
    """Return the class that colours a phase."""
    if phase.kind in _LOST:
        return "stall"
    if phase.kind is CauseKind.COMPUTE:
        return "compute"
    return "work" if phase.name == "bandwidth" else "cost"


def strip(parts: Sequence[tuple[str, float]], words: str, kind: str = "bar") -> Markup:
    """Return parts of one, by the class that colours them, as one bar; `words` say the same."""
    pieces, left = [], 0.0
    for name, part in parts:
        piece = element(
            "rect", class_=name, x=f"{100 * left:.2f}", y=0, width=f"{100 * part:.2f}", height=1
        )
        pieces.append(piece)
        left += part
    return element(
        "svg",
        element("title", words),
        *pieces,
        class_=kind,
        role="img",
        aria_label=words,
        viewBox="0 0 100 1",
        preserveAspectRatio="none",
    )
