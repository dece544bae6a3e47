"""Writer of the steps of a layer: forward steps have counterparts, in reverse, in the backward pass.

**Tensor parallelism**: between blocks activations are complete on every rank, or split along the
sequence; inside a block they are split by features (heads, inner size). `Recorder.column` leads from
complete to split, `Recorder.row` back. A matrix split by columns does the first, one split by rows the
second, without communication except the final sum; every other use gathers its input or scatters its
sums. The communication is the minimum that provides every layer with its inputs and gradients:

=================  ===========================  ===========================================
style              `column`: forward, backward  `row`: forward, backward
=================  ===========================  ===========================================
paired             -, AR(k)                     AR(n), -
paired, sequence   AG(k), AG(k) + RS(k)         RS(n), AG(n)
column             -, AR(k)                     AG(k) + AG(n), RS(k)
row                RS(n), AG(n) + AG(k)         AR(n), -
=================  ===========================  ===========================================

AR, AG, RS are all-reduce, all-gather and reduce-scatter of all inputs (k) or outputs (n) of the layer.
The second gather of sequence parallelism is for the weight gradient: inputs are kept split (arXiv
2205.05198). Consecutive layers without a complete tensor between them gather or scatter once in each
direction.

**Overlapped** (PyTorch's async tensor parallelism, user buffers of Transformer Engine): the gather
before a product circulates among the ranks in one part per rank, each during the product of another
part; the same holds for the sums after a product. The second gather overlaps the input gradient, the
scatter the weight gradient in any case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

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


def loss_gradients(logits: int, shard: Shard) -> int:
    """Return the gradients of logits, in addition to the kept 32-bit logits [bytes].

    Unfused, those of the 32-bit probabilities exist at the same time.
    """
    wide = 0 if shard.fused_loss else 4
    return logits * (shard.precision.bytes + wide)


class LayeredModel(ABC):
    """Model of layers."""

    __slots__ = ()

    @abstractmethod
    def build(self, shard: Shard) -> list[Layer]:
        """Return the layers of a rank."""

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(layer.parameters for layer in self.build(Shard()))


class Recorder:
    """Recorder of the steps of a layer.

    Every call appends to `forward` and puts its backward steps before the others.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.element_bytes = shard.precision.bytes
        self.input_bytes = input_bytes(shard.precision)
        self.forward: list[Step] = []
        self._back: list[list[Step]] = []
        self._keys = 0
        self._kept = 0
        self._modules: list[Module] = []
        self._joined: list[tuple[str, tuple[int, ...]]] = []

    def layer(
        self,
        name: str,
        kind: str,
        tensors: list[Tensor],
        output_bytes: int,
        activations: Activations,
    ) -> Layer:
        """Return the layer written so far; `activations` is for matrices that are split in pairs."""
        more, full = (
            self._kept,
            self._kept if activations.full == activations.none else 0,
        )
        activations = replace(
            activations, none=activations.none + more, full=activations.full + full
        )
        backward = [step for group in reversed(self._back) for step in group]
        return Layer(
            name,
            kind,
            tuple(tensors),
            tuple(self.forward),
            tuple(backward),
            output_bytes,
            activations,
            tuple(self._modules),
            tuple(self._joined),
        )

    def module(self, name: str, first: int, freed: int) -> None:
        """Record that the steps from `first` on can be recomputed, which frees `freed` bytes."""
        self._modules.append(Module(name, first, len(self.forward), freed))

    def join(self, name: str, columns: tuple[int, ...]) -> None:
        """Record that a product has several weight matrices, with the columns of each."""
        self._joined.append((name, columns))

    def pair(self, forward: list[Step], backward: list[Step]) -> None:
        """Add steps and their counterparts in the backward pass, with casts for their products."""
        self.forward += self._cast(forward)
        self._back.append(self._cast(backward))

    def _cast(self, steps: list[Step]) -> list[Step]:
        result: list[Step] = []
        for step in steps:
            result += (
                casts(step, self.shard.precision) if isinstance(step, Kernel) else ()
            )
            result.append(step)
        return result

    def memory(
        self,
        name: str,
        read: float,
        written_bytes: float,
        back: float,
        *,
        inside: Inside = "",
    ) -> None:
        """Add a kernel that moves elements, and one that moves `back` elements backwards."""
        one = memory_kernel(
            name, read, written_bytes, self.element_bytes, inside=inside
        )
        two = memory_kernel(
            f"{name} backward",
            back,
            0,
            self.element_bytes,
            inside="expert" if inside == "expert" else "",
        )
        self.pair([one], [two.as_part("input")])

    def norm(self, name: str, elements: int, *, forked: bool = False) -> None:
        """Add a norm of this number of elements.

        Backwards it reads input and gradient and writes a gradient; an eager framework's reads both again for
        the gradients of the weights. If its input also bypasses it (`forked`), the gradient of that branch is
        added: by a separate kernel, or while the norm's is written.
        """
        back = 5 if self.shard.eager else 3
        if forked and self.shard.sums:
            # Written first, so it is last in the backward pass.
            self.behind(f"{SUMMED} {name}", 3 * elements)
        elif forked:
            back += 1
        self.memory(name, elements, elements, back * elements)

    def behind(self, name: str, elements: float) -> None:
        """Add a kernel that moves elements to the backward pass only."""
        kernel = memory_kernel(name, elements, 0, self.element_bytes)
        self.pair([], [kernel.as_part("input")])

    def linear(
        self, name: str, product: Gemm, *, inside: Inside = "", elements: int = 0
    ) -> None:
        """Add a linear layer without communication."""
        forward, back, weight = linear(
            name, self.shard, product, inside=inside, elements=elements
        )
        self.pair([forward], [back, weight])

    def plain(self, name: str, m: int, n: int, k: int) -> None:
        """Add a linear layer that every rank of the tensor dimension computes in full."""
        self.linear(name, Gemm(1, m, n, k))

    def column(
        self, name: str, m: int, n: int, k: int, *, cut: bool = False
    ) -> None:
        """Add a linear layer with complete inputs and split outputs, `n` of them on each rank.

        With `cut` only parts of the inputs are present, as after another layer; `k` is their total.
        """
        shard = self.shard
        if shard.tensor == 1:
            self.plain(name, m, n, k)
        elif shard.style == "row":
            self._rows_of_whole(name, m, n, k, cut=cut)
        elif cut:
            self._columns_of_parts(name, m, n, k)
        else:
            self._columns_of_whole(name, m, n, k)

    def row(self, name: str, m: int, n: int, k: int) -> None:
        """Add a linear layer with split inputs, `k` of them on each rank, and complete outputs."""
        shard = self.shard
        if shard.tensor > 1 and shard.style == "column":
            # Every rank computes a part of the outputs; the next layer needs all.
            local_n = shard.cut(n, shard.tensor, "tensor parallelism: output size")
            self._columns_of_parts(name, m, local_n, k * shard.tensor)
            self.pair(
                [Comm("tensor", "all_gather", m * n * self.element_bytes, name)], []
            )
            return
        if shard.overlap:
            self._rows_in_pieces(name, m, n, k)
            return
        self.plain(name, m, n, k)
        self.leave(
            m * n,
            name,
            gradient_bytes=gathered_bytes(shard.precision, gradients=True),
        )

    def _rows_in_pieces(self, name: str, m: int, n: int, k: int) -> None:
        """Compute a part of the tokens during the sums of the previous part.

        A rank adds the arriving sum to its result and forwards it. Backwards, products overlap the arriving
        gradients.
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
                size = piece * self.element_bytes
                steps.append(
                    Comm("tensor", "sendrecv", size, name, key, copies=True)
                )
        size = round(piece * gathered_bytes(self.shard.precision, gradients=True))
        self.pair(steps, [*self._while_parts_come(name, back, size), weight])

    def _while_parts_come(self, name: str, kernel: Kernel, size: int) -> list[Step]:
        """Return a kernel per part of the tokens; during each the next part arrives [bytes]."""
        result: list[Step] = []
        for _ in range(self.shard.tensor - 1):
            key = self._key(name)
            result += [
                Comm(
                    "tensor", "sendrecv", size, name, key, kernel.part, copies=True
                ),
                kernel,
                Wait(key, kernel.part),
            ]
        return [*result, kernel]

    def _columns_of_whole(self, name: str, m: int, n: int, k: int) -> None:
        """Add a layer with some columns on each rank, whose input gradient is a partial sum.

        With sequence parallelism inputs are kept split along the sequence, and gathered again for the weight
        gradient.
        """
        forward, back, weight = linear(name, self.shard, Gemm(1, m, n, k))
        size, key = m * k * self.element_bytes, self._key(name)
        before: list[Step] = []
        again: list[Step] = []
        gradient_steps: list[Step] = []
        operation = "allreduce"
        if self.shard.sequence_parallel:
            second = self._key(name)
            come = round(m * k * gathered_bytes(self.shard.precision))
            before, operation = (
                [Comm("tensor", "all_gather", come, name)],
                "reduce_scatter",
            )
            again = [
                Comm(
                    "tensor",
                    "all_gather",
                    come,
                    f"{name} again",
                    key=second,
                    part="input",
                )
            ]
            gradient_steps = [Wait(second, part="input")]
        reduce = Comm(
            "tensor", operation, size, f"{name} input", key=key, part="input"
        )
        one: list[Step] = [*before, forward]
        if self.shard.overlap:
            parts = self.shard.tensor
            piece = linear(name, self.shard, Gemm(1, m // parts, n, k))[0]
            size_come = round(m // parts * k * gathered_bytes(self.shard.precision))
            one = self._while_parts_come(name, piece, size_come)
        self.pair(
            one,
            [*again, back, *gradient_steps, reduce, weight, Wait(key, part="input")],
        )

    def _columns_of_parts(self, name: str, m: int, n: int, k: int) -> None:
        """Add a layer that gathers and keeps its inputs, and computes `n` columns.

        Of the input gradient every rank needs its part.
        """
        forward, back, weight = linear(name, self.shard, Gemm(1, m, n, k))
        size, key = m * k * self.element_bytes, self._key(name)
        self._kept += round((m * k - m * k // self.shard.tensor) * self.input_bytes)
        gather = Comm("tensor", "all_gather", size, f"{name} input")
        part = Comm(
            "tensor", "reduce_scatter", size, f"{name} input", key=key, part="input"
        )
        self.pair([gather, forward], [back, part, weight, Wait(key, part="input")])

    def _rows_of_whole(
        self, name: str, m: int, n: int, k: int, *, cut: bool
    ) -> None:
        """Add a layer with the rows of a rank's inputs: outputs are partial sums, `n` are kept."""
        tensor = self.shard.tensor
        local_k = self.shard.cut(k, tensor, "tensor parallelism: input size")
        forward, back, weight = linear(
            name, self.shard, Gemm(1, m, n * tensor, local_k)
        )
        size = m * n * tensor * self.element_bytes
        self._kept -= round(m * (k - local_k) * self.input_bytes)
        scatter = Comm("tensor", "reduce_scatter", size, name)
        gather = Comm("tensor", "all_gather", size, f"{name} gradient", part="input")
        if cut:
            self.pair([forward, scatter], [gather, back, weight])
            return
        key = self._key(name)
        reduction = Comm(
            "tensor",
            "all_gather",
            m * k * self.element_bytes,
            f"{name} input",
            key=key,
            part="input",
        )
        self.pair(
            [forward, scatter],
            [gather, back, reduction, weight, Wait(key, part="input")],
        )

    def leave(
        self, elements: int, name: str = "", gradient_bytes: float = 0.0
    ) -> None:
        """Sum `elements` over the tensor ranks; with sequence parallelism each keeps its part.

        Gradients that are then gathered have `gradient_bytes` each, or the size of the elements.
        """
        come = round(elements * (gradient_bytes or self.element_bytes))
        self._sum(name, elements * self.element_bytes, f"{name} gradient", come)

    def _sum(
        self, name: str, size_bytes: int, back_name: str, back_bytes: int
    ) -> None:
        """Sum over the tensor ranks; with sequence parallelism scatter, and gather gradients backwards."""
        if self.shard.tensor == 1:
            return
        if not self.shard.sequence_parallel:
            self.pair([Comm("tensor", "allreduce", size_bytes, name)], [])
            return
        back = Comm("tensor", "all_gather", back_bytes, back_name, part="input")
        self.pair([Comm("tensor", "reduce_scatter", size_bytes, name)], [back])

    def gather(self, size_bytes: int) -> None:
        """Gather the tokens of the tensor dimension before experts."""
        back = Comm(
            "tensor", "reduce_scatter", size_bytes, "expert gradient", part="input"
        )
        self.pair(
            [Comm("tensor", "all_gather", size_bytes, "expert tokens")], [back]
        )

    def after_experts(self, size_bytes: int) -> None:
        """Sum the outputs of partial experts."""
        self._sum("expert sum", size_bytes, "expert gradient", size_bytes)

    def exchange(self, name: str, size_bytes: int) -> None:
        """Exchange tokens among the ranks of the expert dimension, and gradients back."""
        if self.shard.expert == 1:
            return
        back = Comm(
            "expert", "alltoall", size_bytes, f"{name} gradient", part="input"
        )
        self.pair([Comm("expert", "alltoall", size_bytes, name)], [back])

    def gather_keys(self, size_bytes: int) -> None:
        """Gather keys and values over the context dimension, and scatter their gradients."""
        scatter = Comm(
            "context", "reduce_scatter", size_bytes, "keys gradient", part="input"
        )
        self.pair([Comm("context", "all_gather", size_bytes, "keys")], [scatter])

    def gather_keys_again(self, size_bytes: int) -> None:
        """Gather keys and values again before the backward pass of the last steps."""
        self.pair(
            [],
            [Comm("context", "all_gather", size_bytes, "keys again", part="input")],
        )

    def swap(self, name: str, size_bytes: int) -> None:
        """Exchange `name` among the ranks of the context dimension, and gradients back."""
        back = Comm(
            "context", "alltoall", size_bytes, f"{name} gradient", part="input"
        )
        self.pair([Comm("context", "alltoall", size_bytes, name)], [back])

    def start(
        self,
        dim: Dim,
        operation: str,
        forward_bytes: int,
        backward_bytes: int,
        name: str,
    ) -> None:
        """Start a communication that overlaps the following steps; `finish` ends it."""
        key = self._key(name)
        self._open = key
        self.pair(
            [Comm(dim, operation, forward_bytes, name, key=key)],
            [Wait(f"{key}/back", part="input")],
        )
        self._backward_start = Comm(
            dim,
            operation,
            backward_bytes,
            f"{name} gradient",
            key=f"{key}/back",
            part="input",
        )

    def finish(self, _name: str) -> None:
        """Wait for the last started communication."""
        self.pair([Wait(self._open)], [self._backward_start])

    def _key(self, name: str) -> str:
        self._keys += 1
        return f"{name}#{self._keys}"
