"""Report of a program: time per step, communication, kernels and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

from clusim.base.json_schema import JsonObject, Picoseconds
from clusim.base.tables import text_table
from clusim.base.units import format_size, format_time
from clusim.programs.clock import Totals
from clusim.programs.step import RankResult
from clusim.programs.symmetry import ProgramSymmetry, RankDifference

MOST_ROWS = 8
"""Operators shown in text, beside those without a measured form."""

MOST_LINES = 3
"""Lines of the program in a note."""


@dataclass(frozen=True, slots=True)
class ProgramCall(JsonObject):
    """Calls of an operation on groups of one size.

    Attributes
    ----------
    ranks : int
        Ranks of the group.
    bytes : int
        Sum of the sizes, each the larger of a rank's send and receive sizes [bytes].
    time_us : float
        Sum of the times in isolation [us].
    """

    KEYS = ("operation", "ranks", "count", "bytes", "time_us")

    operation: str
    ranks: int
    count: int
    bytes: int
    time_ps: int


@dataclass(frozen=True, slots=True)
class ProgramKernel(JsonObject):
    """Kernels of an operator.

    Attributes
    ----------
    operator : str
        Name in ATen.
    time_us : float
        Sum of the times in isolation [us].
    measured : bool
        False if only its memory traffic is priced, which is less than its time.
    where : str
        First line of the program that called it, if it is not measured.
    """

    KEYS = ("operator", "count", "time_us", "measured", "where")

    operator: str
    count: int
    time_ps: int
    measured: bool = True
    where: str = ""


@dataclass(frozen=True, slots=True)
class ProgramStep(JsonObject):
    """Time between the ends of two optimizer steps.

    Attributes
    ----------
    time_us : float
        As the program measures it [us]: kernels share SMs, and collectives wires.
    """

    KEYS = ("time_us",)

    time_ps: Picoseconds


@dataclass(frozen=True, slots=True)
class RecordedFile(JsonObject):
    """Written step.

    Attributes
    ----------
    path : str
        Chakra trace.
    step : int
        Its number, from 1; 0 is a program without optimizer steps.
    kernels, calls : int
        Its kernels and collectives, of one rank.
    only : bool
        True if the program ended after it, and its collectives were not simulated.
    """

    KEYS = ("path", "step", "kernels", "calls", "only")

    path: str
    step: int
    kernels: int
    calls: int
    only: bool


@dataclass(frozen=True, slots=True)
class ProgramRank(JsonObject):
    """A rank that ran, in addition to the first.

    Attributes
    ----------
    represents : int
        Ranks that do the same work, itself included.
    time_us : float
        Virtual time at the end [us].
    kernel_us : float
        Sum of the times of its kernels in isolation [us].
    peak_bytes : int
        Largest allocation on the GPU [bytes].
    """

    KEYS = ("rank", "represents", "time_us", "kernel_us", "peak_bytes", "calls")

    rank: int
    represents: int
    time_ps: Picoseconds
    kernel_ps: Picoseconds
    peak_bytes: int
    calls: list[ProgramCall]


@dataclass(slots=True)
class ProgramRun(JsonObject):
    """Result of a program in virtual time.

    Attributes
    ----------
    system : str
        Name of the topology.
    ranks, rank : int
        Ranks of the job; the first rank that ran. Times, calls and kernels are its.
    others : list of ProgramRank
        Further ranks that ran. The ranks that ran represent all.
    time_us : float
        Virtual time at the end [us].
    step_us : float or None
        Median of the steps after the first; the only step's time; None without an optimizer [us].
    peak_bytes, memory_bytes : int
        Largest allocation on the GPU, and its memory [bytes].
    synchronised : int
        Waits of the host for the GPU.
    placeholders : int
        Values read by the program that are not simulated: 1.0, 1 or False.
    placeholders_at : list of str
        Lines that read them, the most frequent first.
    unused_annotations : list of str
        Annotated operators that were not called, each after the line of its annotation.
    unmeasured : float
        Share of kernel time with a price that is too low.
    recorded : RecordedFile or None
        The written step.
    symmetry : ProgramSymmetry or None
        Comparison of other ranks with their representatives.
    overlaps : list of str
        Ways in which calls that overlap were timed.
    eager_at : list of str
        Lines that compile a model, or call a compiled function, which runs eagerly.
    """

    KEYS = (
        "system",
        "ranks",
        "rank",
        "time_us",
        "step_us",
        "steps",
        "calls",
        "kernels",
        "peak_bytes",
        "memory_bytes",
        "synchronised",
        "placeholders",
        "unmeasured",
        "recorded",
        "others",
        "symmetry",
        "placeholders_at",
        "unused_annotations",
        "overlaps",
        "eager_at",
    )

    system: str
    ranks: int
    rank: int
    time_ps: int
    steps: list[ProgramStep]
    calls: list[ProgramCall]
    kernels: list[ProgramKernel]
    peak_bytes: int = 0
    memory_bytes: int = 0
    synchronised: int = 0
    placeholders: int = 0
    unmeasured: float = 0.0
    recorded: RecordedFile | None = None
    others: list[ProgramRank] = field(default_factory=list)
    symmetry: ProgramSymmetry | None = None
    placeholders_at: list[str] = field(default_factory=list)
    unused_annotations: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    eager_at: list[str] = field(default_factory=list)

    @property
    def untimed(self) -> bool:
        """True if collectives were not simulated."""
        return self.recorded is not None and self.recorded.only

    @property
    def step_ps(self) -> int | None:
        """Median time of the steps after the first [ps]; of the only one; None without steps."""
        times = [step.time_ps for step in self.steps]
        return median_low(times[1:] or times) if times else None

    def report(self) -> str:
        """Return the report as text."""
        parts = [
            [f"{self.ranks} ranks on {self.system}; {_running(self)}"],
            _summary(self),
            _call_lines(self),
            _kernel_lines(self),
            _other_lines(self),
        ]
        text = "\n\n".join("\n".join(lines) for lines in parts if lines)
        return "\n".join([text, *_notes(self)])


def _call_lines(run: ProgramRun) -> list[str]:
    if not run.calls:
        return []
    rows = [("operation", "ranks", "calls", "bytes", "time alone")]
    rows += [
        (
            call.operation,
            str(call.ranks),
            str(call.count),
            format_size(call.bytes),
            "-" if run.untimed else format_time(call.time_ps),
        )
        for call in run.calls
    ]
    layout = "  {:<..}  {:>..}  {:>..}  {:>..}  {:>..}"
    return ["communication", *text_table(layout, rows)]


def _kernel_lines(run: ProgramRun) -> list[str]:
    if not run.kernels:
        return []
    total_ps = sum(kernel.time_ps for kernel in run.kernels)
    listed = [
        kernel
        for at, kernel in enumerate(run.kernels)
        if at < MOST_ROWS or not kernel.measured
    ]
    rows = [("operator", "kernels", "time", "share")]
    rows += [
        (
            kernel.operator + ("" if kernel.measured else " *"),
            str(kernel.count),
            format_time(kernel.time_ps),
            f"{kernel.time_ps / max(1, total_ps):.1%}",
        )
        for kernel in listed
    ]
    lines = ["kernels", *text_table("  {:<..}  {:>..}  {:>..}  {:>..}", rows)]
    if len(run.kernels) > len(listed):
        lines.append(f"  {len(run.kernels) - len(listed)} more operators: --json")
    return lines


def _other_lines(run: ProgramRun) -> list[str]:
    if not run.others:
        return []
    rows = [("rank", "represents", "time", "kernels", "memory", "messages")]
    for rank in run.others:
        messages = (c.count for c in rank.calls if c.operation in ("send", "recv"))
        rows.append(
            (
                str(rank.rank),
                str(rank.represents),
                format_time(rank.time_ps),
                format_time(rank.kernel_ps),
                format_size(rank.peak_bytes),
                str(sum(messages)),
            )
        )
    return ["other ranks", *text_table("  {:<..}" + "  {:>..}" * 5, rows)]


def run_of(
    system: str, of: Sequence[int], results: Mapping[int, RankResult]
) -> ProgramRun:
    """Return the result of a program.

    Parameters
    ----------
    of : sequence of int
        The rank that represents each rank.
    results : dict
        Result of each rank that ran.
    """
    first = min(results)
    first_result = results[first]
    totals = first_result.totals
    kernels = [
        ProgramKernel(
            name,
            totals.kernels[name],
            ps,
            name not in totals.unpriced_ps,
            totals.unpriced_at.get(name, ""),
        )
        for name, ps in Counter(totals.kernel_ps).most_common()
    ]
    count = Counter(of)
    return ProgramRun(
        system,
        len(of),
        first,
        first_result.time_ps,
        [ProgramStep(time_ps) for time_ps in first_result.steps],
        _calls(totals),
        kernels,
        first_result.peak_bytes,
        synchronised=totals.synchronised,
        placeholders=totals.placeholders.total(),
        placeholders_at=[line for line, _ in totals.placeholders.most_common()],
        unused_annotations=[
            f"{line}: {name}" for name, line in totals.unused.items()
        ],
        eager_at=totals.eager,
        unmeasured=sum(totals.unpriced_ps.values())
        / max(1, sum(totals.kernel_ps.values())),
        others=[
            ProgramRank(
                rank,
                count[rank],
                r.time_ps,
                sum(r.totals.kernel_ps.values()),
                r.peak_bytes,
                _calls(r.totals),
            )
            for rank, r in sorted(results.items())
            if rank != first
        ],
    )


def _calls(totals: Totals) -> list[ProgramCall]:
    return [
        ProgramCall(*key, count, totals.call_bytes[key], totals.call_ps[key])
        for key, count in sorted(totals.calls.items())
    ]


def _running(run: ProgramRun) -> str:
    """Return a description of the ranks that ran."""
    ranks = [run.rank, *(other.rank for other in run.others)]
    if len(ranks) == run.ranks > 1:
        return "all ran as processes"
    if len(ranks) == 1:
        return f"rank {ranks[0]} represents all"
    listing = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"ranks {listing} represent all"


def _summary(run: ProgramRun) -> list[str]:
    rows = (
        []
        if run.untimed
        else [("time", f"{format_time(run.time_ps)} of virtual time")]
    )
    file = run.recorded
    if file is not None:
        what = (
            f"step {file.step}"
            if file.step
            else "the program, without optimizer steps,"
        )
        rows.append(("recorded", f"{what} in {file.path}"))
        who = f"rank {run.rank}, "
        who += (
            f"one of {1 + len(run.others)}"
            if run.others
            else f"which represents all {run.ranks}"
        )
        rows.append(
            ("", f"{file.kernels} kernels and {file.calls} collectives of {who}")
        )
    step = run.step_ps
    if step is not None:
        count = len(run.steps)
        median_text = f", median of {count - 1} after the first, {format_time(run.steps[0].time_ps)}"
        rows.append(("step", format_time(step) + (median_text if count > 1 else "")))
    if run.eager_at:
        rows.append(("", "eager: torch.compile is not simulated"))
    if run.peak_bytes:
        rows.append(
            (
                "memory",
                f"{format_size(run.peak_bytes)} at the peak of {format_size(run.memory_bytes)}",
            )
        )
    return text_table("  {:<..}  {}", [*rows, *_comparison_row(run)])


def _comparison_row(run: ProgramRun) -> list[tuple[str, str]]:
    """Return the row with the ranks that were compared with their representatives."""
    proof = run.symmetry
    if proof is None or not proof.equal:
        return []
    what = (
        f"first {proof.steps} steps"
        if proof.steps > 1
        else "first step"
        if proof.steps
        else "run"
    )
    ranks = ", ".join(map(str, proof.equal))
    earlier = "; cached" if proof.cached else ""
    return [
        ("ranks", f"{ranks} proved equal to their representatives"),
        ("", f"{proof.operations} operations of the {what}{earlier}"),
    ]


def _proof_notes(run: ProgramRun) -> list[str]:
    """Return notes on ranks that are represented without a proof."""
    proof = run.symmetry
    represented = run.ranks > 1 + len(run.others)
    if proof is None or not represented:
        return []
    notes = []
    alike: dict[RankDifference, list[int]] = {}
    for item in proof.differences:
        alike.setdefault(replace(item, rank=-1), []).append(item.rank)
    for item, ranks in alike.items():
        which = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        first = item.representative
        notes += [
            f"{which} {'differ' if len(ranks) > 1 else 'differs'} from rank {first}, the representative, after"
            f" {item.after} equal operations; --distinct runs both",
            f"  {which}: {item.own}",
            f"  rank {first}: {item.other}",
        ]
    if not proof.equal and not notes:
        notes.append("no rank was compared with its representative: --compare")
    return notes


def _notes(run: ProgramRun) -> list[str]:
    notes = _proof_notes(run)
    if run.placeholders:
        notes.append(
            f"{run.placeholders} values were read that are not simulated: 1.0, 1 or False in their place"
        )
        notes += [f"  {line}" for line in run.placeholders_at[:MOST_LINES] if line]
    if run.unmeasured:
        notes.append(
            f"* {run.unmeasured:.1%} of the kernel time is priced by memory traffic only, which is too low;"
            " clusim.torch.annotate sets other times"
        )
        notes += [f"  {k.operator}: {k.where}" for k in run.kernels if k.where]
    if run.eager_at:
        notes.append(
            "torch.compile runs eagerly: kernels and launches are those of eager PyTorch"
        )
        notes += [f"  {line}" for line in run.eager_at[:MOST_LINES] if line]
    if run.unused_annotations:
        notes.append("annotations without effect: these operators were not called")
        notes += [f"  {text}" for text in run.unused_annotations]
    notes += [] if run.untimed else run.overlaps
    if run.untimed:
        notes.append(
            "collectives are not simulated; `clusim replay` simulates the recorded step"
        )
    return ["", "notes", *(f"  {note}" for note in notes)] if notes else []
