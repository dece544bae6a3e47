"""Memory of a rank: weights, gradients, optimizer states, activations, communicator buffers.

**Model** ZeRO cuts optimiser states (1), gradients too (2), weights too (3) over the data dimension (arXiv
1910.02054). Activations are those of the layers, times the microbatches that a stage has under way: the stages left
to go with 1F1B, all of them with GPipe. Besides, a process has a context, its libraries workspaces, and its allocator
gaps. **Not modelled** Which blocks the allocator cuts and joins, algorithms of convolutions that cuDNN tries, and what
NCCL keeps besides its buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusim.workload.layers import Layer, Recompute, Tensor
from clusim.workload.optimizers import Optimizer
from clusim.workload.pipeline_schedules import CUT, order

ZERO = {"zero1": 1, "distributed-optimizer": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
"""Stages of ZeRO by kind of data parallelism; the others cut nothing."""

NCCL_BUFFER_BYTES = 4 << 20
"""Buffer of one direction of one channel with one peer, protocol Simple (``NCCL_BUFFSIZE``)."""

CONTEXT_BYTES = 500 << 20
"""CUDA context and loaded kernels of a process; assumed: idle PyTorch processes on A100 and H100 have 0.4 to 0.6 GB."""

FRAGMENTED = 0.03
"""Gaps of a caching allocator, as a part of what comes and goes; assumed: shapes stay the same from step to step. The
published plan of Llama 3 405B, which ran, leaves room for 0.04; GMLake (arXiv 2401.08156) finds up to 0.3 where states
come and go besides (offloading)."""

FOLDED = 2
"""Outputs of the largest convolution that its workspace may take: inputs and outputs in another layout; assumed."""

MEMORY_PARTS = (
    *("weights", "gradients", "optimizer", "activations", "transient", "buffers"),
    *("libraries", "fragments"),
)
"""Parts of a rank's memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one rank [bytes].

    Attributes
    ----------
    transient : int
        Whole layers that sharded weights are gathered into, and the widest layer that is computed again.
    libraries : int
        Context of the process and code of its libraries, and the workspaces of matrix products and convolutions.
    fragments : int
        What the allocator holds between the blocks of activations and of what is there for a moment.
    capacity : int
        What the chip has; 0 is unknown.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    buffers: int
    in_flight: int
    libraries: int = 0
    fragments: int = 0
    capacity: int = 0

    @property
    def total(self) -> int:
        """All of it [bytes]."""
        return sum(getattr(self, name) for name in MEMORY_PARTS)

    @property
    def missing(self) -> int:
        """Missing memory of the GPU [bytes]; 0 if it fits or is not known."""
        return max(0, self.total - self.capacity) if self.capacity else 0

    def to_json(self) -> dict[str, float | int | bool]:
        """Return the numbers a script wants [GiB]."""
        table: dict[str, float | int | bool] = {
            name: round(getattr(self, name) / 2**30, 3) for name in MEMORY_PARTS
        }
        table |= {
            "total": round(self.total / 2**30, 3),
            "capacity": round(self.capacity / 2**30, 3),
            "missing": round(self.missing / 2**30, 3),
        }
        return table | {"microbatches_in_flight": self.in_flight, "fits": not self.missing}


