"""Validation as terminal text, and as the accuracy page in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from os import path
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from clusim.base.files import write_text
from clusim.base.tables import text_table
from clusim.base.terms.times import ONE, REGIME_TITLES, REGIMES, SEVERAL
from clusim.base.units import format_size
from clusim.hardware.calibration import ROW_SETS
from clusim.simulation.residuals import Campaign, Scale
from clusim.validation.collectives.breakdown import (
    ClassLine,
    ClassTable,
    Point,
    Score,
    score,
    statistics,
)
from clusim.validation.collectives.classtables import calibrated_by, class_tables
from clusim.validation.collectives.measurements import CurveGroup
from clusim.validation.measured import Unpredicted, made_at, plain

if TYPE_CHECKING:
    from clusim.validation.collectives.validate import CollectiveReport

MEANING = (
    "error of the time in %: median of the absolute error; bias: mean, + is predicted too long (--markdown and --json:"
    " mean, within the spread of repetitions, extrapolated rows)"
)
"""Meaning of the columns."""

NAME = 46
"""Columns for the name of a class of rows."""


def report_lines(report: CollectiveReport) -> list[str]:
    """Return the errors by classes of rows, of all groups, and the worst rows."""
    lines: list[str] = []
    for table in class_tables(report.points):
        lines += [*_table(table), ""]
    groups = [
        ClassLine(group_title(group), group_points)
        for group, group_points in report.by_group().items()
    ]
    lines += _table(
        ClassTable("Groups", "All rows; * has calibration rows.", groups)
    )
    lines += ["", "worst rows: measured -> predicted"]
    lines += [point_line(point) for point in report.worst(10)]
    lines += ["", "expected and found errors, without calibration rows"]
    lines += [text for rows in report.expectations() for text in rows.lines()]
    return [*lines, "", MEANING, *report.remarks()]


def _table(table: ClassTable) -> list[str]:
    regimes = text_table(
        " " * NAME + "{:>18}" * len(REGIMES), [list(REGIME_TITLES.values())]
    )
    rows = [("", *("n", "median", "bias") * len(REGIMES)), *map(_line, table.lines)]
    layout = f"{{:<{NAME}}}" + "{:>5}{:>7.1f}{:>+6.1f}" * len(REGIMES) + "{}"
    title = table.title + (f": {table.text}" if table.text else "")
    return [title, *regimes, *text_table(layout, rows, strip=False)]


def _line(line: ClassLine) -> tuple[Any, ...]:
    name = (
        line.name
        if len(line.name) <= NAME
        else f"{line.name[: NAME - 18]}...{line.name[-15:]}"
    )
    figures = [
        cell
        for errors_of_regime in statistics(line.points).values()
        for cell in _figures(errors_of_regime)
    ]
    return (name, *figures, f"  {line.remark}" if line.remark else "")


def _figures(figures: Score) -> tuple[Any, ...]:
    if not figures.n:
        return ("-", "", "")
    return (figures.n, figures.median_abs_pct, figures.bias_pct)


def group_title(group: CurveGroup) -> str:
    """Return a short name of a group."""
    return f"{group.system} {group.title}"


def point_line(point: Point | Unpredicted) -> str:
    """Return the line of a row; a star marks calibration rows."""
    row = point.row
    name = f"{group_title(row.group):34} {format_size(row.size_bytes):>9}"
    if isinstance(point, Unpredicted):
        return f"  {name}  not predicted: {point.reason}"
    mark = "*" if point.calibration_sets else " "
    times = f"{row.time_us:>10,.1f} us -> {point.predicted_us:>10,.1f} us {point.error_pct:>+8.1f}%"
    return f" {mark}{name} {times}  {point.executed}"


_INTRODUCTION = """\
# Accuracy

How far the predicted times of `clusim` are from measurements, by system and size: median of the absolute error of an
iteration's time, and number of rows. A rack with trays joined by NVLink is one node.

- *independent*: no parameter of the system was calibrated on the source of the rows. This is the error of a new
  measurement.
- *same source*: held-out rows; other rows of their source calibrated parameters.
- *calibrated*: parameters were fitted to the rows, so they agree by construction.
- *excluded*: unknown launch or plan, or slower than a larger size.

"""

_DETAILS = """\
## Method

`clusim validate` writes this page. It was last written on {date}, at commit {commit}, by

```
{command}
```

