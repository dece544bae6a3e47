"""Layers: what one rank computes and communicates for one microbatch, and what it has to keep.

A `Layer` is already cut for its rank: a `Shard` says into how many parts tensors, sequences and experts are cut. With
everything 1 it is the whole layer. Steps come in the order in which a framework issues them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from clusim.base.errors import InputError
from clusim.workload.deepep import DeepEp
from clusim.workload.kernels import PRECISIONS, Gemm, Kernel, Part, Precision

SUMMED, JOINED = "summed", "joined"
"""Prefixes of kernels that are launched inside another operator: they cost the host next to nothing."""

Dim = Literal["tensor", "context", "expert", "norm"]
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Comm:
    """A collective over a dimension of the mesh.

    Attributes
    ----------
    bytes : int
        Size as `clusim.schedule.CollectiveCall` has it [bytes].
    key : str
        Not empty: later steps do not wait for it until a `Wait` with this key.
    channels : int
        Thread blocks that it gets, whatever the library would choose; 0 is what that chooses.
    least_ps : int
        What it takes at least, on wires that cost nothing [ps].
    flags : bool
        With `channels`: every line of data has its flag (LL128), instead of a flag behind the data (Simple).
    across : int
        Not 0: it goes in two legs at once, with so many bytes between the ranks at the same place of several machines
        and `bytes` among the ranks of a machine.
    """

    dim: Dim
    operation: str
    bytes: int
    name: str = ""
    key: str = ""
    part: Part = "forward"
    core: bool = False
    channels: int = 0
    least_ps: int = 0
    across: int = 0
    flags: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Later steps wait for the communication with this key."""

    key: str
    part: Part = "forward"
    core: bool = False


@dataclass(frozen=True, slots=True)
class Beside:
    """Two rows of steps of which each computes while the other communicates."""

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
    def stepped(self) -> int:
        """Elements that a step of the optimiser touches."""
        return self.elements if self.touched < 0 else min(self.touched, self.elements)


@dataclass(frozen=True, slots=True)
class Activations:
    """Activations that the backward pass of a layer needs, per microbatch [bytes].

    Attributes
    ----------
    none, selective, full : int
        Without recomputation, without the attention core, and the layer's input only.
    """

    none: int = 0
    selective: int = 0
    full: int = 0

    def of(self, recompute: Recompute) -> int:
        """Return the bytes that a kind of recomputation keeps."""
        return {"none": self.none, "selective": self.selective, "full": self.full}[recompute]


@dataclass(frozen=True, slots=True)
class Module:
    """A part of a layer that can be computed again by itself: some of its forward steps, from `first` to before `last`.

    Attributes
    ----------
    freed : int
        What need not be kept then [bytes].
    """

    name: str
    first: int
    last: int
    freed: int


@dataclass(frozen=True, slots=True)
class Again:
    """Recomputation of a layer, if it differs from the workload's `recompute`.

    Attributes
    ----------
    kept, transient : int
        Bytes kept from the forward to the backward pass, and those that are there again for a moment.
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
        What a microbatch makes it do; kernels of `backward` say whether they are for inputs or weights.
    output_bytes : int
        What it hands to the next layer [bytes].
    activations : Activations
        What it keeps until its backward pass.
    modules : tuple of Module
        Parts that can be computed again.
    again : Again or None
        What is computed again; None is what the workload says for all layers.
    """

    name: str
    kind: str
    tensors: tuple[Tensor, ...] = ()
    forward: tuple[Step, ...] = ()
    backward: tuple[Step, ...] = ()
    output_bytes: int = 0
    activations: Activations = field(default_factory=Activations)
    modules: tuple[Module, ...] = ()
    again: Again | None = None

    def kept(self, recompute: Recompute) -> int:
        """Return the bytes kept from the forward to the backward pass."""
        return self.activations.of(recompute) if self.again is None else self.again.kept

    def transient(self, recompute: Recompute) -> int:
        """Return the bytes that exist for a moment because of recomputation."""
        if self.again is not None:
            return self.again.transient
        own = self.activations
        return {"none": 0, "selective": own.none - own.selective, "full": own.none}[recompute]

    @property
    def parameters(self) -> int:
        """Parameters of this rank."""
        return sum(tensor.elements for tensor in self.tensors)

    def flops(self, part: Part) -> int:
        """Return the operations that utilisation counts in a part."""
        return sum(k.counted_flops for k in self.kernels(part))

    def traffic_bytes(self, part: Part) -> int:
        """Return the memory traffic of a part [bytes]."""
        return sum(k.bytes for k in self.kernels(part))

    def kernels(self, part: Part) -> list[Kernel]:
        """Return the kernels of a part."""
        steps = self.forward if part == "forward" else self.backward
        return [step for step in steps if isinstance(step, Kernel) and step.part == part]


