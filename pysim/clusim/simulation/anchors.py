"""Runs from which a collective is extrapolated.

An extrapolation has an axis, some runs on it, and a law (`clusim.simulation.laws`). `Linear` is one term per unit of
the axis; `Levels` is one term per level of an algorithm. Nodes and bytes are axes of collectives; layers, microbatches
and replicas are axes of training steps.

**Nodes.** In a ring, and in all-to-all, gather and scatter, every rank adds a step of the same bytes. Two runs, with
the size scaled to their ranks, determine the time of a step; the time is linear in the number of ranks. Trees and
in-switch reductions move the same bytes on every node for any number of nodes. Every further level delays the first
chunk; later chunks follow in a pipeline at a constant rate. Two runs of the first chunk of every channel determine the
time of a level, and the larger of them with all bytes determines the rest. In PAT the bytes of a rank grow as
(n - 1) / n; its rest is scaled accordingly. All runs have the algorithm, protocol, channels and chunks of the complete
communicator. `AlgorithmEntry.growth` selects the law of a named algorithm. Hops of NCCL's trees
between nodes that are further apart than those of the runs add the latency of their way; rings of Simple add that of
the longest round trip in every two steps. **Not modelled** Longer distances in other named algorithms.

**Bytes.** Large sizes are long streams of equal chunks. A smaller size is simulated with the same chunks. The time of a
loop over all chunks is read from its second half, in complete loops; further loops need equal times. Where the loops
are few, or many runs are shared, two smaller sizes are extrapolated linearly.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

from clusim import collectives
from clusim.base.terms.operations import (
    OPERATIONS,
    ROOTED,
    Algorithm,
    Protocol,
    is_plan,
)
from clusim.collectives.rings_and_trees import find_trees
from clusim.lowering import QUICK
from clusim.lowering.grain import QUICK_HOPS
from clusim.nccl import programs
from clusim.nccl.communicator import Communicator, NcclPlan
from clusim.nccl.connect import ring_trip_ps, tree_detour_ps
from clusim.schedule.dtypes import element
from clusim.schedule.shapes import Shape
from clusim.simulation.laws import Cut, Extrapolation, Levels, Linear, Run, Steady
from clusim.simulation.nccl_choice import OVERLAPPING
from clusim.simulation.plan import Plan, named_options
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.topology.check_flow import never_tapers

MOST_RANKS = 32
"""Ranks up to which a communicator is simulated in full."""

MOST_TOGETHER = 128
"""Ranks of all concurrent communicators in the runs that they are extrapolated from."""

LEAST_LOOPS = 8
"""Loops of a run from which the time of a loop is read: single loops of rings differ by 5%."""

MOST_MESSAGING = 64
"""The same for sends and receives: CTAs limit them on fewer nodes, NICs on more."""

STREAM_HOPS = 1_300_000
"""Approximate burst-hops of the longest run that is extrapolated to a longer stream: 0.2 seconds."""

_TREES = (Algorithm.TREE, Algorithm.NVLS_TREE)


def cut_of(planned: Plan) -> Run | None:
    """Return a planned collective with its division of data; None if it is always simulated in full.

    Examples are files of plans, kernels for symmetric memory and kernels of inference engines.
    """
    request, choice = planned.options, planned.choice
    if choice is not None:
        return None if choice.kernel is not None else (choice.request, choice.plan)
    if not isinstance(request, Request) or is_plan(request.algorithm):
        return None
    setup = request.setup
    call, shape = collectives.cut(
        setup.known,
        request.operation,
        request.algorithm,
        request.size_bytes,
        **named_options(request),
    )
    if collectives.REGISTRY[call.operation, call.algorithm].prelude_ps is not None:
        return None
    # Smaller runs would select fewer channels.
    request = replace(request, channels=call.channels)
    return replace(request, algorithm=call.algorithm, protocol=call.protocol), shape


def ranks_of(setup: Setup, cut: Cut) -> int:
    """Return the number of participating ranks; named algorithms need no search for channels."""
    if isinstance(cut, Shape):
        return setup.known.num_ranks if setup.ranks is None else len(setup.ranks)
    return setup.num_ranks


def over_nodes(request: Request, cut: Cut) -> Extrapolation | None:
    """Return the extrapolation of a collective from fewer nodes; None if these cannot represent it."""
    setup = request.setup
    # Given ranks and faults belong to certain nodes, which fewer nodes cannot represent.
    if (
        isinstance(setup.topology, Fabric)
        or setup.nodes is None
        or setup.ranks is not None
    ):
        return None
    growth = _growth(request, cut)
    max_ranks = MOST_MESSAGING if growth == "exchange" else MOST_RANKS
    count = ranks_of(setup, cut)
    if not growth or count <= max_ranks or setup.broken.faults:
        return None
    num_nodes = setup.nodes if isinstance(cut, Shape) else setup.num_nodes
    max_ranks = min(max_ranks, MOST_TOGETHER // len(setup.together))
    if setup.beside and isinstance(cut, NcclPlan) and _is_steady(cut):
        max_ranks //= 2
    nodes = _anchor_nodes(
        count // num_nodes, max_ranks, deep=growth in ("levels", "node steps")
    )
    if num_nodes <= nodes[1] or (request.root or 0) * num_nodes >= count * nodes[0]:
        return None
    origin = f"{nodes[0]} and {nodes[1]} nodes"
    if growth != "levels":
        steps = tuple(_of_steps(request, cut, number) for number in nodes)
        small, large = (ranks_of(run.setup, run_cut) for run, run_cut in steps)
        further_ps = _far_steps_ps(steps[-1][0], request, cut)
        return Extrapolation(
            steps, Linear((small, large), count, "ranks", further_ps), origin
        )
    first = min(request.size_bytes, _first_bytes(request, cut))
    places = dict.fromkeys(
        ((nodes[0], first), (nodes[1], first), (nodes[1], request.size_bytes))
    )
    runs = tuple(_of_levels(request, cut, *place) for place in places)
    first_levels, more, all_levels = (
        _levels(request, cut, number) for number in (*nodes, num_nodes)
    )
    pat = isinstance(cut, NcclPlan) and cut.selection.algorithm is Algorithm.PAT
    share = (1 - 1 / num_nodes) / (1 - 1 / nodes[1]) if pat else 1.0
    far_ps = (0.0, 0.0, 0.0)
    if isinstance(cut, NcclPlan) and cut.selection.algorithm in _TREES:
        setups = (runs[0][0].setup, runs[1][0].setup, request.setup)
        few_ps, more_ps, all_ps = (
            tree_detour_ps(part.fabric, part.num_nodes) for part in setups
        )
        far_ps = (few_ps, more_ps, all_ps)
    return Extrapolation(
        runs, Levels(Linear((first_levels, more), all_levels), share, far_ps), origin
    )


def _far_steps_ps(near: Request, request: Request, cut: Cut) -> float:
    """Return the additional time of the steps of a ring of Simple against few nodes [ps].

    Two chunks of Simple, as many steps, are under way at once, so that they wait for the longest round trip. The eight
    steps of LL and LL128 do not.
    """
    named = isinstance(cut, Shape)
    simple = (
        cut.selection.protocol is Protocol.SIMPLE
        if isinstance(cut, NcclPlan)
        else (request.algorithm, request.protocol) == ("ring", "simple")
    )
    # Per further rank, rings of an all-reduce have two steps, all others in which every rank works have one.
    operation = OPERATIONS.get(request.operation)
    if (
        not simple
        or operation is None
        or operation.rooted
        or operation.blocks == "both"
    ):
        return 0.0
    steps = {"twice": 2, "others": 1, "all": 0}[operation.bus]
    setups = near.setup, request.setup
    fewer, more = (
        ring_trip_ps(part.fabric, (part.nodes or 1) if named else part.num_nodes)
        for part in setups
    )
    return max(0, more - fewer) / 2 * steps * (ranks_of(request.setup, cut) - 1)


def _growth(request: Request, cut: Cut) -> str:
    """Return the growth with the number of nodes, as `AlgorithmEntry.growth`; empty if it is not known."""
    if cut is None:
        return "exchange"
    if isinstance(cut, NcclPlan):
        return "steps" if cut.selection.algorithm is Algorithm.RING else "levels"
    setup = request.setup
    growth = collectives.REGISTRY[request.operation, request.algorithm].growth
    # Links that taper are loaded by exchanges of many nodes only.
    return "" if growth == "exchange" and not never_tapers(setup.fabric) else growth


def _is_steady(cut: NcclPlan) -> bool:
    """Return True if a further node of a ring adds the same time from two nodes on.

    In reduce-scatters over one GPU of each of 256 DGX A100, 2 and 4, 4 and 8, and 8 and 16 nodes give times within
    0.003% with Simple, and up to 14% with LL128, whose eight steps in flight hide latency on few nodes.
    """
    selection = cut.selection
    return (
        selection.algorithm is Algorithm.RING
        and selection.protocol is Protocol.SIMPLE
    )


def _anchor_nodes(per_node: int, most_ranks: int, *, deep: bool) -> tuple[int, int]:
    """Return the two node counts to extrapolate from.

    Trees need some depth. Rings of several ranks over the same NIC wait for each other in their first steps only.
    """
    per_node = max(1, per_node)
    fewest = 8 if deep and per_node <= most_ranks else 4
    large = max(fewest, 1 << max(1, most_ranks // per_node).bit_length() - 1)
    return large // 2, large


def _of_steps(request: Request, cut: Cut, nodes: int) -> Run:
    """Return the request on `nodes` nodes with the same bytes per step, and its division."""
    setup, size = request.setup, request.size_bytes
    # A plan fixes its channels, so that curves over nodes share the runs.
    fewer = setup.smaller(nodes) if cut is None else setup.fewer(nodes)
    operation = (
        cut.selection.collective if isinstance(cut, NcclPlan) else request.operation
    )
    # Every rank sends or receives the complete size if bus bandwidth is size over time.
    if operation not in OPERATIONS or OPERATIONS[operation].bus != "all":
        ranks = ranks_of(setup, cut)
        size = max(min(size, 8), size * ranks_of(fewer, cut) // ranks // 16 * 16)
    part = replace(request, setup=fewer, size_bytes=size)
    if not isinstance(cut, NcclPlan):
        return part, cut
    width = min(element(request.dtype).size_bytes, size)
    return part, _same_channels(fewer.comm, cut, size, width)


def _same_channels(
    comm: Communicator, plan: NcclPlan, size_bytes: int, element_bytes: int
) -> NcclPlan:
    """Return a plan with the same channels, chunks and shares of the data for another size and communicator.

    NCCL itself would use fewer channels for a smaller size.
    """
    result = comm.plan_of(
        replace(plan.selection, num_bytes=size_bytes), element_bytes=element_bytes
    )
    total, plan_bytes = (
        sum(part.num_bytes for part in some.parts) for some in (result, plan)
    )
    if not plan_bytes:
        return result
    starts = [part.offset * total // plan_bytes // 16 * 16 for part in plan.parts]
    ends = [*starts[1:], total]
    parts = tuple(
        replace(part, offset=start, num_bytes=end - start)
        for part, start, end in zip(plan.parts, starts, ends, strict=True)
        if end > start
    )
    return replace(result, chunks=plan.chunks, parts=parts)


def _first_bytes(request: Request, cut: Cut) -> int:
    """Return the size of one chunk on every channel [bytes]."""
    if isinstance(cut, Shape):
        return cut.chunk_bytes * (request.channels or 1)
    assert cut is not None
    return cut.chunks.chunk_bytes * cut.num_channels


def _of_levels(request: Request, cut: Cut, nodes: int, size_bytes: int) -> Run:
    """Return the request on `nodes` nodes with `size_bytes`, and a division into the same chunks."""
    part = replace(request, setup=request.setup.fewer(nodes), size_bytes=size_bytes)
    if not isinstance(cut, NcclPlan):
        return part, cut
    width = min(element(request.dtype).size_bytes, size_bytes)
    return part, _same_chunks(part.setup.comm, cut, size_bytes, width)


def _same_chunks(
    comm: Communicator, plan: NcclPlan, size_bytes: int, element_bytes: int = 4
) -> NcclPlan:
    """Return a plan with the same algorithm and chunks for another size or communicator."""
    same = comm.plan_of(
        replace(plan.selection, num_bytes=size_bytes), element_bytes=element_bytes
    )
    chunk = plan.chunks.chunk_bytes
    parts = tuple(replace(part, chunk_bytes=chunk) for part in same.parts)
    return replace(same, chunks=plan.chunks, parts=parts)


def _levels(request: Request, cut: Cut, num_nodes: int) -> float:
    """Return the levels of an algorithm on `num_nodes` nodes.

    PAT sends blocks individually, one after the other.
    """
    if isinstance(cut, Shape):
        return _depth(
            replace(request, setup=replace(request.setup, nodes=num_nodes))
        )
    assert cut is not None
    if cut.selection.algorithm in (Algorithm.TREE, Algorithm.NVLS_TREE):
        return float(tree_levels(num_nodes))
    if cut.selection.algorithm is Algorithm.PAT:
        return float(num_nodes)
    return log2(num_nodes)


def _depth(request: Request) -> int:
    """Return the depth of the deepest tree of a named algorithm, in ranks below the root."""
    setup = request.setup
    ranks = range(setup.known.num_ranks) if setup.ranks is None else setup.ranks
    rooted = request.operation in ROOTED
    root = ranks.index(request.root or ranks[0]) if rooted else None
    trees = find_trees(setup.known, ranks, request.channels or 1, root)
    return max(tree.depth() for tree in trees)


def tree_levels(num_nodes: int) -> int:
    """Return the depth of the deeper of NCCL's two trees, in nodes below the root.

    The root has one child, with a binary tree of the other nodes below.
    """
    return (num_nodes - 1).bit_length()


def over_bytes(
    request: Request, cut: Cut, bursts: int, *, linear: bool = False
) -> Extrapolation | None:
    """Return the extrapolation of a long stream from smaller sizes; None if it is short.

    Two are used with ``quick``, where many sizes share them, for operations with overlapping iterations, and if the
    larger has fewer than `LEAST_LOOPS`.

    Parameters
    ----------
    bursts : int
        Burst-hops of the complete stream.
    linear : bool
        Always use two: loops cannot be seen beside kernels.
    """
    setup, size = request.setup, request.size_bytes
    quick = request.granularity == QUICK
    max_hops = QUICK_HOPS if quick else STREAM_HOPS
    small = max(1, size * max_hops // (2 * bursts + 1))
    filling = max(1, _filling_bytes(request, cut))
    if quick:  # powers of two, so that many sizes share the same two runs
        small = max(1 << small.bit_length() - 1, 1 << (filling - 1).bit_length())
    else:  # complete loops
        small = -(-small // filling) * filling
    if bursts <= max_hops or 4 * small > size:
        return None
    sizes = small, 2 * small
    if cut is None:
        pieces = 1 if request.operation == "sendrecv" else setup.num_ranks
        message = programs.message_class(setup.comm, setup.known, size // pieces)
        request = replace(request, setup=setup.cut_for(message))
    runs = tuple(
        (
            replace(request, size_bytes=number),
            _same_chunks(setup.comm, cut, number)
            if isinstance(cut, NcclPlan)
            else cut,
        )
        for number in sizes
    )
    loop_bytes = filling / programs.FILLS
    if (
        quick
        or linear
        or request.operation in OVERLAPPING
        or sizes[1] < LEAST_LOOPS * loop_bytes
    ):
        return Extrapolation(
            runs, Linear(sizes, size, "the size"), "two smaller sizes"
        )
    law = Steady(sizes[1], size, loop_bytes)
    return Extrapolation(runs[1:], law, "a smaller size")


def _filling_bytes(request: Request, cut: Cut) -> int:
    """Return the size from which on a call needs equal time per further byte [bytes]."""
    setup = request.setup
    if not isinstance(cut, Shape):
        return programs.filling_bytes(setup.known, setup.comm, cut)
    # No loop of a named algorithm has more chunks than ranks.
    chunks = programs.FILLS * ranks_of(setup, cut)
    if collectives.REGISTRY[request.operation, request.algorithm].growth == "levels":
        chunks = max(programs.FILLS, _depth(request))
    return chunks * _first_bytes(request, cut)
