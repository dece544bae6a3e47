"""Times of calls that overlap: each distinct set of calls is simulated once, without the rest of the job.

**Model** The ends of few overlapping calls are simulated with their starts, so that they equal the ends in a simulation
of the complete job at the same granularity. Other sets are timed by rates: from one simulation in which all calls start
together, and the rates of the smaller sets that remain when the first call has ended. Rates depend on groups,
operations and sizes in powers of two, but not on starts.

On systems that are too large to be simulated in full, the sets are simulated on fewer nodes, only for their rates.

**Parameters** `MOST_CALLS` and `MOST_ISLANDS` limit the processor time; `RATES_ERROR` is an empirical error limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial

from clusim.jobs.emitter import NcclEmitter
from clusim.jobs.player import FRACTION, ONE, BundleStart, CallBundle
from clusim.jobs.times import Times
from clusim.nccltests.jobs import PerfKernel
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.simulation.api import whole_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup

MOST_CALLS = 8
"""Bundles of an island that is simulated with its starts; larger islands continue by rates."""

MOST_ISLANDS = 24
"""Islands that are simulated with their starts; later ones are timed by rates."""

RATES_ERROR = 0.06
"""Error limit of times by rates; the largest error found is 0.042 (4 DGX H100 by the rates on 2)."""


@dataclass(frozen=True)
class SeparateCalls:
    """Times of calls that do not slow each other, and hold the SMs of their channels.

    Attributes
    ----------
    kernels : dict
        Time and channels of each bundle.
    """

    kernels: Mapping[CallBundle, PerfKernel]

    def isolated_ps(self, bundle: CallBundle) -> int:
        """Return the time of a bundle [ps]."""
        return self.kernels[bundle].time_ps

    def ends_ps(self, island: Sequence[BundleStart]) -> list[int]:
        """Return the ends of bundles [ps]."""
        return [start.offset_ps + self.isolated_ps(start.bundle) for start in island]

    def rates16(self, bundles: Sequence[CallBundle]) -> list[int]:
        """Return full progress."""
        return [ONE] * len(bundles)

    def held16(self, bundle: CallBundle) -> int:
        """Return the channels of a bundle [2^-16]."""
        return self.kernels[bundle].channels << FRACTION


@dataclass
class JointTimes:
    """Times of calls that share wires, simulated on a system.

    Attributes
    ----------
    setup : Setup
        System; groups of bundles are ranks of it.
    times : Times
        Answers of earlier simulations.
    isolated : dict or None
        Time of each bundle on the complete system, if `setup` has fewer nodes [ps]; None if it is complete.
    watch : Watch
        Wall-clock limit.
    """

    setup: Setup
    times: Times
    isolated: Mapping[CallBundle, int] | None = None
    watch: Watch = field(default_factory=Watch)
    _islands: set[tuple[BundleStart, ...]] = field(default_factory=set)
    _rates: dict[tuple[CallBundle, ...], tuple[int, ...]] = field(default_factory=dict)

    def isolated_ps(self, bundle: CallBundle) -> int:
        """Return the time of a bundle in isolation [ps]."""
        if self.isolated is not None:
            return self.isolated[bundle]
        return self._ends((BundleStart(0, bundle),))[0]

    def ends_ps(self, island: Sequence[BundleStart]) -> Sequence[int] | None:
        """Return the ends of an island's bundles [ps]; None if it is timed by rates."""
        if self.isolated is not None or len(island) > MOST_CALLS:
            return None
        if len(island) > 1:
            key = tuple(island)
            if key not in self._islands and len(self._islands) >= MOST_ISLANDS:
                return None
            self._islands.add(key)
        return self._ends(island)

    def rates16(self, bundles: Sequence[CallBundle]) -> Sequence[int]:
        """Return the progress of each bundle while all are in flight [2^-16]."""
        classes = [_with_size_class(bundle) for bundle in bundles]
        order = sorted(range(len(classes)), key=lambda at: repr(classes[at]))
        rates = self._set_rates(tuple(classes[at] for at in order))
        by_place = dict(zip(order, rates, strict=True))
        return [by_place[at] for at in range(len(classes))]

    def held16(self, bundle: CallBundle) -> int:
        """Return the mean number of SMs that a bundle holds on a rank [2^-16].

        A kernel on all SMs, as long as the bundle, ends later by the time that it lost.
        """
        alone_ps = self._ends((BundleStart(0, bundle),))[0]
        lost_ps = self._kernel_end(bundle, alone_ps) - alone_ps
        return lost_ps * self._sms(bundle) * ONE // max(1, alone_ps)

    def _set_rates(self, bundles: tuple[CallBundle, ...]) -> tuple[int, ...]:
        if len(bundles) == 1:
            return (ONE,)
        if bundles not in self._rates:
            ends = self._ends([BundleStart(0, bundle) for bundle in bundles])
            first_ps = max(1, min(ends))
            work16 = [self._ends((BundleStart(0, b),))[0] << FRACTION for b in bundles]
            rest16 = self._rest16(bundles, ends, first_ps)
            self._rates[bundles] = tuple(
                max(1, (whole - rest) // first_ps)
                for whole, rest in zip(work16, rest16, strict=True)
            )
        return self._rates[bundles]

    def _rest16(
        self, bundles: tuple[CallBundle, ...], ends: Sequence[int], now_ps: int
    ) -> list[int]:
        """Return the work of each bundle after a time [2^-16 ps], by the rates of those that remain."""
        rest16 = [0] * len(bundles)
        left = [at for at, end_ps in enumerate(ends) if end_ps > now_ps]
        while left:
            then_ps = min(ends[at] for at in left)
            rates = self._set_rates(tuple(bundles[at] for at in left))
            for at, rate16 in zip(left, rates, strict=True):
                rest16[at] += (then_ps - now_ps) * rate16
            now_ps, left = then_ps, [at for at in left if ends[at] > then_ps]
        return rest16

    def _question(self, *content: object) -> tuple[object, ...]:
        setup = self.setup
        system = setup.identity, setup.nodes, setup.per_node, setup.env, str(setup.release)
        return ("calls", *system, *content)

    def _ends(self, island: Sequence[BundleStart]) -> list[int]:
        """Return the last end of each bundle's ranks [ps]."""
        question = self._question(*((start.offset_ps, *_content(start.bundle)) for start in island))
        return self.times.stored(question, partial(self._simulated, island))

    def _kernel_end(self, bundle: CallBundle, kernel_ps: int) -> int:
        """Return the end of a kernel on all SMs beside a bundle [ps]."""
        question = self._question("kernel", kernel_ps, *_content(bundle))
        start = (BundleStart(0, bundle),)
        return self.times.stored(question, lambda: self._simulated(start, kernel_ps)[-1])

    def _simulated(self, island: Sequence[BundleStart], kernel_ps: int = 0) -> list[int]:
        """Simulate bundles, and a kernel on the first rank, whose end is then the last."""
        fabric = self.setup.known
        emitter = NcclEmitter(fabric, range(fabric.num_ranks), self.setup.communicators())
        builder = ProgramBuilder(fabric.num_ranks, "calls that overlap")
        tails: list[list[int]] = []
        for number, (offset_ps, bundle) in enumerate(island):
            tails.append([])
            for place, ranks in enumerate(bundle.groups):
                waits = [_delays(builder, rank, offset_ps, f"{number} {place}") for rank in ranks]
                site = Site(builder, f"call {number} {place}", waits)
                tails[-1] += emitter.collective(site, ranks, bundle.work)
        if kernel_ps:
            rank = island[0].bundle.groups[0][0]
            tails.append([builder.kernel(rank, compute_ps=kernel_ps)])
        asked = ScheduleRequest(
            self.setup,
            builder.build(),
            granularity=self.times.granularity,
        )
        options = RunOptions(bins=2, histories=False, watch=self.watch)
        ends = whole_of(asked, options, f"the overlap of {len(island)} calls").tasks.end_ps
        return [max(int(ends[task]) for task in tasks) for tasks in tails]

    def _sms(self, bundle: CallBundle) -> int:
        """Return the SMs of a bundle's GPUs."""
        fabric = self.setup.known
        name = fabric.ranks[bundle.groups[0][0]]
        return next(n.endpoint.sms for n in fabric.nodes if n.name == name and n.endpoint)


def _delays(builder: ProgramBuilder, rank: int, offset_ps: int, name: str) -> tuple[int, ...]:
    """Let a rank start later; return the tasks to wait for."""
    if not offset_ps:
        return ()
    return (builder.delay(rank, offset_ps, stream=f"start {name}"),)


def _content(bundle: CallBundle) -> tuple[object, ...]:
    return bundle.groups, *astuple(bundle.work)


def _with_size_class(bundle: CallBundle) -> CallBundle:
    """Return a bundle with the next power of two of its bytes."""
    work = bundle.work
    size = 1 << max(0, work.bytes - 1).bit_length()
    return CallBundle(bundle.groups, replace(work, bytes=size))
