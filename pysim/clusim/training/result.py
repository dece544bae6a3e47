"""Result of training steps: times, breakdown, volumes, memory, and expected goodput.

**Hardware** A job on many GPUs fails when any GPU does, restarts, and repeats its work since the last complete
checkpoint. **Model** Failures are independent at a constant rate, also while restarting. With mean
time M between them, work T between checkpoints which stop the job for S each, restarts R, and a checkpoint that is
complete W after the job continues (asynchronous writing; otherwise 0), the mean time between complete checkpoints is

    M (1 - e^(-(T+S)/M)) e^((R+T+S+W)/M)

with a first attempt of T+S, and after a failure attempts of R+T+S+W until one succeeds. Without W it is the formula
of Daly (FGCS 2006, equation 13). The best T is searched for in integer steps; Young (CACM 1974) and Daly have
approximations. **Not modelled** Correlated failures, and spares that replace a GPU without a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp, expm1, sqrt
from typing import Any

import numpy as np

from clusim.analysis.limits import broken_wires_json
from clusim.base.display import Columns, Shown, Summary, columns_of
from clusim.base.units import format_time
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.training.breakdown import PARTS, Breakdown, error_of
from clusim.training.expected import StepClass, expected_step, expected_text
from clusim.training.proof import FoldReport
from clusim.training.step_diagnosis import step_verdict
from clusim.training.switches import Sharing, Switching
from clusim.training.without_bottleneck import SavedStep
from clusim.workload.memory import Memory
from clusim.workload.parallel.checkpoints import Checkpoint, checkpoint_of
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.volumes import Volume
from clusim.workload.spec import CheckpointSpec, complain


def young_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return Young's optimal work between checkpoints [s]."""
    return sqrt(2 * stall_s * mtbf_s)


def daly_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return Daly's optimal work between checkpoints [s]."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    half = stall_s / (2 * mtbf_s)
    return young_interval_s(mtbf_s, stall_s) * (1 + sqrt(half) / 3 + half / 9) - stall_s


