"""Work of the jobs of a file: programs and messages on their ranks of the fabric.

**Model** NCCL plans the collectives of a job on its own nodes and the switches between them. Storage, checkpoints and
synthetic traffic are messages of NICs, one after the other between two ranks; they need no SMs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.multijob.spec import JobSpec, JobsSpec
from clusim.results.result import Messages
from clusim.schedule.ir import Schedule
from clusim.simulation.flows import read_flows
from clusim.simulation.plan import plan
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.simulation.traffic import Traffic
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of
from clusim.training.schedules import relaxed, write_steps
from clusim.workload import load_workload
from clusim.workload.parallel.plan import ParallelPlan, make_plan

PACKET_BYTES = 4096
"""Payload of the packets of messages, an MTU of RoCE [bytes]."""

MOST_MESSAGES = 2_000_000
"""Most messages of a job."""


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Messages of a job, by ranks of the fabric; times from the start of the job.

    Attributes
    ----------
    flow : ndarray of int64
        Number of the message's flow in the job: its messages follow each other.
    """

    source: Array
    destination: Array
    size_bytes: Array
    start_ps: Array
    flow: Array


@dataclass(frozen=True)
class JobWork:
    """Work of a job.

    Attributes
    ----------
    ranks : tuple of int
        Ranks of the fabric.
    schedule : Schedule or None
        Programs, on ranks numbered from 0.
    steps : list of list of int
        Last tasks of each iteration that the schedule already contains; empty: the schedule is one.
    messages : MessageRows or None
        Messages, instead of programs.
    closed : bool
        A message begins when the one before it has arrived; otherwise it may have waited since its time.
    quantum_ps : int
        Interval in which memory bandwidth is divided on its ranks; 0 is the fabric's [ps].
    compute_ps : int
        Kernel of each rank before each iteration [ps].
    """

    name: str
    kind: str
    ranks: tuple[int, ...]
    schedule: Schedule | None = None
    steps: list[list[int]] = field(default_factory=list)
    messages: MessageRows | None = None
    closed: bool = False
    quantum_ps: int = 0
    compute_ps: int = 0
    notes: tuple[str, ...] = ()

    @property
    def aggregates(self) -> bool:
        """Return True if the switches between nodes reduce for it."""
        connections = () if self.schedule is None else self.schedule.connections
        return any(one.kind == "aggregation" for one in connections)


