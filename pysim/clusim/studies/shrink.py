"""A job that loses a rank, shrinks its communicator, and continues without it.

**Hardware** A rank that dies stops sending, and its peers wait. Between nodes the NIC of a peer reports an
error after ``NCCL_IB_RETRY_CNT`` retries of 4.096 us x 2^``NCCL_IB_TIMEOUT`` each (NVIDIA, NCCL environment
variables); inside a node the call waits until the watchdog of the framework ends it (PyTorch: ten minutes).
The others then create a communicator without the rank (``ncclCommShrink``; rabit does the same over sockets)
and repeat the lost iteration.
**Model** Iterations of one collective follow each other at the pace of `clusim nccl-tests`. Iterations that
ended before the failure count; the others run on the remaining ranks, with NCCL's plan for them. Iterations of
a workload are its training steps: the others keep their samples, so that the global batch shrinks with them.
**Not modelled** Work between the collectives, a rank that is only slow, NICs with peers inside the node of the
lost rank; states that ranks share, which need a checkpoint.
**Parameters** `WATCHDOG_PS` (published), `SHRINK_PS` (assumed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject
from clusim.base.tables import text_table
from clusim.base.terms.times import LAUNCHED
from clusim.base.units import format_time
from clusim.nccl.launch import host_of
from clusim.nccltests.jobs import PerfKernel, kernel
from clusim.nccltests.sweep import Harness
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.training.estimate import stepped
from clusim.training.request import TrainRequest
from clusim.workload import make_plan
from clusim.workload.workload_file import complain

WATCHDOG_PS = 600 * 10**12
"""PyTorch's default timeout of a NCCL process group (torch.distributed, `init_process_group`) [ps]."""

SHRINK_PS = 500 * 10**9
"""A new communicator of initialised ranks [ps].

Assumed from logs of NCCL's initialisation without kernels and bootstrap, which parent and child share: 0.44 to 0.52 s
on 4 and 6 H100 (waynehacking8), 0.74 to 1.25 s on two nodes of 8 (keitaw, p5).
"""

IB_TIMEOUT, IB_RETRIES = 20, 7
"""Defaults of ``NCCL_IB_TIMEOUT`` and ``NCCL_IB_RETRY_CNT`` (NVIDIA, NCCL environment variables)."""

IB_UNIT_PS = 4_096_000
"""Unit of an InfiniBand timeout [ps]."""


