"""Print a table of an analysis: as text, JSON or CSV."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from clusim.base.units import format_size, format_time

if TYPE_CHECKING:
    from clusim.analysis.columns import ColumnTable

SHARES = (
    "share", "busy", "peak", "no_credit", "contended", "full", "limit_busy", "bubble", "communication", "kernels",
    "left",
)  # fmt: skip


def _cell(name: str, value: Any) -> str:
    """Return a value as people read it, by the unit in its column's name."""
    if isinstance(value, list):
        return f"{value[0]} +{len(value) - 1}" if len(value) > 1 else (value[0] if value else "")
    if isinstance(value, str):
        return value
    if name.endswith("_ps"):
        return f"-{format_time(-value)}" if value < 0 else format_time(value)
    if name.endswith("bytes"):
        return format_size(value)
    if name in SHARES and isinstance(value, float):
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "" if value == -1 else f"{value:,}"


def text_lines(table: ColumnTable, hidden: tuple[str, ...] = ()) -> list[str]:
    """Return the rows as aligned text; empty columns are omitted."""
    cells = {
        name: [_cell(name, value) for value in values]
        for name, values in table.columns.items()
        if name not in hidden
    }
    cells = {name: column for name, column in cells.items() if any(column)}
    if not cells:
        return []
    lines = []
    widths = {name: max(len(name), *map(len, column)) for name, column in cells.items()}
    texts = {n for n in cells if all(isinstance(v, str | list) for v in table.columns[n])}

    def line(values: dict[str, str]) -> str:
        parts = (
            f"{v:<{widths[n]}}" if n in texts else f"{v:>{widths[n]}}" for n, v in values.items()
        )
        return ("  " + "  ".join(parts)).rstrip()

    titles = {
        name: name.removesuffix("_ps").removesuffix("_bytes").replace("_", " ") for name in cells
    }
    lines.append(line(titles))
    for index in range(len(table)):
        lines.append(line({name: column[index] for name, column in cells.items()}))
    return lines


def echo_table(
    table: ColumnTable,
    *,
    as_json: bool,
    as_csv: bool,
    top: int | None,
    hidden: tuple[str, ...] = (),
) -> None:
    """Print a table in the requested format; text is preceded by the notes."""
    shown = table.top(top)
    if as_json:
        click.echo(json.dumps(shown.to_json()))
    elif as_csv:
        click.echo(shown.to_csv(), nl=False)
    else:
        if not table.facts.get("complete", True):
            click.echo("  unfinished run: results up to its end\n")
        for note in table.notes:
            click.echo(f"  {note}")
        click.echo("")
        for text in text_lines(shown, hidden):
            click.echo(text)
        if len(shown) < len(table):
            click.echo(f"  ... {len(table) - len(shown)} more rows; --top 0 shows all")
