"""Verdict on a training step, its stragglers and its phases, from the breakdown of ranks.

The critical path is not used: replicated blocks are pauses on that path, and a bubble is on no path: while one stage
waits, another computes. So a step is divided by the mean breakdown of its ranks, which adds up to the step. The excess
time of a slow rank over its peers, including the waiting of others, is attributed to the slow rank; the excess load of
the fullest link over its parallel links, to that link.

**Phases** are fill, steady state and drain of the pipeline, and update. The ``warm-up`` ends when the last rank begins
its first pass, the ``drain`` begins when the first rank has finished its last one, as in Megatron-LM's schedules
(warm-up, steady state, cool-down); ``optimizer`` is everything after the last pass: the rest of the gradient reduction,
and the optimiser. Without a pipeline there is no filling and draining; ranks that begin late are the ``start``, ranks
that end late the ``tail``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.intervals import Union
from clusim.base.terms.links import joined, several
from clusim.results.diagnosis import (
    LEAST_PHASE,
    LEAST_SHARE,
    MOST_CAUSES,
    CauseKind,
    Phase,
    Verdict,
    VerdictCause,
)
from clusim.results.result import Result
from clusim.schedule.ir import Schedule
from clusim.training.breakdown import (
    NOTHING,
    PARTS,
    Breakdown,
    Spans,
    blocks_of,
    breakdown,
    unfolded,
)
from clusim.workload.mesh import Mesh
from clusim.workload.parallel.fold import FoldedBlock, by_kind, pauses_of

Array = NDArray[Any]

SLOWER = 1.05
"""Least factor by which kernels of a slow rank exceed its peers'; concurrent communication may cause less."""

FULLER = 1.2
"""Least factor by which a link is busier than its parallel links."""

HEAVIER = 1.1
"""Least factor by which a heavy stage's compute time exceeds the mean of all stages."""


@dataclass(frozen=True, slots=True)
class FullWire:
    """The busiest wire during exposed communication.

    Attributes
    ----------
    what : str
        Its class in words.
    place, link : str
        Its link: `place` only if it has more load than its parallel links, `link` always.
    lost : float
        Share of exposed communication caused by a fault of the link.
    """

    what: str
    place: str
    link: str
    lost: float = 0.0