@dataclass
class WorkWriter:
    """Writer of the work of a file's jobs on a system."""

    spec: JobsSpec
    setup: Setup
    plans: dict[str, ParallelPlan] = field(default_factory=dict)

    @property
    def fabric(self) -> Fabric:
        """Return the fabric of all jobs."""
        return self.setup.fabric

    def ranks_of(self, nodes: Sequence[int], where: str) -> tuple[int, ...]:
        """Return the ranks of some nodes, in ascending order; raise `InputError` if a node does not exist."""
        count = self.fabric.num_zones
        if not count and tuple(nodes) == (0,):
            return tuple(range(self.fabric.num_ranks))
        for node in nodes:
            if node >= count:
                raise InputError(
                    f"{where}: node {node}; {self.fabric.name} has nodes 0 to {count - 1}"
                )
        arrays, chosen = arrays_of(self.fabric), set(nodes)
        return tuple(
            rank
            for rank in range(arrays.num_ranks)
            if arrays.zone_of(rank) in chosen
        )

    def place(self, name: str) -> tuple[int, ...]:
        """Return the ranks of a job; by default all."""
        job = self.spec.jobs[name]
        if job.ranks is not None:
            if job.ranks[-1] >= self.fabric.num_ranks:
                raise InputError(
                    f"job {name}: rank {job.ranks[-1]}; {self.fabric.name} has ranks 0 to"
                    f" {self.fabric.num_ranks - 1}"
                )
            return job.ranks
        if job.nodes is None and job.checkpoint is not None:
            return self.place(job.checkpoint.job)
        if job.nodes is None:
            return tuple(range(self.fabric.num_ranks))
        return self.ranks_of(job.nodes, f"job {name}")

    def write(self, name: str, repeat: int) -> JobWork:
        """Return the work of a job with some iterations.

        Raises
        ------
        InputError
            A node or rank does not exist, or the work cannot be placed on them.
        """
        job = self.spec.jobs[name]
        work = JobWork(name, job.kind, self.place(name))
        writers = {
            "train": self._train,
            "replay": self._replay,
            "collective": self._collective,
            "storage": self._storage,
            "checkpoint": self._checkpoint,
            "traffic": self._traffic,
            "flows": self._flows,
        }
        try:
            return writers[job.kind](job, work, repeat)
        except InputError as error:
            text = str(error)
            prefix = f"job {name}: "
            raise InputError(
                text if text.startswith(prefix) else prefix + text
            ) from None

    def _own_setup(self, job: JobSpec) -> Setup:
        """Return the setup of a job's nodes."""
        if job.nodes is None or len(job.nodes) == max(1, self.fabric.num_zones):
            return self.setup
        return replace(self.setup, zones=job.nodes)

    def _train(self, job: JobSpec, work: JobWork, repeat: int) -> JobWork:
        assert job.train is not None
        setup = self._own_setup(job)
        steps_plan = make_plan(load_workload(job.train), setup.known)
        if steps_plan.mesh.size > len(work.ranks):
            raise InputError(
                f"{job.train} needs {steps_plan.mesh.size} ranks; its nodes have {len(work.ranks)}"
            )
        self.plans[work.name] = steps_plan
        writer, schedule = write_steps(steps_plan, None, repeat)
        steps = [
            [task for tasks in step.values() for task in tasks]
            for step in writer.steps
        ]
        slow = relaxed(setup.fabric, steps_plan, repeat)
        quantum = max(
            (
                n.endpoint.mem_quantum_ps
                for n in slow.nodes
                if n.endpoint is not None
            ),
            default=0,
        )
        return replace(work, schedule=schedule, steps=steps, quantum_ps=quantum)

    def _replay(self, job: JobSpec, work: JobWork, repeat: int) -> JobWork:
        # Few jobs are recordings, and their readers are slow to import.
        from clusim.replays.schedules import replay_schedule

        del repeat
        assert isinstance(job.replay, list)
        fabric = self._own_setup(job).fabric
        translation = replay_schedule(tuple(job.replay), fabric)
        notes = tuple(
            f"{count} x {text}" for text, count in translation.notes.items()
        )
        return replace(work, schedule=translation.schedule, notes=notes)

    def _collective(self, job: JobSpec, work: JobWork, repeat: int) -> JobWork:
        del repeat
        call = job.collective
        assert call is not None
        setup = self._own_setup(job)
        if job.ranks is not None:
            setup = replace(self.setup, ranks=job.ranks)
            work = replace(work, ranks=tuple(range(self.fabric.num_ranks)))
        planned = plan(
            Request(
                setup,
                call.operation,
                call.size,
                algorithm=call.algorithm,
                dtype=call.dtype,
            )
        )
        return replace(
            work,
            schedule=planned.schedule,
            compute_ps=call.compute,
            notes=planned.program.notes,
        )

    def _storage(self, job: JobSpec, work: JobWork, repeat: int) -> JobWork:
        spec = job.storage
        assert spec is not None
        pairs = self._pairs(work, spec.servers, spec.direction == "read")
        starts = np.arange(repeat, dtype=np.int64) * spec.every
        rows = _rows(pairs, spec.size, starts)
        return replace(work, messages=rows, closed=not spec.every)

    def _pairs(
        self, work: JobWork, servers: Sequence[int], reads: bool
    ) -> list[tuple[int, int]]:
        """Return source and destination of the flows between ranks and the servers' ranks, in turn."""
        server_ranks = self.ranks_of(servers, f"job {work.name}: servers")
        if set(server_ranks) & set(work.ranks):
            raise InputError("servers must not be nodes of the job")
        pairs = [
            (rank, server_ranks[at % len(server_ranks)])
            for at, rank in enumerate(work.ranks)
        ]
        return [(b, a) for a, b in pairs] if reads else pairs

    def _checkpoint(self, job: JobSpec, work: JobWork, repeat: int) -> JobWork:
        del repeat
        spec = job.checkpoint
        assert spec is not None
        if spec.job not in self.plans:
            self.write(spec.job, 1)
        of_job = self.plans[spec.job]
        each = of_job.optimizer.weight + of_job.optimizer.state
        size_bytes = -(-of_job.model.parameters * each // len(work.ranks))
        pairs = self._pairs(work, spec.servers, reads=False)
        return replace(
            work, messages=_rows(pairs, round(size_bytes), np.zeros(1, np.int64))
        )

    def _traffic(self, job: JobSpec, work: JobWork, repeat: int) -> JobWork:
        del repeat
        spec = job.traffic
        assert spec is not None
        traffic = Traffic(
            spec.pattern,
            spec.message,
            PACKET_BYTES,
            spec.load,
            spec.duration,
            seed=spec.seed,
            span=spec.span,
        )
        drawn = traffic.plan(arrays_of(self._own_setup(job).fabric))
        ranks, messages = np.array(work.ranks, np.int64), drawn.messages
        lanes = np.repeat(np.arange(len(drawn.first)), drawn.end - drawn.first)
        rows = MessageRows(
            ranks[messages.source],
            ranks[messages.destination],
            messages.size_bytes,
            messages.start_ps,
            lanes,
        )
        return replace(work, messages=rows)

    def _flows(self, job: JobSpec, work: JobWork, repeat: int) -> JobWork:
        del repeat
        assert job.flows is not None
        flows = read_flows(job.flows, self.fabric)
        if any(flow.traffic_class is not None for flow in flows):
            raise InputError(
                f"{job.flows}: column class; set the class of the job instead"
            )
        table = np.array(
            [
                (flow.source, flow.destination, flow.size_bytes, flow.start_ps)
                for flow in flows
            ],
            np.int64,
        )
        source, destination, size_bytes, start_ps = table.T
        ranks = np.unique(table[:, :2]).tolist()
        rows = MessageRows(
            source, destination, size_bytes, start_ps, np.arange(len(flows))
        )
        return replace(work, ranks=tuple(ranks), messages=rows)


def _rows(
    pairs: Sequence[tuple[int, int]], size_bytes: int, starts_ps: Array
) -> MessageRows:
    """Return messages of equal size between pairs of ranks, at the same times for each pair."""
    count = len(pairs) * len(starts_ps)
    if count > MOST_MESSAGES:
        raise InputError(
            f"{count:,} messages; at most {MOST_MESSAGES:,}: fewer repetitions"
        )
    ends = np.repeat(np.array(pairs, np.int64), len(starts_ps), axis=0)
    return MessageRows(
        ends[:, 0],
        ends[:, 1],
        np.full(count, size_bytes, np.int64),
        np.tile(starts_ps, len(pairs)),
        np.repeat(np.arange(len(pairs)), len(starts_ps)),
    )


@dataclass(frozen=True)
class JoinedMessages:
    """Messages of several jobs, in the order of their flows, which have consecutive numbers.

    Attributes
    ----------
    job, number : ndarray of int64
        Number of the job of each message, and its position there.
    label : ndarray of int64
        Number of its flow in the job, from which its path follows.
    jobs : list of int
        Number of the job of each flow.
    """

    messages: Messages
    job: Array
    number: Array
    label: Array
    jobs: list[int]


def join_messages(works: Sequence[tuple[MessageRows, int]]) -> JoinedMessages:
    """Return messages of several jobs, with the starts of the jobs [ps]."""
    columns: list[list[Array]] = [[] for _ in range(8)]
    jobs: list[int] = []
    for job, (rows, start_ps) in enumerate(works):
        order = np.lexsort((rows.start_ps, rows.flow))
        parts = (
            rows.source,
            rows.destination,
            rows.size_bytes,
            rows.start_ps + start_ps,
            rows.flow + len(jobs),
            np.full(len(order), job, np.int64),
            np.arange(len(order)),
            rows.flow,
        )
        for column, part in zip(columns, parts, strict=True):
            column.append(part[order])
        jobs += [job] * (int(rows.flow.max()) + 1)
    source, destination, size, start, flow, owner, number, label = map(
        np.concatenate, columns
    )
    ends = source.astype(np.uint32), destination.astype(np.uint32)
    absent = np.full(len(size), -1, np.int64)
    messages = Messages(*ends, size, start, absent, flow)
    return JoinedMessages(messages, owner, number, label, jobs)
