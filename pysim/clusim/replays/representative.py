"""Times of jobs whose ranks all do the same work, by one representative rank.

**Model** A collective is simulated together with all groups of its kind on the nodes of rank 0's group; large groups
are extrapolated as in `clusim.simulation.extrapolate`. The operations of rank 0 are then played with these times
(`clusim.jobs.player`). If calls of several communicators overlap, they share wires (`clusim.jobs.joint`): up to
`MOST_RANKS` ranks with all groups of the job, larger jobs by rates from groups on `FEW_NODES` nodes.

**Not modelled** Memory that kernels and communication share, and sends and receives, which last as recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from clusim.base.errors import InputError, TimeLimitReached
from clusim.formats.recordings.model import Event, Group, Recording
from clusim.jobs.joint import JointTimes, overlap_notes
from clusim.jobs.live import SeparateCalls
from clusim.jobs.model import CallWork
from clusim.jobs.peers import RankGroups, groups_on, split_of, whole_groups
from clusim.jobs.player import CallBundle, CallTimer, JobTimes, Player
from clusim.jobs.read import job_of
from clusim.jobs.times import Times, shared_answers
from clusim.jobs.write import precision_of
from clusim.lowering import QUICK
from clusim.nccl.programs import CollectivePayload
from clusim.nccltests.jobs import PerfKernel
from clusim.replays.placing import ReplayRequest, machines_of
from clusim.simulation.anchors import MOST_RANKS
from clusim.simulation.request import Request
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup
from clusim.simulation.speed import Speed, speed_of
from clusim.workload.prices import Prices

FEW_NODES = 2
"""Nodes on which overlapping calls of large jobs are simulated."""

CallKey = tuple[int, str, int]
"""Communicator, operation and bytes of a distinct call."""


@dataclass(frozen=True, slots=True)
class PlayedJob:
    """Times of a job by its representative rank [ps].

    Attributes
    ----------
    time_ps, least_ps, most_ps : int
        Predicted, without mutual disturbance, without concurrency.
    overlaps : Counter
        Overlaps of calls of several communicators, by the way in which they were timed: ``exact`` or ``rates``.
    """

    time_ps: int
    least_ps: int
    most_ps: int
    overlaps: Counter[str]


@dataclass(frozen=True)
class Representative:
    """Node type of the job, with the settings for timing its collectives.

    Attributes
    ----------
    speed : Speed or None
        Faster component; links are faster in `setup`.
    """

    setup: Setup
    size: int
    sms: int
    prices: Prices
    request: ReplayRequest
    times: Times
    speed: Speed | None = None

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
            self.setup,
            nodes=machines if machines > 1 else None,
            gpus=parts[0],
            beside=parts[1:],
        )
        moved = CollectivePayload.from_recording(event)
        request = Request(
            setup, moved.operation, moved.bytes, dtype=moved.dtype, redop=moved.redop
        )
        return self.times.kernel(request)

    def compute_ps(self, event: Event) -> int:
        """Return the time of a kernel in isolation [ps]."""
        if self.speed is None or self.speed.of_links:
            return self._kernel_ps(event)
        return int(self._kernel_ps(event) / self.speed.factor)

    def _kernel_ps(self, event: Event) -> int:
        if event.operator is not None:
            return self.prices.price(event.operator).time_ps
        if event.flops <= 0:
            return max(0, event.duration_ps)
        peak = self.peaks.get(precision_of(self.peaks, event.dtype), 0)
        if not peak:
            raise InputError(
                f"{event.where}: the GPU's rate of operations is unknown"
            )
        return round(event.flops / peak * 1e12)


def _faster(setup: Setup, speed: Speed | None) -> Setup:
    """Return a setup with faster links, if links are faster."""
    if speed is None or speed.what == "compute":
        return setup
    if not speed.of_links:
        raise InputError(
            f"{speed.words}: one rank represents all; links and compute can be faster"
        )
    return replace(setup, topology=speed.machine(replace(setup, nodes=None).fabric))


def representative(
    recording: Recording, request: ReplayRequest, setup: Setup
) -> Representative:
    """Return the node type on which one rank represents all ranks of a recording."""
    speed = speed_of(request.faster)
    setup = _faster(setup, speed)
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
    times = Times(QUICK if grain == "auto" else grain, shared_answers())
    return Representative(one, size, end.sms, Prices(end), request, times, speed)


class RepresentedSystem:
    """System on which the overlapping calls of a job are simulated.

    It is complete for small jobs whose groups are a regular grid, and has few nodes otherwise.

    Attributes
    ----------
    is_whole : bool
        True if it has all nodes of the job.
    setup : Setup
        Its nodes.
    """

    def __init__(self, recording: Recording, machine: Representative) -> None:
        self.num_ranks, self.size = recording.num_ranks, machine.size
        called = [
            event.group for event in recording.events if event.kind == "collective"
        ]
        groups = (recording.groups[number].ranks for number in dict.fromkeys(called))
        self.is_whole = self.num_ranks <= MOST_RANKS and all(
            whole_groups(ranks, self.num_ranks) for ranks in groups
        )
        nodes = -(-self.num_ranks // self.size)
        self.nodes = nodes if self.is_whole else min(nodes, FEW_NODES)
        self.setup = replace(
            machine.setup, nodes=self.nodes if self.nodes > 1 else None
        )

    @cached_property
    def _place(self) -> list[int]:
        """Return the topology rank of each rank of the job."""
        nodes = machines_of(self.setup.fabric)
        return [gpu for node in nodes for gpu in node[: self.size]]

    def groups(self, ranks: Sequence[int]) -> RankGroups:
        """Return the topology ranks of a group and all its peer groups."""
        all_groups = whole_groups(ranks, self.num_ranks) if self.is_whole else None
        groups = all_groups or groups_on(self.nodes, ranks, self.size)
        return tuple(tuple(self._place[rank] for rank in group) for group in groups)


class RepresentedJob:
    """Job of equal ranks on a system.

    Attributes
    ----------
    kernels : dict
        Time of each distinct call.
    share : float or None
        Share of events with a known time, if the time limit ended it; the job's time is then at least `least_ps`.
    """

    def __init__(
        self, recording: Recording, machine: Representative, watch: Watch
    ) -> None:
        self.recording, self.machine, self.watch = recording, machine, watch
        self.system = RepresentedSystem(recording, machine)
        self.kernels: dict[CallKey, PerfKernel] = {}
        self.share: float | None = None
        self._bundles: dict[CallKey, CallBundle] = {}

    def play(self) -> PlayedJob:
        """Time the distinct calls, then play the operations of the representative rank."""
        durations = self._durations()
        job = replace(self.recording, events=self.recording.events[: len(durations)])
        keys = _call_keys(job)
        needs = self._needs(
            durations, {at: self._bundles[key] for at, key in keys.items()}
        )
        graph = job_of(job)
        channels_of = {
            self._bundles[key]: kernel.channels
            for key, kernel in self.kernels.items()
        }
        separate = Player(graph, needs, SeparateCalls(channels_of))
        time_ps, overlaps = separate.play(), Counter[str]()
        if separate.overlaps and self.share is None:
            try:
                player = Player(graph, needs, self._joint())
                time_ps, overlaps = player.play(), player.overlaps
            except TimeLimitReached:
                self.share = 1.0
        least_ps = Player(graph, needs, SeparateCalls({})).play()
        most_ps = sum(durations) + sum(
            self.kernels[key].time_ps for key in keys.values()
        )
        most_ps += separate.pauses_ps
        least_ps = min(time_ps, least_ps)
        most_ps = max(time_ps, most_ps)
        return PlayedJob(time_ps, least_ps, most_ps, overlaps)

    def faster(self, words: str) -> RepresentedJob:
        """Return the job with a faster component, in the words of ``clusim what-if``."""
        machine, request = self.machine, replace(self.machine.request, faster=words)
        assert request.topology is not None
        setup = request.setup(request.topology, request.version, request.env)
        changed = replace(
            representative(self.recording, request, setup), times=machine.times
        )
        return RepresentedJob(self.recording, changed, self.watch)

    def compute_ps(self) -> int:
        """Return the time of the job with calls of zero duration [ps]."""
        durations = self._durations()
        job = replace(self.recording, events=self.recording.events[: len(durations)])
        free = {
            at: self._bundles[key]._replace(time_ps=0)
            for at, key in _call_keys(job).items()
        }
        return Player(
            job_of(job), self._needs(durations, free), SeparateCalls({})
        ).play()

    def _needs(
        self, durations: Sequence[int], bundles: Mapping[int, CallBundle]
    ) -> JobTimes:
        gap_ps = self.machine.request.gap
        pause_ps = gap_ps if isinstance(gap_ps, int) else 0
        return JobTimes(durations, bundles, self.machine.sms, pause_ps)

    def notes(self, overlaps: Counter[str]) -> list[str]:
        """Return the assumptions of its times, and the ways in which overlaps of calls were timed."""
        result = [
            f"all {self.system.num_ranks} ranks do the same: one represents all, and the groups on the nodes of one"
            " group represent the others",
            "communication uses SMs of kernels",
        ]
        where = "" if self.system.is_whole else f" on {self.system.nodes} nodes"
        return [*result, *overlap_notes(overlaps, where)]

    def _durations(self) -> list[int]:
        """Return the times of all events other than calls [ps]; time the calls."""
        result: list[int] = []
        for event in self.recording.events:
            duration_ps = max(0, event.duration_ps)
            if event.kind == "collective":
                duration_ps, key = 0, _key(event)
                if key not in self.kernels and self.watch.over and self.kernels:
                    self.share = len(result) / len(self.recording.events)
                    break
                if key not in self.kernels:
                    self._time(key, event)
            elif event.kind == "compute":
                duration_ps = self.machine.compute_ps(event)
            result.append(duration_ps)
        return result

    def _time(self, key: CallKey, event: Event) -> None:
        self.watch.begins(f"{event.operation} of {event.bytes} B is simulated")
        group = self.recording.groups[event.group]
        self.kernels[key] = kernel = self.machine.time(group, event)
        work = CallWork(
            event.operation, event.bytes, event.dtype, event.redop, event.root
        )
        groups = self.system.groups(group.ranks)
        self._bundles[key] = CallBundle(groups, work, kernel.time_ps)

    def _joint(self) -> CallTimer:
        """Return the times of calls that share wires."""
        times, is_whole = self.machine.times, self.system.is_whole
        return JointTimes(self.system.setup, times, is_whole, self.watch)


def _call_keys(job: Recording) -> dict[int, CallKey]:
    """Return the key of every call of a job by its number."""
    return {
        at: _key(event)
        for at, event in enumerate(job.events)
        if event.kind == "collective"
    }


def _key(event: Event) -> CallKey:
    return event.group, event.operation, event.bytes
