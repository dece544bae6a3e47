"""Replay of a recording of any format, and of jobs whose ranks all do the same work.

The latter are replayed by one representative rank. A collective is simulated together with all groups of its kind
on the nodes of rank 0's group; large groups are extrapolated as in `clusim.simulation.extrapolate`. The steps
of rank 0 are then played with these times: kernels run on the SMs that CTAs of concurrent communication leave free,
by the engine's rule.

**Not modelled** Wires shared by groups of different kinds that communicate at the same time. The time without
mutual disturbance and the time without concurrency are bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature

from clusim.base.errors import InputError
from clusim.base.terms.operations import ROOTED
from clusim.formats.recordings.kinds import KINDS, LOGS, PLANS, all_kinds, kind_of, reader
from clusim.formats.recordings.model import Event, Group, Recording
from clusim.jobs.times import Times
from clusim.jobs.write import precision_of
from clusim.lowering import QUICK
from clusim.nccl.programs import CollectivePayload
from clusim.nccltests.jobs import PerfKernel
from clusim.replays.full_job import replay_recording
from clusim.replays.logjob import Counted, replay_log
from clusim.replays.placing import ReplayRequest, machines_of
from clusim.replays.replayreport import gate
from clusim.replays.report import CallResult, CommResult, Other, Replay, calls_verdict
from clusim.results.resultjson import Unfinished
from clusim.schedule.timeline import Timeline
from clusim.simulation.job import RunOptions
from clusim.simulation.request import Request
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup
from clusim.workload.prices import Prices


@dataclass(frozen=True, slots=True)
class OwnStep:
    """Step of the representative rank.

    Attributes
    ----------
    stream : str
        Steps of one stream run in sequence.
    deps : tuple of int
        Steps that must be complete first.
    time_ps : int
        Duration in isolation [ps].
    sms : int
        SMs that a kernel uses if they are free, or that communication occupies.
    kernel : bool
        True for a kernel, which is slower with fewer SMs.
    """

    stream: str
    deps: tuple[int, ...]
    time_ps: int
    sms: int = 0
    kernel: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """End times of the steps [ps]: predicted, without mutual disturbance, without concurrency."""

    time_ps: int
    least_ps: int
    most_ps: int


def play(steps: Sequence[OwnStep], sms: int) -> Played:
    """Play the steps of a rank on a GPU with `sms` SMs."""
    most = sum(step.time_ps for step in steps)
    shared = _Player(steps, sms).end_ps()
    free = [replace(step, sms=step.sms if step.kernel else 0) for step in steps]
    return Played(shared, min(shared, _Player(free, sms).end_ps()), max(shared, most))


class _Player(Timeline[int]):
    """One play of the steps of a rank."""

    def __init__(self, steps: Sequence[OwnStep], sms: int) -> None:
        super().__init__(sms)
        self.steps = steps
        for at, step in enumerate(steps):
            self.add(at, step.deps, step.stream)

    def end_ps(self) -> int:
        """Play all steps."""
        self.play()
        return self.now

    def ready(self, task: int) -> None:
        """Start a step."""
        step = self.steps[task]
        if step.kernel and step.time_ps > 0:
            self.compute(task, step.time_ps, step.sms)
        else:
            self.held += step.sms
            self.schedule(self.now + step.time_ps, task, task)

    def arrives(self, task: int) -> None:
        """End a step other than a kernel."""
        self.held -= self.steps[task].sms
        self.complete(task)


def split_of(ranks: Sequence[int], size: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return the number of nodes of a group, and the GPUs per node of it and its peer groups.

    Parameters
    ----------
    size : int
        GPUs per node.

    Raises
    ------
    InputError
        The group does not have the same GPUs on every node, or they are not part of a regular division.
    """
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    machines = sorted({rank // size for rank in ranks})
    local = tuple(rank % size for rank in ranks if rank // size == machines[0])
    span = local[-1] - local[0] + 1 if len(machines) == 1 else size
    apart = min(stride, size)
    regular = len(local) * len(machines) == len(ranks) and all(
        rank == machines[at // len(local)] * size + local[at % len(local)]
        for at, rank in enumerate(ranks)
    )
    block = apart * len(local)
    if not regular or size % block or (len(local) > 1 and span > block) or local[0] != 0:
        raise InputError(
            f"groups of {len(ranks)} ranks at stride {stride} do not divide nodes of {size} GPUs evenly"
        )
    parts = [
        tuple(first + gpu for gpu in local)
        for start in range(0, size, block)
        for first in range(start, start + apart)
    ]
    return len(machines), tuple(parts)


@dataclass(frozen=True)
class Representative:
    """Node type of the job, with the settings for timing its collectives."""

    setup: Setup
    size: int
    sms: int
    prices: Prices
    request: ReplayRequest
    times: Times

    @property
    def peaks(self) -> dict[str, float]:
        """Rates of operations by precision [FLOP/s]."""
        return dict(self.prices.endpoint.peak_flops)

    def time(self, group: Group, event: Event) -> PerfKernel:
        """Return the time of a collective of rank 0's group, concurrent with all peer groups."""
        try:
            machines, parts = split_of(group.ranks, self.size)
        except InputError as error:
            raise InputError(
                f"{event.where}: {group.name}: {error}: one rank cannot represent all; --calls N replays the first"
                " calls of all ranks"
            ) from None
        setup = replace(
            self.setup, nodes=machines if machines > 1 else None, gpus=parts[0], beside=parts[1:]
        )
        moved = CollectivePayload.recorded(
            event.operation, event.bytes, event.dtype, event.redop, event.root
        )
        asked = Request(setup, moved.operation, moved.bytes, dtype=moved.dtype, redop=moved.redop)
        return self.times.kernel(asked)

    def compute_ps(self, event: Event) -> int:
        """Return the time of a kernel in isolation [ps]."""
        if event.operator is not None:
            return self.prices.price(event.operator).time_ps
        if event.flops <= 0:
            return max(0, event.duration_ps)
        known = self.peaks.get(precision_of(self.peaks, event.dtype), 0)
        if not known:
            raise InputError(f"{event.where}: the GPU's rate of operations is unknown")
        return round(event.flops / known * 1e12)


def replay_alike(
    recording: Recording, request: ReplayRequest, watch: Watch | None = None
) -> Replay:
    """Replay a job of identical ranks; `watch` is checked before each distinct collective."""
    watch = watch or Watch()
    if request.topology is None:
        raise InputError(
            f"{recording.name}: {recording.kind} does not contain the system; set --topology"
        )
    if request.faults:
        raise InputError(
            f"{recording.name}: one rank represents all {recording.num_ranks}, and faults affect ranks differently;"
            " --calls N replays the first calls of all ranks"
        )
    first = representative(
        recording, request, request.setup(request.topology, request.version, request.env)
    )
    times, played, left = _run(recording, first, watch)
    machines = -(-recording.num_ranks // first.size)
    result = Replay(
        recording.kind,
        recording.name,
        first.setup.name + (f":nodes={machines}" if machines > 1 else ""),
        recording.num_ranks,
        machines,
        str(first.setup.release),
        [f"{first.setup.name}: as given"],
        total_ps=played.time_ps,
        bounds_ps=[played.least_ps, played.most_ps],
        skipped=dict(recording.skipped),
        doubts=list(first.setup.doubts),
    )
    result.notes = [
        *recording.assumed,
        f"all {recording.num_ranks} ranks do the same: one represents all, and the groups on the nodes of one"
        " group represent the others",
        "communication uses SMs of kernels; groups of different kinds share no wires, which the bounds do not"
        " assume",
    ]
    others: dict[tuple[int, str, int], PerfKernel] = {}
    if left is not None:
        result.unfinished = Unfinished(watch.words, *left)
    elif request.other is not None:
        there = representative(
            recording, request, request.setup(request.other, request.version, request.env)
        )
        others, elsewhere, left = _run(recording, there, watch)
        result.other, result.other_total_ps = there.setup.name, elsewhere.time_ps
        if left is not None:
            why = f"{watch.words}, reached on {there.setup.name}"
            others, result.other, result.other_total_ps = {}, None, None
            result.unfinished = Unfinished(why, 1.0, played.time_ps)
    _fill(result, recording, times, others)
    for comm in result.communicators:
        comm.machines = split_of(recording.groups[comm.number].ranks, first.size)[0]
    result.compute_ps = sum(first.compute_ps(e) for e in recording.events if e.kind == "compute")
    return result


def representative(recording: Recording, request: ReplayRequest, setup: Setup) -> Representative:
    """Return the node type on which one rank represents all ranks of a recording."""
    one = replace(setup, nodes=None)
    machines = machines_of(one.fabric)
    if len(machines) != 1:
        raise InputError(
            f"{one.name}: {len(machines)} nodes; one rank represents all {recording.num_ranks} on the"
            " nodes required: name a topology of one node"
        )
    size = len(machines[0])
    needed = -(-recording.num_ranks // size)
    if setup.nodes is not None and needed > setup.nodes:
        raise InputError(
            f"{one.name}: {setup.nodes} nodes with {size} GPUs; the job has {recording.num_ranks} ranks;"
            f" give --nodes {needed}"
        )
    rank = machines[0][0]
    name = one.fabric.ranks[rank]
    end = next(node.endpoint for node in one.fabric.nodes if node.name == name)
    assert end is not None
    grain = request.granularity
    times = Times(QUICK if grain == "auto" else grain)
    return Representative(one, size, end.sms, Prices(end), request, times)


def played(recording: Recording, machine: Representative, watch: Watch | None = None) -> Played:
    """Return the time of a job whose ranks all do the same work, by its representative rank."""
    return _run(recording, machine, watch or Watch())[1]


def _run(
    recording: Recording, machine: Representative, watch: Watch
) -> tuple[dict[tuple[int, str, int], PerfKernel], Played, tuple[float, int] | None]:
    """Return the times of distinct collectives and of the job, and the progress if ended.

    The progress is the share of events with a known time, and a lower bound of the job's time: its longest stream [ps].
    It is None if the job was completed.
    """
    times: dict[tuple[int, str, int], PerfKernel] = {}
    steps: list[OwnStep] = []
    at: list[int] = []
    gap = machine.request.gap if isinstance(machine.request.gap, int) else 0
    streams: set[str] = set()
    for event in recording.events:
        stream, deps = event.stream, tuple(at[d] for d in event.deps)
        if gap and (deps or stream in streams):
            steps.append(OwnStep(stream, deps, gap))
        streams.add(stream)
        if event.kind == "compute":
            steps.append(OwnStep(stream, deps, machine.compute_ps(event), machine.sms, kernel=True))
        elif event.kind == "collective":
            key = (event.group, event.operation, event.bytes)
            if key not in times and watch.over and times:
                alone: Counter[str] = Counter()
                for step in steps:
                    alone[step.stream] += step.time_ps
                part = len(at) / len(recording.events)
                return times, play(steps, machine.sms), (part, max(alone.values()))
            if key not in times:
                watch.begins(f"{event.operation} of {event.bytes} B is simulated")
                times[key] = machine.time(recording.groups[event.group], event)
            steps.append(OwnStep(stream, deps, times[key].time_ps, times[key].channels))
        else:
            steps.append(OwnStep(stream, deps, max(0, event.duration_ps)))
        at.append(len(steps) - 1)
    return times, play(steps, machine.sms), None


def _fill(
    result: Replay,
    recording: Recording,
    times: dict[tuple[int, str, int], PerfKernel],
    others: dict[tuple[int, str, int], PerfKernel],
) -> None:
    """Add the distinct calls and the communicators to the result."""
    counts = Counter(
        (e.group, e.operation, e.bytes) for e in recording.events if e.kind == "collective"
    )
    comms: dict[int, CommResult] = {}
    for (group, operation, size), ran in times.items():
        count = counts[group, operation, size]
        ranks = recording.groups[group].ranks
        there = others.get((group, operation, size))
        other = None if there is None else Other.of(there, ran.time_ps)
        rooted = "as in a sequence of calls" if operation in ROOTED else ""
        result.calls.append(
            CallResult(
                group, len(ranks), operation, size, "float32", count, ran.algorithm, ran.protocol, ran.channels,
                ran.time_ps, ran.time_ps, note="; ".join([*ran.notes, *([rooted] if rooted else [])]), other=other,
            )
        )  # fmt: skip
        comm = comms.setdefault(
            group,
            CommResult(
                group,
                len(ranks),
                0,
                0,
                f"{recording.groups[group].name}, one of {recording.num_ranks // len(ranks)}",
            ),
        )
        comm.calls += count
        comm.channels = max(comm.channels, ran.channels)
        comm.time_ps += ran.time_ps * count
        comm.other_ps += 0 if there is None else there.time_ps * count
        result.total_calls += count * (recording.num_ranks // len(ranks))
    result.calls.sort(key=lambda call: (call.communicator, call.operation, call.bytes))
    result.communicators = [comms[number] for number in sorted(comms)]
    result.verdict = calls_verdict(result.calls)


def replay(
    request: ReplayRequest, options: RunOptions = RunOptions(), counted: Counted | None = None
) -> Replay:
    """Replay a recording.

    Parameters
    ----------
    options : RunOptions
        Run options, such as the trace file.
    counted : callable or None
        Called with the number of distinct calls completed and their total.
    """
    first = request.files[0]
    kind = request.kind.replace("_", "-") or kind_of(first)
    if kind in LOGS:
        result = replay_log(replace(request, gap=request.gap or "none"), options, counted)
        return gate(result, request)
    if kind in PLANS:
        raise InputError(
            f"{first}: {PLANS[kind]}, not a recording; run it with `clusim run TOPOLOGY --algorithm {first}`"
        )
    if kind not in KINDS and kind not in all_kinds():
        known = ", ".join(sorted({*LOGS, *all_kinds()}))
        raise InputError(f"{first}: kind {kind!r} cannot be replayed; it is one of {known}")
    read = reader(kind)
    files = list(request.files) if len(request.files) > 1 else first
    recording = read(files, **_reader_options(read, request))
    request = replace(request, gap=request.gap or "logged")
    if recording.alike:
        if options.trace_out is not None:
            raise InputError(
                f"{first}: one rank represents all {recording.num_ranks}; no trace can be written; --calls N"
                " replays the first calls of all ranks"
            )
        return gate(replay_alike(recording, request, options.watch), request)
    result = replay_recording(recording, request, options)
    return gate(result, request)


def _reader_options(
    read: Callable[..., Recording], request: ReplayRequest
) -> dict[str, int | None]:
    """Return options for readers of files that do not contain them.

    These are the ranks of the topology, the ranks of its smallest node, and the requested number of calls.
    """
    asked = signature(read).parameters
    wanted = {"calls": request.calls} if "calls" in asked else {}
    if request.topology is None or "num_ranks" not in asked:
        return wanted
    machines = machines_of(Setup(request.topology, request.nodes).fabric)
    if not machines:
        raise InputError(
            f"{Setup(request.topology).name}: no GPU; a replay needs one for every rank"
        )
    sizes = [len(machine) for machine in machines]
    known = {"num_ranks": sum(sizes), "machine_ranks": min(sizes), **wanted}
    return {key: value for key, value in known.items() if key in asked}
