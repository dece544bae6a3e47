"""Verdict on a training step, its stragglers and its phases, from the breakdown of ranks.

The critical path is not used: replicated blocks are pauses on that path, and a bubble is on no path: while one stage
waits, another computes. So each phase is divided by the mean breakdown of its ranks; parts and phases add up to the
step. The excess time of a slow rank over its peers, including the waiting of others, is attributed to the slow rank;
the excess load of the fullest link over its parallel links, to that link.

**Phases** are fill, steady state and drain of the pipeline, and update. The ``warm-up`` ends when the last rank begins
its first pass, the ``drain`` begins when the first rank has finished its last one, as in Megatron-LM's schedules
(warm-up, steady state, cool-down); ``optimizer`` is everything after the last pass: the rest of the gradient reduction,
and the optimiser. Without a pipeline there is no filling and draining; ranks that begin late are the ``start``, ranks
that end late the ``tail``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property, partial
from statistics import median_low

import numpy as np

from clusim.base.arrays import Array
from clusim.base.terms.links import several
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import (
    SHOWN_PLACES,
    Census,
    Key,
    PartKey,
    VerdictCause,
    divide_time,
)
from clusim.results.diagnosis import LEAST_PHASE, SplitSpan, Verdict, diagnose
from clusim.results.intervals import Union
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
from clusim.training.full_wire import FullWire
from clusim.training.steady import SteadyWindow
from clusim.workload.mesh import Mesh
from clusim.workload.parallel.data import SERVER

SLOWER = 1.05
"""Least factor by which kernels of a slow rank exceed its peers'; concurrent communication may cause less."""

FAR_ABOVE = 1.5
"""Least factor by which a rank's part exceeds the mean of all ranks, to be named."""

HEAVIER = 1.1
"""Least factor by which a heavy stage's compute time exceeds the mean of all stages."""


def slow_ranks(
    schedule: Schedule,
    start: Array,
    end: Array,
    low: int,
    slowed: Mapping[int, float],
) -> dict[int, float]:
    """Return the ranks with slower kernels than the median rank -> excess share of their time.

    Updates of parameter servers do not count.

    Parameters
    ----------
    low : int
        Only kernels that start at or after this time count [ps].
    slowed : mapping of int to float
        Factor already applied to a rank's kernel times in the schedule.
    """
    times: Counter[int] = Counter()
    alone: defaultdict[int, float] = defaultdict(float)
    for index, task in enumerate(schedule.tasks):
        if (
            task.kind == "kernel"
            and start[index] >= low
            and not task.stream.startswith(SERVER)
        ):
            times[task.rank] += int(end[index]) - int(start[index])
            alone[task.rank] += task.compute_ps / slowed.get(task.rank, 1.0)
    stretch = {rank: times[rank] / alone[rank] for rank in times if alone[rank] > 0}
    if len(stretch) < 2:
        return {}
    usual = median_low(stretch.values())
    return {
        rank: 1 - usual / factor
        for rank, factor in stretch.items()
        if factor > SLOWER * usual
    }


def server_waits(
    schedule: Schedule,
    times: tuple[Array, Array],
    step: StepSpans,
    servers: Sequence[int],
) -> dict[str, float]:
    """Return the share of ranks' waiting while a server updates, and while it only moves data.

    `times` are begin and end of every task [ps].
    """
    updates = [
        i for i, task in enumerate(schedule.tasks) if task.stream.startswith(SERVER)
    ]
    update = Union(*(phases[updates] for phases in times)).spans
    moving = [
        unfolded(step.spans.get(server, NOTHING))[1][:, :2] for server in servers
    ]
    waits = np.zeros(2)
    for rank, row in zip(step.ranks, step.whole, strict=True):
        window = step.begin_ps, step.end_ps
        compute, moves, _ = unfolded(step.spans.get(rank, NOTHING))
        unions = [compute, moves[:, :2], step.spans.get(rank, NOTHING).issuing]
        busy = [
            Union.of(*unions, *more).within(*window)
            for more in ((), (update,), (update, *moving))
        ]
        waits += np.minimum(np.diff(busy) / step.steps_of(rank), row.idle_ps)
    named = several(f"rank {server}" for server in servers)
    shares = (waits / max(1, sum(row.idle_ps for row in step.whole))).tolist()
    names = (
        f"limited by the {part} of parameter server {named}"
        for part in ("updates", "link")
    )
    return {name: share for name, share in zip(names, shares, strict=True) if share}


