"""Times and other quantities extrapolated from smaller runs, and the decision when to do so.

An extrapolation has an axis, some runs on it, and a law. `Linear` is one term per unit of the axis; `Levels` is one
term per level of an algorithm. Nodes and bytes are axes of collectives; layers, microbatches and replicas are axes of
training steps.

**Nodes.** In a ring, and in all-to-all, gather and scatter, every rank adds a step of the same bytes. Two runs, with
the size scaled to their ranks, determine the time of a step; the time is linear in the number of ranks. Trees and
in-switch reductions move the same bytes on every node for any number of nodes. Every further level delays the first
chunk; later chunks follow in a pipeline at a constant rate. Two runs of the first chunk of every channel determine the
time of a level, and the larger of them with all bytes determines the rest. In PAT the bytes of a rank grow as
(n - 1) / n; its rest is scaled accordingly. All runs have the algorithm, protocol, channels and chunks of the complete
communicator. **Not modelled** Longer distances than in the runs: switch levels that only large networks have.

**Bytes.** Large sizes are long streams of equal chunks. Two smaller sizes are simulated with the same chunks, and the
time is extrapolated linearly in the size.

**When.** A NCCL plan with granularity ``auto`` is simulated in full up to `MANY_HOPS` burst-hops, or, if no number of
nodes is requested, up to the burst-hops at which the bursts of ``auto`` exceed their limits. Above that, it is
extrapolated from fewer nodes, or for long streams from smaller sizes, in bursts of one size: the burst size of
``auto`` for the longest of these runs. ``quick`` always extrapolates long streams, and beyond `MOST_RANKS` ranks from
fewer nodes. Wire statistics are then unknown and not shown. **Not extrapolated**, but simulated in full: runs with a
trace, verification or faults, algorithms other than NCCL's, and single runs of operations in which the first ranks
finish long before the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log2

import numpy as np

from clusim.analysis.judge import without_path
from clusim.base.terms.operations import Algorithm, Collective
from clusim.engine.abi import WIRE_COUNTERS
from clusim.lowering import QUICK, Grain
from clusim.lowering.grain import COARSE, MOST_HOPS, QUICK_HOPS, STEP
from clusim.nccl import Communicator, NcclPlan, programs
from clusim.nccl.choice import way_of
from clusim.results.bins import BinRecorder
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result, Tasks, Wires
from clusim.results.resultjson import Call
from clusim.schedule.dtypes import element
from clusim.simulation.expected import Expected, expected_of
from clusim.simulation.job import Job, RunOptions, provenance_of
from clusim.simulation.plan import OVERLAPPING, NcclChoice, Plan
from clusim.simulation.request import Request
from clusim.simulation.samples import BRIEF, Sample, phase, sample
from clusim.topology import Fabric
from clusim.topology.check_flow import never_tapers

ERROR_LIMIT = 0.15
"""Error limit of an extrapolated time.

