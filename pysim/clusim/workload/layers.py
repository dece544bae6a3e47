"""Layers: computation, communication and stored activations of a rank for one microbatch.

A `Layer` is already partitioned for its rank: a `Shard` holds the numbers of parts of tensors, sequences
and experts. If all are 1 it is the complete layer. Steps are in the order in which a framework issues
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from clusim.base.errors import InputError
from clusim.workload.deepep import DeepEp
from clusim.workload.kernels import PRECISIONS, Gemm, Kernel, Part, Precision

SUMMED, JOINED = "summed", "joined"
"""Prefixes of kernels that are launched inside another operator: their host cost is negligible."""

Dim = Literal["tensor", "context", "expert", "norm"]


@dataclass(frozen=True, slots=True)
class Comm:
    """Collective over a dimension of the mesh.

    Attributes
    ----------
    bytes : int
        Size as in `clusim.schedule.CollectiveCall` [bytes].
    key : str
        Not empty: later steps do not wait for it until a `Wait` with this key.
    channels : int
        CTAs of the collective, overriding the library's choice; 0 uses that choice.
    least_ps : int
        Least time, on infinitely fast wires [ps].
    flags : bool
        With `channels`: every line of data has its flag (LL128), instead of a flag after the data (Simple).
    across : int
        Not 0: it runs in two simultaneous legs, with `across` bytes between the ranks at the same place of
        several nodes and `bytes` among the ranks of a node.
    copies : bool
        Within a node, copy engines move it (user buffers of Transformer Engine, symmetric memory of PyTorch).
    """

    dim: Dim
    operation: str
    bytes: int
    name: str = ""
    key: str = ""
    part: Part = "forward"
    channels: int = 0
    least_ps: int = 0
    across: int = 0
    flags: bool = False
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait of later steps for the communication with this key."""

    key: str
    part: Part = "forward"


@dataclass(frozen=True, slots=True)
class Beside:
    """Two rows of steps, each computing while the other communicates."""

    one: tuple[Step, ...]
    two: tuple[Step, ...]


Step = Kernel | Comm | Wait | Beside


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter tensor of a rank.

    Attributes
    ----------
    expert : bool
        It is not replicated over the expert dimension.
    touched : int
        Elements that a step of the optimiser touches, for sparse gradients; -1 is all.
    factor : bool
        Its products are of 8 bits where the precision has a recipe for them.
    """

    name: str
    elements: int
    expert: bool = False
    touched: int = -1
    factor: bool = False

    @property
    def optimizer_elements(self) -> int:
        """Elements that a step of the optimiser touches."""
        return (
            self.elements if self.touched < 0 else min(self.touched, self.elements)
        )


@dataclass(frozen=True, slots=True)
class Activations:
    """Activations that the backward pass of a layer needs, per microbatch [bytes].

    Attributes
    ----------
    none, full : int
        Without recomputation, and the layer's input only.
    gradients : int
        Gradients and intermediate results in its backward pass, if more than those of its output and input.
    """

    none: int = 0
    full: int = 0
    gradients: int = 0


@dataclass(frozen=True, slots=True)
class Module:
    """Part of a layer that can be recomputed: forward steps `first` to `last` - 1.

    Attributes
    ----------
    freed : int
        Activations that recomputation frees [bytes].
    """

    name: str
    first: int
    last: int
    freed: int


@dataclass(frozen=True, slots=True)
class Again:
    """Recomputation of a layer before its backward pass.

    Attributes
    ----------
    steps : tuple of Step
        Forward steps that are repeated.
    kept, transient : int
        Bytes kept from the forward to the backward pass, and bytes that are temporarily restored.
    """

    steps: tuple[Step, ...] = ()
    kept: int = 0
    transient: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a rank.

    Attributes
    ----------
    tensors : tuple of Tensor
        Parameters in the order in which a framework registers them.
    forward, backward : tuple of Step
        Steps for a microbatch; kernels of `backward` are marked as for inputs or weights.
    output_bytes : int
        Output to the next layer [bytes].
    activations : Activations
        Activations kept until its backward pass.
    modules : tuple of Module
        Parts that can be recomputed.
    joined : tuple of (str, tuple of int)
        Products of several weight matrices, which eager frameworks compute one by one, with the columns of each.
    again : Again or None
        Recomputation; None keeps all activations.
    """

    name: str
    kind: str
    tensors: tuple[Tensor, ...] = ()
    forward: tuple[Step, ...] = ()
    backward: tuple[Step, ...] = ()
    output_bytes: int = 0
    activations: Activations = field(default_factory=Activations)
    modules: tuple[Module, ...] = ()
    joined: tuple[tuple[str, tuple[int, ...]], ...] = ()
    again: Again | None = None

    @property
    def kept_bytes(self) -> int:
        """Activations kept from the forward to the backward pass [bytes]."""
        return self.activations.none if self.again is None else self.again.kept

    @property
    def transient_bytes(self) -> int:
        """Activations temporarily restored by recomputation [bytes]."""
        return 0 if self.again is None else self.again.transient

    @property
    def gradient_bytes(self) -> int:
        """Gradients of activations in its backward pass: those of its output and input, if not more [bytes]."""
        return max(self.activations.gradients, 2 * self.output_bytes)

    @property
    def parameters(self) -> int:
        """Parameters of this rank."""
        return sum(tensor.elements for tensor in self.tensors)

    def flops(self, part: Part) -> int:
        """Return the operations counted in MFU in a part."""
        return sum(k.counted_flops for k in self.kernels(part))

    def kernels(self, part: Part) -> list[Kernel]:
        """Return the kernels of a part."""
        steps = self.forward if part == "forward" else self.backward
        return [
            step for step in steps if isinstance(step, Kernel) and step.part == part
        ]


