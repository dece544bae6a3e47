"""A GPU of known times, for what measures GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import clusim
from clusim.hardware.kernels.fused import Fused
from clusim.hardware.kernels.products import Product, product_s
from clusim.workload import PRECISIONS, chip_of

A100_NODE = clusim.load("dgx-a100")
A100 = replace(chip_of(A100_NODE, PRECISIONS["bf16"]), sustained=1.0)


class FakeGpu:
    """An A100 whose products take 1.3 times those of the table's form, and attention 1.2 times."""

    slower, attends = 1.3, 1.2

    def about(self) -> dict[str, Any]:
        return {"name": "NVIDIA A100-SXM4-80GB", "sms": 108, "measured": "a test, today"}

    def kinds(self) -> tuple[str, ...]:
        return ("bf16",)

    def launch_us(self, *, graph: bool) -> float:
        return 0.8 if graph else 2.5

    def operator_us(self, name: str) -> float:
        return 5.0 + len(name)

    def product_us(self, kind: str, shape: tuple[int, int, int]) -> float:
        assert kind == "bf16"
        form = A100.products.form
        return self.slower * product_s(form, A100.silicon, Product(1, *shape), (2, 2)) * 1e6

    def attention_us(self, shape: tuple[int, int, int, int, bool], *, backward: bool) -> float:
        batch, heads, tokens, size, causal = shape
        fused = Fused(batch, heads, heads, tokens, tokens, size, size, causal, backward)
        return self.attends * A100.fused_s(fused) * 1e6

    def moved_us(self, size_bytes: int) -> float:
        # 80% of 2039 GB/s, read and written.
        return 2 * size_bytes / (0.8 * 2039e9) * 1e6

    def copy_GBps(self, direction: str) -> float:
        return {"from": 25.0, "to": 26.0}[direction]

    def long_us(self, shape: tuple[int, int, int]) -> float:
        return self.product_us("bf16", shape) / 0.9