**Assumed**, above the largest errors found: 5.9% on 16 DGX H100, 9% on 32 p5en and 12.4% on 128 DGX H100
(``docs/granularity.md``).
"""

MANY_HOPS = 32_000_000
"""Burst-hops from which a run on several nodes is extrapolated: some ten seconds."""

MANY = (QUICK, COARSE, STEP)
"""Granularities of many runs at once."""

MOST_RANKS = 32
"""Ranks up to which a communicator is simulated in full."""

MOST_MESSAGING = 64
"""The same for sends and receives: CTAs limit them on fewer nodes, NICs on more."""

STREAM_HOPS = 8_000_000
"""Approximate burst-hops of the larger of the two sizes that are extrapolated to a longer stream: some five seconds.
"""

FOLLOWED = "from "
"""Prefix of notes on extrapolated times."""

Run = tuple[Request, NcclPlan | None]


@dataclass(frozen=True, slots=True)
class Linear:
    """A quantity that grows equally with every unit of an axis.

    Attributes
    ----------
    at : tuple of float
        Places of two runs on the axis, in increasing order.
    to : float
        Place to extrapolate to.
    """

    at: tuple[float, float]
    to: float
    axis: str = ""

    def of(self, values: Sequence[float]) -> float:
        """Return the quantity at `to` from its values in the two runs."""
        (low, high), (first, last) = self.at, values
        return last + (last - first) * (self.to - high) / (high - low)

    def each(self, first: Iterable[int], last: Iterable[int]) -> list[int]:
        """Return several quantities, rounded, from their values in the two runs."""
        return [round(self.of(values)) for values in zip(first, last, strict=True)]

    def words(self, _values: Sequence[float]) -> str:
        """Return a description of the law."""
        return f"linear in {self.axis}"


@dataclass(frozen=True, slots=True)
class Levels:
    """A quantity with a term per level of an algorithm, and a rest that is independent of the levels.

    The runs are the first chunk on two numbers of nodes, and all bytes on the larger if there are more.

    Attributes
    ----------
    levels : Linear
        Numbers of levels.
    share : float
        Factor of the rest.
    """

    levels: Linear
    share: float = 1.0

    def of(self, values: Sequence[float]) -> float:
        """Return the quantity from its values in the runs."""
        start, whole = values[1], values[-1]
        more = self.levels.to - self.levels.at[1]
        return start + more * self._each(values) + (whole - start) * self.share

    def words(self, values: Sequence[float]) -> str:
        """Return the time of a level."""
        return f"each further level {self._each(values) / 1e6:.3g}us"

    def _each(self, values: Sequence[float]) -> float:
        low, high = self.levels.at
        return max(0.0, (values[1] - values[0]) / (high - low))


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """Runs from which a collective is extrapolated, the longest last, and the law."""

    runs: tuple[Run, ...]
    law: Linear | Levels
    origin: str

    def of(self, values: Sequence[int]) -> tuple[int, str]:
        """Return a quantity of the complete collective from its values in the runs, and the method."""
        note = f"{FOLLOWED}{self.origin}, {self.law.words(values)}"
        return max(1, round(self.law.of(values))), note

    def timed(self, options: RunOptions = BRIEF, *, streams: bool | None = None) -> Sample:
        """Return the time of the complete collective [ps], and the method; see `timed`."""
        times = [timed(*run, options, streams=streams).time_ps for run in self.runs]
        time_ps, note = self.of(times)
        return Sample(time_ps, (note,))


def over_nodes(request: Request, plan: NcclPlan | None) -> Extrapolation | None:
    """Return the extrapolation of a collective from fewer nodes; None if these cannot represent it."""
    setup, comm = request.setup, request.setup.comm
    # Given ranks and faults belong to certain nodes, which fewer nodes cannot represent.
    if isinstance(setup.topology, Fabric) or setup.nodes is None or setup.ranks is not None:
        return None
    most = MOST_MESSAGING if plan is None else MOST_RANKS
    if comm.group.num_ranks <= most or setup.broken.faults:
        return None
    many = comm.group.num_nodes
    nodes = _anchor_nodes(comm, plan, most)
    if many <= nodes[1]:
        return None
    origin = f"{nodes[0]} and {nodes[1]} nodes"
    if plan is None or plan.selection.algorithm is Algorithm.RING:
        steps = tuple(_of_steps(request, plan, number) for number in nodes)
        small, large = (run.setup.num_ranks for run, _ in steps)
        return Extrapolation(steps, Linear((small, large), setup.num_ranks, "ranks"), origin)
    first = min(request.size_bytes, plan.chunks.chunk_bytes * plan.num_channels)
    places = dict.fromkeys(((nodes[0], first), (nodes[1], first), (nodes[1], request.size_bytes)))
    runs = tuple(_of_levels(request, plan, *place) for place in places)
    few, more, all_levels = (_levels(plan, number) for number in (*nodes, many))
    pat = plan.selection.algorithm is Algorithm.PAT
    share = (1 - 1 / many) / (1 - 1 / nodes[1]) if pat else 1.0
    return Extrapolation(runs, Levels(Linear((few, more), all_levels), share), origin)


def _anchor_nodes(comm: Communicator, plan: NcclPlan | None, most_ranks: int) -> tuple[int, int]:
    """Return the two node counts to extrapolate from; trees need some depth."""
    per_node = max(1, comm.group.num_ranks // comm.group.num_nodes)
    by_steps = plan is None or plan.selection.algorithm is Algorithm.RING
    least = 4 if by_steps or per_node > most_ranks else 8
    large = max(least, 1 << max(1, most_ranks // per_node).bit_length() - 1)
    return large // 2, large


def _of_steps(request: Request, plan: NcclPlan | None, nodes: int) -> Run:
    """Return the request on `nodes` nodes with the same bytes per step, and its plan."""
    setup, size = request.setup, request.size_bytes
    # A plan fixes its channels, so that curves over nodes share the runs.
    fewer = setup.smaller(nodes) if plan is None else replace(setup, nodes=nodes)
    operation = request.operation if plan is None else plan.selection.collective
    if operation not in ("sendrecv", Collective.BROADCAST, Collective.REDUCE):
        size = max(min(size, 8), size * fewer.num_ranks // setup.num_ranks // 16 * 16)
    part = replace(request, setup=fewer, size_bytes=size)
    if plan is None:
        return part, None
    width = min(element(request.dtype).size_bytes, size)
    selection = replace(plan.selection, num_bytes=size)
    return part, fewer.comm.plan_of(selection, element_bytes=width)


def _of_levels(request: Request, plan: NcclPlan, nodes: int, size_bytes: int) -> Run:
    """Return the request on `nodes` nodes with `size_bytes`, and the plan with the same chunks."""
    part = replace(request, setup=replace(request.setup, nodes=nodes), size_bytes=size_bytes)
    width = min(element(request.dtype).size_bytes, size_bytes)
    return part, _same_chunks(part.setup.comm, plan, size_bytes, width)


def _same_chunks(
    comm: Communicator, plan: NcclPlan, size_bytes: int, element_bytes: int = 4
) -> NcclPlan:
    """Return a plan with the same algorithm and chunks for another size or communicator."""
    same = comm.plan_of(replace(plan.selection, num_bytes=size_bytes), element_bytes=element_bytes)
    chunk = plan.chunks.chunk_bytes
    parts = tuple(replace(part, chunk_bytes=chunk) for part in same.parts)
    return replace(same, chunks=plan.chunks, parts=parts)


def _levels(plan: NcclPlan, num_nodes: int) -> float:
    """Return the levels of an algorithm on `num_nodes` nodes.

    PAT sends blocks individually, one after the other.
    """
    if plan.selection.algorithm in (Algorithm.TREE, Algorithm.NVLS_TREE):
        return float(tree_levels(num_nodes))
    if plan.selection.algorithm is Algorithm.PAT:
        return float(num_nodes)
    return log2(num_nodes)


def tree_levels(num_nodes: int) -> int:
    """Return the depth of the deeper of NCCL's two trees, in nodes below the root.

    The root has one child, with a binary tree of the other nodes below.
    """
    return (num_nodes - 1).bit_length()


def over_bytes(request: Request, plan: NcclPlan | None, bursts: int) -> Extrapolation | None:
    """Return the extrapolation of a long stream from two smaller sizes; None if it is short.

    Parameters
    ----------
    bursts : int
        Burst-hops of the complete stream.
    """
    setup, size = request.setup, request.size_bytes
    quick = request.granularity == QUICK
    most = QUICK_HOPS if quick else STREAM_HOPS
    small = max(1, size * most // (2 * bursts + 1))
    filling = max(1, programs.filling_bytes(setup.known, setup.comm, plan))
    if quick:  # powers of two, so that many sizes share the same two runs
        small = max(1 << small.bit_length() - 1, 1 << (filling - 1).bit_length())
    else:
        small = max(small, filling) // 4096 * 4096
    if bursts <= most or 4 * small > size:
        return None
    sizes = small, 2 * small
    if plan is None:
        each = 1 if request.operation == "sendrecv" else setup.num_ranks
        cut = setup.cut_for(programs.message_class(setup.comm, setup.known, size // each))
        request = replace(request, setup=cut)
    runs = tuple(
        (
            replace(request, size_bytes=number),
            None if plan is None else _same_chunks(setup.comm, plan, number),
        )
        for number in sizes
    )
    return Extrapolation(runs, Linear(sizes, size, "the size"), "two smaller sizes")


_TIMED: dict[tuple[object, ...], Sample] = {}
"""Cached collectives of this process: curves share runs on fewer nodes and of smaller sizes."""


def timed(
    request: Request,
    plan: NcclPlan | None,
    options: RunOptions = BRIEF,
    *,
    streams: bool | None = None,
) -> Sample:
    """Return the time of a NCCL plan on all its nodes.

    Parameters
    ----------
    streams : bool or None
        Whether long streams are extrapolated; None: with ``quick``.
    """
    if streams is None:
        streams = request.granularity == QUICK
    setup = request.setup
    chunks = () if plan is None else (plan.chunks, plan.parts)
    # The fabric, because its file may have changed.
    key = request, setup.fabric, way_of(setup.comm, plan), chunks, streams
    if key not in _TIMED:
        job = phase(request, plan)
        shorter = over_bytes(request, plan, job.grain.grant_hops) if streams else None
        if shorter is None:
            _TIMED[key] = sample(request, plan, job, options)
        else:
            _TIMED[key] = shorter.timed(options, streams=False)
    return _TIMED[key]


def kernel_time(request: Request, plan: NcclPlan | None) -> Sample:
    """Return the time of a NCCL plan as nccl-tests measures it."""
    if request.granularity == "auto":
        found = extrapolated_time(request, plan, partial(phase, request, plan))
        if found is not None:
            result, _ = found
            return replace(result, notes=tuple(map(limited, result.notes)))
        return timed(request, plan)
    fewer = over_nodes(request, plan)
    return timed(request, plan) if fewer is None else fewer.timed()


def extrapolated_time(
    request: Request, plan: NcclPlan | None, whole: Callable[[], Job], options: RunOptions = BRIEF
) -> tuple[Sample, Grain] | None:
    """Return the extrapolated time of a NCCL plan; None if it is simulated in full.

    Parameters
    ----------
    whole : callable
        Prepares the complete run; called only if it cannot be extrapolated from fewer nodes.

    Returns
    -------
    tuple of Sample and Grain
        The time with the method, and the granularity of the simulated runs.
    """
    setup = request.setup
    if request.granularity != "auto" or request.engine != "c" or setup.broken.faults:
        return None
    options.watch.begins("the work is estimated")
    how = replace(BRIEF, watch=options.watch, progress=options.progress, threads=options.threads)
    nodes = over_nodes(request, plan)
    if nodes is not None:
        found = in_one_size(request, nodes)
        return None if found is None else (found[0].timed(how, streams=True), found[1])
    grain = whole().grain
    if grain.grant_hops <= (MOST_HOPS if setup.nodes is None else MANY_HOPS):
        return None
    request = _cut_as(request, grain)
    shorter = over_bytes(request, plan, phase(request, plan).grain.grant_hops)
    return None if shorter is None else (shorter.timed(how, streams=False), grain)


def limited(note: str) -> str:
    """Return a note on an extrapolation with its error limit."""
    return f"{note}; error limit {ERROR_LIMIT:.0%}, against the complete run in bursts"


def in_one_size(request: Request, nodes: Extrapolation) -> tuple[Extrapolation, Grain] | None:
    """Return the extrapolation of a request in bursts of one size; None if it is simulated in full.

    ``auto`` is extrapolated above `MANY_HOPS`; the granularities `MANY`, for many runs at once and for composed steps,
    wherever the network does not taper with more nodes; ``packet`` and given burst sizes never.

    Parameters
    ----------
    nodes : Extrapolation
        As of `over_nodes`.

    Returns
    -------
    tuple of Extrapolation and Grain
        And the granularity of its runs: the requested one for the longest.
    """
    always = request.granularity in MANY
    if request.granularity != "auto" and not (always and never_tapers(request.setup.fabric)):
        return None
    part, plan = nodes.runs[-1]
    grain = phase(part, plan).grain
    # The traffic per rank is proportional to the size.
    share = part.setup.num_ranks * part.size_bytes / request.setup.num_ranks / request.size_bytes
    if not always and grain.least_hops / share <= MANY_HOPS:
        return None
    runs = tuple((_cut_as(run, grain), run_plan) for run, run_plan in nodes.runs)
    return replace(nodes, runs=runs), grain


def _cut_as(request: Request, grain: Grain) -> Request:
    """Return a request in bursts of one size.

    Runs of equal granularity differ only in nodes and size.
    """
    return replace(request, granularity="packet" if grain.exact else grain.burst_bytes[1])


def extrapolated_result(plan: Plan, options: RunOptions, whole: Callable[[], Job]) -> Result | None:
    """Return the extrapolated result of a planned run; None if it is simulated in full.

    Parameters
    ----------
    whole : callable
        Prepares the complete run, as for `extrapolated_time`.
    """
    choice = plan.choice
    if choice is None or options.trace_out is not None or plan.options.verify:
        return None
    request = choice.request
    if request.operation in OVERLAPPING or choice.kernel is not None:
        return None
    began_s = time.perf_counter()
    found = extrapolated_time(request, choice.plan, whole, options)
    if found is None:
        return None
    (result, grain), call = found, _call(choice)
    (note,) = result.notes
    provenance = provenance_of(
        *(request, grain, options),
        seed=request.seed,
        schedule_text="",
        notes=(*choice.comm.notes, *choice.notes),
        around=choice.around,
    )
    nothing = np.empty(0, np.int64)
    return Result(
        time_ps=result.time_ps,
        wall_s=time.perf_counter() - began_s,
        fingerprint=0,
        provenance=replace(provenance, granularity_note=limited(note), error_bound=ERROR_LIMIT),
        wires=Wires([], [], np.empty(0), np.empty(0, bool), np.empty(0, WIRE_COUNTERS)),
        tasks=Tasks([], nothing, nothing),
        bins=BinRecorder(0, 0, 2).bins(),
        call=call,
        followed=note,
        judge=partial(_judged, expected_of(plan, call.algorithm)),
    )


def _judged(expected: Expected, result: Result) -> Verdict:
    """Return the verdict on a run with a known time only."""
    return replace(without_path(result, "only the time was found"), expected=expected.text())


def _call(choice: NcclChoice) -> Call:
    request, plan = choice.request, choice.plan
    names = ("p2p", "simple")
    if plan is not None:
        names = plan.selection.algorithm.own, plan.selection.protocol.own
    return Call(
        *(request.operation, *names, request.dtype, request.size_bytes),
        *(choice.comm.group.num_ranks, choice.way.channels, request.root or 0),
    )
