"""Runs of jobs on one fabric: all together, each in isolation, and in pairs.

**Model** One engine run has the programs and messages of some jobs on their ranks, packet by packet or in bursts: they
share wires, buffers, virtual channels, memory and SMs by the rules of the topology. A job in isolation is the same run
without the others. **Not modelled** Messages that wait for programs: a job that begins ``after`` another begins at a
fixed time, from the run of the other in isolation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.limits import pause_collector
from clusim.lowering import Lowered
from clusim.lowering.grain import share_granularity
from clusim.multijob.join import PlacedSchedule, join_schedules
from clusim.multijob.result import JobRun, TogetherRun
from clusim.multijob.spec import JobsSpec
from clusim.multijob.work import (
    PACKET_BYTES,
    JobWork,
    JoinedMessages,
    WorkWriter,
    join_messages,
)
from clusim.results.result import Result
from clusim.schedule.ir import Schedule
from clusim.simulation.api import result_of
from clusim.simulation.flows import Flow
from clusim.simulation.job import RunOptions
from clusim.simulation.plan import plan
from clusim.simulation.preparation import lowered_run
from clusim.simulation.request import FlowMessages, PartOfRun, ScheduleRequest
from clusim.simulation.session import EngineName
from clusim.simulation.setup import Setup
from clusim.simulation.traffic import Traffic, TrafficPlan
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of


@dataclass(frozen=True)
class JoinedJobs:
    """Jobs as one schedule and one list of messages.

    Attributes
    ----------
    placed : list of PlacedSchedule
        Jobs with programs.
    copies : list of list of range
        Tasks of every copy of each.
    connections : list of list of range
        Connections of every copy of each.
    sending : list of JobWork
        Jobs with messages.
    messages : JoinedMessages or None
        Their messages.
    """

    schedule: Schedule
    placed: list[PlacedSchedule]
    copies: list[list[range]]
    connections: list[list[range]]
    sending: list[JobWork]
    messages: JoinedMessages | None

    def connections_of(self, name: str, copy: int) -> range:
        """Return the connections of a copy of a job's programs."""
        at = next(at for at, one in enumerate(self.placed) if one.name == name)
        return self.connections[at][copy]


PILOTS = 8
"""Number of coarser runs with the work of one: they measure how often a job repeats to fill the time."""


