"""The page of the accuracy: a validation as Markdown, written whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from os import path
from pathlib import Path
from urllib.parse import quote

from clusim.base.files import write_text
from clusim.base.terms.regimes import REGIME_TITLES
from clusim.hardware.calibration import ROW_SETS
from clusim.validation.collectives.breakdown import (
    ClassLine,
    ClassTable,
    calibrated_by,
    class_tables,
)
from clusim.validation.collectives.scores import Point, Score, score, statistics
from clusim.validation.collectives.validate import Report
from clusim.validation.collectives.validationreport import group_title, remarks

_INTRODUCTION = """\
# Accuracy

How far predictions of `clusim` are from measured times. `clusim validate` writes this page, all of it:

```
{command}
```

The table of measurements is of tables that others published (nccl-tests, and programs of some authors) and is not
part of clusim; [nccl-tests.md](nccl-tests.md#against-measurements) says what such a table holds. Kernels were
simulated with `--granularity {granularity}` ([granularity.md](granularity.md)); `quick` moves most large sizes by up to
3.6% against what `clusim run` simulates, either way, and has no error limit.

**How to read it.** Errors are those of the time of an iteration, in percent. A cell is *median / mean* of the
absolute error, and *bias*, the mean of the signed one: + is predicted too long. *Within spread* is the mean once
more, with a measurement's own repeatability: an error within the spread of its repetitions counts as 0, and a row
that spreads by s % weighs 100 / (100 + s). A rack whose trays NVLink joins is one machine. *Followed* is the share of
rows whose time was followed along a line from runs of fewer machines or smaller sizes.

**What is a prediction.** Some figures of the hardware were read off measurements. Rows behind such a figure, and more
than those where it was not clear, are *calibration rows*, listed below with their figures and scored apart; every
other table but those of *leave one out* has only rows that were *left out*. That no figure was read off a row does
not mean that nobody had seen it: mechanisms were added because rows disagreed, and which are modelled was decided
with all of these tables at hand. New machines can be further off than these tables say.
[accuracy-causes.md](accuracy-causes.md) says what is known of the causes.

For comparison: two real clusters of the same kind differ by 0.4 to 0.9% for large sizes, 6 to 19% in the middle and 3
to 21% for small ones.
"""

_HEAD = [
    "| | rows | {} | bias | {} | bias | {} | bias | within spread | followed |".format(
        *REGIME_TITLES.values()
    ),
    "|---" * 10 + "|",
]


def write_page(
    report: Report, page: Path, command: str, plots: Sequence[tuple[str, Path]] = ()
) -> None:
    """Write the page.

    Parameters
    ----------
    command : str
        The command that writes it.
    plots : sequence of (str, Path)
        What figures show, and where they are.
    """
    write_text(page, page_text(report, command, [(name, _link(page, to)) for name, to in plots]))


def _link(page: Path, target: Path) -> str:
    return quote(Path(path.relpath(target.resolve(), page.resolve().parent)).as_posix())


def page_text(report: Report, command: str, plots: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page; `plots` are figures by what they show, as links."""
    blocks = [_INTRODUCTION.format(command=command, granularity=report.granularity)]
    for table in class_tables(report.points):
        blocks.append(_section(table))
    blocks.append(_figures_of(report.points))
    if plots:
        shown = [f"![{_plain(name)}: measured and predicted]({link})" for name, link in plots]
        what = "Time over size: dots are measured, lines predicted."
        blocks.append("\n".join(["## Curves", "", what, "", *shown]) + "\n")
    groups = [ClassLine(group_title(group), own) for group, own in report.by_group().items()]
    blocks.append(_section(ClassTable("Every group of rows", "All rows, calibration too.", groups)))
    rest = [f"- {_plain(line)}" for line in remarks(report, paths=False)]
    blocks.append("\n".join(["## What was assumed, and what has no prediction", "", *rest]) + "\n")
    return "\n".join(blocks)


def _section(table: ClassTable) -> str:
    remarked = any(line.remark for line in table.lines)
    head = [row + extra for row, extra in zip(_HEAD, (" |", "---|"), strict=True)]
    lines = [f"## {table.title}", ""]
    if table.text:
        lines += [table.text, ""]
    lines += head if remarked else _HEAD
    for line in table.lines:
        lines.append(_row(line) + (f" {_plain(line.remark)} |" if remarked else ""))
    return "\n".join(lines) + "\n"


def _row(line: ClassLine) -> str:
    whole = score(line.points)
    cells = [_plain(line.name), str(whole.n)]
    for found in statistics(line.points).values():
        cells += _cells(found)
    if whole.n:
        cells += [f"{whole.by_spread_pct:.1f}", f"{whole.followed / whole.n:.0%}"]
    return f"| {' | '.join(cells)} |"


def _cells(found: Score) -> list[str]:
    if not found.n:
        return ["", ""]
    return [
        f"{found.median_abs_pct:.1f} / {found.mean_abs_pct:.1f} ({found.n})",
        f"{found.bias_pct:+.1f}",
    ]


def _figures_of(points: Sequence[Point]) -> str:
    """Return which figures were calibrated on the rows that are here."""
    lines = ["## Which rows calibrated which figures", ""]
    lines += ["| rows | figures, by what they were read off |", "|---|---|"]
    for name, sources in calibrated_by(points).items():
        shown = "<br>".join(_plain(source) for source in sources)
        lines.append(f"| {name}: {_plain(ROW_SETS[name].text)} | {shown} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is: names come from tables that others wrote."""
    return re.sub(r"([\\`\[\]|])", r"\\\1", escape(" ".join(text.split()), quote=False))