@dataclass(frozen=True, slots=True)
class RankLoss:
    """Loss of a rank.

    Attributes
    ----------
    rank : int
        Lost rank of the system.
    at_ps : int
        Time of the failure, after the start of the first iteration [ps].
    detection_ps, shrink_ps : int or None
        Time until the others detect the failure, and of the new communicator; None is the rule of the
        system, and `SHRINK_PS`.
    """

    rank: int
    at_ps: int
    detection_ps: int | None = None
    shrink_ps: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LossTimes(JsonObject):
    """Times of a job that lost a rank [ps].

    Attributes
    ----------
    iterations, completed : int
        Iterations of the job, and iterations that ended before the failure.
    iteration_ps, iteration_after_ps : int
        Iteration with all ranks, and with the others.
    lost_ps : int
        Work of the iteration that the failure ended.
    detected_by : str
        Cause of `detection_ps`.
    """

    num_ranks: int
    lost_rank: int
    failed_at_ps: int
    iterations: int
    completed: int
    iteration_ps: int
    lost_ps: int
    detection_ps: int
    detected_by: str
    shrink_ps: int
    iteration_after_ps: int

    @property
    def undisturbed_ps(self) -> int:
        """Time of the job without the failure."""
        return self.iterations * self.iteration_ps

    @property
    def total_ps(self) -> int:
        """Time of the job with the failure."""
        repeated = self.iterations - self.completed
        return (
            self.completed * self.iteration_ps
            + self.lost_ps
            + self.detection_ps
            + self.shrink_ps
            + repeated * self.iteration_after_ps
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShrunkJob(LossTimes):
    """Times of a job of collectives that lost a rank [ps].

    Attributes
    ----------
    before, after : PerfKernel
        Collective of all ranks, and of the others.
    """

    KEYS = (
        "topology",
        "collective",
        "size_bytes",
        "num_ranks",
        "lost_rank",
        "failed_at_ps",
        "iterations",
        "completed",
        "iteration_ps",
        "lost_ps",
        "detection_ps",
        "detected_by",
        "shrink_ps",
        "iteration_after_ps",
        "total_ps",
        "undisturbed_ps",
        "includes",
    )

    topology: str
    collective: str
    size_bytes: int
    before: PerfKernel
    after: PerfKernel
    includes: str = LAUNCHED


@dataclass(frozen=True, kw_only=True, slots=True)
class ShrunkSteps(LossTimes):
    """Times of training steps that lost a rank [ps].

    Attributes
    ----------
    global_batch, global_batch_after : int
        Samples of a step with all ranks, and with the others.
    notes : list of str
        Notes of the steps.
    """

    KEYS = (
        "workload",
        "topology",
        "num_ranks",
        "lost_rank",
        "failed_at_ps",
        "iterations",
        "completed",
        "iteration_ps",
        "lost_ps",
        "detection_ps",
        "detected_by",
        "shrink_ps",
        "iteration_after_ps",
        "global_batch",
        "global_batch_after",
        "total_ps",
        "undisturbed_ps",
        "notes",
    )

    workload: str
    topology: str
    global_batch: int
    global_batch_after: int
    notes: list[str]


def lose_rank(
    setup: Setup,
    operation: str,
    size_bytes: int,
    failure: RankLoss,
    *,
    iterations: int,
) -> ShrunkJob:
    """Return the times of a job of equal collectives that loses a rank and continues without it.

    Raises
    ------
    InputError
        No such rank, fewer than three ranks, or a failure after the end of the job.
    """
    survivors = _remaining_ranks(setup.comm.ranks, failure)
    remaining = replace(setup, per_node=None, gpus=None, ranks=survivors)
    before, before_ps = _iteration(setup, operation, size_bytes)
    _refuse_late(failure, iterations * before_ps)
    after, after_ps = _iteration(remaining, operation, size_bytes)
    return ShrunkJob(
        topology=setup.name,
        collective=operation,
        size_bytes=size_bytes,
        before=before,
        after=after,
        **_times(
            setup, failure, iterations, len(survivors) + 1, (before_ps, after_ps)
        ),
    )


WHOLE_STATES = ("ddp", "naive", "driver")
"""Kinds of data parallelism in which each rank has all states."""


def lose_rank_in_training(
    request: TrainRequest, failure: RankLoss, *, iterations: int
) -> ShrunkSteps:
    """Return the times of training steps of a job that loses a rank and continues without it.

    Raises
    ------
    InputError
        As `lose_rank`, or the workload is not data parallelism alone in which every rank has all states.
    """
    setup, work = request.setup, request.workload
    plan = make_plan(work, setup.known)
    mesh, kind = plan.mesh, work.data.kind
    for name in ("tensor", "context", "expert", "pipeline"):
        if getattr(mesh, name) > 1:
            message = f"{getattr(mesh, name)}: a group that loses a rank must be data parallelism alone"
            raise complain(work, ("parallel", name), message)
    if kind not in WHOLE_STATES:
        message = f"{kind}: the lost rank has states of its own, which need a checkpoint; use ddp"
        raise complain(work, ("data", "kind"), message)
    survivors = _remaining_ranks(mesh.ranks, failure)
    batch = work.batch.all // mesh.size * len(survivors)
    parallel = work.parallel.model_copy(
        update={"data": len(survivors), "ranks": list(survivors)}
    )
    slow = {
        rank: by
        for rank, by in work.stragglers.ranks.items()
        if int(rank) != failure.rank
    }
    changes = {
        "parallel": parallel,
        "batch": work.batch.model_copy(update={"all": batch}),
        "stragglers": work.stragglers.model_copy(update={"ranks": slow}),
    }
    fewer = work.model_copy(update=changes)
    before = stepped(request)
    _refuse_late(failure, iterations * before.step_ps[-1])
    after = stepped(replace(request, workload=fewer))
    steps_ps = before.step_ps[-1], after.step_ps[-1]
    return ShrunkSteps(
        workload=work.name,
        topology=setup.name,
        global_batch=work.batch.all,
        global_batch_after=batch,
        notes=list(dict.fromkeys((*before.notes, *after.notes))),
        **_times(setup, failure, iterations, mesh.size, steps_ps),
    )


def _remaining_ranks(ranks: Sequence[int], failure: RankLoss) -> tuple[int, ...]:
    """Return the ranks without the lost one."""
    if failure.rank not in ranks:
        raise InputError(
            f"rank {failure.rank} is not in the job; choose one of {min(ranks)} to {max(ranks)}"
        )
    if len(ranks) < 3:
        raise InputError(
            f"{len(ranks)} ranks: without one, no two are left to communicate"
        )
    return tuple(rank for rank in ranks if rank != failure.rank)


def _refuse_late(failure: RankLoss, end_ps: int) -> None:
    if failure.at_ps >= end_ps:
        raise InputError(
            f"the job ends after {format_time(end_ps)}, before the failure;"
            " use more iterations or an earlier time"
        )


def _times(
    setup: Setup,
    failure: RankLoss,
    iterations: int,
    num_ranks: int,
    each_ps: tuple[int, int],
) -> dict[str, Any]:
    """Return the fields of `LossTimes`, for iterations of `each_ps` before and after [ps]."""
    detection_ps, cause = _detection(setup, failure)
    completed, lost_ps = divmod(failure.at_ps, each_ps[0])
    return {
        "num_ranks": num_ranks,
        "lost_rank": failure.rank,
        "failed_at_ps": failure.at_ps,
        "iterations": iterations,
        "completed": completed,
        "iteration_ps": each_ps[0],
        "lost_ps": lost_ps,
        "detection_ps": detection_ps,
        "detected_by": cause,
        "shrink_ps": SHRINK_PS if failure.shrink_ps is None else failure.shrink_ps,
        "iteration_after_ps": each_ps[1],
    }


def _iteration(
    setup: Setup, operation: str, size_bytes: int
) -> tuple[PerfKernel, int]:
    """Return the collective of a setup, and the time of an iteration [ps]."""
    perf = kernel(Request(setup, operation, size_bytes))
    return perf, Harness().time_ps(host_of(setup.comm), operation, perf)


def _detection(setup: Setup, failure: RankLoss) -> tuple[int, str]:
    """Return the time until the other ranks detect a failure [ps], and its cause."""
    if failure.detection_ps is not None:
        return failure.detection_ps, "as given"
    if setup.num_nodes < 2:
        return WATCHDOG_PS, "PyTorch's watchdog: inside a node no call fails"
    environment = dict(setup.env)
    exponent = _variable(environment, "NCCL_IB_TIMEOUT", IB_TIMEOUT, 31)
    retries = _variable(environment, "NCCL_IB_RETRY_CNT", IB_RETRIES, 7)
    cause = f"NCCL_IB_TIMEOUT {exponent}, NCCL_IB_RETRY_CNT {retries}"
    return (IB_UNIT_PS << exponent) * retries, cause


def _variable(
    environment: dict[str, str], name: str, default: int, limit: int
) -> int:
    text = environment.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= limit:
        raise InputError(f"{name}={text}: must be 1 to {limit}")
    return int(text)


def shrunk_lines(job: ShrunkJob | ShrunkSteps) -> list[str]:
    """Return a job as text."""
    if isinstance(job, ShrunkJob):
        word, before, after = "iterations", _plan(job.before), _plan(job.after)
    else:
        word, before = "steps", f"global batch {job.global_batch}"
        after = f"global batch {job.global_batch_after}"
    repeated = job.iterations - job.completed
    rows = [
        (
            f"{job.completed} {word} of {job.num_ranks} ranks",
            job.completed * job.iteration_ps,
            before,
        ),
        (f"lost part of {LOST[word]}", job.lost_ps, f"rank {job.lost_rank} fails"),
        ("detection", job.detection_ps, job.detected_by),
        ("shrink", job.shrink_ps, f"communicator of {job.num_ranks - 1} ranks"),
        (
            f"{repeated} {word} of {job.num_ranks - 1} ranks",
            repeated * job.iteration_after_ps,
            after,
        ),
        (
            "total",
            job.total_ps,
            f"without the failure {format_time(job.undisturbed_ps)}",
        ),
    ]
    texts = [(name, format_time(time_ps), what) for name, time_ps, what in rows]
    return text_table("  {:<..}  {:>..}  {:<..}", texts)


LOST = {"iterations": "an iteration", "steps": "a step"}
"""One of several, by their word."""


def _plan(perf: PerfKernel) -> str:
    return f"{perf.algorithm} {perf.protocol}, {perf.channels} channels".lower()
