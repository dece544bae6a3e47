"""Writes the steps of a layer: what is done forwards comes back, reversed, in the backward pass."""

from __future__ import annotations

from clusim.workload.kernels import Kernel
from clusim.workload.layers import (
    Activations,
    Comm,
    Dim,
    Layer,
    Shard,
    Step,
    Tensor,
    Wait,
    linear,
    memory_kernel,
)

__all__ = ["Recorder"]


class Recorder:
    """Collects the steps of a layer; every call adds to `forward` and puts its backward steps before the others."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.element_bytes = shard.precision.bytes
        self.forward: list[Step] = []
        self._back: list[list[Step]] = []
        self._keys = 0

    def layer(
        self, name: str, kind: str, tensors: list[Tensor], output_bytes: int, kept: Activations
    ) -> Layer:
        """Return the layer written so far."""
        backward = [step for group in reversed(self._back) for step in group]
        return Layer(
            name, kind, tuple(tensors), tuple(self.forward), tuple(backward), output_bytes, kept
        )

    def pair(self, forward: list[Step], backward: list[Step]) -> None:
        """Add steps and what they mean in the backward pass."""
        self.forward += forward
        self._back.append(backward)

    def memory(
        self,
        name: str,
        read: float,
        written: float,
        back: float,
        *,
        expert: bool = False,
        core: bool = False,
    ) -> None:
        """Add a kernel that moves elements, and one that moves `back` elements in the backward pass."""
        one = memory_kernel(name, read, written, self.element_bytes, expert=expert, core=core)
        two = memory_kernel(f"{name} backward", back, 0, self.element_bytes, expert=expert)
        self.pair([one], [two.as_part("input")])

    def linear(
        self,
        name: str,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        expert: bool = False,
        elements: int = 0,
    ) -> None:
        """Add a linear layer that communicates nothing."""
        forward, back, weight = linear(
            name, self.shard, m, n, k, batch=batch, expert=expert, elements=elements
        )
        self.pair([forward], [back, weight])

    def plain(self, name: str, m: int, n: int, k: int) -> None:
        """Add a linear layer that every rank of the tensor dimension does alike."""
        self.linear(name, m, n, k)

    def column(self, name: str, m: int, n: int, k: int) -> None:
        """Add a linear layer cut by columns: whole inputs, parts of outputs."""
        shard = self.shard
        forward, back, weight = linear(name, shard, m, n, k)
        if shard.tensor == 1:
            self.pair([forward], [back, weight])
            return
        if shard.style == "row":
            whole = Comm("tensor", "allreduce", m * n * shard.tensor * self.element_bytes, name)
            into = Comm(
                "tensor", "all_gather", m * k * self.element_bytes, f"{name} input", part="input"
            )
            self.pair([forward, whole], [back, into, weight])
            return
        key = self._key(name)
        into_bytes = m * k * self.element_bytes
        before: list[Step] = []
        operation = "allreduce"
        if shard.sequence_parallel:
            before, operation = [Comm("tensor", "all_gather", into_bytes, name)], "reduce_scatter"
        reduce = Comm("tensor", operation, into_bytes, f"{name} input", key=key, part="input")
        after: list[Step] = []
        if shard.style == "column":
            after = [Comm("tensor", "all_gather", m * n * shard.tensor * self.element_bytes, name)]
        self.pair([*before, forward, *after], [back, reduce, weight, Wait(key, part="input")])

    def row(self, name: str, m: int, n: int, k: int) -> None:
        """Add a linear layer cut by rows: parts of inputs, sums of outputs."""
        shard = self.shard
        if shard.tensor > 1 and shard.style == "column":
            # The whole input is there; each rank computes a part of the outputs.
            self.column(name, m, n // shard.tensor, k * shard.tensor)
            return
        forward, back, weight = linear(name, shard, m, n, k)
        self.pair([forward], [back, weight])
        self.leave(m * n, name)
        if shard.tensor > 1 and shard.style == "row":
            size = m * k * shard.tensor * self.element_bytes
            self._back[-2].insert(
                1, Comm("tensor", "all_gather", size, f"{name} input", part="input")
            )

    def leave(self, elements: int, name: str = "") -> None:
        """Sum `elements` over the tensor dimension; with sequence parallelism every rank keeps its part."""
        shard = self.shard
        if shard.tensor == 1:
            return
        size = elements * self.element_bytes
        if not shard.sequence_parallel:
            self.pair([Comm("tensor", "allreduce", size, name)], [])
            return
        back = Comm("tensor", "all_gather", size, f"{name} gradient", part="input")
        self.pair([Comm("tensor", "reduce_scatter", size, name)], [back])

    def gather(self, size_bytes: int) -> None:
        """Gather the tokens of the tensor dimension before experts."""
        back = Comm("tensor", "reduce_scatter", size_bytes, "expert gradient", part="input")
        self.pair([Comm("tensor", "all_gather", size_bytes, "expert tokens")], [back])

    def after_experts(self, size_bytes: int) -> None:
        """Sum what parts of experts computed."""
        if self.shard.tensor == 1:
            return
        if not self.shard.sequence_parallel:
            both = Comm("tensor", "allreduce", size_bytes, "expert sum")
            self.pair([both], [])
            return
        back = Comm("tensor", "all_gather", size_bytes, "expert gradient", part="input")
        self.pair([Comm("tensor", "reduce_scatter", size_bytes, "expert sum")], [back])

    def exchange(self, name: str, size_bytes: int) -> None:
        """Exchange tokens among the ranks of the expert dimension, and gradients back."""
        if self.shard.expert == 1:
            return
        back = Comm("expert", "alltoall", size_bytes, f"{name} gradient", part="input")
        self.pair([Comm("expert", "alltoall", size_bytes, name)], [back])

    def start(
        self, dim: Dim, operation: str, forward_bytes: int, backward_bytes: int, name: str
    ) -> None:
        """Start a communication that runs under what follows; `finish` ends it."""
        key = self._key(name)
        self._open = key
        self.pair(
            [Comm(dim, operation, forward_bytes, name, key=key, core=True)],
            [Wait(f"{key}/back", part="input")],
        )
        self._backward_start = Comm(
            dim, operation, backward_bytes, f"{name} gradient", key=f"{key}/back", part="input"
        )

    def finish(self, _name: str) -> None:
        """Wait for the communication started last."""
        self.pair([Wait(self._open, core=True)], [self._backward_start])

    def flash(
        self, heads: int, kv: int, rows: int, columns: int, query: int, value: int, *, causal: bool
    ) -> None:
        """Add fused attention of `rows` queries and `columns` keys per sample and head."""
        batch = self.shard.batch
        full = 2 * batch * heads * rows * columns * (query + value)
        done = full // 2 if causal else full
        moved = batch * (heads * rows + kv * columns) * (query + value) * self.element_bytes
        one = Kernel("attention", done, moved, fused=True, useful=full)
        two = Kernel(
            "attention backward",
            done * 5 // 2,
            2 * moved,
            fused=True,
            part="input",
            useful=2 * full,
        )
        self.pair([one], [two])

    def plain_attention(
        self, heads: int, rows: int, columns: int, query: int, value: int, *, dropout: bool
    ) -> None:
        """Add attention as separate kernels: scores, softmax, dropout, values."""
        batch = self.shard.batch * heads
        scores = batch * rows * columns
        one = linear("scores", self.shard, rows, columns, query, batch=batch, core=True)
        self.pair([one[0]], [kernel.as_part("input") for kernel in one[1:]])
        self.memory("softmax", scores, scores, 3 * scores, core=True)
        if dropout:
            mask = scores / self.element_bytes
            self.memory("dropout", scores, scores + mask, 2 * scores + mask, core=True)
        two = linear("values", self.shard, rows, value, columns, batch=batch, core=True)
        self.pair([two[0]], [kernel.as_part("input") for kernel in two[1:]])

    def _key(self, name: str) -> str:
        self._keys += 1
        return f"{name}#{self._keys}"