@dataclass
class JobsRunner:
    """Runner of the jobs of a file.

    Attributes
    ----------
    works : dict
        Work of each job, by name.
    starts : dict
        Start of each job [ps].
    repeats : dict
        Iterations of each job.
    alone : dict
        Run of each job in isolation.
    full : tuple or None
        Image of the run of all jobs, from which all runs have their bursts, and its schedule.
    runs : int
        Runs of the engine, without coarser runs.
    """

    spec: JobsSpec
    setup: Setup
    granularity: str | int
    options: RunOptions = field(default_factory=RunOptions)
    engine: EngineName = "c"
    works: dict[str, JobWork] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    alone: dict[str, TogetherRun] = field(default_factory=dict)
    full: tuple[Lowered, JoinedJobs] | None = None
    runs: int = 0

    def __post_init__(self) -> None:
        """Put jobs into their traffic classes."""
        self.setup = self.setup.on(with_classes(self.spec, self.setup))

    def prepare(self, notify: Callable[[str], None] = lambda name: None) -> None:
        """Write the work of all jobs and run each in isolation, in the bursts of the run of all."""
        writer = WorkWriter(self.spec, self.setup)
        for name, job in self.spec.jobs.items():
            if job.repeat != "fill":
                self.repeats[name] = job.repeat
                self.works[name] = writer.write(name, job.repeat)
        self._fill(writer, notify)
        self.starts = {name: job.start for name, job in self.spec.jobs.items()}
        if isinstance(self.granularity, str) and self.granularity != "packet":
            joined = self._join(list(self.spec.jobs))
            request = self._request(joined)
            self.full = lowered_run(plan(request)), joined
        for name in self.spec.jobs:
            self._run_alone(name, notify)

    def _fill(self, writer: WorkWriter, notify: Callable[[str], None]) -> None:
        """Write the jobs that repeat to fill the others' time, by coarser runs of each in isolation."""
        jobs = self.spec.jobs
        fills = [name for name, job in jobs.items() if job.repeat == "fill"]
        if not fills:
            return
        if len(fills) == len(jobs):
            raise InputError(
                f"job {fills[0]}: repeat fill needs a job with a number of iterations"
            )
        share = share_granularity(self.granularity, PILOTS)
        pilot = JobsRunner(self.spec, self.setup, share, self.options, self.engine)
        pilot.works, pilot.repeats = dict(self.works), dict(self.repeats)
        for name in fills:
            pilot.works[name] = writer.write(name, 2)
            pilot.repeats[name] = 2
        pilot.starts = {name: job.start for name, job in jobs.items()}
        for name in jobs:
            pilot._run_alone(name, lambda name: notify(f"{name}, for its time"))
        ends = {name: pilot.alone[name].jobs[name] for name in jobs}
        until_ps = max(run.end_ps for name, run in ends.items() if name not in fills)
        for name in fills:
            run = ends[name]
            first_ps = int(run.ends_ps[:: len(run.ends_ps) // 2].min())
            pace_ps = max(1, run.end_ps - first_ps)
            self.repeats[name] = 1 + max(0, -(-(until_ps - first_ps) // pace_ps))
            self.works[name] = writer.write(name, self.repeats[name])

    def _run_alone(self, name: str, notify: Callable[[str], None]) -> None:
        """Run a job in isolation, after the job that it follows."""
        if name in self.alone:
            return
        after = self.spec.jobs[name].after
        if after is not None:
            self._run_alone(after.job, notify)
            ends = self.alone[after.job].jobs[after.job].ends_ps
            if after.iterations > len(ends):
                raise InputError(
                    f"job {name}: {after.job} has {len(ends)} iterations, not {after.iterations}"
                )
            self.starts[name] = int(ends[after.iterations - 1])
        notify(name)
        self.alone[name] = self.run([name])

    def run(
        self, names: Sequence[str], options: RunOptions | None = None
    ) -> TogetherRun:
        """Run some jobs together."""
        self.runs += 1
        with pause_collector():
            joined = self._join(names)
            result = result_of(self._request(joined), options or self.options)
        runs = {
            one.name: self._program_run(one, ranges, result)
            for one, ranges in zip(joined.placed, joined.copies, strict=True)
        }
        runs |= self._message_runs(joined, result)
        return TogetherRun(result, {name: runs[name] for name in names})

    def _join(self, names: Sequence[str]) -> JoinedJobs:
        """Return the work of some jobs as one schedule and one list of messages."""
        works = [self.works[name] for name in names]
        placed = [
            PlacedSchedule(
                work.name,
                work.schedule,
                work.ranks,
                self.starts[work.name],
                1 if work.steps else self.repeats[work.name],
                work.compute_ps,
            )
            for work in works
            if work.schedule is not None
        ]
        sending = [work for work in works if work.messages is not None]
        fabric = self._fabric()
        schedule, copies, connections = join_schedules(
            "jobs", fabric.num_ranks, placed
        )
        messages = None
        if sending:
            rows = [
                (work.messages, self.starts[work.name])
                for work in sending
                if work.messages is not None
            ]
            messages = join_messages(rows)
        return JoinedJobs(schedule, placed, copies, connections, sending, messages)

    def _request(self, joined: JoinedJobs) -> ScheduleRequest:
        """Return the run of joined jobs, in the bursts of the run of all if these are known."""
        flows = part = None
        if joined.messages is not None:
            classes = [self._class(work.name) for work in joined.sending]
            of_flow = [classes[at] for at in joined.messages.jobs]
            flows = _flow_messages(joined.messages, of_flow)
        if self.full is not None:
            lowered, joint = self.full
            numbers = [
                number
                for one, firsts in zip(
                    joined.placed, joined.connections, strict=True
                )
                for copy in range(len(firsts))
                for number in joint.connections_of(one.name, copy)
            ]
            part = PartOfRun(lowered, numbers)
        return ScheduleRequest(
            self.setup.on(self._fabric()),
            joined.schedule,
            granularity=self.granularity,
            engine=self.engine,
            messages=flows,
            part=part,
        )

    def _message_runs(self, joined: JoinedJobs, result: Result) -> dict[str, JobRun]:
        """Return the times of the jobs of messages."""
        if joined.messages is None:
            return {}
        owner, number = joined.messages.job, joined.messages.number
        messages = result.messages
        assert messages is not None
        runs = {}
        for at, work in enumerate(joined.sending):
            mine = np.flatnonzero(owner == at)
            mine = mine[np.argsort(number[mine])]
            begins, ends = messages.start_ps[mine], messages.end_ps[mine]
            if work.closed:
                follows = np.append(False, np.diff(messages.flow[mine]) == 0)
                before = np.append(0, ends[:-1])
                begins = np.where(follows, np.maximum(begins, before), begins)
            start_ps = self.starts[work.name]
            runs[work.name] = JobRun(start_ps, int(ends.max()), begins, ends)
        return runs

    def ranks_of(self, name: str) -> tuple[int, ...]:
        """Return the ranks of a job."""
        if self.spec.jobs[name].flows is not None:
            return self.works[name].ranks
        return WorkWriter(self.spec, self.setup).place(name)

    def notes(self) -> list[str]:
        """Return the assumptions about the jobs."""
        result = []
        for name, job in self.spec.jobs.items():
            if job.after is not None:
                result.append(
                    f"{name} begins when {job.after.job} in isolation has ended iteration {job.after.iterations}"
                )
            if job.repeat == "fill":
                result.append(f"{name}: {self.repeats[name]} iterations")
            result += (f"{name}: {note}" for note in self.works[name].notes)
        return result

    def _class(self, name: str) -> int | None:
        """Return the traffic class of a job's messages; None in a file without classes."""
        jobs = self.spec.jobs
        used = any(job.traffic_class for job in jobs.values())
        return jobs[name].traffic_class if used else None

    def _program_run(
        self, placed: PlacedSchedule, copies: Sequence[range], result: Result
    ) -> JobRun:
        end_ps, start_ps = result.tasks.end_ps, self.starts[placed.name]
        steps = self.works[placed.name].steps
        if steps:
            first = copies[0].start
            groups: list[Array] = [
                np.array(step, np.int64) + first for step in steps
            ]
        else:
            groups = [np.arange(copy.start, copy.stop) for copy in copies]
        ends = np.array([int(end_ps[group].max()) for group in groups], np.int64)
        last = int(end_ps[copies[0].start : copies[-1].stop].max())
        ends[-1] = max(last, int(ends[-1]))
        begins = np.array([start_ps, *ends[:-1].tolist()], np.int64)
        return JobRun(start_ps, last, begins, ends)

    def _fabric(self) -> Fabric:
        """Return the fabric with the intervals of memory sharing of the jobs' ranks."""
        fabric = self.setup.fabric
        quanta: dict[str, int] = {}
        if self.granularity != "packet":
            for work in self.works.values():
                for rank in work.ranks if work.quantum_ps else ():
                    name = fabric.ranks[rank]
                    quanta[name] = max(work.quantum_ps, quanta.get(name, 0))
        if not quanta:
            return fabric
        key = tuple(sorted(quanta.items()))
        cached: dict[object, Fabric] = fabric.cache.setdefault("jobs intervals", {})
        if key not in cached:
            nodes = tuple(
                replace(
                    node,
                    endpoint=replace(
                        node.endpoint,
                        mem_quantum_ps=max(
                            node.endpoint.mem_quantum_ps, quanta[node.name]
                        ),
                    ),
                )
                if node.endpoint is not None and node.name in quanta
                else node
                for node in fabric.nodes
            )
            cached[key] = replace(fabric, nodes=nodes)
        return cached[key]


def _flow_messages(
    joined: JoinedMessages, classes: Sequence[int | None]
) -> FlowMessages:
    """Return messages with the traffic class of each flow."""
    messages = joined.messages
    first = np.searchsorted(messages.flow, np.arange(len(classes)))
    end = np.append(first[1:], len(messages.flow))
    flows = tuple(
        Flow(
            int(messages.source[low]),
            int(messages.destination[low]),
            int(messages.size_bytes[low:high].sum()),
            int(messages.start_ps[low]),
            number,
        )
        for low, high, number in zip(first, end, classes, strict=True)
    )
    traffic = Traffic(
        "flows", int(messages.size_bytes.max()), PACKET_BYTES, flows=flows
    )
    return FlowMessages(traffic, TrafficPlan(messages, first, end, joined.label))


def with_classes(spec: JobsSpec, setup: Setup) -> Fabric:
    """Return the fabric with the traffic classes of the jobs' NICs, and the priorities of the links between nodes.

    Raises
    ------
    InputError
        Programs of two classes share a node, or there are more priorities than classes.
    """
    fabric = setup.fabric
    writer = WorkWriter(spec, setup)
    of_zone: dict[int, tuple[int, str]] = {}
    arrays = arrays_of(fabric)
    for name, job in spec.jobs.items():
        if job.kind not in ("train", "replay", "collective"):
            continue
        for zone in {arrays.zone_of(rank) for rank in writer.place(name)}:
            number, other = of_zone.setdefault(zone, (job.traffic_class, name))
            if number != job.traffic_class:
                raise InputError(
                    f"job {name}: class {job.traffic_class} on node {zone}, where {other} has class {number}; NICs"
                    " have one class for programs"
                )
    chosen = {zone: number for zone, (number, _) in of_zone.items() if number}
    classes = {job.traffic_class for job in spec.jobs.values()} - {0}
    if not (chosen or classes or spec.priority):
        return fabric
    nodes = tuple(
        replace(node, nic=replace(node.nic, traffic_class=chosen[node.zone]))
        if node.nic is not None and node.zone in chosen
        else node
        for node in fabric.nodes
    )
    highest = max({0, *classes})
    priority = tuple(spec.priority) or (0,) * (highest + 1)
    if len(priority) <= highest:
        raise InputError(
            f"priority: {len(priority)} classes; jobs have classes up to {highest}"
        )
    outside = {node.name for node in fabric.nodes if node.zone == -1}
    network = outside or {
        node.name for node in fabric.nodes if node.kind == "switch"
    }
    links = tuple(
        replace(link, priority=priority) if {link.a, link.b} & network else link
        for link in fabric.links
    )
    return replace(fabric, nodes=nodes, links=links)
