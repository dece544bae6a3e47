"""Measured training steps: rows of a CSV table, a column for everything that is known of a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.files import note_input
from clusim.base.limits import MOST_RANKS, read_text, real
from clusim.hardware.calibration import row_sets_of

NEEDED = ("hardware", "n_gpus", "framework", "model", "seq", "global_batch")
"""Columns without which a table is none of training steps."""

MOST_STEP_S = 1e6
"""Longest time of a step [s]."""

_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class StepRow:
    """A measured step; fields are the columns of the table, an unknown number is 0 and an unknown word empty.

    Attributes
    ----------
    where : str
        File and line.
    step_s : float
        Time of a step [s]; from `tokens_per_s_per_gpu` where the table has only that.
    tflops_per_gpu : float
        Rate as the source counts operations [10^12/s], which gives a time where there is no other.
    micro_batch : int
        Samples of a microbatch per data-parallel rank.
    chunks : int
        Virtual stages per rank.
    unread : tuple of (str, str)
        Columns that should have a number and have a text, and the text; their numbers are 0.
    """

    where: str = ""
    id: str = ""
    source: str = ""
    hardware: str = ""
    framework: str = ""
    model: str = ""
    sharding: str = ""
    sequence_parallel: str = ""
    precision: str = ""
    recompute: str = ""
    attention: str = ""
    compile: str = ""
    notes: str = ""
    intermediate: str = ""
    n_nodes: int = 0
    n_gpus: int = 0
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocab: int = 0
    seq: int = 0
    global_batch: int = 0
    micro_batch: int = 0
    tensor: int = 0
    pipeline: int = 0
    chunks: int = 0
    data: int = 0
    context: int = 0
    expert: int = 0
    step_s: float = 0.0
    tokens_per_s_per_gpu: float = 0.0
    tflops_per_gpu: float = 0.0
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def measured_s(self) -> float:
        """Time of a step [s], 0 if the row does not say, or only by its TFLOP/s."""
        if self.step_s:
            return self.step_s
        pace = self.tokens_per_s_per_gpu * self.n_gpus
        return self.global_batch * self.seq / pace if pace else 0.0

    @property
    def row_sets(self) -> tuple[str, ...]:
        """Names of the sets of measurements that calibrated figures and have this row."""
        columns: dict[str, str | int] = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.type in ("str", "int")
        }
        return row_sets_of({**columns, "size_bytes": 0})


_WORDS = tuple(item.name for item in fields(StepRow) if item.type == "str" and item.name != "where")
_COUNTS = tuple(item.name for item in fields(StepRow) if item.type == "int")
_MOST_NUMBER = {"n_nodes": MOST_RANKS, "n_gpus": MOST_RANKS, "step_s": MOST_STEP_S}
_NUMBERS = tuple(item.name for item in fields(StepRow) if item.type == "float")


def is_step_table(path: str | Path) -> bool:
    """Return True if a file is a table of training steps, by its first line."""
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace", newline="") as file:
            head = file.readline(1 << 16)
    except OSError:
        return False
    names = {name.strip() for name in next(csv.reader([head]), [])}
    return {*NEEDED, "framework"} <= names


def read_steps(paths: Iterable[str | Path]) -> list[StepRow]:
    """Return the rows of tables; what should be a number and is none is `StepRow.unread`."""
    rows: list[StepRow] = []
    for path in paths:
        note_input(Path(path))
        reader = csv.DictReader(io.StringIO(read_text(path)))
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: column {missing[0]!r} is missing; this is no table of steps")
        rows += [_row(values, f"{path}:{reader.line_num}") for values in reader]
    if not rows:
        raise InputError("no rows: the tables are empty")
    return rows


def _row(values: Mapping[str, str | None], where: str) -> StepRow:
    words: dict[str, Any] = {name: (values.get(name) or "").strip() for name in _WORDS}
    unread: list[tuple[str, str]] = []
    numbers: dict[str, Any] = {}
    for name in (*_COUNTS, *_NUMBERS):
        text = (values.get(name) or "").strip()
        value = _number(text, name)
        if value is None and text:
            unread.append((name, text))
        numbers[name] = value or 0
    return StepRow(where=where, **words, **numbers, unread=tuple(unread))


def _number(text: str, name: str) -> float | None:
    """Return the number of a column, None if it is none or cannot be one of it."""
    counted = name in _COUNTS
    value = real(text, 0, _MOST_NUMBER.get(name, _MOST if counted else 1e15))
    if value is None or not counted:
        return value
    return int(value) if value == int(value) else None