The measurements are from published tables (nccl-tests, and programs of some authors), which are not part of clusim;
[nccl-tests.md](nccl-tests.md#against-measurements) describes the columns of such a table. One model predicted
{predicted:,} of {rows:,} rows. Kernels were simulated with `--granularity {granularity}`
([granularity.md](granularity.md)); `quick` changes the time of most large sizes by up to 3.6% compared with `clusim
run`, in either direction, without an error limit.

**Independent rows** follow from the files of parameters: each calibrated parameter names its calibration rows, and
these name their sources. A row is independent if no parameter that predicts it (its system's topology, architecture and
host; its protocol and algorithm) names the row's source, even with rows of another system. Campaigns of one source with
different network plugins are separate. Parameters are not fitted again without a source, and the choice of modelled
mechanisms considered all tables: errors of other systems can be larger.
[accuracy-causes.md](accuracy-causes.md) lists the goals, and known causes of errors.

**Expected errors** are from all rows of comparable systems except uneven operations: same library, GPU generation,
links between GPUs, kind of operation, one node or several, range of sizes, and a size within the range of the campaign
(a source on a system). A campaign counts once, twice on the very system, a quarter over another network, and a quarter
if its source calibrated a parameter or its software is unknown; with few rows, the error is not below a mean in which
all other classes count as one campaign. Limits of 90% are the quantiles of the rows, times {one:g} (one node) or
{several:g} (several) about the median: the least factors, up to 5, with which 90% of the rows of each source are within
the limits from the other sources. Without four comparable rows the error is not known.

**Further tables.** A cell is *median / mean* of the absolute error with the number of rows, and *bias*, the mean of the
signed error: + is predicted too long. *Within spread* is the mean with the repeatability of measurements: an error
within the spread of the repetitions counts as 0, and a row with a spread of s % weighs 100 / (100 + s). *Followed* is
the share of rows with times extrapolated from runs of fewer nodes or smaller sizes. *Held-out rows* are independent or
of the same source.

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
    report: CollectiveReport,
    page: Path,
    command: str,
    plots: Sequence[tuple[str, Path]] = (),
) -> None:
    """Write the page.

    Parameters
    ----------
    command : str
        The command that writes it.
    plots : sequence of (str, Path)
        Captions and files of figures.
    """
    write_text(
        page,
        page_text(report, command, [(name, _link(page, to)) for name, to in plots]),
    )


def _link(page: Path, target: Path) -> str:
    return quote(
        Path(path.relpath(target.resolve(), page.resolve().parent)).as_posix()
    )


def page_text(
    report: CollectiveReport, command: str, plots: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the page; `plots` are captions and links of figures."""
    systems, *tables = class_tables(report.points)
    n, omitted = len(report.points), len(report.unpredicted) + report.skipped
    about: dict[str, object] = {
        "command": command,
        "granularity": report.granularity,
        **made_at(),
    }
    campaigns = [Campaign(*row) for row in report.campaigns()]
    one, several = (Scale.of(campaigns, place).limits for place in (ONE, SEVERAL))
    about |= {"predicted": n, "rows": n + omitted, "one": one, "several": several}
    blocks = [_INTRODUCTION + _overview(systems), _DETAILS.format(**about)]
    blocks += [_section(table) for table in tables]
    blocks.append(_figures_of(report.points))
    if plots:
        images = [
            f"![{plain(name)}: measured and predicted]({link})"
            for name, link in plots
        ]
        caption = "Time over size: dots are measured, lines predicted."
        blocks.append("\n".join(["## Curves", "", caption, "", *images]) + "\n")
    groups = [
        ClassLine(group_title(group), group_points)
        for group, group_points in report.by_group().items()
    ]
    blocks.append(
        _section(
            ClassTable("Every group of rows", "All rows, calibration too.", groups)
        )
    )
    lines = [f"- {plain(line)}" for line in report.remarks(paths=False)]
    blocks.append(
        "\n".join(["## Assumptions, and rows without a prediction", "", *lines])
        + "\n"
    )
    return "\n".join(blocks)


def _overview(table: ClassTable) -> str:
    """Return the systems: a line per system, place and standing."""
    lines = [
        f"| system | nodes | rows are | {' | '.join(REGIME_TITLES.values())} | sources |"
    ]
    lines.append("|---" * 7 + "|")
    for line in table.lines:
        system, place, kind = (plain(word) for word in line.name.rsplit(", ", 2))
        cells = [
            f"{error.median_abs_pct:.1f}% ({error.n})" if error.n else ""
            for error in statistics(line.points).values()
        ]
        nodes = place.removesuffix(" nodes").removesuffix(" node")
        lines.append(
            f"| {system} | {nodes} | {kind} | {' | '.join(cells)} | {plain(line.remark)} |"
        )
    return "\n".join(lines) + "\n"


def _section(table: ClassTable) -> str:
    remarked = any(line.remark for line in table.lines)
    head = [row + extra for row, extra in zip(_HEAD, (" |", "---|"), strict=True)]
    lines = [f"## {table.title}", ""]
    if table.text:
        lines += [table.text, ""]
    lines += head if remarked else _HEAD
    for line in table.lines:
        lines.append(_row(line) + (f" {plain(line.remark)} |" if remarked else ""))
    return "\n".join(lines) + "\n"


def _row(line: ClassLine) -> str:
    total = score(line.points)
    cells = [plain(line.name), str(total.n)]
    for result in statistics(line.points).values():
        cells += _cells(result)
    if total.n:
        cells += [f"{total.by_spread_pct:.1f}", f"{total.followed / total.n:.0%}"]
    return f"| {' | '.join(cells)} |"


def _cells(errors: Score) -> list[str]:
    if not errors.n:
        return ["", ""]
    return [
        f"{errors.median_abs_pct:.1f} / {errors.mean_abs_pct:.1f} ({errors.n})",
        f"{errors.bias_pct:+.1f}",
    ]


def _figures_of(points: Sequence[Point]) -> str:
    """Return the parameters that were calibrated on the rows of the points."""
    lines = ["## Calibration rows of each parameter", ""]
    lines += ["| rows | sources of the parameters |", "|---|---|"]
    for name, sources in calibrated_by(points).items():
        listing = "<br>".join(plain(source) for source in sources)
        lines.append(f"| {name}: {plain(ROW_SETS[name].text)} | {listing} |")
    return "\n".join(lines) + "\n"