@dataclass(frozen=True, slots=True)
class Shard:
    """Partition of microbatch and model, and number formats.

    Attributes
    ----------
    batch, sequence : int
        Samples of the complete microbatch and tokens of a complete sample.
    tensor, context, expert : int
        Parts of matrices, sequences and the set of experts.
    sequence_parallel : bool
        Activations that tensor parallelism does not split are split along the sequence.
    style : str
        ``paired``: column-parallel then row-parallel, one synchronisation for both. ``column``, ``row``:
        every linear layer synchronises.
    flash : bool
        Fused attention, which does not store scores.
    capacity : float
        Most tokens of an expert, relative to an even spread; 0 is no limit.
    around : str
        Exchange of attention keys between parts of the sequence: ``ring``, ``all-gather``, ``ulysses``.
    norm : int
        Ranks that share the samples of a batch normalisation.
    deepep : DeepEp or None
        Mode of expert exchanges; None is a plain all-to-all.
    overlap : bool
        Products of tensor parallelism are split into pieces, each overlapped with the message of another
        one.
    fused_loss : bool
        Cross-entropy in two kernels, instead of one per operation on 32-bit logits.
    sums : bool
        Joining gradients (of a residual and of the norm parallel to it) are added by a separate kernel.
    eager : bool
        Kernels of an eager framework: gradients of queries, keys and values are copied into those of their
        product, and norms have a second kernel for the gradients of their weights.
    """

    batch: int = 1
    sequence: int = 1
    precision: Precision = PRECISIONS["bf16"]
    tensor: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    style: Literal["paired", "column", "row"] = "paired"
    flash: bool = True
    capacity: float = 0.0
    around: Literal["ring", "all-gather", "ulysses"] = "ring"
    overlap: bool = False
    norm: int = 1
    deepep: DeepEp | None = None
    fused_loss: bool = True
    sums: bool = False
    eager: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a rank where tensors are split."""
        return self.batch * self.sequence // self.context

    @property
    def local_tokens(self) -> int:
        """Tokens of a rank between layers with split tensors: fewer with sequence parallelism."""
        return self.tokens // self.tensor if self.sequence_parallel else self.tokens

    def cut(self, amount: int, parts: int, subject: str) -> int:
        """Return `amount` / `parts`; raise `InputError` if it is not an integer."""
        if amount % parts:
            raise InputError(
                f"{subject} {amount}: cannot be cut into {parts} equal parts"
            )
        return amount // parts


Inside = Literal["", "core", "expert"]
"""Place of a kernel: the core of attention, which is cheap to recompute, or experts."""


def memory_kernel(
    name: str,
    read: float,
    written_bytes: float,
    element_bytes: int,
    *,
    inside: Inside = "",
) -> Kernel:
    """Return a kernel that only moves elements."""
    size = round((read + written_bytes) * element_bytes)
    return Kernel(name, bytes=size, core=inside == "core", expert=inside == "expert")


def linear(
    name: str, shard: Shard, product: Gemm, *, inside: Inside = "", elements: int = 0
) -> tuple[Kernel, Kernel, Kernel]:
    """Return the kernels of a product of m x k with k x n: forward, input and weight gradient.

    `elements` is the memory traffic of a kernel, if that is less than the size of the matrices: convolutions
    read a pixel once for all places of their window.
    """

    core, expert = inside == "core", inside == "expert"
    batch, m, n, k = product.batch, product.m, product.n, product.k

    def kernel(part: Part, gemm: Gemm) -> Kernel:
        size = (elements or gemm.elements) * shard.precision.gemm_bytes
        return Kernel(
            f"{name} {part}",
            gemm.flops,
            size,
            gemm,
            part=part,
            core=core,
            expert=expert,
        )

    return (
        kernel("forward", product),
        kernel("input", Gemm(batch, m, k, n)),
        kernel("weight", Gemm(batch, k, n, m)),
    )


def accumulating(layer: Layer, element_bytes: int) -> Layer:
    """Return a layer with a separate kernel that accumulates its gradients over microbatches."""
    if not layer.parameters:
        return layer
    size = 3 * layer.parameters * element_bytes
    kernel = Kernel("gradient accumulation", bytes=size, part="weight")
    return replace(layer, backward=(*layer.backward, kernel))


def gathering(layer: Layer, element_bytes: int, reduced_bytes: int) -> Layer:
    """Return a layer that copies its gradients into the buffer to be reduced, with a cast.

    Weights that are views of one gathered buffer have separate gradients, which autograd joins.
    """
    if not layer.parameters:
        return layer
    cast = element_bytes + reduced_bytes if reduced_bytes != element_bytes else 0
    size = layer.parameters * (2 * element_bytes + cast)
    kernel = Kernel(f"{JOINED} gradients", bytes=size, part="weight")
    return replace(layer, backward=(*layer.backward, kernel))


def backward_steps(layer: Layer) -> list[Step]:
    """Return the work of a microbatch's backward pass, recomputation first."""
    repeated = () if layer.again is None else layer.again.steps
    return [*map(_repeat, repeated), *layer.backward]


def _repeat(step: Step) -> Step:
    """Return a forward step as part of the backward pass, without operations that count in MFU."""
    if isinstance(step, Wait):
        return replace(step, key=f"{step.key}/again", part="input")
    if isinstance(step, Comm):
        return replace(
            step, key=f"{step.key}/again" if step.key else "", part="input"
        )
    if isinstance(step, Beside):
        return Beside(tuple(map(_repeat, step.one)), tuple(map(_repeat, step.two)))
    return replace(step, part="input", useful=0)


def total(layers: Iterable[Layer], part: Part) -> int:
    """Return the operations counted in MFU in a part of all layers."""
    return sum(layer.flops(part) for layer in layers)