def slow_ranks(
    schedule: Schedule, start: Array, end: Array, low: int, slowed: Mapping[int, float]
) -> dict[int, float]:
    """Return the ranks with slower kernels than the median rank -> excess share of their time.

    Parameters
    ----------
    low : int
        Only kernels that start at or after this time count [ps].
    slowed : mapping of int to float
        Factor already applied to a rank's kernel times in the schedule.
    """
    took: dict[int, int] = {}
    alone: dict[int, float] = {}
    for index, task in enumerate(schedule.tasks):
        if task.kind == "kernel" and start[index] >= low:
            length = int(end[index]) - int(start[index])
            took[task.rank] = took.get(task.rank, 0) + length
            nominal = task.compute_ps / slowed.get(task.rank, 1.0)
            alone[task.rank] = alone.get(task.rank, 0) + nominal
    stretch = {rank: took[rank] / alone[rank] for rank in took if alone[rank] > 0}
    if len(stretch) < 2:
        return {}
    usual = sorted(stretch.values())[(len(stretch) - 1) // 2]
    return {rank: 1 - usual / factor for rank, factor in stretch.items() if factor > SLOWER * usual}


def heavy_stage(ranks: Sequence[Breakdown], mesh: Mesh) -> str:
    """Return a text on the pipeline stage that computes longest, if others wait for it.

    Otherwise empty.
    """
    if mesh.pipeline < 2:
        return ""
    compute = {row.rank: row.compute_ps for row in ranks}
    means = [np.mean([compute[rank] for rank in mesh.stage(s)]) for s in range(mesh.pipeline)]
    most, mean = int(np.argmax(means)), float(np.mean(means))
    if not mean or means[most] < HEAVIER * mean:
        return ""
    return f"slowest stage {most}: {means[most] / mean:.2f} times the mean compute time"


def full_wire(
    result: Result,
    blocks: Iterable[FoldedBlock],
    spans: Mapping[int, Spans],
    window: tuple[int, int],
) -> FullWire | None:
    """Return the wire with most load during exposed communication; None without load.

    Histories of the run, and busy times of replicated blocks, are weighted by the exposed time of ranks in each bin.
    """
    all_edges = result.bins.edge_ps
    edges = np.clip(all_edges, *window)
    lengths = np.maximum(1, np.diff(all_edges))
    exposed = np.mean([_exposed(rank_spans, edges) for rank_spans in spans.values()], axis=0)
    share = exposed / lengths
    load: Array = result.bins.wires["busy"] @ share
    row = {name: number for number, name in enumerate(result.wires.names)}
    for found, repeated in by_kind(blocks):
        pauses = pauses_of(found, repeated)
        low = result.tasks.start_ps[pauses].min(axis=1)
        length = np.maximum(1, result.tasks.end_ps[pauses].max(axis=1) - low)
        done = [np.clip((edge - low) / length, 0.0, 1.0).sum() for edge in all_edges.tolist()]
        wires = [row[name] for name in found.wires]
        load[wires] += found.done.busy_ps * (np.diff(done) @ share)
    return _named(result, load, float(exposed.sum())) if load.any() else None


def _exposed(spans: Spans, edges: Array) -> Array:
    """Return the exposed communication of a rank between edges [ps]."""
    compute, moving, _ = unfolded(spans)
    computing = Union(compute[:, 0], compute[:, 1])
    either = np.concatenate((compute, moving))
    both = Union(either[:, 0], either[:, 1])
    low, high = edges[:-1], edges[1:]
    result: Array = both.within(low, high) - computing.within(low, high)
    return result


def _named(result: Result, load: Array, exposed_ps: float) -> FullWire:
    """Return the wire with the most load [ps].

    With a fault, its excess over parallel wires is the cost of the fault.
    """
    wires = result.wires
    top = int(np.argmax(load))
    mine = [i for i, name in enumerate(wires.classes) if name == wires.classes[top] and load[i] > 0]
    usual = float(np.median(load[mine]))
    rates = wires.effective_Bps, wires.rate_Bps
    left = float(rates[0][top] / rates[1][top]) if rates[1][top] else 1.0
    link = link_of(wires.names, top)
    place = link if load[top] > FULLER * usual else ""
    lost_ps = load[top] - max(usual, left * load[top]) if left < 1 - 1e-9 else 0.0
    lost = min(1.0, max(0.0, lost_ps / max(1.0, exposed_ps)))
    return FullWire(f"over {joined(wires.classes[top])}", place, link, lost)


def link_of(names: Sequence[str], wire: int) -> str:
    """Return the name of a wire's link, from the source of its first direction."""
    source, _, target = names[wire].partition("->")
    base, dot, number = target.rpartition(".")
    back = f"{base}->{source}.{number}" if dot else f"{target}->{source}"
    first = back if back in names and names.index(back) < wire else names[wire]
    return first.replace("->", "<->")


Parts = dict[tuple[CauseKind, str], int]
"""Mean time of a rank by kind and detail [ps]."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """Stragglers of a step.

    Attributes
    ----------
    slow : mapping of int to float
        Slow ranks -> the excess share of their compute time.
    wire : FullWire or None
        The link that exposed communication fills.
    bubble : str
        Further cause of the bubble, in addition to the pipeline's turns.
    """

    slow: Mapping[int, float] = field(default_factory=dict)
    wire: FullWire | None = None
    bubble: str = ""


def parts_of(ranks: Sequence[Breakdown], culprits: Culprits) -> Parts:
    """Return the mean breakdown of ranks in a window of time; the parts add up to the window."""
    sums = {part: [getattr(row, f"{part}_ps") for row in ranks] for part in PARTS}
    result: Parts = {}
    if culprits.slow:
        lost = _held_up(ranks, sums, culprits.slow)
        result[CauseKind.STRAGGLER, several(f"rank {rank}" for rank in culprits.slow)] = _mean(lost)
    wire = culprits.wire
    for part, rank_sums in sums.items():
        time_ps = _mean(rank_sums)
        if part != CauseKind.EXPOSED or wire is None:
            result[CauseKind(part), culprits.bubble if part == CauseKind.BUBBLE else ""] = time_ps
            continue
        broken_ps = round(time_ps * wire.lost)
        if broken_ps:
            result[CauseKind.FAULT, wire.link] = broken_ps
        result[CauseKind.EXPOSED, wire.what] = time_ps - broken_ps
    return {key: ps for key, ps in result.items() if ps > 0}


def _held_up(
    ranks: Sequence[Breakdown], sums: dict[str, list[int]], slow: Mapping[int, float]
) -> list[int]:
    """Subtract the cost of slow ranks from the parts of each rank in `sums`; return it [ps].

    The cost is the compute time of the slowest rank beyond that of the slowest rank without excess time.
    """
    excess_ps = [round(row.compute_ps * slow.get(row.rank, 0.0)) for row in ranks]
    usual_ps = max(row.compute_ps - excess for row, excess in zip(ranks, excess_ps, strict=True))
    most_ps = max(0, max(row.compute_ps for row in ranks) - usual_ps)
    lost = []
    for i, excess in enumerate(excess_ps):
        taken = min(excess, most_ps)
        left = most_ps - taken
        sums["compute"][i] -= taken
        for part in ("bubble", "idle"):
            waits = min(left, sums[part][i])
            sums[part][i] -= waits
            left, taken = left - waits, taken + waits
        lost.append(taken)
    return lost


def _mean(values: Sequence[int]) -> int:
    return round(float(np.mean(values)))


def step_verdict(
    ranks: Sequence[Breakdown],
    step_ps: int,
    expected: str,
    culprits: Culprits = Culprits(),
    phases: tuple[Phase, ...] = (),
) -> Verdict:
    """Return the verdict on a step of `step_ps` [ps].

    The savings are breakdown estimates: half of compute if 2x faster, the full time of the other parts; communication
    hidden by compute may then be exposed. The bottleneck is the cause with the largest saving.
    """
    causes = []
    for (kind, detail), time_ps in parts_of(ranks, culprits).items():
        saving_ps = time_ps // 2 if kind is CauseKind.COMPUTE else time_ps
        causes.append(
            VerdictCause(kind, detail, _places(ranks, kind, culprits), time_ps, saving_ps)
        )
    causes.sort(key=lambda cause: -(cause.saving_ps or 0))
    told = [
        candidate
        for i, candidate in enumerate(causes)
        if not i or candidate.time_ps >= LEAST_SHARE * step_ps
    ]
    return Verdict(
        step_ps,
        tuple(told[:MOST_CAUSES]),
        phases,
        "mean of the ranks in the last step",
        expected=f"expected error: {expected}",
    )


def _places(ranks: Sequence[Breakdown], kind: CauseKind, culprits: Culprits) -> tuple[str, ...]:
    """Return the link with excess load, or the rank with 1.5 times the mean of a part."""
    if kind is CauseKind.EXPOSED and culprits.wire is not None and culprits.wire.place:
        return (culprits.wire.place,)
    if kind.value not in PARTS or (kind is CauseKind.COMPUTE and culprits.slow):
        return ()
    values = [getattr(row, f"{kind.value}_ps") for row in ranks]
    most = int(np.argmax(values))
    if len(values) < 2 or values[most] < 1.5 * float(np.mean(values)):
        return ()
    return (f"most on rank {ranks[most].rank}",)


_Window = tuple[str, int, int]
"""Name, begin and end of a phase [ps]."""


@dataclass(frozen=True)
class StepSpans:
    """Work of ranks in a step.

    Attributes
    ----------
    begin_ps, passed_ps, end_ps : int
        Begin, end of the last pass, and end [ps].
    pipeline : bool
        True if it has stages, which wait for each other.
    """

    spans: Mapping[int, Spans]
    ranks: Sequence[int]
    begin_ps: int
    passed_ps: int
    end_ps: int
    pipeline: bool

    @property
    def whole(self) -> list[Breakdown]:
        """Breakdown of ranks in the step."""
        return self._rows[0]

    @property
    def by_phase(self) -> list[tuple[_Window, list[Breakdown]]]:
        """Its phases, each with the breakdown of its ranks."""
        return list(zip(self._phases, self._rows[1:], strict=True))

    @cached_property
    def _rows(self) -> list[list[Breakdown]]:
        """Breakdown of ranks in the step and each phase.

        Computed together, as expanded blocks need much memory.
        """
        passed = self.passed_ps if self.pipeline else 0
        windows = [(self.begin_ps, self.end_ps), *(phase[1:] for phase in self._phases)]
        return breakdown(self.spans, self.ranks, windows, passed)

    @cached_property
    def _phases(self) -> list[_Window]:
        """Sufficiently long phases; short ones are part of the steady state."""
        low, passed, high = self.begin_ps, self.passed_ps, self.end_ps
        works = [_working(self.spans.get(rank, NOTHING), low, passed) for rank in self.ranks]
        known = [phase for phase in works if phase is not None]
        if not known:
            return []
        least = max(1.0, LEAST_PHASE * (high - low))
        done = passed if high - passed >= least else high
        full = max(first for first, _ in known)
        empty = max(full, min(last for _, last in known))
        full = full if full - low >= least else low
        empty = empty if done - empty >= least else done
        fill, drain = ("warm-up", "drain") if self.pipeline else ("start", "tail")
        edges = (low, full, empty, done, high)
        every = zip((fill, "steady state", drain, "optimizer"), edges, edges[1:], strict=False)
        return [phase for phase in every if phase[2] - phase[1] >= least]


def step_phases(step: StepSpans, culprits: Culprits) -> tuple[Phase, ...]:
    """Return the phases of a step and the largest part of each."""
    return tuple(_phase(*phase, parts_of(rows, culprits)) for phase, rows in step.by_phase)


def _working(spans: Spans, low: int, high: int) -> tuple[int, int] | None:
    """Return the begin and end of a rank's compute in a window [ps]; None without compute."""
    busy = np.clip(np.concatenate((spans.compute, blocks_of(spans))), low, high)
    busy = busy[busy[:, 1] > busy[:, 0]]
    return (int(busy[:, 0].min()), int(busy[:, 1].max())) if len(busy) else None


def _phase(name: str, first: int, last: int, parts: Parts) -> Phase:
    kind, detail = max(parts, key=lambda key: (parts[key], key))
    # A pipeline fills and drains with any load of its stages.
    return Phase(name, first, last, kind, "" if kind is CauseKind.BUBBLE else detail)