@dataclass(frozen=True, slots=True)
class Shard:
    """Partition of microbatch and model, and number formats.

    Attributes
    ----------
    batch, sequence : int
        Samples of a microbatch and tokens of a sample, of the whole microbatch.
    tensor, context, expert : int
        Parts that matrices, sequences and the set of experts are cut into.
    sequence_parallel : bool
        What tensor parallelism leaves whole is cut along the sequence.
    style : str
        ``paired``: column-parallel then row-parallel, one synchronisation for both. ``column``, ``row``: every linear
        layer synchronises.
    flash : bool
        Fused attention, which keeps no scores.
    capacity : float
        Most tokens of an expert, against an even spread; 0 is no limit.
    around : str
        How attention gets the keys of other parts of the sequence: ``ring``, ``all-gather``, ``ulysses``.
    norm : int
        Ranks whose samples batch normalisation takes together.
    deepep : DeepEp or None
        How expert exchanges are made; None is a plain all-to-all.
    overlap : bool
        Products of tensor parallelism go in pieces, each under the message of another one.
    fused_loss : bool
        Cross-entropy in two kernels, and not one per operation on 32-bit logits.
    sums : bool
        Gradients that come together (of a residual and of the norm beside it) are added by a kernel of their own.
    eager : bool
        Kernels of an eager framework: gradients of queries, keys and values are copied into those of their product,
        and norms have a second kernel for the gradients of their weights.
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
        """Tokens of a rank where tensors are cut."""
        return self.batch * self.sequence // self.context

    @property
    def local_tokens(self) -> int:
        """Tokens of a rank between them: fewer with sequence parallelism."""
        return self.tokens // self.tensor if self.sequence_parallel else self.tokens

    def cut(self, amount: int, parts: int, what: str) -> int:
        """Return `amount` / `parts`; raises `InputError` if that is no whole number."""
        if amount % parts:
            raise InputError(f"{what} {amount}: cannot be cut into {parts} equal parts")
        return amount // parts


Inside = Literal["", "core", "expert"]
"""Place of a kernel: the core of attention, which is cheap to compute again, or experts."""


def memory_kernel(
    name: str,
    read: float,
    written: float,
    element_bytes: int,
    *,
    inside: Inside = "",
) -> Kernel:
    """Return a kernel that only moves elements."""
    size = round((read + written) * element_bytes)
    return Kernel(name, bytes=size, core=inside == "core", expert=inside == "expert")


def linear(
    name: str,
    shard: Shard,
    product: Gemm,
    *,
    inside: Inside = "",
    elements: int = 0,
) -> tuple[Kernel, Kernel, Kernel]:
    """Return forward, input gradient and weight gradient of a matrix product of m x k with k x n.

    `elements` is what a kernel reads and writes, if that is less than the matrices have: convolutions read a pixel
    once for all places of their window.
    """

    core, expert = inside == "core", inside == "expert"
    batch, m, n, k = product.batch, product.m, product.n, product.k

    def kernel(part: Part, gemm: Gemm) -> Kernel:
        size = (elements or gemm.elements) * shard.precision.gemm_bytes
        return Kernel(f"{name} {part}", gemm.flops, size, gemm, part=part, core=core, expert=expert)

    return (
        kernel("forward", product),
        kernel("input", Gemm(batch, m, k, n)),
        kernel("weight", Gemm(batch, k, n, m)),
    )


def accumulating(layer: Layer, element_bytes: int) -> Layer:
    """Return a layer that adds its gradients to those of the microbatches before, as a kernel of its own."""
    if not layer.parameters:
        return layer
    size = 3 * layer.parameters * element_bytes
    kernel = Kernel("gradient accumulation", bytes=size, part="weight")
    return replace(layer, backward=(*layer.backward, kernel))


def gathering(layer: Layer, element_bytes: int, reduced_bytes: int) -> Layer:
    """Return a layer that copies its gradients into the one buffer that is reduced, and casts it for that.

    Weights that are views of one gathered buffer have gradients of their own, which autograd puts together.
    """
    if not layer.parameters:
        return layer
    cast = element_bytes + reduced_bytes if reduced_bytes != element_bytes else 0
    size = layer.parameters * (2 * element_bytes + cast)
    kernel = Kernel(f"{JOINED} gradients", bytes=size, part="weight")
    return replace(layer, backward=(*layer.backward, kernel))


def backward_steps(layer: Layer, recompute: Recompute) -> list[Step]:
    """Return the work of a microbatch's backward pass, recomputation first.

    Layers that keep as much with recomputation as without it (embeddings, heads) are not computed again.
    """
    again: list[Step] = []
    kept = layer.activations
    if layer.again is not None:
        again = list(layer.again.steps)
    elif recompute == "full" and kept.full < kept.none:
        again = list(layer.forward)
    elif recompute == "selective":
        again = [s for s in layer.forward if not isinstance(s, Beside) and s.core]
    useless = [replace(s, useful=0) if isinstance(s, Kernel) else s for s in again]
    return [*(_again(step) for step in useless), *layer.backward]


def _again(step: Step) -> Step:
    if isinstance(step, Wait):
        return replace(step, key=f"{step.key}/again", part="input")
    if isinstance(step, Comm):
        return replace(step, key=f"{step.key}/again" if step.key else "", part="input")
    if isinstance(step, Beside):
        return Beside(tuple(map(_again, step.one)), tuple(map(_again, step.two)))
    return step.as_part("input")


def total(layers: Iterable[Layer], part: Part) -> int:
    """Return the operations that utilisation counts in a part of all layers."""
    return sum(layer.flops(part) for layer in layers)
