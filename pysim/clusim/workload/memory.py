"""Memory of a rank: weights, gradients, optimiser states, activations, buffers, and memory of its process.

**Model** ZeRO shards optimiser states (1), gradients too (2), weights too (3) over the data dimension
(arXiv 1910.02054). Activations are those of the layers, times the microbatches that a stage has in
flight: the remaining stages with 1F1B, all of them with GPipe.

Gradients of activations and the workspace of a convolution exist during the pass of one layer. Activations of
later layers do not exist then, so that only the excess over them adds to the peak: the allocator reuses blocks.
A convolution of channels-first data uses copies of its matrices with channels last, the layout of tensor cores.

A process has a context with the code of kernels, its matrix products workspaces, its allocator gaps. The
workload's `memory` replaces these parameters.
**Not modelled** Blocks that the allocator splits and joins, algorithms of convolutions that cuDNN tries, the next
batch on the GPU, and NCCL's memory other than its buffers.

**Optimisers**: memory per parameter, and memory traffic of a step. **Hardware** A fused kernel that
reads gradients and states and writes states and weights once: memory-bound. **Model** The same. Before
it the gradients are swept for their norm, clipped and cleared (Adam), and unscaled and checked for
overflow (fp16), each in a separate pass. In mixed precision weights and gradients have 16 bits and the
optimiser keeps 32-bit copies.

Four accountings of Adam in mixed precision are in use. *2 + 2 + 12* (ZeRO, arXiv 1910.02054): 16-bit
weights and gradients, and 12 bytes of 32-bit weights, momentum and variance. *2 + 2 + 16* adds a 32-bit
copy of the gradients into which microbatches are accumulated (DeepSpeed with ``fp32`` accumulation);
`gradient_bits` 32 chooses it. If products add to that copy themselves (Megatron-LM), 16-bit gradients
do not exist: *2 + 4 + 12*. If the optimiser creates the copy, of its shard only, it is one of its
states, and ZeRO shards it with them: *2 + 2 + 16*, ``4 + 16/N`` with ZeRO 1 on N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.base.json_schema import GiB, JsonObject
from clusim.base.units import parse_size
from clusim.hardware import BLAS_HANDLES, CONTEXT, FRAGMENTED
from clusim.hardware.figures import value_of
from clusim.workload.kernels import Kernel, Precision
from clusim.workload.layers import Layer, Tensor
from clusim.workload.pipeline_schedules import CUT, order
from clusim.workload.spec import MemorySpec

_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}
OPTIMIZERS = tuple(_MOMENTS)
"""Names of the optimisers."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Memory of one parameter [bytes].

    Attributes
    ----------
    weight, gradient : int
        Formats of the model's computation.
    main_gradient : int
        Further 32-bit copy of the gradient; 0 if it does not exist.
    state : int
        32-bit weights and moments.
    sweeps : int
        Additional reads and writes of a gradient: norm, clipping, clearing, unscaling.
    """

    name: str
    weight: int
    gradient: int
    main_gradient: int
    state: int
    sweeps: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts [bytes]."""
        return self.weight + self.gradient + self.main_gradient + self.state

    @property
    def sum_bytes(self) -> int:
        """Element of the gradients that ranks reduce [bytes]."""
        return self.main_gradient or self.gradient

    def kernel(self, parameters: int) -> Kernel:
        """Return the kernel of a step over this number of parameters."""
        touched = self.sum_bytes * (1 + self.sweeps) + 2 * self.state + self.weight
        if not self.state:
            touched = self.sum_bytes * (1 + self.sweeps) + 2 * self.weight
        return Kernel(self.name, bytes=parameters * touched)


def find_optimizer(
    name: str,
    precision: Precision,
    gradient_bits: int = 16,
    *,
    copied_by_step: bool = False,
) -> Optimizer:
    """Return the optimiser called `name` for a run in `precision`.

    With `copied_by_step` the 32-bit copy of the gradients is one of its states.
    """
    if name not in _MOMENTS:
        raise InputError(
            f"optimizer {name!r}: unknown; use one of {', '.join(OPTIMIZERS)}"
        )
    if gradient_bits not in (16, 32):
        raise InputError(f"gradient_bits {gradient_bits}: must be 16 or 32")
    mixed = precision.bytes < 4
    state = 4 * _MOMENTS[name] + (4 if mixed else 0)
    main = 4 if mixed and gradient_bits == 32 else 0
    if copied_by_step:
        state, main = state + main, 0
    # Adam has a norm (read), clipping (read, write) and clearing (write); fp16 is unscaled (read, write).
    sweeps = 4 * (name == "adam") + 2 * (precision.name == "fp16")
    return Optimizer(name, precision.bytes, precision.bytes, main, state, sweeps)


