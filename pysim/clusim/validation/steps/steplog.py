"""Measured steps of one job: logs of Megatron-LM, TorchTitan, DeepSpeed and nanoGPT, or a CSV table.

Line formats of public logs (issues NVIDIA/Megatron-LM 756, deepspeedai/DeepSpeed 1825 and 3742,
karpathy/nanoGPT 178, pull request pytorch/torchtitan 2389). Several ranks may print a step.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from clusim.base.errors import InputError
from clusim.base.limits import read_text, real
from clusim.validation.steps.rows import MOST_STEP_S

WARM_UP = 3
"""Steps from which the first one is omitted: it compiles, allocates and connects."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BATCH = re.compile(r"global batch size:\s+(\d+)")

_UNITS: dict[str, Callable[[float, int, float], float]] = {
    "s": lambda value, batch, tokens: value,
    "ms": lambda value, batch, tokens: value / 1e3,
    "samples/s": lambda value, batch, tokens: batch / value,
    "tokens/s per GPU": lambda value, batch, tokens: tokens / value,
}
"""Unit of a log -> time of a step [s] from the value, the samples of a step and its tokens per GPU."""

_FORMATS = (
    ("Megatron-LM", "ms", r"iteration +(\d+)/ *\d+ \|.*?elapsed time per iteration \(ms\): ([\d.]+)"),
    ("TorchTitan", "tokens/s per GPU", r"\bstep: +(\d+) .*?\btps: ([\d,]+)"),
    ("DeepSpeed", "samples/s", r"global_step=(\d+), .*?\bCurrSamplesPerSec=([\d.]+)"),
    ("DeepSpeed", "samples/s", r"\] \d+/(\d+), (?:\w+=[\d.]+, Curr)?SamplesPerSec=([\d.]+)"),
    ("nanoGPT", "ms", r"^iter (\d+): loss \S+, time ([\d.]+)ms"),
)  # fmt: skip
"""Name, unit and pattern with the number of a step and its value; the first that matches a line of the file."""


@dataclass(frozen=True, slots=True)
class StepLog:
    """Values of measured steps, by number.

    Attributes
    ----------
    unit : str
        Key of `_UNITS`.
    batch : int
        Samples of a step; 0 if the file does not contain it.
    """

    path: str
    kind: str
    unit: str
    values: Mapping[int, float]
    batch: int = 0

    def times_s(self, batch: int, tokens: float) -> list[float]:
        """Return the times of the steps after the first of several [s].

        Parameters
        ----------
        batch : int
            Samples of a step of the workload.
        tokens : float
            Tokens of a step per GPU.

        Raises
        ------
        InputError
            The log has another number of samples, or the model of a log in tokens has none.
        """
        if self.batch not in (0, batch):
            raise InputError(
                f"{self.path}: {self.batch} samples per step; the workload has {batch}: change batch.global"
            )
        if not tokens and self.unit.startswith("tokens"):
            raise InputError(
                f"{self.path}: {self.unit}; the model of the workload has no tokens"
            )
        numbers = sorted(self.values)
        numbers = numbers[1:] if len(numbers) >= WARM_UP else numbers
        return [
            _UNITS[self.unit](self.values[number], batch, tokens)
            for number in numbers
        ]


def read_step_log(path: str | Path) -> StepLog:
    """Return the steps of a log, or of a CSV table with a column ``step_s`` or ``step_ms``.

    Raises
    ------
    InputError
        The file has no step in a known form, or no positive time.
    """
    text = _COLOURS.sub("", read_text(path, strict=False))
    lines = ["", *text.splitlines()]
    head = next((number for number, line in enumerate(lines) if line.strip()), 0)
    columns = [name.strip() for name in lines[head].split(",")]
    for unit in ("s", "ms"):
        if f"step_{unit}" in columns:
            rows = csv.DictReader(lines[head + 1 :], columns, skipinitialspace=True)
            return _table(str(path), rows, unit, head)
    for kind, unit, pattern in _FORMATS:
        by_step: dict[int, list[float]] = {}
        for match in re.finditer(pattern, text, re.MULTILINE):
            value = real(match[2].replace(",", ""), 0, 1e15)
            if value:
                by_step.setdefault(int(match[1]), []).append(value)
        if by_step:
            batch = _BATCH.search(text)
            values = {number: median(some) for number, some in by_step.items()}
            return StepLog(
                str(path), kind, unit, values, int(batch[1]) if batch else 0
            )
    kinds = ", ".join(dict.fromkeys(kind for kind, _, _ in _FORMATS))
    raise InputError(
        f"{path}: no steps of {kinds}; a CSV table needs a column step_s or step_ms"
    )


def _table(path: str, rows: csv.DictReader[str], unit: str, head: int) -> StepLog:
    values: dict[int, float] = {}
    for number, row in enumerate(rows, 1):
        cell = row.get(f"step_{unit}") or ""
        value = real(cell, 0, MOST_STEP_S * (1000 if unit == "ms" else 1))
        if not value:
            where = f"{path}:{head + rows.line_num}"
            raise InputError(
                f"{where}: step_{unit} {cell!r}: must be a positive time"
            )
        values[number] = value
    if not values:
        raise InputError(f"{path}: no rows: the table is empty")
    return StepLog(path, "CSV", unit, values)


def spread_of(times_s: list[float]) -> float:
    """Return the distance of the quartiles of times, as a share of their median; 0 of fewer than four."""
    if len(times_s) < 4:
        return 0.0
    low, middle, high = quantiles(times_s, n=4)
    return (high - low) / middle
