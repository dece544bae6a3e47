"""Checkpoints inside steps: weights and states over each GPU's link to its host, then to storage.

**Hardware** Ranks with the same states share the writing (PyTorch's distributed checkpoints,
Megatron-LM's fully parallel saving). Synchronous writing stops the job until all data are written, and
streams: a piece is written while the next one is copied. Asynchronous writing stops a rank until its
part is copied to host memory (``async_save``). Copies may also overlap the passes of the next step,
which read the same weights, and the optimiser waits for them (CheckFreq, FAST 2021; DataStates-LLM, HPDC
2024). **Model** The same: copies use each GPU's part of the path to host memory, in sequence with the
copies of offloading; storage receives the writes of all GPUs together. Copies during passes are divided
into one piece per pass of a layer, so that offloaded activations can interleave. **Not modelled**
Allocation of pinned memory; serialisation; the planning of a checkpoint; other traffic on PCIe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from clusim.workload.host import TO_HOST, host_way
from clusim.workload.parallel.emitter import Emitter, Tails
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.stages import COPY
from clusim.workload.pipeline_schedules import Action
from clusim.workload.spec import complain

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
    def copy_s(self) -> float:
        """Time until the last rank has copied its part [s]."""
        return max(self.copied) / self.rate_Bps

    @property
    def write_s(self) -> float:
        """Time until all data are written [s]."""
        return self.bytes / self.write_Bps


def checkpoint_of(plan: ParallelPlan) -> Checkpoint | None:
    """Return the checkpoint of a plan, or None if its workload does not request one."""
    spec = plan.workload.checkpoints
    if spec is None:
        return None
    own = plan.optimizer
    each = own.weight + own.state
    moved = own.weight if plan.workload.offload.optimizer else each
    shares = [_share(plan, stage) for stage in range(plan.mesh.pipeline)]
    copied = tuple(round(share * plan.model.parameters * moved) for share in shares)
    rate = host_way(plan.fabric).rate_Bps
    result = Checkpoint(plan.model.parameters * each, copied, rate, float(spec.write))
    if result.write_s > LONGEST_S:
        place = (
            ("checkpoint",)
            if plan.workload.checkpoint is not None
            else ("reliability", "checkpoint")
        )
        message = f"{result.bytes:,} bytes take {result.write_s:.3g} s to write; at most {LONGEST_S:,} s are simulated"
        raise complain(plan.workload, (*place, "write"), message)
    return result


def _share(plan: ParallelPlan, stage: int) -> Fraction:
    """Return the share of all parameters that a rank of a stage copies.

    The ranks of a stage share its parameters evenly.
    """

    def held(index: int) -> Fraction:
        tensors = [t for chunk in plan.stages[index] for layer in chunk for t in layer.tensors]
        common = sum(t.elements for t in tensors if not t.expert and t.name != COPY)
        whole = common + plan.mesh.expert * sum(t.elements for t in tensors if t.expert)
        return Fraction(whole, len(plan.crew.of(index)))

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
        low, high = (self.copy_ps * n // self._pieces for n in (self._made, self._made + 1))
        self._made += 1
        for rank in self.ranks:
            task = self.emitter.builder.delay(
                rank, high - low, stream=TO_HOST, name="states to host", after=self._copied[rank]
            )
            self._copied[rank] = (task,)

    def end(self) -> None:
        """Copy the remaining pieces; the optimiser waits for them."""
        while self._made < self._pieces:
            self.turn()
        self.emitter.join(self._copied)


def save_behind(emitter: Emitter, checkpoint: Checkpoint, *, written: bool) -> None:
    """Copy the states of all ranks after a step; if `written`, wait until they are in storage."""
    before = {stage: emitter.ranks(stage) for stage in range(emitter.plan.mesh.pipeline)}
    everyone = [rank for ranks in before.values() for rank in ranks]
    first = everyone[0]
    tails = {rank: emitter.tail.get(rank, ()) for rank in everyone}
    for stage, ranks in before.items():
        copy_ps = round(checkpoint.copied[stage] / checkpoint.rate_Bps * 1e12)
        for rank in ranks:
            task = emitter.builder.delay(
                rank, copy_ps, stream=TO_HOST, name="states to host", after=tails[rank]
            )
            emitter.tail[rank] = (task,)
    if not written:
        return
    ready = emitter.builder.marker(
        *(first, "checkpoint"), stream=STORAGE, after=[t for own in tails.values() for t in own]
    )
    for rank in everyone:
        task = emitter.builder.delay(
            *(rank, round(checkpoint.write_s * 1e12)), stream=STORAGE, name=STORAGE, after=(ready,)
        )
        emitter.tail[rank] = (*emitter.tail[rank], task)
    # All continue together: the slowest copy may last longer than the writing.
    done = emitter.builder.marker(
        *(first, "checkpoint written"), after=[t for rank in everyone for t in emitter.tail[rank]]
    )
    emitter.join({rank: (done,) for rank in everyone})