ZERO = {"zero1": 1, "distributed-optimizer": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
"""Stages of ZeRO by kind of data parallelism; other kinds do not shard."""

NCCL_BUFFER_BYTES = 4 << 20
"""Buffer of one direction of one channel with one peer, protocol Simple (``NCCL_BUFFSIZE``)."""

CONVOLUTIONS = ("conv", "shortcut")
"""Prefixes of kernels that are convolutions."""

PROCESS_PARTS = ("context", "workspaces", "convolutions", "fragments")
"""Parts of a process in addition to its step: keys of the workload's `memory`."""

MEMORY_PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "transient",
    "buffers",
    *PROCESS_PARTS,
)
"""Parts of a rank's memory."""


@dataclass(frozen=True, slots=True)
class Memory(JsonObject):
    """Memory of a GPU of a stage [GiB].

    Attributes
    ----------
    weights, gradients, optimizer, activations, transient, buffers : float
        Memory of the step by use [GiB].
    context : float
        CUDA context with loaded kernels (assumed, or given) [GiB].
    workspaces : float
        Workspaces of the library for matrix products (published, or given) [GiB].
    convolutions : float
        Workspace of convolutions beyond freed activations (assumed, or given) [GiB].
    fragments : float
        Memory held by the allocator between blocks (assumed, or given) [GiB].
    total, capacity, missing : float
        Sum, capacity of the chip (0 if unknown), and shortfall [GiB].
    microbatches_in_flight : int
        Microbatches with activations in memory.
    fits : bool
        True if the shortfall is 0.
    """

    KEYS = (
        *MEMORY_PARTS,
        "total",
        "capacity",
        "missing",
        "microbatches_in_flight=in_flight",
        "fits",
    )

    weights: GiB
    gradients: GiB
    optimizer: GiB
    activations: GiB
    transient: GiB
    buffers: GiB
    in_flight: int
    context: GiB = 0
    workspaces: GiB = 0
    convolutions: GiB = 0
    fragments: GiB = 0
    capacity: GiB = 0

    @property
    def total(self) -> GiB:
        """Sum of all parts [bytes]."""
        return sum(getattr(self, name) for name in MEMORY_PARTS)

    @property
    def missing(self) -> GiB:
        """Missing memory of the GPU [bytes]; 0 if it fits or is unknown."""
        return max(0, self.total - self.capacity) if self.capacity else 0

    @property
    def fits(self) -> bool:
        """True if no memory is missing."""
        return not self.missing


def in_flight(
    schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1
) -> int:
    """Return the most (microbatch, chunk) pairs whose activations a stage holds at a time.

    A schedule that splits the backward pass needs them until the weight gradient.
    """
    passes = order(schedule, stage, stages, microbatches, chunks)
    last = ("W", "BW") if schedule in CUT else ("B",)
    current = peak = 0
    for action in passes:
        current += (action.kind == "F") - (action.kind in last)
        peak = max(peak, current)
    return peak


def communicator_bytes(groups: Sequence[tuple[int, int, bool]]) -> int:
    """Return the buffers of communicators [bytes].

    `groups` has (channels, peers, True if each peer uses only one direction).
    """
    return sum(
        channels * peers * (1 if single else 2) * NCCL_BUFFER_BYTES
        for channels, peers, single in groups
    )


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process in addition to its step.

    Attributes
    ----------
    context_bytes, workspace_bytes : int
        CUDA context with loaded kernels; workspaces of matrix products [bytes].
    convolution_bytes : int or None
        Workspace of convolutions [bytes]; None is by the sizes of their matrices.
    fragments : float
        Gaps of the allocator, as a fraction of activations and transient memory.
    given : tuple of str
        Parts that the workload sets.
    """

    context_bytes: int = 0
    workspace_bytes: int = 0
    convolution_bytes: int | None = 0
    fragments: float = 0.0
    given: tuple[str, ...] = ()

    def basis(self, part: str) -> str:
        """Return the origin of a part: ``given``, ``published`` or ``assumed``."""
        if part in self.given:
            return "given"
        return "published" if part == "workspaces" else "assumed"


def process_memory(spec: MemorySpec, handle_bytes: int) -> ProcessMemory:
    """Return the memory of a process; `spec` replaces presets.

    Parameters
    ----------
    handle_bytes : int
        Workspace of a handle of the library for matrix products [bytes].
    """
    context = parse_size(str(value_of(CONTEXT)))
    workspaces = round(float(str(value_of(BLAS_HANDLES))) * handle_bytes)
    fragments = float(str(value_of(FRAGMENTED)))
    return ProcessMemory(
        context if spec.context is None else spec.context,
        workspaces if spec.workspaces is None else spec.workspaces,
        spec.convolutions,
        fragments if spec.fragments is None else spec.fragments,
        tuple(name for name in PROCESS_PARTS if getattr(spec, name) is not None),
    )


@dataclass(frozen=True, slots=True)
class Keeping:
    """Weights and activations that the ranks of a stage keep, and their lifetimes.

    Attributes
    ----------
    zero : int
        Stage of ZeRO, 0 to 3.
    data, expert_data : int
        Ranks over which parameters, and those of experts, are replicated.
    held : int
        (Microbatch, chunk) pairs in flight.
    gathered : int or None
        Complete layers under ZeRO 3 in addition to the present one; None if all are kept until the backward
        pass.
    weight_versions : int
        Copies of the weights that PipeDream keeps.
    states_on_host : bool
        The optimiser's states are in host memory.
    activations_on_host : bool
        Activations are in host memory, except those of each part's last layer and of two layers in transfer.
    summed : bool
        Products of weight gradients add to the 32-bit sums, the only gradients.
    copied_bytes : float
        8-bit copies of a weight that multiplies in 8 bits [bytes]; of sharded weights only while they are
        gathered.
    copies_only : bool
        Apart from the optimiser's states, such a weight exists only as these copies.
    process : ProcessMemory
        Memory in addition to the step.
    """

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
    process: ProcessMemory = ProcessMemory()

    def weight_bytes(self, tensor: Tensor, optimizer: Optimizer) -> float:
        """Return the resident bytes of an element of a tensor for computation."""
        if not tensor.factor:
            return optimizer.weight
        return self.copied_bytes + (0 if self.copies_only else optimizer.weight)


_USUAL = Keeping()


def _workspace_bytes(layer: Layer) -> int:
    """Return the workspace of a layer's largest convolution: its matrices in another layout [bytes]."""
    kernels = layer.kernels("forward")
    return max(
        (k.bytes for k in kernels if k.gemm and k.name.startswith(CONVOLUTIONS)),
        default=0,
    )


