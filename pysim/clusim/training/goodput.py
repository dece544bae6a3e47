"""Goodput of a job whose GPUs fail.

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

from dataclasses import dataclass
from math import exp, expm1, sqrt
from typing import Annotated

from clusim.base.json_schema import JsonObject, Round3, Round6, Written
from clusim.workload.parallel.checkpoints import Checkpoint, checkpoint_of
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.spec import CheckpointSpec
from clusim.workload.workload_file import complain


def young_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return Young's optimal work between checkpoints [s]."""
    return sqrt(2 * stall_s * mtbf_s)


def daly_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return Daly's optimal work between checkpoints [s]."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    half = stall_s / (2 * mtbf_s)
    return (
        young_interval_s(mtbf_s, stall_s) * (1 + sqrt(half) / 3 + half / 9) - stall_s
    )


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

    mtbf_s: Round3
    stall_s: Round6
    restart_s: float
    write_s: Round6 = 0.0

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
        min_steps = max(1, -int(-self.write_s // step_s))

        def wasted(steps: int) -> float:
            return self.segment_s(steps * step_s) / steps

        # The wasted time falls and then rises: follow the descent, in strides that halve.
        best, stride = min_steps, 1
        while wasted(best + stride) < wasted(best):
            best, stride = best + stride, stride * 2
        while stride:
            if best - stride >= min_steps and wasted(best - stride) < wasted(best):
                best -= stride
            elif wasted(best + stride) < wasted(best):
                best += stride
            else:
                stride //= 2
        return best


@dataclass(frozen=True, slots=True)
class Goodput(JsonObject):
    """Goodput of a job whose GPUs fail.

    Attributes
    ----------
    goodput, checkpoints, restarts, redone : float
        Shares of the time: useful steps, checkpoints, restarts, and repeated work.
    young_interval_s, daly_interval_s : float
        Between checkpoints, by Young's and Daly's formulas [s].
    days : float
        Period [days].
    failures, useful_steps : float
        In this period.
    """

    KEYS = (
        "goodput=useful",
        "checkpoints",
        "restarts",
        "redone",
        "job_mtbf_s=job.mtbf_s",
        "checkpoint_bytes",
        "checkpoint_stall_s=job.stall_s",
        "checkpoint_write_s=job.write_s",
        "interval_steps",
        "interval_s=work_s",
        "young_interval_s",
        "daly_interval_s",
        "days",
        "failures",
        "useful_steps=steps",
    )

    job: Failing
    checkpoint_bytes: int
    interval_steps: int
    step_s: float
    days: float

    @property
    def work_s(self) -> Round6:
        """Work between checkpoints [s]."""
        return self.interval_steps * self.step_s

    @property
    def useful(self) -> Round6:
        return self.work_s / self.job.segment_s(self.work_s)

    @property
    def checkpoints(self) -> Round6:
        return self.job.stall_s / self.job.segment_s(self.work_s)

    @property
    def restarts(self) -> Round6:
        return -expm1(-self.job.restart_s / self.job.mtbf_s)

    @property
    def redone(self) -> Round6:
        return max(0.0, 1 - self.useful - self.checkpoints - self.restarts)

    @property
    def failures(self) -> Round3:
        return self.days * 86_400 / self.job.mtbf_s

    @property
    def steps(self) -> Annotated[float, Written(1)]:
        return self.days * 86_400 * self.useful / self.step_s

    @property
    def young_interval_s(self) -> Round6:
        """Young's optimal work between checkpoints [s]."""
        return young_interval_s(self.job.mtbf_s, self.job.stall_s)

    @property
    def daly_interval_s(self) -> Round6:
        """Daly's optimal work between checkpoints [s]."""
        return daly_interval_s(self.job.mtbf_s, self.job.stall_s)


def goodput_of(
    plan: ParallelPlan, step_s: float, stall_s: float | None = None
) -> Goodput | None:
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
    stall, later = _times(spec, size, step_s)
    if stall_s is not None:
        stall, later = stall_s, later + stall - stall_s
    job = Failing(
        reliability.gpu_mtbf_h * 3600 / plan.mesh.size,
        stall,
        reliability.restart_s,
        max(0.0, later),
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


def _times(
    spec: CheckpointSpec, size: Checkpoint, step_s: float
) -> tuple[float, float]:
    """Return the stop of a job for a checkpoint, and the time from then to its completion [s].

    Copies under passes are assumed to have the complete step.
    """
    if not spec.asynchronous:
        return max(size.copy_s, size.write_s), 0.0
    stall = max(0.0, size.copy_s - step_s) if spec.overlap else size.copy_s
    return stall, size.copy_s - stall + size.write_s
