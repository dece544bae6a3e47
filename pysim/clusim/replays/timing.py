"""Times of single calls on a communicator, and the launcher of a log's calls.

Equal calls are simulated once. The launcher is nccl-tests with the flags of the log's header, or unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from clusim.base.errors import ClusimError, InputError
from clusim.base.terms.operations import find_algorithm, find_protocol
from clusim.formats.logs import Log
from clusim.formats.logs.calls import LoggedCall
from clusim.jobs.joint import JointTimes
from clusim.jobs.player import CallBundle
from clusim.jobs.times import Times
from clusim.lowering import QUICK
from clusim.nccl.choice import (
    PUT,
    Choice,
    Communicators,
    GroupLike,
    Members,
    NcclOverrides,
    way_of,
)
from clusim.nccl.launch import Launch, host_of
from clusim.nccl.programs import CollectivePayload
from clusim.nccltests.jobs import PerfKernel
from clusim.nccltests.sweep import Harness, iterations_of
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.simulation.diagnose import judged_run
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.nccl_choice import OVERLAPPING
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.samples import ITERATIONS, Sample
from clusim.simulation.setup import Setup
from clusim.simulation.speed import job_with, speed_of

_MOST_SAID = 1_000_000
"""Upper limit on the numbers of a header."""


def harness_of(log: Log, comm: int) -> Harness:
    """Return the harness of a communicator's calls: nccl-tests by its header, or unlimited."""
    run = log.run_of(log.communicators[comm])
    if run is None:
        return Harness(kind="own", iterations=0)
    stated = {
        name: max(minimum, min(run.config.get(name, minimum), _MOST_SAID))
        for name, minimum in (
            ("nGpus", 1),
            ("nThread", 1),
            ("agg iters", 1),
            ("graph", 0),
            ("iters", 0),
        )
    }
    gpus, threads = min(stated["nGpus"], 64), min(stated["nThread"], 64)
    launch = Launch(gpus, stated["graph"] > 0, stated["agg iters"], threads=threads)
    iterations = iterations_of("nccl-tests", stated["iters"])
    return Harness("nccl-tests", launch, iterations, graphs=max(1, stated["graph"]))


def flags_of(harness: Harness) -> str:
    """Return the flags of nccl-tests that change times."""
    launch = harness.launch
    flags = {
        "t": launch.threads,
        "g": launch.gpus_per_thread,
        "m": launch.aggregated,
    }
    more = [f"-{flag} {value}" for flag, value in flags.items() if value > 1]
    graphs = [f"-G {harness.graphs}"] if launch.graph else []
    return " ".join([*more, f"-n {harness.iterations}", *graphs])


HOST = "host"
"""Change that divides the time between kernels."""

BINS = 32
"""Time bins of a call, enough to resolve the load of its wires over time."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Time and plan of a call.

    Attributes
    ----------
    busy : tuple of (str, int)
        Busy time of its wires [ps].
    remedies : tuple of clusim.analysis.remedies.Remedy
        Changes that may shorten its kernel.
    grants : int
        Packets and bursts that its simulation moved.
    """

    kernel_ps: int
    time_ps: int
    algorithm: str
    protocol: str
    channels: int
    note: str
    from_log: bool
    granularity: str
    busy: tuple[tuple[str, int], ...] = ()
    verdict: Verdict | None = None
    remedies: tuple[Any, ...] = ()
    grants: int = 0


def moved_of(call: LoggedCall) -> CollectivePayload:
    """Return the payload of a call for programs."""
    return CollectivePayload.from_recording(call)


def wanted_of(call: LoggedCall) -> NcclOverrides | None:
    """Return the tuner's choice in the log; None if absent or unknown."""
    algorithm, protocol = (
        find_algorithm(call.algorithm),
        find_protocol(call.protocol),
    )
    if algorithm is None or protocol is None:
        return None
    return NcclOverrides(
        algorithm, protocol, call.channels, call.model_us, "printed in the log"
    )


def choice_of(nccl: Communicators, members: Members, call: LoggedCall) -> Choice:
    """Return the plan of a call: the log's if it can run."""
    if call.messages:
        return Choice(None)
    recorded = wanted_of(call)
    result = nccl.choice(members, moved_of(call), recorded)
    if call.algorithm and recorded is None and not result.note:
        return replace(
            result, note=f"{call.algorithm} {call.protocol} cannot run here"
        )
    return result


