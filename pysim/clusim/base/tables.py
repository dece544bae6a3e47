"""Tables: columns of equal length with units in their names, and text in aligned columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import field
from itertools import groupby
from pathlib import Path
from string import Formatter
from textwrap import TextWrapper
from typing import Any, TypeVar

from clusim.base.display import Columns, Shown, Summary
from clusim.base.errors import InputError
from clusim.base.files import write_csv
from clusim.base.records import dataclass
from clusim.base.units import format_size, format_time

WIDTH = 100
"""Columns of text output at most, in a terminal, a pipe or a file."""

_TITLES = {"no_credit": "credit stall"}
"""Column -> its title in text, where words of the glossary replace the key."""

_LABEL = re.compile(r" *\S+(?: \S+){0,2}?(?::? {2,}|: )")
_FIELD = re.compile(r"([<>^]?)(\+?)(\d*)(\.\.)?(.*)")

Key = TypeVar("Key")
Value = TypeVar("Value")

SHARES = (
    "share", "busy", "peak", "no_credit", "contended", "full", "limit_busy", "bubble", "communication", "kernels",
    "left", "mean", "line", "held", "marked",
)  # fmt: skip
"""Columns of shares, which texts show in percent."""


class _Words(TextWrapper):
    """Breaks lines between words, but never between a number and its unit."""

    wordsep_simple_re = re.compile(
        r"((?<!\d)\s+|\s{2,}|\s(?!(?:[pnum]?s|[KMGT]?i?B|[GT][Bb]/s|%|x)(?:\W|$)))"
    )


def wrap_line(line: str, width: int = WIDTH, hang: str | None = None) -> list[str]:
    """Return a line as lines of at most `width` columns; words and numbers are not split.

    The continuation is indented by `hang`, by default below the value of a label (``label: value``, ``label  value``),
    otherwise by two more than the line. All parts of a comment begin with #.
    """
    if len(line) <= width:
        return [line]
    if hang is None:
        margin = "# " if line.startswith("#") else ""
        indent = min(len(line) - len(line.lstrip(" #")) + 2, width // 4)
        label = _LABEL.match(line)
        if label and not margin and label.end() <= width // 3:
            indent = label.end()
        hang = f"{margin:<{indent}}"
    words = _Words(
        width,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return words.wrap(line)


def text_table(
    layout: str, rows: Iterable[Sequence[Any]], *, strip: bool = True
) -> list[str]:
    """Return rows as lines of aligned columns.

    Parameters
    ----------
    layout : str
        A field of `str.format` for every column, and the text before it: ``"  {:<..}  {:>7.1%}"``. A column with
        ``..``, alone or after its least width, is as wide as its widest cell. A last column that exceeds `WIDTH` is
        continued below itself, in the first half of a line.
    rows : iterable of sequence
        Cells, titles included. Texts are padded only, other values are formatted as well. Rows may end early.
    strip : bool
        Remove blanks at the ends of lines.
    """
    fields = [
        (before, *_FIELD.findall(spec or "")[0])
        for before, _, spec, _ in Formatter().parse(layout)
    ]
    lines = [
        [
            cell if isinstance(cell, str) else format(cell, sign + form)
            for cell, (_, _, sign, _, _, form) in zip(row, fields, strict=False)
        ]
        for row in rows
    ]
    columns = []
    for index, (before, align, _, min_width, grows, _) in enumerate(fields):
        cells = [len(line[index]) for line in lines if grows and index < len(line)]
        width = max([int(min_width or 0), *cells])
        columns.append((before, f"{align}{width}" if width else ""))
    formatted = [
        "".join(
            before + format(cell, pad)
            for cell, (before, pad) in zip(line, columns, strict=False)
        )
        for line in lines
    ]
    if not strip:
        return formatted
    start = max(
        (
            len(line) - len(cells[-1])
            for line, cells in zip(formatted, lines, strict=True)
            if len(cells) == len(fields)
        ),
        default=0,
    )
    hang = " " * start if start <= WIDTH // 2 else None
    return [
        part for line in formatted for part in wrap_line(line.rstrip(), hang=hang)
    ]


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as the Python value of its kind."""
    return value.item() if hasattr(value, "item") else value


def _format_value(name: str, value: Any) -> str:
    """Return a value as people read it, by the unit in its column's name."""
    if value is None:
        return ""
    if isinstance(value, list):
        return (
            f"{value[0]} +{len(value) - 1}"
            if len(value) > 1
            else (value[0] if value else "")
        )
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


def _fits(lines: Iterable[str]) -> bool:
    return all(len(line) <= WIDTH for line in lines)


def _cut(cell: str, limit: int = 40) -> str:
    return cell if len(cell) <= limit else f"{cell[: limit - 4]} ..."


def _title(name: str) -> str:
    """Return the title of a column in text."""
    name = name.removesuffix("_ps").removesuffix("_bytes")
    return _TITLES.get(name, name.replace("_", " ").replace("GBps", "GB/s"))