@dataclass(frozen=True, slots=True)
class Failing:
    """A job that fails [s].

    Attributes
    ----------
    mtbf_s : float
        Mean time between failures of the job.
    stall_s, restart_s : float
        Stop of the job for a checkpoint, and for a restart.
    write_s : float
        Time from the end of that stop until the checkpoint is complete.
    """

    mtbf_s: float
    stall_s: float
    restart_s: float
    write_s: float = 0.0

    def segment_s(self, work_s: float) -> float:
        """Return the mean time between complete checkpoints, for `work_s` of work in between [s]."""
        mean, once = self.mtbf_s, work_s + self.stall_s
        again = self.restart_s + once + self.write_s
        if again > 700 * mean:
            return float("inf")
        return -mean * expm1(-once / mean) * exp(again / mean)

    def best_steps(self, step_s: float) -> int:
        """Return the number of steps between checkpoints that wastes the least time.

        A write ends before the next begins.
        """
        least = max(1, -int(-self.write_s // step_s))

        def wasted(steps: int) -> float:
            return self.segment_s(steps * step_s) / steps

        # The wasted time falls and then rises: follow the descent, in strides that halve.
        best, stride = least, 1
        while wasted(best + stride) < wasted(best):
            best, stride = best + stride, stride * 2
        while stride:
            if best - stride >= least and wasted(best - stride) < wasted(best):
                best -= stride
            elif wasted(best + stride) < wasted(best):
                best += stride
            else:
                stride //= 2
        return best


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput of a job: shares of its time.

    Attributes
    ----------
    useful, checkpoints, restarts, redone : float
        Parts of the time: work that counts, stops for checkpoints, restarts, and work (with its checkpoints) that is
        done again.
    failures : float
        Failures to expect in the period.
    steps : float
        Steps that count in the period.
    """

    job: Failing
    checkpoint_bytes: int
    interval_steps: int
    step_s: float
    days: float

    @property
    def work_s(self) -> float:
        """Work between checkpoints [s]."""
        return self.interval_steps * self.step_s

    @property
    def useful(self) -> float:
        return self.work_s / self.job.segment_s(self.work_s)

    @property
    def checkpoints(self) -> float:
        return self.job.stall_s / self.job.segment_s(self.work_s)

    @property
    def restarts(self) -> float:
        return -expm1(-self.job.restart_s / self.job.mtbf_s)

    @property
    def redone(self) -> float:
        return max(0.0, 1 - self.useful - self.checkpoints - self.restarts)

    @property
    def failures(self) -> float:
        return self.days * 86_400 / self.job.mtbf_s

    @property
    def steps(self) -> float:
        return self.days * 86_400 * self.useful / self.step_s

    def to_json(self) -> dict[str, float | int]:
        """Return the numbers for JSON output."""
        job = self.job
        return {
            "goodput": round(self.useful, 6),
            "checkpoints": round(self.checkpoints, 6),
            "restarts": round(self.restarts, 6),
            "redone": round(self.redone, 6),
            "job_mtbf_s": round(job.mtbf_s, 3),
            "checkpoint_bytes": self.checkpoint_bytes,
            "checkpoint_stall_s": round(job.stall_s, 6),
            "checkpoint_write_s": round(job.write_s, 6),
            "interval_steps": self.interval_steps,
            "interval_s": round(self.work_s, 6),
            "young_interval_s": round(young_interval_s(job.mtbf_s, job.stall_s), 6),
            "daly_interval_s": round(daly_interval_s(job.mtbf_s, job.stall_s), 6),
            "days": self.days,
            "failures": round(self.failures, 3),
            "useful_steps": round(self.steps, 1),
        }


def goodput_of(plan: ParallelPlan, step_s: float, stall_s: float | None = None) -> Goodput | None:
    """Return the goodput of a job of such steps, or None if the workload has no failures.

    Parameters
    ----------
    stall_s : float or None
        Additional time of a step with a checkpoint, if that was simulated [s].
    """
    reliability, spec, size = (
        plan.workload.reliability,
        plan.workload.checkpoints,
        checkpoint_of(plan),
    )
    if reliability is None or spec is None or size is None:
        return None
    stall, rest = _times(spec, size, step_s)
    if stall_s is not None:
        stall, rest = stall_s, rest + stall - stall_s
    job = Failing(
        reliability.gpu_mtbf_h * 3600 / plan.mesh.size, stall, reliability.restart_s, max(0.0, rest)
    )
    steps = job.best_steps(step_s)
    if spec.every is not None or spec.every_s is not None:
        steps = spec.every or max(1, round((spec.every_s or 0) / step_s))
        if steps * step_s < job.write_s:
            message = (
                f"writing a checkpoint lasts {job.write_s:.4g} s, longer than the {steps * step_s:.4g} s"
                " between two"
            )
            raise complain(plan.workload, ("reliability",), message)
    return Goodput(job, size.bytes, steps, step_s, reliability.days)


def _times(spec: CheckpointSpec, size: Checkpoint, step_s: float) -> tuple[float, float]:
    """Return the stop of a job for a checkpoint, and the time from then to its completion [s].

    Copies under passes are assumed to have the complete step.
    """
    if not spec.asynchronous:
        return max(size.copy_s, size.write_s), 0.0
    stall = max(0.0, size.copy_s - step_s) if spec.overlap else size.copy_s
    return stall, size.copy_s - stall + size.write_s


@dataclass(frozen=True, kw_only=True, repr=False)
class StepResult(Shown):
    """Result of training steps, simulated or estimated.

    Attributes
    ----------
    step_ps : list of int
        Time of every step [ps].
    ranks : list of Breakdown
        Breakdown of the last step for every rank.
    traffic : dict
        Traffic of a step by dimension.
    sharing : Sharing
        Cost of communication for kernels, in the complete run.
    grain_error : float or None
        Error limit of communication against exact packets, including replicated blocks; None is unknown.
    worker_ps : list of int
        Time of the last step by worker, if they are asynchronous [ps].
    saved : SavedStep or None
        Additional time of a step with a checkpoint, if the workload has checkpoints.
    wires : list of (name, busy)
        Busiest wires and their busy share of the run.
    judged : Verdict or None
        Verdict on the step; None is computed from `ranks`.
    """

    plan: ParallelPlan
    step_ps: list[int]
    ranks: list[Breakdown]
    memory: list[Memory]
    traffic: dict[str, Volume]
    executed_flops: int
    wall_s: float
    notes: list[str] = field(default_factory=list)
    sharing: Sharing = field(default_factory=Sharing)
    switching: Switching | None = None
    worker_ps: list[int] = field(default_factory=list)
    saved: SavedStep | None = None
    grain_error: float | None = None
    wires: list[tuple[str, float]] = field(default_factory=list)
    judged: Verdict | None = None

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
    def step_time_s(self) -> float:
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
        """Verdict on the step."""
        if self.judged is not None:
            return self.judged
        return step_verdict([(("", 0, self.step_ps[-1]), self.ranks)], self.expected_text)

    @property
    def error_bound(self) -> float | None:
        """Error limit of the step against exact packets, as a share; None is unknown."""
        return error_of(self.grain_error, self.ranks, self.step_ps[-1])

    @property
    def samples_per_s(self) -> float:
        """Tokens, or samples, per second."""
        return self.plan.samples * self.pace

    @property
    def pace(self) -> float:
        """Steps per second; the mean over asynchronous workers."""
        steps = self.worker_ps or self.step_ps[-1:]
        return sum(1e12 / ps for ps in steps) / len(steps)

    @property
    def mfu(self) -> float:
        """MFU: model FLOP/s, without recomputation, over the peak FLOP/s of all ranks."""
        peak = self.plan.chip.peak_flops * self.plan.mesh.size
        return self.plan.model_flops * self.pace / peak

    @property
    def hfu(self) -> float:
        """HFU: executed FLOP/s over the peak FLOP/s of all ranks."""
        return self.executed_flops * self.pace / (self.plan.chip.peak_flops * self.plan.mesh.size)

    @property
    def goodput(self) -> Goodput | None:
        """Productive share of the time under GPU failures, if the workload has a failure rate."""
        return goodput_of(
            self.plan, 1 / self.pace, self.saved.stall_s if self.saved is not None else None
        )

    def mean(self, name: str) -> float:
        """Return the mean over ranks of a part of the last step [s]."""
        return float(np.mean([getattr(row, f"{name}_ps") for row in self.ranks])) / 1e12

    @property
    def kernel_slowdown_s(self) -> float:
        """Mean time per step and rank that kernels lose to communication (SM and HBM sharing) [s]."""
        return self.sharing.lost_ps / len(self.step_ps) / self.plan.mesh.size / 1e12

    @property
    def bubble_fraction(self) -> float:
        """Mean share of the step that is pipeline bubble."""
        return self.mean("bubble") / self.step_time_s

    def summary(self) -> Summary:
        """Return workload and system, step time and breakdown."""
        plan = self.plan
        step = format_time(self.step_ps[-1])
        pace = f"{self.samples_per_s:,.0f} {plan.model.unit}/s"
        rows = {"step": step, "throughput": pace, "MFU": f"{self.mfu:.1%}"}
        rows |= {
            words: f"{self.mean(part) / self.step_time_s:.1%} of the step"
            for part, words in PARTS.items()
            if self.mean(part)
        }
        rows["expected error"] = self.expected_text
        title = f"{plan.workload.name}: {plan.model.name} on {plan.mesh.size} GPUs of {plan.fabric.name}"
        return Summary(
            title, (f"{step} a step", pace, f"MFU {self.mfu:.1%}"), " ".join(self.notes), rows
        )

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return the breakdown of every rank in the last step."""
        return {"ranks": lambda: columns_of(Breakdown, self.ranks)}

    def figures(self) -> dict[str, Any]:
        """Return the numbers for JSON output that are common to simulations and estimates."""
        plan, worst = self.plan, max(self.memory, key=lambda item: item.total)
        steps = len(self.step_ps)
        return {
            "workload": plan.workload.name,
            "model": plan.model.name,
            "parameters": plan.model.parameters,
            "fabric": plan.fabric.name,
            "gpus": plan.mesh.size,
            "mesh": {
                n: getattr(plan.mesh, n)
                for n in ("tensor", "context", "expert", "data", "pipeline")
            },
            "stage_gpus": list(plan.crew.replicas),
            "placement": plan.placement(),
            "microbatches": plan.microbatches,
            "step_time_s": round(self.step_time_s, 9),
            "verdict": self.verdict.to_json(),
            "expected_error": self.expected.to_json() if self.expected is not None else None,
            "expected_error_text": self.expected_text,
            "steps_s": [round(ps / 1e12, 9) for ps in self.step_ps],
            f"{plan.model.unit}_per_s": round(self.samples_per_s, 3),
            "tflops_per_gpu": round(plan.model_flops * self.pace / plan.mesh.size / 1e12, 3),
            "mfu": round(self.mfu, 6),
            "hfu": round(self.hfu, 6),
            "compute_s": round(self.mean("compute"), 9),
            "exposed_comm_s": round(self.mean("exposed"), 9),
            "communication_s": round(self.mean("communication"), 9),
            "host_wait_s": round(self.mean("host"), 9),
            "bubble_s": round(self.mean("bubble"), 9),
            "idle_s": round(self.mean("idle"), 9),
            "kernel_slowdown_s": round(self.kernel_slowdown_s, 9),
            "communication_sms": round(self.sharing.sms, 3),
            "in_switch": self.switching.to_json() if self.switching is not None else None,
            "bubble_fraction": round(self.bubble_fraction, 6),
            "ranks": [
                {
                    "rank": row.rank,
                    "compute_s": row.compute_ps / 1e12,
                    "exposed_comm_s": row.exposed_ps / 1e12,
                    "host_wait_s": row.host_ps / 1e12,
                    "bubble_s": row.bubble_ps / 1e12,
                    "idle_s": row.idle_ps / 1e12,
                }
                for row in self.ranks
            ],
            "checkpoint": self.saved.to_json(self.step_time_s) if self.saved is not None else None,
            "goodput": self.goodput.to_json() if self.goodput is not None else None,
            "memory_GiB": worst.to_json(),
            "memory_by_stage_GiB": [item.to_json() for item in self.memory],
            "volume_bytes_per_gpu": {
                dim: round(moved.sent_bytes / steps / plan.mesh.size)
                for dim, moved in self.traffic.items()
            },
            "collectives_per_step": {
                dim: moved.calls // steps for dim, moved in self.traffic.items()
            },
            "faults": list(self.faults),
            "notes": self.notes,
            "error_bound": None if self.error_bound is None else round(self.error_bound, 6),
            "wall_s": round(self.wall_s, 3),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult(StepResult):
    """A simulated training run."""

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
        return [("fingerprint", f"{self.result.fingerprint:016x}")]

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return the breakdown of every rank in the last step, and the tables of `result`."""
        return {**super().tables(), **self.result.tables()}

    def to_json(self) -> dict[str, Any]:
        """Return the numbers for JSON output."""
        return {
            **self.figures(),
            "busiest_wires": [{"wire": name, "busy": round(busy, 6)} for name, busy in self.wires],
            "folded": self.fold.to_json(),
            "broken_wires": broken_wires_json(self.result),
            "granularity": self.result.provenance.granularity_note,
            "tasks": self.tasks,
            "fingerprint": f"{self.result.fingerprint:016x}",
        }
