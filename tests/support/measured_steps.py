"""A table of measured training steps, for what reads such tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

GPT: dict[str, Any] = {
    "id": "row",
    "hardware": "A100 80GB",
    "framework": "Megatron-DeepSpeed (PyTorch 2.0.1)",
    "model": "GPT",
    "layers": 4,
    "hidden": 512,
    "heads": 8,
    "vocab": 8192,
    "seq": 256,
    "n_gpus": 2,
    "n_nodes": 1,
    "global_batch": 8,
    "micro_batch": 1,
    "tensor": 2,
    "precision": "fp16",
    "recompute": "full",
    "attention": "plain",
    "sequence_parallel": "no",
    "step_s": 0.1,
}


def table(path: Path, *rows: dict[str, Any]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, GPT)
        writer.writeheader()
        writer.writerows(GPT | own for own in rows)
    return path