def in_flight(schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> int:
    """Return how many (microbatch, chunk) pairs a stage holds activations of, at most, in the order of its passes.

    A schedule that cuts the backward pass needs them until the weight gradient.
    """
    passes = order(schedule, stage, stages, microbatches, chunks)
    last = ("W", "BW") if schedule in CUT else ("B",)
    held = most = 0
    for action in passes:
        held += (action.kind == "F") - (action.kind in last)
        most = max(most, held)
    return most


def communicator_bytes(groups: Sequence[tuple[int, int, bool]]) -> int:
    """Return the buffers of communicators, given as (channels, peers, whether only one direction per peer) [bytes]."""
    return sum(
        channels * peers * (1 if single else 2) * NCCL_BUFFER_BYTES
        for channels, peers, single in groups
    )


@dataclass(frozen=True, slots=True)
class Keeping:
    """Weights and activations of a stage that its ranks keep, and for how long.

    Attributes
    ----------
    zero : int
        Stage of ZeRO, 0 to 3.
    data, expert_data : int
        Ranks over which parameters, and those of experts, are replicated.
    held : int
        (Microbatch, chunk) pairs under way.
    gathered : int or None
        Layers that ZeRO 3 has whole besides the present one; None if it keeps all of them until the backward pass.
    weight_versions : int
        Copies of the weights that PipeDream keeps.
    states_on_host : bool
        The optimiser's states are in the host's memory.
    activations_on_host : bool
        Activations are there, but those of the last layer of each part, and of two layers that come or go.
    summed : bool
        Products of weight gradients add to the 32-bit sums, so that there are no other gradients.
    copied_bytes : float
        What copies in 8 bits take of a weight that multiplies in 8 bits [bytes]; of cut weights only while they are
        whole.
    copies_only : bool
        There is nothing else of such a weight but the optimiser's states.
    workspace_bytes : int
        What matrix products may use besides [bytes].
    """

    recompute: Recompute = "none"
    zero: int = 0
    data: int = 1
    expert_data: int = 1
    held: int = 1
    gathered: int | None = 1
    weight_versions: int = 1
    states_on_host: bool = False
    activations_on_host: bool = False
    summed: bool = False
    copied_bytes: float = 0.0
    copies_only: bool = False
    workspace_bytes: int = 0

    def weight_bytes(self, tensor: Tensor, optimizer: Optimizer) -> float:
        """Return what is there of an element of a tensor to compute with [bytes]."""
        if not tensor.factor:
            return optimizer.weight
        return self.copied_bytes + (0 if self.copies_only else optimizer.weight)


_USUAL = Keeping()


def _convolves(layer: Layer) -> bool:
    return any(kernel.name.startswith("conv") for kernel in layer.kernels("forward"))


def stage_memory(
    chunks: Sequence[Sequence[Layer]],
    optimizer: Optimizer,
    keeping: Keeping = _USUAL,
    *,
    buffers: int = 0,
    capacity: int = 0,
) -> Memory:
    """Return the memory of a rank of a pipeline stage.

    Parameters
    ----------
    chunks : sequence of sequence of Layer
        Layers of the stage, one sequence per chunk of an interleaved schedule.
    capacity : int
        Memory of the chip [bytes]; 0, not known, is an ideal chip, on which nothing but the step is counted.
    """
    zero, data, expert_data = keeping.zero, keeping.data, keeping.expert_data
    recompute, gathered, held = keeping.recompute, keeping.gathered, keeping.held
    layers = [layer for chunk in chunks for layer in chunk]
    tensors = [tensor for layer in layers for tensor in layer.tensors]

    def spread(cut: bool, size: Callable[[Tensor], float]) -> float:
        """Return the sum of a size over all tensors, of which a rank has a part if they are cut."""
        common = sum(size(t) for t in tensors if not t.expert)
        experts = sum(size(t) for t in tensors if t.expert)
        return common / data + experts / expert_data if cut else common + experts

    def whole(tensor: Tensor) -> float:
        return tensor.elements * keeping.weight_bytes(tensor, optimizer)

    per_chunk = [sum(layer.kept(recompute) for layer in chunk) for chunk in chunks]
    transient = 0
    if keeping.activations_on_host:
        per_chunk = [chunk[-1].kept(recompute) for chunk in chunks]
        transient = 2 * max((layer.kept(recompute) for c in chunks for layer in c[:-1]), default=0)
    if zero == 3:
        sizes = sorted((sum(map(whole, layer.tensors)) for layer in layers), reverse=True)
        numbers = sorted((layer.parameters for layer in layers), reverse=True)
        there = sizes if gathered is None else sizes[: gathered + 1]
        transient += round(sum(there)) + sum(numbers[:2]) * optimizer.gradient
    transient += max((layer.transient(recompute) for layer in layers), default=0)
    gradient = optimizer.main_gradient + (0 if keeping.summed else optimizer.gradient)
    weights = (
        spread(True, lambda t: t.elements) * optimizer.weight if zero >= 3 else spread(False, whole)
    )
    activations = round(sum(per_chunk) / max(1, len(per_chunk)) * held)
    folded = FOLDED * max((layer.output_bytes for layer in layers if _convolves(layer)), default=0)
    return Memory(
        weights=round(weights * keeping.weight_versions),
        gradients=round(spread(zero >= 2, lambda t: t.stepped) * gradient),
        optimizer=0
        if keeping.states_on_host
        else round(spread(zero >= 1, lambda t: t.elements) * optimizer.state),
        activations=activations,
        transient=transient,
        buffers=buffers,
        in_flight=held,
        libraries=CONTEXT_BYTES + keeping.workspace_bytes + folded if capacity else 0,
        fragments=round(FRAGMENTED * (activations + transient)) if capacity else 0,
        capacity=capacity,
    )
