"""Overlapped tensor parallelism: copy engines move a piece while another is multiplied."""

from __future__ import annotations

from typing import Any

import clusim
from clusim.training import train
from clusim.training.result import TrainingResult
from clusim.workload import loads_workload

LAYER = """
model: {base: gpt2, layers: 1, hidden: 8192, heads: 64, vocab: 8192, positions: 2048}
sequence: 2048
batch: {global: 1, micro: 1}
precision: bf16
"""


def step(
    fabric: clusim.Fabric, ranks: list[int], overlap: str, more: str = "", **options: Any
) -> TrainingResult:
    text = f"{LAYER}parallel: {{tensor: 4, ranks: {ranks}}}\n{more}"
    text += f"tensor: {{sequence_parallel: true, overlap: {overlap}}}\n"
    return train(loads_workload(text), fabric, steps=1, **options)


def test_pieces_hide_their_messages_and_products_keep_their_sms() -> None:
    """A message of 512 x 8,192 elements takes 19 us at 450 GB/s, its product longer: little remains exposed."""
    fabric = clusim.load("dgx-h100")
    plain, overlapped = (step(fabric, [0, 1, 2, 3], way) for way in ("false", "true"))
    assert overlapped.mean("exposed_tensor") < 0.5 * plain.mean("exposed_tensor")
    assert overlapped.step_time_s < plain.step_time_s
    moved = [result.traffic["tensor"].sent_bytes for result in (plain, overlapped)]
    assert moved[1] == moved[0]


def test_copy_engines_do_not_reach_another_node() -> None:
    """Tensor groups over two nodes send their pieces by CTAs, and the step is simulated all the same."""
    fabric = clusim.load("dgx-h100", nodes=2)
    assert step(fabric, [0, 1, 8, 9], "true", granularity="coarse").step_time_s > 0


def test_settings_of_the_workload_replace_copy_engines() -> None:
    """Messages with a protocol of the workload are of CTAs, which hold SMs that products lack; copies hold none."""
    fabric = clusim.load("dgx-h100")
    copies = step(fabric, [0, 1, 2, 3], "true")
    stated = "communicators: {tensor: {protocol: ll128}}\n"
    messages = step(fabric, [0, 1, 2, 3], "true", stated)
    assert messages.kernel_slowdown_s > 2 * copies.kernel_slowdown_s
    assert messages.step_time_s > copies.step_time_s