def _excess(
    chunks: Sequence[Sequence[Layer]], keeping: Keeping, size: Callable[[Layer], int]
) -> int:
    """Return the largest memory of a layer's pass beyond activations of later layers of its chunk [bytes]."""
    peak = 0
    for chunk in chunks:
        later = 0
        for layer in reversed(chunk):
            peak = max(peak, size(layer) - later)
            if not (keeping.activations_on_host and later):
                later += layer.kept_bytes
    return peak


def _transient_bytes(
    chunks: Sequence[Sequence[Layer]],
    optimizer: Optimizer,
    keeping: Keeping,
    gradients: int,
) -> int:
    """Return activations in transfer, gathered weights, and `gradients` or restored activations [bytes]."""
    layers = [layer for chunk in chunks for layer in chunk]
    transient = max(gradients, *(layer.transient_bytes for layer in layers))
    if keeping.activations_on_host:
        transient += 2 * max(
            (layer.kept_bytes for c in chunks for layer in c[:-1]), default=0
        )
    if keeping.zero == 3:
        sizes = sorted(
            (
                sum(
                    t.elements * keeping.weight_bytes(t, optimizer)
                    for t in layer.tensors
                )
                for layer in layers
            ),
            reverse=True,
        )
        numbers = sorted((layer.parameters for layer in layers), reverse=True)
        gathered_sizes = (
            sizes if keeping.gathered is None else sizes[: keeping.gathered + 1]
        )
        transient += (
            round(sum(gathered_sizes)) + sum(numbers[:2]) * optimizer.gradient
        )
    return transient


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
        Memory of the chip [bytes]; 0 is unknown.
    """
    zero, data, expert_data = keeping.zero, keeping.data, keeping.expert_data
    layers = [layer for chunk in chunks for layer in chunk]
    tensors = [tensor for layer in layers for tensor in layer.tensors]

    def spread(cut: bool, size: Callable[[Tensor], float]) -> float:
        """Return the sum of a size over all tensors; with `cut` a rank has a part of each."""
        common = sum(size(t) for t in tensors if not t.expert)
        experts = sum(size(t) for t in tensors if t.expert)
        return common / data + experts / expert_data if cut else common + experts

    resident = [
        chunk[-1:] if keeping.activations_on_host else chunk for chunk in chunks
    ]
    per_chunk = [sum(layer.kept_bytes for layer in chunk) for chunk in resident]
    gradients = _excess(chunks, keeping, lambda layer: layer.gradient_bytes)
    transient = _transient_bytes(chunks, optimizer, keeping, gradients)
    gradient = optimizer.main_gradient + (
        0 if keeping.summed else optimizer.gradient
    )
    if zero >= 3:
        weights = spread(True, lambda t: t.elements) * optimizer.weight
    else:
        weights = spread(
            False, lambda t: t.elements * keeping.weight_bytes(t, optimizer)
        )
    activations = round(sum(per_chunk) / max(1, len(per_chunk)) * keeping.held)
    process, convolutions = keeping.process, keeping.process.convolution_bytes
    if convolutions is None:
        both = _excess(
            chunks,
            keeping,
            lambda layer: layer.gradient_bytes + _workspace_bytes(layer),
        )
        convolutions = both - gradients
    return Memory(
        weights=round(weights * keeping.weight_versions),
        gradients=round(
            spread(zero >= 2, lambda t: t.optimizer_elements) * gradient
        ),
        optimizer=0
        if keeping.states_on_host
        else round(spread(zero >= 1, lambda t: t.elements) * optimizer.state),
        activations=activations,
        transient=transient,
        buffers=buffers,
        in_flight=keeping.held,
        context=process.context_bytes,
        workspaces=process.workspace_bytes,
        convolutions=convolutions,
        fragments=round(process.fragments * (activations + transient)),
        capacity=capacity,
    )