def heavy_stage(ranks: Sequence[Breakdown], mesh: Mesh) -> str:
    """Return a text on the pipeline stage that computes longest, if others wait for it.

    Otherwise empty.
    """
    if mesh.pipeline < 2:
        return ""
    compute = {row.rank: row.compute_ps for row in ranks}
    means = [
        np.mean([compute[rank] for rank in mesh.stage(s)])
        for s in range(mesh.pipeline)
    ]
    heaviest, mean = int(np.argmax(means)), float(np.mean(means))
    if not mean or means[heaviest] < HEAVIER * mean:
        return ""
    return f"slowest stage {heaviest}: {means[heaviest] / mean:.2f} times the mean compute time"


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
    idle : mapping of str to float
        Cause -> its share of the waiting for other ranks.
    waits : bool
        False if ranks do not wait for slow ones.
    """

    slow: Mapping[int, float] = field(default_factory=dict)
    wire: FullWire | None = None
    bubble: str = ""
    idle: Mapping[str, float] = field(default_factory=dict)
    waits: bool = True

    def parts(self, sums: Mapping[str, int], lost_ps: int) -> dict[Key, int]:
        """Return sums over ranks by cause; `lost_ps` is the cost of slow ranks [ps]."""
        straggler = (
            CauseKind.STRAGGLER,
            several(f"rank {rank}" for rank in self.slow or (0,)),
        )
        result: dict[Key, int] = {straggler: lost_ps}
        for part, time_ps in sums.items():
            detail = self.bubble if part == CauseKind.BUBBLE else ""
            if part == CauseKind.EXPOSED and self.wire is not None:
                broken_ps = round(time_ps * self.wire.lost)
                result[CauseKind.FAULT, self.wire.link] = broken_ps
                detail, time_ps = self.wire.what, time_ps - broken_ps
            if part == CauseKind.IDLE:
                waits = {
                    what: round(time_ps * share) for what, share in self.idle.items()
                }
                result |= {(CauseKind.IDLE, what): ps for what, ps in waits.items()}
                time_ps -= sum(waits.values())
            result[CauseKind(part), detail] = time_ps
        return result

    def places(
        self,
        kind: CauseKind,
        ranks: Sequence[int],
        by_rank: Mapping[str, Sequence[int]],
    ) -> dict[tuple[str, str], int]:
        """Return weights of the places of a cause, given the parts of each rank [ps]."""
        if kind is CauseKind.FAULT and self.wire is not None:
            return {(self.wire.wire_class, self.wire.link): 1}
        if kind is CauseKind.STRAGGLER:
            return {
                ("ranks", f"rank {rank}"): round(1e6 * part)
                for rank, part in self.slow.items()
            }
        weights = zip(ranks, by_rank[kind.value], strict=True)
        return {("ranks", f"rank {rank}"): ps for rank, ps in weights if ps}


Window = tuple[str, int, int]
"""Name, begin and end of a phase [ps]."""

Phases = Sequence[tuple[Window, Sequence[Breakdown]]]
"""Phases of a step from begin to end, each with the breakdown of its ranks."""


def _spans(phases: Phases, culprits: Culprits) -> Iterator[SplitSpan]:
    """Yield the mean breakdown of ranks in each phase by cause; the parts add up to the phase."""
    names = [f"{part}_ps" for part in PARTS]
    times = np.array(
        [
            [[getattr(row, name) for name in names] for row in rows]
            for _, rows in phases
        ]
    )
    total = times.sum(axis=0)
    ranks = [row.rank for row in phases[0][1]]
    slow = [culprits.slow.get(rank, 0.0) for rank in ranks]
    lost = _held_up(total, slow, PARTS if culprits.waits else ("compute",))
    # The cost of slow ranks in a phase is proportional to its part of the step.
    until = lost * (times.cumsum(axis=0) / np.maximum(1, total))
    lost_ps = np.diff(np.floor(until + 0.5).astype(np.int64), axis=0, prepend=0)
    for (window, _), rows, cost in zip(phases, times, lost_ps, strict=True):
        sums = dict(zip(PARTS, (rows - cost).sum(axis=0).tolist(), strict=True))
        by_rank = dict(zip(PARTS, (rows - cost).T.tolist(), strict=True))
        parts: dict[PartKey, int] = {}
        for key, ps in culprits.parts(sums, int(cost.sum())).items():
            places = culprits.places(key[0], ranks, by_rank)
            parts |= {
                (*key, *place): part
                for place, part in divide_time(places, ps).items()
            }
        yield SplitSpan(*window, divide_time(parts, window[2] - window[1]))


def _held_up(
    whole: Array, slow: Sequence[float], affected: Collection[str]
) -> Array:
    """Return the cost of slow ranks in the `affected` parts of each rank [ps], shape (ranks, parts).

    The cost is the compute time of the slowest rank beyond that of the slowest rank without excess time.
    """
    compute, bubble, idle = (
        list(PARTS).index(part) for part in ("compute", "bubble", "idle")
    )
    excess = np.rint(whole[:, compute] * np.array(slow)).astype(np.int64)
    excess_left = np.full(
        len(whole), whole[:, compute].max() - (whole[:, compute] - excess).max()
    )
    lost = np.zeros_like(whole)
    for part, limit in (
        (compute, excess),
        (bubble, whole[:, bubble]),
        (idle, whole[:, idle]),
    ):
        if list(PARTS)[part] in affected:
            lost[:, part] = np.minimum(limit, excess_left)
            excess_left -= lost[:, part]
    return lost


def step_verdict(
    phases: Phases, expected: str, culprits: Culprits = Culprits()
) -> Verdict:
    """Return the verdict on a step.

    The bottleneck is the longest cause, where compute counts half: it can be faster, but not removed.
    """
    spans = list(_spans(phases, culprits))

    def order(sums: Mapping[Key, int]) -> list[Key]:
        return sorted(
            sums,
            key=lambda key: -sums[key] // (2 if key[0] is CauseKind.COMPUTE else 1),
        )

    def finish(cause: VerdictCause) -> VerdictCause:
        exposed = culprits.wire if cause.kind is CauseKind.EXPOSED else None
        return cause if exposed is None else replace(cause, also=exposed.also)

    verdict = diagnose(spans, order, partial(_census, phases, culprits), finish)
    times = [cause.time_ps for cause in verdict.causes]
    return replace(
        verdict,
        basis="mean of the ranks in the last step",
        order="by share; compute counts half"
        if times != sorted(times, reverse=True)
        else "",
        expected=f"expected error: {expected}",
    )


def _census(phases: Phases, culprits: Culprits, key: Key, resource: str) -> Census:
    """Count the ranks of a cause: those with `FAR_ABOVE` the mean of a part, otherwise all."""
    if resource != "ranks":
        return Census("links", 1)
    ranks, kind = [row.rank for row in phases[0][1]], key[0]
    if kind.value not in PARTS or (kind is CauseKind.COMPUTE and culprits.slow):
        return Census("ranks", len(ranks))
    values = np.sum(
        [[getattr(row, f"{kind}_ps") for row in rows] for _, rows in phases], axis=0
    )
    far = np.flatnonzero(values >= FAR_ABOVE * max(1.0, float(np.mean(values))))
    if len(ranks) < 2 or not 0 < len(far) < len(ranks):
        return Census("ranks", len(ranks))
    names = tuple(f"rank {ranks[i]}" for i in far.tolist())
    return Census(
        "ranks", len(ranks), names, names if len(names) <= SHOWN_PLACES else ()
    )


@dataclass(frozen=True)
class StepSpans:
    """Work of ranks in a step.

    Attributes
    ----------
    begin_ps, passed_ps, end_ps : int
        Begin, end of the last pass, and end [ps].
    pipeline : bool
        True if it has stages, which wait for each other.
    steady : SteadyWindow or None
        The window of several steps, if steps overlap; the step is their mean, without phases.
    """

    spans: Mapping[int, Spans]
    ranks: Sequence[int]
    begin_ps: int
    passed_ps: int
    end_ps: int
    pipeline: bool
    steady: SteadyWindow | None = None

    def steps_of(self, rank: int) -> float:
        """Return the steps that a rank completes between begin and end."""
        return 1.0 if self.steady is None else self.steady.steps.get(rank, 1.0)

    @cached_property
    def whole(self) -> list[Breakdown]:
        """Breakdown of ranks in the step."""
        each = zip(*(rows for _, rows in self.by_phase), strict=True)
        return [
            Breakdown(
                rows[0].rank,
                *np.sum([astuple(r)[1:] for r in rows], axis=0).tolist(),
            )
            for rows in each
        ]

    @cached_property
    def by_phase(self) -> list[tuple[Window, list[Breakdown]]]:
        """Its phases, each with the breakdown of its ranks.

        Computed together, as expanded blocks need much memory.
        """
        entire = "", self.begin_ps, self.end_ps
        if self.steady is not None:
            window, passed = entire[1:], self.end_ps if self.pipeline else 0
            (several,) = breakdown(self.spans, self.ranks, [window], passed)
            one = "", self.begin_ps, self.begin_ps + self.steady.step_ps
            return [
                (
                    one,
                    [
                        row.of_one_step(self.steady.of_rank_ps(row.rank))
                        for row in several
                    ],
                )
            ]
        passed = self.passed_ps if self.pipeline else 0
        windows = self._phases() or [entire]
        rows = breakdown(
            self.spans, self.ranks, [window[1:] for window in windows], passed
        )
        return list(zip(windows, rows, strict=True))

    def _phases(self) -> list[Window]:
        """Return phases that add up to the step; short ones are part of the steady state."""
        low, passed, high = self.begin_ps, self.passed_ps, self.end_ps
        works = [
            _working(self.spans.get(rank, NOTHING), low, passed)
            for rank in self.ranks
        ]
        present = [phase for phase in works if phase is not None]
        if not present:
            return []
        min_ps = max(1.0, LEAST_PHASE * (high - low))
        done = passed if high - passed >= min_ps else high
        full = max(first for first, _ in present)
        empty = max(full, min(last for _, last in present))
        full = full if full - low >= min_ps else low
        empty = empty if done - empty >= min_ps else done
        fill, drain = ("warm-up", "drain") if self.pipeline else ("start", "tail")
        edges = (low, full, empty, done, high)
        names = (fill, "steady state", drain, "optimizer")
        every = zip(names, edges, edges[1:], strict=False)
        return [phase for phase in every if phase[2] > phase[1]]


def _working(spans: Spans, low: int, high: int) -> tuple[int, int] | None:
    """Return the begin and end of a rank's compute in a window [ps]; None without compute."""
    busy = np.clip(np.concatenate((spans.compute, blocks_of(spans))), low, high)
    busy = busy[busy[:, 1] > busy[:, 0]]
    return (int(busy[:, 0].min()), int(busy[:, 1].max())) if len(busy) else None