def _align_columns(
    gap: str, columns: Sequence[tuple[str, list[str], list[str]]]
) -> list[str]:
    """Return the lines of columns: alignment with least width, words of the title, cells."""
    deep = max((len(title) for _, title, _ in columns), default=0)
    layout = "  " + gap.join(f"{{:{size}..}}" for size, _, _ in columns)
    cells = ([""] * (deep - len(title)) + title + rows for _, title, rows in columns)
    lines = text_table(layout, zip(*cells, strict=True), strip=False)
    return [line.rstrip() for line in lines]


def group_values(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in the order in which keys and values appear."""
    result: dict[Key, list[Value]] = {}
    for key, value in pairs:
        result.setdefault(key, []).append(value)
    return result


def spans(rows: Iterable[tuple[int, Key]]) -> list[tuple[str, Key]]:
    """Return the ranges of consecutive sizes [bytes] with the same value."""
    result = []
    for value, members in groupby(rows, lambda row: row[1]):
        sizes = [format_size(size) for size, _ in members]
        result.append((" to ".join(dict.fromkeys((sizes[0], sizes[-1]))), value))
    return result


@dataclass(frozen=True, slots=True, repr=False)
class ColumnTable(Shown):
    """Rows of an analysis.

    Attributes
    ----------
    columns : dict of list
        Column name -> values, of equal length. Units are in the names: ``busy_ps``, ``rate_Bps``.
    facts : dict
        Totals, such as the time that the rows add up to.
    notes : list of str
        Remarks for the user, the most important first.
    """

    columns: dict[str, list[Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        names: Collection[str],
        rows: Iterable[Sequence[Any]],
        facts: Mapping[str, Any] | None = None,
        notes: Iterable[str] = (),
    ) -> ColumnTable:
        """Return a table of `rows`, each with a value for each of `names`, such as the keys of a form."""
        table: dict[str, list[Any]] = {name: [] for name in names}
        for row in rows:
            for name, value in zip(names, row, strict=True):
                table[name].append(_plain(value))
        return cls(
            table, {k: _plain(v) for k, v in (facts or {}).items()}, list(notes)
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values()), []))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries."""
        names = list(self.columns)
        values = zip(*self.columns.values(), strict=True)
        return [dict(zip(names, row, strict=True)) for row in values]

    def top(self, count: int | None) -> ColumnTable:
        """Return the first `count` rows; all for None."""
        if count is None:
            return self
        cut = {name: values[:count] for name, values in self.columns.items()}
        return ColumnTable(cut, self.facts, self.notes)

    def summary(self) -> Summary:
        """Return the columns, the number of rows, and notes."""
        return Summary(
            ", ".join(self.columns), (f"{len(self):,} rows",), " ".join(self.notes)
        )

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return the rows."""
        return {"rows": lambda: self.columns}

    def to_json(self) -> dict[str, Any]:
        """Return facts, notes and rows for `json.dumps`."""
        return {**self.facts, "notes": self.notes, "rows": self.rows()}

    def text(self, hidden: Sequence[str] = ()) -> list[str]:
        """Return the rows as lines, without `hidden` and empty columns.

        Where they exceed `WIDTH`, titles are stacked and texts cut; then the last columns are omitted, and named below.
        """
        columns = []
        for name, values in self.columns.items():
            cells = [_format_value(name, value) for value in values]
            if name not in hidden and any(cells):
                align = (
                    "<"
                    if all(isinstance(value, str | list) for value in values)
                    else ">"
                )
                columns.append((f"{align}{len(name)}", [_title(name)], cells))
        lines = _align_columns("  ", columns)
        if _fits(lines):
            return lines
        columns = [
            (size[0], title[0].split(), [_cut(cell) for cell in cells])
            for size, title, cells in columns
        ]
        omitted: list[str] = []
        for gap in ("  ", " "):
            lines = _align_columns(gap, columns)
            if _fits(lines):
                return lines
        while not _fits(lines):
            omitted.insert(0, " ".join(columns.pop()[1]))
            lines = _align_columns(" ", columns)
        return [*lines, f"  ... more columns with --csv: {', '.join(omitted)}"]

    def to_csv(self) -> str:
        """Return the rows as CSV with a header line."""
        out = io.StringIO()
        write_csv(out, [self.columns, *zip(*self.columns.values(), strict=True)])
        return out.getvalue()


def table_rows(
    path: str | Path, text: str, needed: Sequence[str]
) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the cells of every row by column, without surrounding blanks, and its file and line.

    Raises
    ------
    InputError
        A column of `needed` is missing, a row has another number of cells than the header, or the text is no CSV, for
        example a cell of 128 KiB.
    """
    reader = csv.DictReader(io.StringIO(text, newline=None))
    try:
        names = reader.fieldnames or ()
        missing = [name for name in needed if name not in names]
        if missing:
            raise InputError(
                f"{path}: no column {', '.join(missing)}; needed are {', '.join(needed)}"
            )
        for values in reader:
            where = f"{path}:{reader.line_num}"
            if None in values or None in values.values():
                raise InputError(
                    f"{where}: {len(names)} columns in the header, not as many in this row"
                )
            yield {name: value.strip() for name, value in values.items()}, where
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num or 1}: no CSV: {error}") from None
