"""Measurement of a GPU through PyTorch; the only module that imports it.

CUDA events around many kernels time them, in a CUDA graph where capture is possible, to exclude
host time; operands are random numbers, because chips draw less power for constants.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

from clusim.base.errors import InputError

SHORT = 20
"""Kernels of a timing."""

LONG_S = 10.0
"""Length of the long run [s]."""


class Torch:
    """The current CUDA (or ROCm) device of PyTorch."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise InputError(
                "clusim calibrate gpu measures through PyTorch, which is not there: pip install 'clusim-net[gpu]'"
            ) from error
        if not torch.cuda.is_available():
            raise InputError(
                "PyTorch finds no GPU; use measurements of another node with --from RECORD"
            )
        self.torch: Any = torch
        self.device: Any = torch.device("cuda")

    def about(self) -> dict[str, Any]:
        """Return the driver's description of the GPU, with place and time."""
        properties = self.torch.cuda.get_device_properties(self.device)
        return {
            "name": properties.name,
            "sms": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "torch": self.torch.__version__,
            "cuda": str(self.torch.version.cuda or self.torch.version.hip),
            "cpu": platform.processor() or platform.machine(),
            "measured": f"{platform.node()}, {time.strftime('%Y-%m-%d')}",
        }

    def kinds(self) -> tuple[str, ...]:
        """Return bf16, and fp8 from compute capability 8.9 on."""
        properties = self.torch.cuda.get_device_properties(self.device)
        return (
            ("bf16", "fp8")
            if (properties.major, properties.minor) >= (8, 9)
            else ("bf16",)
        )

    def _us(self, work: Callable[[], Any], count: int = SHORT) -> float:
        """Return the GPU time of `work`, the least of three timings of `count` [us]."""
        cuda = self.torch.cuda
        for _ in range(3):
            work()
        cuda.synchronize()
        try:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                for _ in range(count):
                    work()
            replay = graph.replay
        except RuntimeError:
            cuda.synchronize()

            def replay() -> None:
                for _ in range(count):
                    work()

        result = []
        for _ in range(4):
            start, end = (
                cuda.Event(enable_timing=True),
                cuda.Event(enable_timing=True),
            )
            start.record()
            replay()
            end.record()
            end.synchronize()
            result.append(start.elapsed_time(end) * 1e3 / count)
        return float(min(result[1:]))

    def launch_us(self, *, graph: bool) -> float:
        """Return the time between two empty kernels."""
        cuda = self.torch.cuda
        if graph:
            return self._us(lambda: cuda._sleep(1), 200)
        for _ in range(100):
            cuda._sleep(1)
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        for _ in range(2000):
            cuda._sleep(1)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 2

    def operator_us(self, name: str) -> float:
        """Return the host time to issue an operator on small tensors."""
        torch = self.torch
        x = torch.randn(64, 64, device=self.device)
        work: Callable[[], Any] = {
            "add": lambda: x + x,
            "linear": lambda: torch.nn.functional.linear(x, x),
            "layer_norm": lambda: torch.nn.functional.layer_norm(x, (64,)),
            "empty": lambda: torch.empty_like(x),
        }[name]
        for _ in range(200):
            work()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            work()
        elapsed_s = time.perf_counter() - begin
        torch.cuda.synchronize()
        return elapsed_s * 1e6 / 500

    def _product(self, kind: str, shape: tuple[int, int, int]) -> Callable[[], Any]:
        torch, (m, n, k) = self.torch, shape
        a = torch.randn(m, k, device=self.device, dtype=torch.bfloat16)
        b = torch.randn(n, k, device=self.device, dtype=torch.bfloat16)
        if kind == "bf16":
            return lambda: torch.nn.functional.linear(a, b)
        one = torch.ones((), device=self.device)
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        return lambda: torch._scaled_mm(
            a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )

    def product_us(self, kind: str, shape: tuple[int, int, int]) -> float:
        """Return the time of a product in a short run."""
        return self._us(self._product(kind, shape))

    def long_us(self, shape: tuple[int, int, int]) -> float:
        """Return the time of a product after a ten-second run of it."""
        work, cuda = self._product("bf16", shape), self.torch.cuda
        begin = time.perf_counter()
        while time.perf_counter() - begin < LONG_S:
            for _ in range(50):
                work()
            cuda.synchronize()
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        for _ in range(100):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 10

    def attention_us(
        self, shape: tuple[int, int, int, int, bool], *, backward: bool
    ) -> float:
        """Return the time of scaled_dot_product_attention with its usual backend."""
        torch = self.torch
        batch, heads, tokens, size, causal = shape
        q, k, v = (
            torch.randn(
                batch, heads, tokens, size, device=self.device, dtype=torch.bfloat16, requires_grad=backward
            )
            for _ in range(3)
        )  # fmt: skip
        attend = torch.nn.functional.scaled_dot_product_attention
        if not backward:
            return self._us(lambda: attend(q, k, v, is_causal=causal))
        out = attend(q, k, v, is_causal=causal)
        gradient = torch.randn_like(out)
        return self._us(
            lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
        )

    def moved_us(self, size_bytes: int) -> float:
        """Return the time of a copy inside the GPU."""
        source = self.torch.empty(
            size_bytes, dtype=self.torch.uint8, device=self.device
        )
        target = self.torch.empty_like(source)
        return self._us(lambda: target.copy_(source))

    def copy_GBps(self, direction: str) -> float:
        """Return the rate of copies of 256 MiB from or to pinned host memory."""
        size = 256 << 20
        host = self.torch.empty(size, dtype=self.torch.uint8, pin_memory=True)
        source = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
        pair = (source, host) if direction == "from" else (host, source)
        return (
            size
            / self._us(lambda: pair[0].copy_(pair[1], non_blocking=True), 4)
            / 1e3
        )
