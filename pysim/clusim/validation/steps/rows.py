"""Measured training steps: rows of a CSV table, one column per known property of a run.

The model of a row has its dimensions from the columns and from the public model card.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS, integer, read_text, real
from clusim.base.tables import table_rows
from clusim.hardware.calibration import row_sets_of
from clusim.validation.measured import unused_cells

NEEDED = ("hardware", "n_gpus", "framework", "model", "seq", "global_batch")
"""Required columns of a table of training steps."""

MOST_STEP_S = 1e6
"""Longest time of a step [s]."""

_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class StepRow:
    """A measured step; fields are the table's columns, unknown numbers 0, unknown words empty.

    Attributes
    ----------
    where : str
        File and line.
    step_s : float
        Time of a step [s]; from `tokens_per_s_per_gpu` where the table has only that.
    tflops_per_gpu : float
        Rate as the source counts operations [10^12/s], used for the time if there is no other source.
    micro_batch : int
        Samples of a microbatch per data-parallel rank.
    chunks : int
        Virtual stages per rank.
    unread : tuple of (str, str)
        Numeric columns with invalid text, and the text; their numbers are 0.
    unused : tuple of str
        Note on its columns without effect.
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
    unused: tuple[str, ...] = ()

    @property
    def measured_s(self) -> float:
        """Time of a step [s]; 0 if the row does not contain it, or only as TFLOP/s."""
        if self.step_s:
            return self.step_s
        pace = self.tokens_per_s_per_gpu * self.n_gpus
        return self.global_batch * self.seq / pace if pace else 0.0

    @property
    def columns(self) -> dict[str, str | int]:
        """Columns by which row sets select it."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.type in ("str", "int")
        }

    @property
    def row_sets(self) -> tuple[str, ...]:
        """Names of the row sets that calibrated parameters and contain this row."""
        return row_sets_of({**self.columns, "size_bytes": 0})


_COLUMNS = {
    item.name: str(item.type)
    for item in fields(StepRow)
    if item.name not in ("where", "unread", "unused")
}
"""Column that is read -> type."""

INFORMATION = ("source_path", "params_b", "reported")
"""Columns without effect on a prediction that need no note."""

_MOST_NUMBER = {"n_nodes": MOST_RANKS, "n_gpus": MOST_RANKS, "step_s": MOST_STEP_S}


def is_step_table(path: str | Path) -> bool:
    """Return True if a file is a table of training steps, by its first line."""
    try:
        with Path(path).open(
            encoding="utf-8-sig", errors="replace", newline=""
        ) as file:
            head = file.readline(1 << 16)
    except OSError:
        return False
    names = {name.strip() for name in next(csv.reader([head]), [])}
    return {*NEEDED, "framework"} <= names


def read_steps(paths: Iterable[str | Path]) -> list[StepRow]:
    """Return the rows of tables; invalid numbers are in `StepRow.unread`."""
    rows: list[StepRow] = []
    for path in paths:
        rows += [_row(*row) for row in table_rows(path, read_text(path), NEEDED)]
    if not rows:
        raise InputError("no rows: the tables are empty")
    return rows


def _row(cells: Mapping[str, str], where: str) -> StepRow:
    values: dict[str, Any] = {}
    unread: list[tuple[str, str]] = []
    for name, kind in _COLUMNS.items():
        text = cells.get(name, "")
        if kind == "str":
            values[name] = text
            continue
        value = _number(text, name, counted=kind == "int")
        if value is None and text:
            unread.append((name, text))
        values[name] = value or 0
    note = unused_cells(cells, (*_COLUMNS, *INFORMATION))
    return StepRow(where=where, **values, unread=tuple(unread), unused=note)


def _number(text: str, name: str, *, counted: bool) -> float | None:
    """Return the number of a column, None if it is invalid or out of range."""
    value = real(text, 0, _MOST_NUMBER.get(name, _MOST if counted else 1e15))
    if value is None or not counted:
        return value
    return int(value) if value == int(value) else None


@dataclass(frozen=True, slots=True)
class _Card:
    """Known models by the beginning of their names.

    Each is the shipped model that it resembles, with the differences.
    """

    begins: tuple[str, ...]
    base: str
    changes: dict[str, Any] = field(default_factory=dict)


_DEEPSEEK_V2 = {
    **{
        "experts": 160,
        "top_k": 6,
        "expert_size": 1536,
        "shared_experts": 2,
        "vocab": 102400,
    },
    **{"hidden": 5120, "layers": 60, "intermediate": 12288, "dense_layers": 1},
}

_QWEN3 = {"experts": 128, "top_k": 8, "head_size": 128}

_NEMO_20B = {
    "layers": 44,
    "hidden": 6144,
    "heads": 48,
    "kv_heads": 48,
    "intermediate": 24576,
}
"""As in the scripts of NeMo-Framework-Launcher 24.07 (gpt3/20b.yaml)."""

_CARDS = (
    _Card(("gpt3-20b",), "gpt3-175b", _NEMO_20B),
    _Card(("gpt-3 175b", "gpt3-175b"), "gpt3-175b", {"layers": 96, "hidden": 12288}),
    _Card(("gpt-3", "gpt3", "gpt 22b", "gpt 175b"), "gpt3-175b"),
    _Card(("gpt oss 20b",), "mixtral-8x7b", {"experts": 32, "top_k": 4, "expert_size": 2880, "head_size": 64}),
    _Card(("gpt oss 120b",), "mixtral-8x7b", {"experts": 128, "top_k": 4, "expert_size": 2880, "head_size": 64}),
    _Card(("gpt",), "gpt2"),
    _Card(("mpt",), "gpt2", {"dropout": False}),
    _Card(("bert-large",), "bert-large", {"layers": 24, "hidden": 1024}),
    _Card(("deepseekv2", "deepseek-v2"), "deepseek-v3", _DEEPSEEK_V2),
    _Card(("deepseekv3", "deepseek-v3"), "deepseek-v3", {"layers": 61, "hidden": 7168}),
    _Card(("mixtral-8x22b", "mixtral 8x22b"), "mixtral-8x22b", {"layers": 56, "hidden": 6144}),
    _Card(("mixtral",), "mixtral-8x7b"),
    _Card(("qwen3_30b", "qwen3 30b"), "mixtral-8x7b", {**_QWEN3, "expert_size": 768}),
    _Card(("qwen3_235b", "qwen3 235b"), "mixtral-8x7b", {**_QWEN3, "expert_size": 1536}),
    _Card(("llama", "nemotron4", "nemotron-4", "qwen2", "qwen3 "), "llama3-8b"),
)  # fmt: skip
"""Cards in order of precedence, with expert dimensions from public model cards: step tables omit these."""

_UNKNOWN = (
    "lora",
    "mamba",
    "hybrid",
    "nemotron_3",
    "nemotron 3",
    "moonlight",
    "not stated",
)
"""Words of models, or of fine tuning, that are not modelled or not specified."""


def model_spec(row: StepRow) -> dict[str, Any]:
    """Return the workload's model section for a row; raises `InputError` for an unknown model."""
    name = row.model.lower()
    for word in _UNKNOWN:
        if word in name or (word == "mamba" and word in row.compile.lower()):
            raise InputError(f"model {row.model!r}: {word!r} is not modelled")
    card = next((card for card in _CARDS if name.startswith(card.begins)), None)
    if card is None:
        raise InputError(f"model {row.model!r}: its dimensions are not known")
    result: dict[str, Any] = {"base": card.base, **card.changes}
    if (
        not (row.layers and row.hidden)
        and not {"layers", "hidden"} <= card.changes.keys()
    ):
        raise InputError(f"model {row.model!r}: set layers and hidden size")
    for key in ("layers", "hidden", "heads", "kv_heads", "vocab"):
        if getattr(row, key):
            result[key] = getattr(row, key)
    if card.base == "gpt2" and "kv_heads" not in result:
        result["kv_heads"] = result.get("heads", 12)
    if (
        "head_size" not in result
        and row.hidden
        and row.heads
        and card.base != "deepseek-v3"
    ):
        result["head_size"] = row.hidden // row.heads
    inner = integer(
        row.intermediate.split()[0] if row.intermediate else "", 1, 1 << 40
    )
    if inner and "expert" not in row.intermediate.partition(" dense")[0]:
        result["intermediate"] = inner
    elif row.hidden and card.base in ("gpt2", "gpt3-175b"):
        result["intermediate"] = 4 * row.hidden
    if card.base == "gpt2" and row.seq:
        result["positions"] = max(1024, row.seq)
    if (
        "dense_layers" not in result
        and card.base == "deepseek-v3"
        and row.layers
        and row.layers < 8
    ):
        result["dense_layers"] = 1 if "one dense layer" in row.notes else 0
    return result
