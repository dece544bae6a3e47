"""Transfers between GPUs and hosts inside steps: checkpoints and offloading.

**Checkpoints** of weights and states over each GPU's link to its host, then to storage. **Hardware**
Ranks with the same states share the writing (PyTorch's distributed checkpoints, Megatron-LM's fully
parallel saving). Synchronous writing stops the job until all data are written, and streams: a piece is
written while the next one is copied. Asynchronous writing stops a rank until its part is copied to host
memory (``async_save``). Copies may also overlap the passes of the next step, which read the same
weights, and the optimiser waits for them (CheckFreq, FAST 2021; DataStates-LLM, HPDC 2024). **Model**
The same: copies use each GPU's part of the path to host memory, in sequence with the copies of
offloading; storage receives the writes of all GPUs together. Copies during passes are divided into one
piece per pass of a layer, so that offloaded activations can interleave. **Not modelled** Allocation of
pinned memory; serialisation; the planning of a checkpoint; other traffic on PCIe.

**Offloading** of the optimiser with its gradients and weights, and of activations. **Hardware**
ZeRO-Offload (arXiv 2101.06840): states and master weights are in host memory; the CPU steps over a tile
of parameters while the gradients of the next tile arrive and the weights of the previous one leave.
**Model** The same, a tile for each bucket of data parallelism; the duration of the CPU's step is that
of its memory traffic, at the GPU's part of host memory bandwidth. Activations (Transformer Engine's
offloading) of all layers of a pass except the last are copied out after their forward pass; a layer
waits for the copy of the second layer before it, so that two are resident. They return while the
following layer is in its backward pass. **Not modelled** Copies of gradients during the backward pass;
CPUs too slow for their memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from clusim.base.json_schema import Round9
from clusim.workload.host import TO_HOST, host_way
from clusim.workload.parallel.exchanges import Tails
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.stages import COPY
from clusim.workload.pipeline_schedules import Action
from clusim.workload.workload_file import complain

if TYPE_CHECKING:
    from clusim.workload.parallel.emitter import Emitter

MOST_TILES = 64
"""Most tiles of a step: more do not change its time."""


def step_on_host(emitter: Emitter, ranks: Iterable[int], elements: int) -> None:
    """Add an optimiser step over this number of parameters of each rank, on its host."""
    plan = emitter.plan
    path, size = host_way(plan.fabric), plan.element_bytes_reduced
    num_buckets = -(-elements * size // plan.workload.data.bucket)
    tiles = max(1, min(MOST_TILES, num_buckets))
    part = elements / tiles
    stages = (
        ("gradients to host", part * size / path.rate_Bps),
        (
            "optimizer on host",
            plan.optimizer.kernel(elements).bytes / tiles / path.memory_Bps,
        ),
        ("weights from host", part * plan.precision.bytes / path.rate_Bps),
    )
    for rank in ranks:
        start = emitter.tail.get(rank, ())
        for _ in range(tiles):
            after = start
            for name, seconds in stages:
                delay_ps = round(seconds * 1e12)
                stream = TO_HOST if name.endswith("to host") else name
                task = emitter.builder.delay(
                    rank, delay_ps, stream=stream, name=name, after=after
                )
                after = (task,)
        emitter.tail[rank] = after


class Away:
    """Activations of a stage that are on the host between the passes of a microbatch."""

    def __init__(self, emitter: Emitter, stage: int) -> None:
        self.emitter = emitter
        self.ranks = emitter.ranks(stage)
        self.chunks = emitter.plan.stages[stage]
        self.rate_Bps = host_way(emitter.plan.fabric).rate_Bps
        self._gone: dict[tuple[int, int, int], Tails] = {}
        self._back: dict[tuple[int, int, int], Tails] = {}

    def before(self, action: Action, index: int) -> None:
        """Wait for memory (forward) or for activations (backward), and prefetch the next ones."""
        kind, microbatch, chunk = action
        if kind == "F":
            self.emitter.join(self._gone.get((microbatch, chunk, index - 2), {}))
        elif kind in ("B", "BW"):
            for layer in (index, index - 1):
                place = (microbatch, chunk, layer)
                if place in self._gone:
                    self._back[place] = self._copy(place, "activations from host")
            self.emitter.join(self._back.pop((microbatch, chunk, index), {}))

    def after(self, action: Action, index: int) -> None:
        """Copy a layer's activations to the host after its forward pass, except the last layer's."""
        kind, microbatch, chunk = action
        if kind == "F" and index < len(self.chunks[chunk]) - 1:
            place = (microbatch, chunk, index)
            self._gone[place] = self._copy(place, "activations to host")

    def _copy(self, place: tuple[int, int, int], name: str) -> Tails:
        _, chunk, index = place
        size = self.chunks[chunk][index].kept_bytes
        delay_ps = round(size / self.rate_Bps * 1e12)
        stream = TO_HOST if name.endswith("to host") else name
        copies = self._gone.pop(place, {})
        result: Tails = {}
        for rank in self.ranks:
            after = (*self.emitter.tail.get(rank, ()), *copies.get(rank, ()))
            task = self.emitter.builder.delay(
                rank, delay_ps, stream=stream, name=name, after=after
            )
            result[rank] = (task,)
        return result


LONGEST_S = 1_000_000
"""Limit on the writing time of a checkpoint [s]: more is an input error."""

STORAGE = "states to storage"
"""Stream of writes to storage."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Checkpoint of a plan.

    Attributes
    ----------
    bytes : int
        Weights and states of every parameter once.
    copied : tuple of int
        Copy of a rank of each stage to its host [bytes].
    rate_Bps, write_Bps : float
        Rate of a GPU's copies to its host, and of the writes of all GPUs together [B/s].
    """

    bytes: int
    copied: tuple[int, ...]
    rate_Bps: float
    write_Bps: float

    @property
    def most_bytes(self) -> int:
        """Largest copy of a rank [bytes]."""
        return max(self.copied)

    @property
    def copy_s(self) -> Round9:
        """Time until the last rank has copied its part [s]."""
        return self.most_bytes / self.rate_Bps

    @property
    def write_s(self) -> Round9:
        """Time until all data are written [s]."""
        return self.bytes / self.write_Bps


def checkpoint_of(plan: ParallelPlan) -> Checkpoint | None:
    """Return the checkpoint of a plan, or None if its workload does not request one."""
    spec = plan.workload.checkpoints
    if spec is None:
        return None
    optimizer = plan.optimizer
    bytes_per_element = optimizer.weight + optimizer.state
    moved = (
        optimizer.weight if plan.workload.offload.optimizer else bytes_per_element
    )
    shares = [_share(plan, stage) for stage in range(plan.mesh.pipeline)]
    copied = tuple(round(share * plan.model.parameters * moved) for share in shares)
    rate = host_way(plan.fabric).rate_Bps
    result = Checkpoint(
        plan.model.parameters * bytes_per_element, copied, rate, float(spec.write)
    )
    if result.write_s > LONGEST_S:
        place = (
            ("checkpoint",)
            if plan.workload.checkpoint is not None
            else ("reliability", "checkpoint")
        )
        message = f"{result.bytes:,} bytes need {result.write_s:.3g} s to write; at most {LONGEST_S:,} s are simulated"
        raise complain(plan.workload, (*place, "write"), message)
    return result


def _share(plan: ParallelPlan, stage: int) -> Fraction:
    """Return the share of all parameters that a rank of a stage copies.

    The ranks of a stage share its parameters evenly.
    """

    def held(index: int) -> Fraction:
        tensors = [
            t
            for chunk in plan.stages[index]
            for layer in chunk
            for t in layer.tensors
        ]
        common = sum(t.elements for t in tensors if not t.expert and t.name != COPY)
        total = common + plan.mesh.expert * sum(
            t.elements for t in tensors if t.expert
        )
        return Fraction(total, len(plan.crew.of(index)))

    sizes = [held(index) for index in range(plan.mesh.pipeline)]
    ranks = plan.mesh.size // plan.mesh.pipeline
    return sizes[stage] / sum(sizes) / ranks


class Saving:
    """Copies of a stage's states at the start of a step, during the passes of that step."""

    def __init__(self, emitter: Emitter, stage: int, checkpoint: Checkpoint) -> None:
        self.emitter, self.ranks = emitter, emitter.ranks(stage)
        self.copy_ps = round(checkpoint.copied[stage] / checkpoint.rate_Bps * 1e12)
        self._chunks = emitter.plan.stages[stage]
        self._pieces, self._made, self._turn, self._turns = 1, 0, 0, 1
        self._copied: Tails = {}

    def begin(self, passes: Sequence[Action]) -> None:
        """Begin a step with these passes: a single copy at once, or a piece per pass of a layer."""
        turns = sum(len(self._chunks[action.chunk]) for action in passes)
        shared = self.emitter.plan.workload.offload.activations
        self._pieces, self._made = turns if shared else 1, 0
        self._copied = {rank: self.emitter.tail.get(rank, ()) for rank in self.ranks}
        self.turn()

    def turn(self) -> None:
        """Copy the next piece, if any remain."""
        if self._made == self._pieces:
            return
        low, high = (
            self.copy_ps * n // self._pieces for n in (self._made, self._made + 1)
        )
        self._made += 1
        for rank in self.ranks:
            task = self.emitter.builder.delay(
                rank,
                high - low,
                stream=TO_HOST,
                name="states to host",
                after=self._copied[rank],
            )
            self._copied[rank] = (task,)

    def end(self) -> None:
        """Copy the remaining pieces; the optimiser waits for them."""
        while self._made < self._pieces:
            self.turn()
        self.emitter.join(self._copied)


