"""Expected goodput of a job that fails now and then: what part of a month is work that counts.

**Hardware** A job on many GPUs fails when any of them does, restarts, and does again what it did since the last
checkpoint that was whole. **Model** Failures come independently at a constant rate, while restarting too. With mean
time M between them, work T between checkpoints of which each stops the job for S, restarts R, and a checkpoint that is
whole W after the job goes on (asynchronous writing; else 0), the time from one whole checkpoint to the next is

    M (1 - e^(-(T+S)/M)) e^((R+T+S+W)/M)

on average: an attempt of T+S, and behind a failure attempts of R+T+S+W until one succeeds. Without W it is the formula
of Daly (FGCS 2006, equation 13). The best T by it is found in whole steps; Young (CACM 1974) and Daly have
approximations. **Not modelled** Failures that come together, or that a spare takes over without a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, sqrt

from clusim.workload.parallel.checkpoints import Checkpoint, checkpoint_of
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.spec import CheckpointSpec, complain


def young_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return Young's best work between checkpoints [s]."""
    return sqrt(2 * stall_s * mtbf_s)


def daly_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return Daly's best work between checkpoints [s]."""
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
        What a checkpoint and a restart stop it for.
    write_s : float
        How long it takes until a checkpoint is whole after the job goes on.
    """

    mtbf_s: float
    stall_s: float
    restart_s: float
    write_s: float = 0.0

    def segment_s(self, work_s: float) -> float:
        """Return the mean time from one whole checkpoint to the next, with so much work between them [s]."""
        mean, once = self.mtbf_s, work_s + self.stall_s
        again = self.restart_s + once + self.write_s
        if again > 700 * mean:
            return float("inf")
        return -mean * expm1(-once / mean) * exp(again / mean)

    def best_steps(self, step_s: float) -> int:
        """Return the number of steps between checkpoints that wastes the least; a write ends before the next begins."""
        least = max(1, -int(-self.write_s // step_s))

        def wasted(steps: int) -> float:
            return self.segment_s(steps * step_s) / steps

        # What is wasted falls and then rises: go as far as it falls, in steps that halve.
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
    """What becomes of the time of a job.

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
        """Return the numbers a script wants."""
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
    """Return what becomes of a job of such steps, or None if the workload says nothing of failures.

    Parameters
    ----------
    stall_s : float or None
        What a checkpoint adds to a step, if that was simulated [s].
    """
    own, spec, size = plan.workload.reliability, plan.workload.checkpoints, checkpoint_of(plan)
    if own is None or spec is None or size is None:
        return None
    stall, rest = _times(spec, size, step_s)
    if stall_s is not None:
        stall, rest = stall_s, rest + stall - stall_s
    job = Failing(own.gpu_mtbf_h * 3600 / plan.mesh.size, stall, own.restart_s, max(0.0, rest))
    steps = job.best_steps(step_s)
    if spec.every is not None or spec.every_s is not None:
        steps = spec.every or max(1, round((spec.every_s or 0) / step_s))
        if steps * step_s < job.write_s:
            message = (
                f"a checkpoint takes {job.write_s:.4g} s to write, longer than the {steps * step_s:.4g} s"
                " between two"
            )
            raise complain(plan.workload, ("reliability",), message)
    return Goodput(job, size.bytes, steps, step_s, own.days)


def _times(spec: CheckpointSpec, size: Checkpoint, step_s: float) -> tuple[float, float]:
    """Return how long a checkpoint stops the job, and how long until it is whole after that [s].

    Copies under passes are taken to have the whole step.
    """
    if not spec.asynchronous:
        return max(size.copy_s, size.write_s), 0.0
    stall = max(0.0, size.copy_s - step_s) if spec.overlap else size.copy_s
    return stall, size.copy_s - stall + size.write_s
