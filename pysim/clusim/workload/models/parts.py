"""Writes the steps of a layer: what is done forwards comes back, reversed, in the backward pass.

**Tensor parallelism**: between blocks activations are whole on every rank, or cut along the sequence; inside a block
they are cut by features (heads, inner size). `Recorder.column` leads from whole to cut, `Recorder.row` back. A matrix
cut by columns does the first, one cut by rows the second, without communication but the sum it ends with; every other
use gathers its input or scatters its sums. What is communicated is the least that hands every layer the inputs and
gradients it needs:

=================  ===========================  ===========================================
style              `column`: forward, backward  `row`: forward, backward
=================  ===========================  ===========================================
paired             -, AR(k)                     AR(n), -
paired, sequence   AG(k), AG(k) + RS(k)         RS(n), AG(n)
column             -, AR(k)                     AG(k) + AG(n), RS(k)
row                RS(n), AG(n) + AG(k)         AR(n), -
=================  ===========================  ===========================================

AR, AG, RS are all-reduce, all-gather and reduce-scatter of all inputs (k) or outputs (n) of the layer. The second
gather of sequence parallelism is for the weight gradient: inputs are kept cut (arXiv 2205.05198). Layers that follow
each other without anything whole between them gather or scatter once each way.

**Overlapped** (PyTorch's async tensor parallelism, user buffers of Transformer Engine): what is gathered before a
product goes round the ranks in as many parts as there are, each under the product of another part, and so do the sums
behind one. The second gather runs under the input gradient, the scatter under the weight gradient anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from clusim.hardware.kernels.fused import Fused
from clusim.workload.kernels import Gemm, Kernel
from clusim.workload.layers import (
    SUMMED,
    Activations,
    Comm,
    Dim,
    Inside,
    Layer,
    Module,
    Shard,
    Step,
    Tensor,
    Wait,
    linear,
    memory_kernel,
)
from clusim.workload.recipes import casts, gathered_bytes, input_bytes


class Attention(NamedTuple):
    """Attention of `rows` queries to `columns` keys per sample and head; sizes of queries (and keys) and values."""

    heads: int
    kv_heads: int
    rows: int
    columns: int
    query: int
    value: int


class Recorder:
    """Collects the steps of a layer; every call adds to `forward` and puts its backward steps before the others."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.element_bytes = shard.precision.bytes
        self.input_bytes = input_bytes(shard.precision)
        self.forward: list[Step] = []
        self._back: list[list[Step]] = []
        self._keys = 0
        self._kept = 0
        self._modules: list[Module] = []

    def layer(
        self, name: str, kind: str, tensors: list[Tensor], output_bytes: int, kept: Activations
    ) -> Layer:
        """Return the layer written so far; `kept` is for matrices that are cut in pairs."""
        more, full = self._kept, self._kept if kept.full == kept.none else 0
        kept = Activations(kept.none + more, kept.selective + more, kept.full + full)
        backward = [step for group in reversed(self._back) for step in group]
        return Layer(
            name,
            kind,
            tuple(tensors),
            tuple(self.forward),
            tuple(backward),
            output_bytes,
            kept,
            tuple(self._modules),
        )

    def module(self, name: str, first: int, freed: int) -> None:
        """Say that the steps since the `first`-th can be computed again, which frees so many bytes."""
        self._modules.append(Module(name, first, len(self.forward), freed))

    def pair(self, forward: list[Step], backward: list[Step]) -> None:
        """Add steps and what they mean in the backward pass, with the casts that their products need."""
        self.forward += self._cast(forward)
        self._back.append(self._cast(backward))

    def _cast(self, steps: list[Step]) -> list[Step]:
        found: list[Step] = []
        for step in steps:
            found += casts(step, self.shard.precision) if isinstance(step, Kernel) else ()
            found.append(step)
        return found

    def memory(
        self,
        name: str,
        read: float,
        written: float,
        back: float,
        *,
        inside: Inside = "",
    ) -> None:
        """Add a kernel that moves elements, and one that moves `back` elements in the backward pass."""
        one = memory_kernel(name, read, written, self.element_bytes, inside=inside)
        two = memory_kernel(
            f"{name} backward",
            back,
            0,
            self.element_bytes,
            inside="expert" if inside == "expert" else "",
        )
        self.pair([one], [two.as_part("input")])

    def norm(self, name: str, elements: int, *, forked: bool = False) -> None:
        """Add a norm of so many elements.

        Backwards it reads input and gradient and writes a gradient; an eager framework's reads both again for the
        gradients of the weights. If its input also goes past it (`forked`), the gradient of that way is added: by a
        kernel of its own, or while the norm's is written.
        """
        back = 5 if self.shard.eager else 3
        if forked and self.shard.sums:
            # Written first, it comes last in the backward pass.
            self.behind(f"{SUMMED} {name}", 3 * elements)
        elif forked:
            back += 1
        self.memory(name, elements, elements, back * elements)

    def behind(self, name: str, elements: float) -> None:
        """Add a kernel that moves elements to the backward pass alone."""
        kernel = memory_kernel(name, elements, 0, self.element_bytes)
        self.pair([], [kernel.as_part("input")])

    def linear(self, name: str, product: Gemm, *, inside: Inside = "", elements: int = 0) -> None:
        """Add a linear layer that communicates nothing."""
        forward, back, weight = linear(name, self.shard, product, inside=inside, elements=elements)
        self.pair([forward], [back, weight])

    def plain(self, name: str, m: int, n: int, k: int) -> None:
        """Add a linear layer that every rank of the tensor dimension does alike."""
        self.linear(name, Gemm(1, m, n, k))

    def column(self, name: str, m: int, n: int, k: int, *, cut: bool = False) -> None:
        """Add a linear layer of whole inputs whose outputs are cut, `n` of them on each rank.

        With `cut` only parts of the inputs are there, as behind another layer; `k` is the whole of them.
        """
        shard = self.shard
        if shard.tensor == 1:
            forward, back, weight = linear(name, shard, Gemm(1, m, n, k))
            self.pair([forward], [back, weight])
        elif shard.style == "row":
            self._rows_of_whole(name, m, n, k, cut=cut)
        elif cut:
            self._columns_of_parts(name, m, n, k)
        else:
            self._columns_of_whole(name, m, n, k)

    def row(self, name: str, m: int, n: int, k: int) -> None:
        """Add a linear layer of cut inputs, `k` of them on each rank, whose outputs are whole."""
        shard = self.shard
        if shard.tensor > 1 and shard.style == "column":
            # Every rank computes a part of the outputs, which the next layer needs whole.
            own = shard.cut(n, shard.tensor, "tensor parallelism: output size")
            self._columns_of_parts(name, m, own, k * shard.tensor)
            self.pair([Comm("tensor", "all_gather", m * n * self.element_bytes, name)], [])
            return
        if shard.overlap:
            self._rows_in_pieces(name, m, n, k)
            return
        forward, back, weight = linear(name, shard, Gemm(1, m, n, k))
        self.pair([forward], [back, weight])
        self.leave(m * n, name, gradient_bytes=gathered_bytes(shard.precision, gradients=True))

    def _rows_in_pieces(self, name: str, m: int, n: int, k: int) -> None:
        """Compute a part of the tokens while the sums of the one before go on; backwards while gradients come.

        A rank adds what arrives to what it has made, and sends the sum on.
        """
        parts = self.shard.tensor
        forward, back, _ = linear(name, self.shard, Gemm(1, m // parts, n, k))
        weight = linear(name, self.shard, Gemm(1, m, n, k))[2]
        piece = m // parts * n
        add = memory_kernel(f"{name} add", 2 * piece, piece, self.element_bytes)
        steps: list[Step] = []
        key = ""
        for index in range(parts):
            steps.append(forward)
            if key:
                steps += [Wait(key), add]
            if index < parts - 1:
                key = self._key(name)
                steps.append(Comm("tensor", "sendrecv", piece * self.element_bytes, name, key))
        size = round(piece * gathered_bytes(self.shard.precision, gradients=True))
        self.pair(steps, [*self._while_parts_come(name, back, size), weight])

    def _while_parts_come(self, name: str, kernel: Kernel, size: int) -> list[Step]:
        """Return a kernel for each part of the tokens, under which the next one comes from the neighbour [bytes]."""
        found: list[Step] = []
        for _ in range(self.shard.tensor - 1):
            key = self._key(name)
            found += [
                Comm("tensor", "sendrecv", size, name, key, kernel.part),
                kernel,
                Wait(key, kernel.part),
            ]
        return [*found, kernel]

    def _columns_of_whole(self, name: str, m: int, n: int, k: int) -> None:
        """Each rank has some columns: its input gradient is a part of the sum.

        With sequence parallelism inputs are kept cut along the sequence, and gathered again for the weight gradient.
        """
        forward, back, weight = linear(name, self.shard, Gemm(1, m, n, k))
        size, key = m * k * self.element_bytes, self._key(name)
        before: list[Step] = []
        again: list[Step] = []
        there: list[Step] = []
        operation = "allreduce"
        if self.shard.sequence_parallel:
            second = self._key(name)
            come = round(m * k * gathered_bytes(self.shard.precision))
            before, operation = [Comm("tensor", "all_gather", come, name)], "reduce_scatter"
            again = [Comm("tensor", "all_gather", come, f"{name} again", key=second, part="input")]
            there = [Wait(second, part="input")]
        reduce = Comm("tensor", operation, size, f"{name} input", key=key, part="input")
        one: list[Step] = [*before, forward]
        if self.shard.overlap:
            parts = self.shard.tensor
            piece = linear(name, self.shard, Gemm(1, m // parts, n, k))[0]
            size_come = round(m // parts * k * gathered_bytes(self.shard.precision))
            one = self._while_parts_come(name, piece, size_come)
        self.pair(
            one,
            [*again, back, *there, reduce, weight, Wait(key, part="input")],
        )

    def _columns_of_parts(self, name: str, m: int, n: int, k: int) -> None:
        """Gather the inputs, keep them, and compute `n` columns; of the input gradient every rank needs its part."""
        forward, back, weight = linear(name, self.shard, Gemm(1, m, n, k))
        size, key = m * k * self.element_bytes, self._key(name)
        self._kept += round((m * k - m * k // self.shard.tensor) * self.input_bytes)
        whole = Comm("tensor", "all_gather", size, f"{name} input")
        part = Comm("tensor", "reduce_scatter", size, f"{name} input", key=key, part="input")
        self.pair([whole, forward], [back, part, weight, Wait(key, part="input")])

    def _rows_of_whole(self, name: str, m: int, n: int, k: int, *, cut: bool) -> None:
        """Each rank has the rows of its part of the inputs: its outputs are parts of sums, of which it keeps `n`."""
        tensor = self.shard.tensor
        own = self.shard.cut(k, tensor, "tensor parallelism: input size")
        forward, back, weight = linear(name, self.shard, Gemm(1, m, n * tensor, own))
        size = m * n * tensor * self.element_bytes
        self._kept -= round(m * (k - own) * self.input_bytes)
        scatter = Comm("tensor", "reduce_scatter", size, name)
        gather = Comm("tensor", "all_gather", size, f"{name} gradient", part="input")
        if cut:
            self.pair([forward, scatter], [gather, back, weight])
            return
        key = self._key(name)
        whole = Comm(
            *("tensor", "all_gather", m * k * self.element_bytes, f"{name} input"),
            key=key,
            part="input",
        )
        self.pair([forward, scatter], [gather, back, whole, weight, Wait(key, part="input")])

    def leave(self, elements: int, name: str = "", gradient_bytes: float = 0.0) -> None:
        """Sum `elements` over the tensor dimension; with sequence parallelism every rank keeps its part.

        Gradients that are gathered then are of `gradient_bytes` each, or as the elements.
        """
        shard = self.shard
        if shard.tensor == 1:
            return
        size = elements * self.element_bytes
        if not shard.sequence_parallel:
            self.pair([Comm("tensor", "allreduce", size, name)], [])
            return
        come = round(elements * (gradient_bytes or self.element_bytes))
        back = Comm("tensor", "all_gather", come, f"{name} gradient", part="input")
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

    def gather_keys(self, size_bytes: int) -> None:
        """Gather keys and values over the context dimension, and scatter their gradients."""
        scatter = Comm("context", "reduce_scatter", size_bytes, "keys gradient", part="input")
        self.pair([Comm("context", "all_gather", size_bytes, "keys")], [scatter])

    def gather_keys_again(self, size_bytes: int) -> None:
        """Gather them again before the backward pass of what was written last."""
        self.pair([], [Comm("context", "all_gather", size_bytes, "keys again", part="input")])

    def swap(self, name: str, size_bytes: int) -> None:
        """Exchange what ranks of the context dimension have of `name`, and gradients back."""
        core = not self.shard.flash
        back = Comm("context", "alltoall", size_bytes, f"{name} gradient", part="input")
        self.pair([Comm("context", "alltoall", size_bytes, name, core=core)], [back])

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

    def flash(self, attention: Attention, *, causal: bool) -> None:
        """Add fused attention.

        Rows that are a part of the sequence are balanced under a causal mask: of 2n chunks rank i has chunks i and
        2n - 1 - i, which meet equally many keys on every rank. Masks of kernels are aligned at the last key; with
        (columns + rows) / 2 keys they leave the same work.
        """
        batch = self.shard.batch
        heads, kv, rows, columns, query, value = attention
        full = 2 * batch * heads * rows * columns * (query + value)
        done = full // 2 if causal else full
        moved = batch * (heads * rows + kv * columns) * (query + value) * self.element_bytes
        met = (columns + rows) // 2 if causal else columns
        shape = Fused(batch, heads, kv, rows, met, query, value, causal)
        one = Kernel("attention", done, moved, fused=shape, useful=full)
        two = Kernel(
            "attention backward",
            done * 5 // 2,
            2 * moved,
            fused=replace(shape, backward=True),
            part="input",
            useful=2 * full,
        )
        self.pair([one], [two])

    def plain_attention(self, attention: Attention, *, dropout: bool) -> None:
        """Add attention as separate kernels: scores, softmax, dropout, values."""
        heads, _, rows, columns, query, value = attention
        batch = self.shard.batch * heads
        scores = batch * rows * columns
        one = linear("scores", self.shard, Gemm(batch, rows, columns, query), inside="core")
        self.pair([one[0]], [kernel.as_part("input") for kernel in one[1:]])
        self.memory("softmax", scores, scores, 3 * scores, inside="core")
        if dropout:
            mask = scores / self.element_bytes
            self.memory("dropout", scores, scores + mask, 2 * scores + mask, inside="core")
        two = linear("values", self.shard, Gemm(batch, rows, value, columns), inside="core")
        self.pair([two[0]], [kernel.as_part("input") for kernel in two[1:]])

    def _key(self, name: str) -> str:
        self._keys += 1
        return f"{name}#{self._keys}"