class Timer:
    """Simulator of calls on one setup, each distinct call once.

    Attributes
    ----------
    options : RunOptions
        Options of all runs; their time limit ends a call with `TimeLimitReached`.
    words : str
        Component that is faster with the same plans, as `ReplayRequest.faster`; of `HOST`, the time between kernels.
    change : Change or None
        Otherwise a repair (`clusim.analysis.whatif.Change`).
    """

    def __init__(
        self,
        setup: Setup,
        nccl: Communicators,
        granularity: str | int = "auto",
        words: str = "",
        change: Any | None = None,
    ) -> None:
        self.setup, self.nccl, self.words, self.change = setup, nccl, words, change
        self.times = Times(granularity)
        self.options = RunOptions(bins=BINS)

    def with_change(self, words: str, change: Any, *, histories: bool) -> Timer:
        """Return a timer of the same calls with a change; calls have a verdict if `histories` are kept."""
        timer = Timer(self.setup, self.nccl, self.times.granularity, words, change)
        timer.options = replace(self.options, histories=histories)
        return timer

    def bundle(self, members: Members, call: LoggedCall, time_ps: int) -> CallBundle:
        """Return a call with its time in isolation [ps] for `joint`; groups of the same ranks have equal plans."""
        ranks = tuple(map(members.comm.ranks.__getitem__, members.position))
        self.nccl.adopt(ranks, members)
        return CallBundle((ranks,), replace(call, comm=0), time_ps)

    @cached_property
    def joint(self) -> JointTimes:
        """Return the times of calls that overlap."""
        grain = self.times.granularity
        times = Times(QUICK if grain == "auto" else grain)
        watch = self.options.watch
        return JointTimes(
            self.setup,
            times,
            watch=watch,
            emitter=self,
            run=self.run,
        )

    def collective(
        self, site: Site, group: GroupLike, call: LoggedCall
    ) -> list[int]:
        """Append a call of a communicator, or of topology ranks, to a schedule; return its last tasks."""
        nccl = self.nccl
        if call.operation == "puts":
            return [
                task
                for tasks in nccl.puts(site, group, call.messages)
                for task in tasks
            ]
        if call.messages:
            return nccl.messages(site, group, call.messages)
        return nccl.collective(site, group, moved_of(call), wanted_of(call))

    def time(self, members: Members, call: LoggedCall, harness: Harness) -> Timed:
        """Return the time of a call as reported by its harness."""
        question = _signature(members), replace(call, comm=0)
        return self.times.find(
            question, partial(self._simulate, members, call, harness), harness
        )

    def _simulate(
        self, members: Members, call: LoggedCall, harness: Harness
    ) -> Timed:
        comm = members.comm
        choice = choice_of(self.nccl, members, call)
        result = self._run(members, call, 1)
        sample = Sample(result.time_ps)
        if harness.kind == "nccl-tests" and call.operation in OVERLAPPING:
            # nccl-tests synchronises only after all iterations: early ranks start the next one before the last ends.
            more = self._run(members, call, ITERATIONS)
            sample = Sample.overlapping(result.tasks.end_ps.tolist(), more.time_ps)
        plan_text = way_of(comm, choice.plan) if call.operation != "puts" else PUT
        kernel = PerfKernel(sample.time_ps, *plan_text, lags_ps=sample.lags_ps)
        busy = result.wires.counters["busy_ps"].tolist()
        time_ps = harness.time_ps(host_of(comm), call.operation, kernel)
        if (speed := speed_of(self.words)) is not None and speed.what == HOST:
            between_ps = max(0, time_ps - result.time_ps)
            time_ps -= between_ps - int(between_ps / speed.factor)
        diagnosis = judged_run(result) if self.options.histories else None
        return Timed(
            result.time_ps,
            time_ps,
            *plan_text,
            choice.note,
            choice.as_wanted or plan_text is PUT,
            result.provenance.granularity_note,
            tuple(
                (n, b) for n, b in zip(result.wires.names, busy, strict=True) if b
            ),
            None if diagnosis is None else diagnosis.verdict,
            () if diagnosis is None else diagnosis.remedies,
            result.grants,
        )

    def _run(self, members: Members, call: LoggedCall, times: int) -> Result:
        """Simulate `times` consecutive instances of a call."""
        fabric = self.nccl.fabric
        builder = ProgramBuilder(
            fabric.num_ranks, f"{call.operation} {call.bytes} B"
        )
        try:
            for _ in range(times):
                self.collective(Site(builder, "comm0"), members, call)
        except ClusimError as error:
            raise InputError(
                f"{call.operation} of {call.bytes} B on {fabric.name}: {error}"
            ) from None
        schedule_request = ScheduleRequest(
            self.setup, builder.build(), granularity=self.times.granularity
        )
        return self.run(
            schedule_request, self.options, f"{call.operation} of {call.bytes} B"
        )

    def run(self, asked: ScheduleRequest, options: RunOptions, where: str) -> Result:
        """Simulate a schedule with the change; `where` names it if the time limit is reached."""
        words = "" if self.words.startswith(f"{HOST} ") else self.words
        result = run_job(job_with(asked, options, words, self.change), options)
        if result.unfinished is not None:
            raise result.unfinished.limit_error(where)
        return result


def _signature(members: Members) -> tuple[Any, ...]:
    """Return a key that is equal for communicators with the same times."""
    comm = members.comm
    routes: Sequence[Any] = tuple(
        (c.ring, c.parent, c.ring_adapters) for c in comm.channels
    )
    return (
        comm.ranks,
        members.position,
        routes,
        comm.nvls_channels,
        comm.p2p_channels,
    )
