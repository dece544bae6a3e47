"""The model of a measured row: dimensions from its columns, what columns do not say from its public model card."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import whole
from clusim.validation.steps.rows import StepRow


@dataclass(frozen=True, slots=True)
class _Card:
    """Known models by the beginning of their names: the shipped model that they resemble, and the differences."""

    begins: tuple[str, ...]
    base: str
    changes: dict[str, Any] = field(default_factory=dict)


_DEEPSEEK_V2 = {
    **{"experts": 160, "top_k": 6, "expert_size": 1536, "shared_experts": 2, "vocab": 102400},
    **{"hidden": 5120, "layers": 60, "intermediate": 12288, "dense_layers": 1},
}

_QWEN3 = {"experts": 128, "top_k": 8, "head_size": 128}

_NEMO_20B = {"layers": 44, "hidden": 6144, "heads": 48, "kv_heads": 48, "intermediate": 24576}
"""As the scripts of NeMo-Framework-Launcher 24.07 have it (gpt3/20b.yaml)."""

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
"""The first that fits: dimensions of experts from public model cards, which tables of steps do not print."""

_UNKNOWN = ("lora", "mamba", "hybrid", "nemotron_3", "nemotron 3", "moonlight", "not stated")
"""Words of models, or of fine tuning, that are not modelled or not said."""


def model_spec(row: StepRow) -> dict[str, Any]:
    """Return what a workload says of the model of a row; raises `InputError` for one that is not known."""
    name = row.model.lower()
    for word in _UNKNOWN:
        if word in name or (word == "mamba" and word in row.compile.lower()):
            raise InputError(f"model {row.model!r}: {word!r} is not modelled")
    card = next((card for card in _CARDS if name.startswith(card.begins)), None)
    if card is None:
        raise InputError(f"model {row.model!r}: its dimensions are not known")
    found: dict[str, Any] = {"base": card.base, **card.changes}
    if not (row.layers and row.hidden) and not {"layers", "hidden"} <= card.changes.keys():
        raise InputError(f"model {row.model!r}: give its layers and hidden size")
    for key in ("layers", "hidden", "heads", "kv_heads", "vocab"):
        if getattr(row, key):
            found[key] = getattr(row, key)
    if card.base == "gpt2" and "kv_heads" not in found:
        found["kv_heads"] = found.get("heads", 12)
    if "head_size" not in found and row.hidden and row.heads and card.base != "deepseek-v3":
        found["head_size"] = row.hidden // row.heads
    inner = whole(row.intermediate.split()[0] if row.intermediate else "", 1, 1 << 40)
    if inner and "expert" not in row.intermediate.partition(" dense")[0]:
        found["intermediate"] = inner
    elif row.hidden and card.base in ("gpt2", "gpt3-175b"):
        found["intermediate"] = 4 * row.hidden
    if card.base == "gpt2" and row.seq:
        found["positions"] = max(1024, row.seq)
    if "dense_layers" not in found and card.base == "deepseek-v3" and row.layers and row.layers < 8:
        found["dense_layers"] = 1 if "one dense layer" in row.notes else 0
    return found
