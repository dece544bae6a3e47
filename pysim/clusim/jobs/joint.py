"""Times of calls that overlap: each distinct set of calls is simulated once, without the rest of the job.

**Model** The ends of few overlapping calls are simulated with their starts, so that they equal the ends in a simulation
of the complete job at the same granularity. Other sets are timed by rates: from one simulation in which all calls start
together, and the rates of the smaller sets that remain when the first call has ended. Rates depend on groups,
operations and sizes in powers of two, but not on starts.

On systems that are too large to be simulated in full, the sets are simulated on fewer nodes, only for their rates.

**Parameters** `MOST_CALLS` and `MOST_ISLANDS` limit the processor time; `RATES_ERROR` is an empirical error limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from clusim.formats.recordings.model import ABSENT
from clusim.jobs.emitter import NcclEmitter
from clusim.jobs.model import LaunchWork
from clusim.jobs.player import FRACTION, ONE, BundleStart, CallBundle
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.simulation.api import whole_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup
from clusim.topology.arrays import arrays_of

if TYPE_CHECKING:
    from clusim.jobs.times import Times

MOST_CALLS = 8
"""Bundles of an island that is simulated with its starts; larger islands continue by rates."""

MOST_ISLANDS = 24
"""Islands that are simulated with their starts; later ones are timed by rates."""

MOST_SETS = 64
"""Sets of overlapping calls that are simulated for their rates; later ones have those of a set of the same groups."""

RATES_ERROR = 0.06
"""Error limit of times by rates; the largest error found is 0.042 (4 DGX H100 by the rates on 2)."""


def overlap_notes(overlaps: Counter[str], where: str = "") -> list[str]:
    """Return the ways in which overlaps of calls were timed, by their number (`Player.overlaps`)."""
    methods = {
        "exact": "simulated together",
        "rates": f"timed by their rates of progress{where}, with an error limit of {RATES_ERROR:.0%}",
    }
    words = "overlaps of calls of several communicators"
    return [
        f"{words}: {overlaps[method]} {how}"
        for method, how in methods.items()
        if overlaps[method]
    ]


@dataclass
class JointTimes:
    """Times of calls that share wires, simulated on a system.

    Attributes
    ----------
    setup : Setup
        System; groups of bundles are ranks of it.
    times : Times
        Answers of earlier simulations.
    is_whole : bool
        `setup` has all nodes of the job; otherwise times are by rates, with the bundles' times in isolation.
    watch : Watch
        Wall-clock limit.
    emitter : NcclEmitter or None
        Writer of calls, or another object with `collective`; None writes NCCL's plans.
    run : callable or None
        Simulates a schedule, as `clusim.simulation.api.whole_of`, which None is.
    """

    setup: Setup
    times: Times
    is_whole: bool = True
    watch: Watch = field(default_factory=Watch)
    emitter: Any = None
    run: Callable[[ScheduleRequest, RunOptions, str], Any] | None = None
    _islands: set[tuple[BundleStart, ...]] = field(default_factory=set)
    _rates: dict[tuple[CallBundle, ...], tuple[int, ...]] = field(
        default_factory=dict
    )
    _rates_of: dict[tuple[Any, ...], Sequence[int]] = field(default_factory=dict)
    _nodes: dict[Any, frozenset[int]] = field(default_factory=dict)

    def isolated_ps(self, bundle: CallBundle) -> int:
        """Return the time of a bundle in isolation [ps]."""
        if bundle.time_ps != ABSENT and not (
            self.is_whole and len(bundle.groups) > 1
        ):
            return bundle.time_ps
        return self._alone_ps(bundle) + self._unlike_ps(bundle)

    def _alone_ps(self, bundle: CallBundle) -> int:
        return self._ends((BundleStart(0, bundle),))[0]

    def _unlike_ps(self, bundle: CallBundle) -> int:
        """Return the known time of a call in isolation less that of its simulation here [ps]."""
        if bundle.time_ps == ABSENT:
            return 0
        return bundle.time_ps - self._alone_ps(
            bundle._replace(groups=bundle.groups[:1])
        )

    def ends_ps(self, island: Sequence[BundleStart]) -> Sequence[int] | None:
        """Return the ends of an island's bundles [ps]; None if it is timed by rates."""
        if not self.is_whole or len(island) > MOST_CALLS:
            return None
        if len(island) == 1:
            return [self.isolated_ps(island[0].bundle)]
        key = tuple(island)
        if key not in self._islands and len(self._islands) >= MOST_ISLANDS:
            return None
        self._islands.add(key)
        rows = zip(self._ends(island), island, strict=True)
        return [end_ps + self._unlike_ps(start.bundle) for end_ps, start in rows]

    def is_shared(self, one: CallBundle, other: CallBundle) -> bool:
        """Return True for bundles on a common node, or both with groups on several nodes."""
        return not self._nodes_of(one.groups).isdisjoint(
            self._nodes_of(other.groups)
        )

    def _nodes_of(self, groups: tuple[tuple[int, ...], ...]) -> frozenset[int]:
        """Return the nodes of groups, and -1 if there is a group on several nodes."""
        if groups not in self._nodes:
            node_of = arrays_of(self.setup.known).zone_of
            nodes = [frozenset(map(node_of, ranks)) for ranks in groups]
            network = [-1] if max(map(len, nodes)) > 1 else []
            self._nodes[groups] = frozenset(network).union(*nodes)
        return self._nodes[groups]

    def rates16(self, bundles: Sequence[CallBundle]) -> Sequence[int]:
        """Return the progress of each bundle while all are in flight [2^-16]."""
        # Works of a job are kept with it.
        key = tuple((bundle.groups, id(bundle.work)) for bundle in bundles)
        if key not in self._rates_of:
            classes = [_with_size_class(bundle) for bundle in bundles]
            order = sorted(range(len(classes)), key=lambda at: repr(classes[at]))
            rates = self._set_rates(tuple(classes[at] for at in order))
            by_place = dict(zip(order, rates, strict=True))
            self._rates_of[key] = [by_place[at] for at in range(len(classes))]
        return self._rates_of[key]

    def held16(self, bundle: CallBundle) -> int:
        """Return the mean number of SMs that a bundle holds on a rank [2^-16].

        A kernel on all SMs, as long as the bundle, ends later by the time that it lost.
        """
        alone_ps = self._alone_ps(bundle)
        lost_ps = self._kernel_end(bundle, alone_ps) - alone_ps
        return lost_ps * self._sms(bundle) * ONE // max(1, alone_ps)

    def _set_rates(self, bundles: tuple[CallBundle, ...]) -> tuple[int, ...]:
        if len(bundles) == 1:
            return (ONE,)
        if bundles not in self._rates and len(self._rates) >= MOST_SETS:
            groups = [bundle.groups for bundle in bundles]
            for key, rates in self._rates.items():
                if [bundle.groups for bundle in key] == groups:
                    return rates
        if bundles not in self._rates:
            ends = self._ends([BundleStart(0, bundle) for bundle in bundles])
            first_ps = max(1, min(ends))
            work16 = [self._alone_ps(bundle) << FRACTION for bundle in bundles]
            rest16 = self._rest16(bundles, ends, first_ps)
            self._rates[bundles] = tuple(
                max(1, (total16 - remaining16) // first_ps)
                for total16, remaining16 in zip(work16, rest16, strict=True)
            )
        return self._rates[bundles]

    def _rest16(
        self, bundles: tuple[CallBundle, ...], ends: Sequence[int], now_ps: int
    ) -> list[int]:
        """Return the work of each bundle after a time [2^-16 ps], by the rates of those that remain."""
        rest16 = [0] * len(bundles)
        running = [at for at, end_ps in enumerate(ends) if end_ps > now_ps]
        while running:
            then_ps = min(ends[at] for at in running)
            rates = self._set_rates(tuple(bundles[at] for at in running))
            for at, rate16 in zip(running, rates, strict=True):
                rest16[at] += (then_ps - now_ps) * rate16
            now_ps, running = then_ps, [at for at in running if ends[at] > then_ps]
        return rest16

    def _question(self, *content: object) -> tuple[object, ...]:
        setup = self.setup
        system = (
            setup.identity,
            setup.nodes,
            setup.per_node,
            setup.env,
            str(setup.release),
        )
        return ("calls", *system, *content)

    def _ends(self, island: Sequence[BundleStart]) -> list[int]:
        """Return the last end of each bundle's ranks [ps]."""
        question = self._question(
            *((start.offset_ps, *start.bundle[:2]) for start in island)
        )
        return self.times.stored(question, partial(self._simulate, island))

    def _kernel_end(self, bundle: CallBundle, kernel_ps: int) -> int:
        """Return the end of a kernel on all SMs beside a bundle [ps]."""
        question = self._question("kernel", kernel_ps, *bundle[:2])
        start = (BundleStart(0, bundle),)
        return self.times.stored(
            question, lambda: self._simulate(start, kernel_ps)[-1]
        )

    def _simulate(
        self, island: Sequence[BundleStart], kernel_ps: int = 0
    ) -> list[int]:
        """Simulate bundles, and a kernel on the first rank, whose end is then the last."""
        fabric = self.setup.known
        emitter = self.emitter or NcclEmitter(
            fabric, range(fabric.num_ranks), self.setup.communicators()
        )
        builder = ProgramBuilder(fabric.num_ranks, "calls that overlap")
        tails: list[list[int]] = []
        for number, (offset_ps, bundle) in enumerate(island):
            tails.append([])
            for place, ranks in enumerate(bundle.groups):
                waits = [
                    _delays(builder, rank, offset_ps, f"{number} {place}")
                    for rank in ranks
                ]
                site = Site(builder, f"call {number} {place}", waits)
                if isinstance(bundle.work, LaunchWork):
                    rows = emitter.messages(
                        site, ranks, bundle.work.messages, put=False
                    )
                    tails[-1] += [task for row in rows for task in row]
                else:
                    tails[-1] += emitter.collective(site, ranks, bundle.work)
        if kernel_ps:
            rank = island[0].bundle.groups[0][0]
            tails.append([builder.kernel(rank, compute_ps=kernel_ps)])
        request = ScheduleRequest(
            self.setup,
            builder.build(),
            granularity=self.times.granularity,
        )
        options = RunOptions(bins=2, histories=False, watch=self.watch)
        run = self.run or whole_of
        ends = run(
            request, options, f"the overlap of {len(island)} calls"
        ).tasks.end_ps
        return [max(int(ends[task]) for task in tasks) for tasks in tails]

    def _sms(self, bundle: CallBundle) -> int:
        """Return the SMs of a bundle's GPUs."""
        fabric = self.setup.known
        name = fabric.ranks[bundle.groups[0][0]]
        return next(
            n.endpoint.sms for n in fabric.nodes if n.name == name and n.endpoint
        )


def _delays(
    builder: ProgramBuilder, rank: int, offset_ps: int, name: str
) -> tuple[int, ...]:
    """Let a rank start later; return the tasks to wait for."""
    if not offset_ps:
        return ()
    return (builder.delay(rank, offset_ps, stream=f"start {name}"),)


def _with_size_class(bundle: CallBundle) -> CallBundle:
    """Return a bundle with the next power of two of its bytes, for rates; messages keep their sizes."""
    if isinstance(bundle.work, LaunchWork):
        return bundle
    size = 1 << max(0, bundle.work.bytes - 1).bit_length()
    return CallBundle(bundle.groups, replace(bundle.work, bytes=size))
