"""Result of training steps: times, breakdown, volumes, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from clusim.analysis.limits import BrokenWire, slowed_wires
from clusim.base.display import Columns, Shown, Summary, columns_of
from clusim.base.json_schema import (
    IfKnown,
    JsonObject,
    Picoseconds,
    Round3,
    Round6,
    Round9,
)
from clusim.base.units import format_time
from clusim.results.diagnosis import ProvableVerdict, Verdict
from clusim.results.replicated import DIMENSIONS
from clusim.results.result import Result
from clusim.results.resultjson import BusyWire
from clusim.training.breakdown import PARTS, Breakdown, error_of
from clusim.training.convergence import Convergence, convergence_of
from clusim.training.expected import StepClass, expected_step, expected_text
from clusim.training.goodput import Goodput, goodput_of
from clusim.training.proof import FoldReport
from clusim.training.saved_step import SavedStep
from clusim.training.step_diagnosis import step_verdict
from clusim.training.switches import Sharing, Switching
from clusim.workload.memory import Memory
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.volumes import Volume


@dataclass(frozen=True, slots=True)
class Throughput(JsonObject):
    """Samples or tokens per second, in the unit of the model."""

    samples_per_s: IfKnown[Round3] = 0.0
    tokens_per_s: IfKnown[Round3] = 0.0


@dataclass(frozen=True, slots=True)
class StepTimes(JsonObject):
    """Parts of the last step, means over its ranks [s]."""

    compute_s: Round9
    exposed_comm_s: Round9
    communication_s: Round9
    host_wait_s: Round9
    bubble_s: Round9
    idle_s: Round9


@dataclass(frozen=True, kw_only=True, repr=False)
class StepResult(Shown, JsonObject):
    """A training step; times are means over ranks of the last one.

    Attributes
    ----------
    parameters : int
        Of the model.
    stage_gpus : list of int
        Replicas of every stage of the pipeline.
    placement : dict
        Placement of each dimension's groups: ``none``, ``inside`` a node or ``across``.
    steps_s : list of float
        Time of every simulated step [s]; the steady step if steps overlap.
    samples_per_s, tokens_per_s : float
        Throughput, in the unit of the model.
    tflops_per_gpu : float
        Of the model's operations [10^12/s].
    mfu, hfu : float
        Model and executed FLOP/s over the peak FLOP/s of all ranks.
    exposed_comm_s, communication_s : float
        Exposed and total communication [s].
    exposed_by_dimension_s : dict
        Exposed communication by dimension of parallelism, and ``host`` for copies to and from it, without zeros [s].
    kernel_slowdown_s : float
        Time that kernels lose to communication, which uses their SMs and memory [s].
    communication_sms : float
        Mean SMs held by communication while it runs.
    bubble_fraction : float
        Share of the step.
    memory_GiB, memory_by_stage_GiB : object, list
        Of the fullest stage, and of all [GiB].
    volume_bytes_per_gpu, collectives_per_step : dict
        By dimension of parallelism: bytes sent per GPU and step [bytes], and collectives per step.
    error_bound : float or None
        Error limit of the step due to its granularity, as a share; None if unknown.
    wall_s : float
        Wall time of the engine [s].
    traffic : dict
        Traffic of a step by dimension.
    sharing : Sharing
        Cost of communication for kernels, in the complete run.
    grain_error : float or None
        Error limit of communication against exact packets, including replicated blocks; None is unknown.
    worker_ps : list of int
        Mean step of each worker in the steady window, if workers are asynchronous [ps].
    saved : SavedStep or None
        Additional time of a step with a checkpoint, if the workload has checkpoints.
    wires : list of (name, busy)
        Busiest wires and their busy share of the run.
    judged : ProvableVerdict or None
        Verdict on the step; None is computed from `ranks`.
    """

    KEYS: ClassVar[tuple[str, ...]] = (
        "workload=plan.workload.name",
        "model=plan.model.name",
        "parameters=plan.model.parameters",
        "fabric=plan.fabric.name",
        "gpus=plan.mesh.size",
        "mesh=plan.mesh",
        "stage_gpus=plan.crew.replicas",
        "placement=plan.placement",
        "microbatches=plan.microbatches",
        "step_time_s",
        "verdict",
        "expected_error=expected",
        "expected_error_text=expected_text",
        "steps_s=step_ps",
        "*throughput",
        "tflops_per_gpu",
        "mfu",
        "hfu",
        "*parts_s",
        "exposed_by_dimension_s",
        "kernel_slowdown_s",
        "communication_sms=sharing.sms",
        "in_switch=switching",
        "bubble_fraction",
        "ranks",
        "checkpoint=saved",
        "goodput",
        "convergence",
        "memory_GiB=fullest",
        "memory_by_stage_GiB=memory",
        "volume_bytes_per_gpu",
        "collectives_per_step",
        "faults",
        "notes",
        "error_bound",
        "wall_s",
    )

    plan: ParallelPlan
    step_ps: list[Picoseconds]
    ranks: list[Breakdown]
    memory: list[Memory]
    traffic: dict[str, Volume]
    executed_flops: int
    wall_s: Round3
    notes: list[str] = field(default_factory=list)
    sharing: Sharing = field(default_factory=Sharing)
    switching: Switching | None = None
    worker_ps: list[int] = field(default_factory=list)
    saved: SavedStep | None = None
    grain_error: float | None = None
    wires: list[tuple[str, float]] = field(default_factory=list)
    judged: ProvableVerdict | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults of the run."""
        return ()

    @property
    def origin(self) -> list[tuple[str, str]]:
        """Method of the result: names and texts for reports."""
        return []

    @property
    def identity(self) -> list[tuple[str, str]]:
        """Identity of the result in reports."""
        return []

    @property
    def step_time_s(self) -> Round9:
        """Time of the last step [s]."""
        return self.step_ps[-1] / 1e12

    @property
    def expected(self) -> StepClass | None:
        """Expected error, from measured steps on this chip with this framework; None is unknown."""
        return expected_step(self.plan.chip.name, self.plan.workload.host.framework)

    @property
    def expected_text(self) -> str:
        """Expected error, or the reason why it is unknown."""
        return expected_text(self.plan.chip.name, self.plan.workload.host.framework)

    @property
    def verdict(self) -> Verdict:
        """Verdict on the step by its time breakdown, and proven after `diagnose`."""
        if self.judged is not None:
            return self.judged.verdict
        return step_verdict(
            [(("", 0, self.step_ps[-1]), self.ranks)], self.expected_text
        )

    def diagnose(self) -> Verdict:
        """Simulate changes of the step (number: its `confirm`); the bottleneck has the largest saving."""
        return self.verdict if self.judged is None else self.judged.diagnose()

    @property
    def error_bound(self) -> Round6 | None:
        """Error limit of the step against exact packets, as a share; None is unknown."""
        return error_of(self.grain_error, self.ranks, self.step_ps[-1])

    @property
    def samples_per_s(self) -> float:
        """Tokens, or samples, per second."""
        return self.plan.samples * self.pace

    @property
    def pace(self) -> float:
        """Steps per second; the mean over asynchronous workers."""
        return 1e12 / self.step_ps[-1]

    @property
    def mfu(self) -> Round6:
        """MFU: model FLOP/s, without recomputation, over the peak FLOP/s of all ranks."""
        peak = self.plan.chip.peak_flops * self.plan.mesh.size
        return self.plan.model_flops * self.pace / peak

    @property
    def hfu(self) -> Round6:
        """HFU: executed FLOP/s over the peak FLOP/s of all ranks."""
        return (
            self.executed_flops
            * self.pace
            / (self.plan.chip.peak_flops * self.plan.mesh.size)
        )

    @property
    def goodput(self) -> Goodput | None:
        """Productive share of the time under GPU failures, if the workload has a failure rate."""
        return goodput_of(
            self.plan,
            1 / self.pace,
            self.saved.stall_s if self.saved is not None else None,
        )

    @property
    def convergence(self) -> Convergence | None:
        """Time to accuracy, if the workload has epochs."""
        return convergence_of(self.plan.workload, 1 / self.pace)

    def mean(self, name: str) -> float:
        """Return the mean over ranks of a part of the last step [s]."""
        return (
            float(np.mean([getattr(row, f"{name}_ps") for row in self.ranks])) / 1e12
        )

    @property
    def exposed_by_dimension_s(self) -> dict[str, Round9]:
        """Mean exposed communication by dimension, without zeros [s]."""
        means = {dim: self.mean(f"exposed_{dim}") for dim in DIMENSIONS}
        return {dim: mean for dim, mean in means.items() if mean}

    @property
    def kernel_slowdown_s(self) -> Round9:
        """Mean time per step and rank that kernels lose to communication (SM and HBM sharing) [s]."""
        return self.sharing.lost_ps / len(self.step_ps) / self.plan.mesh.size / 1e12

    @property
    def bubble_fraction(self) -> Round6:
        """Mean share of the step that is pipeline bubble."""
        return self.mean("bubble") / self.mean("total")

    def summary(self) -> Summary:
        """Return workload and system, step time and breakdown."""
        plan = self.plan
        step = format_time(self.step_ps[-1])
        pace = f"{self.samples_per_s:,.0f} {plan.model.unit}/s"
        rows = {"step": step, "throughput": pace, "MFU": f"{self.mfu:.1%}"}
        rows |= {
            words: f"{self.mean(part) / self.mean('total'):.1%} of the step"
            for part, words in PARTS.items()
            if self.mean(part)
        }
        rows["expected error"] = self.expected_text
        title = f"{plan.workload.name}: {plan.model.name} on {plan.mesh.size} GPUs of {plan.fabric.name}"
        return Summary(
            title,
            (f"{step} a step", pace, f"MFU {self.mfu:.1%}"),
            " ".join(self.notes),
            rows,
        )

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return the breakdown of every rank in the last step."""
        return {"ranks": lambda: columns_of(Breakdown, self.ranks)}

    @property
    def throughput(self) -> Throughput:
        """Samples or tokens per second."""
        return Throughput(**{f"{self.plan.model.unit}_per_s": self.samples_per_s})

    @property
    def tflops_per_gpu(self) -> Round3:
        """Model operations per GPU [10^12/s]."""
        return self.plan.model_flops * self.pace / self.plan.mesh.size / 1e12

    @property
    def parts_s(self) -> StepTimes:
        """Parts of the last step."""
        names = ("compute", "exposed", "communication", "host", "bubble", "idle")
        return StepTimes(*map(self.mean, names))

    @property
    def fullest(self) -> Memory:
        """Memory of the fullest stage."""
        return max(self.memory, key=lambda item: item.total)

    @property
    def volume_bytes_per_gpu(self) -> dict[str, int]:
        """Bytes sent per GPU and step, by dimension [bytes]."""
        count = len(self.step_ps)
        return {
            dim: round(moved.sent_bytes / count / self.plan.mesh.size)
            for dim, moved in self.traffic.items()
        }

    @property
    def collectives_per_step(self) -> dict[str, int]:
        """Collectives per step, by dimension."""
        return {
            dim: moved.calls // len(self.step_ps)
            for dim, moved in self.traffic.items()
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult(StepResult):
    """A simulated training step."""

    KEYS = (
        *StepResult.KEYS,
        "busiest_wires",
        "folded=fold",
        "broken_wires",
        "granularity=result.provenance.granularity_note",
        "tasks",
        "fingerprint",
    )

    fold: FoldReport
    result: Result
    tasks: int = 0

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults of the run."""
        return tuple(self.result.provenance.faults)

    @property
    def origin(self) -> list[tuple[str, str]]:
        """Granularity, and replicated parts."""
        bound = self.error_bound
        limit = "" if bound is None else f"; error limit of the step {bound:.1%}"
        rows = [
            ("granularity", self.result.provenance.granularity_note + limit),
            ("tasks", f"{self.tasks:,}"),
        ]
        return [*rows, ("folded", self.fold.text)] if self.fold.folded else rows

    @property
    def identity(self) -> list[tuple[str, str]]:
        """The fingerprint of the run."""
        return [("fingerprint", self.fingerprint)]

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return the breakdown of every rank in the last step, and the tables of `result`."""
        return {**super().tables(), **self.result.tables()}

    @property
    def busiest_wires(self) -> list[BusyWire]:
        """Busiest wires."""
        return [BusyWire(*row) for row in self.wires]

    @property
    def broken_wires(self) -> list[BrokenWire]:
        """Wires with faults."""
        return slowed_wires(self.result)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the run, 16 hexadecimal digits."""
        return f"{self.result.fingerprint:016x}"