def save_behind(
    emitter: Emitter, checkpoint: Checkpoint, *, is_written: bool
) -> None:
    """Copy the states of all ranks after a step; if `is_written`, wait until they are in storage."""
    before = {
        stage: emitter.ranks(stage) for stage in range(emitter.plan.mesh.pipeline)
    }
    everyone = [rank for ranks in before.values() for rank in ranks]
    first = everyone[0]
    tails = {rank: emitter.tail.get(rank, ()) for rank in everyone}
    for stage, ranks in before.items():
        copy_ps = round(checkpoint.copied[stage] / checkpoint.rate_Bps * 1e12)
        for rank in ranks:
            task = emitter.builder.delay(
                rank,
                copy_ps,
                stream=TO_HOST,
                name="states to host",
                after=tails[rank],
            )
            emitter.tail[rank] = (task,)
    if not is_written:
        return
    ready = emitter.builder.marker(
        first,
        "checkpoint",
        stream=STORAGE,
        after=[t for tasks in tails.values() for t in tasks],
    )
    for rank in everyone:
        task = emitter.builder.delay(
            rank,
            round(checkpoint.write_s * 1e12),
            stream=STORAGE,
            name=STORAGE,
            after=(ready,),
        )
        emitter.tail[rank] = (*emitter.tail[rank], task)
    # All continue together: the slowest copy may last longer than the writing.
    done = emitter.builder.marker(
        first,
        "checkpoint written",
        after=[t for rank in everyone for t in emitter.tail[rank]],
    )
    emitter.join({rank: (done,) for rank in everyone})
