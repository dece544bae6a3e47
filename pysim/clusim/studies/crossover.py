"""Best algorithm by size: NCCL's algorithms, and custom kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clusim.base.errors import InputError, one_line
from clusim.base.executors import Jobs
from clusim.base.json_schema import JsonObject, Round3
from clusim.base.tables import spans, text_table
from clusim.base.terms.operations import COLLECTIVE_OF
from clusim.base.terms.times import LAUNCHED
from clusim.base.units import format_size
from clusim.nccl.choice import NcclOverrides, runnable
from clusim.nccl.launch import DEFAULT_ITERATIONS, host_of
from clusim.nccltests.jobs import Failure, Progress, kernels
from clusim.nccltests.sweep import Harness
from clusim.report.runreport import note_lines
from clusim.simulation.plan import idle_notes
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

SIZES = tuple(1 << power for power in range(10, 31, 2))
"""1 KiB to 1 GiB."""

CUSTOM = ("oneshot-ll", "twoshot-ll", "twoshot", "multimem")
"""All-reduces of inference engines.

One-shot: every rank writes all its data to every rank. Two-shot: each rank reduces a block and writes it back.
Multimem: the same with in-switch reduction.
"""

ONESHOT_MOST = 4 << 20
"""Largest size of a one-shot all-reduce [bytes]; it transfers n - 1 times the data."""

LAST_BYTE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class CrossoverRow(JsonObject):
    """A size.

    Attributes
    ----------
    best, nccl_chooses : str
        The fastest candidate, and NCCL's choice.
    times_us : dict
        Of an iteration, by candidate [us].
    not_exact : dict
        Granularity of the candidates that were not simulated in exact packets.
    """

    KEYS = ("size_bytes", "best", "nccl_chooses", "times_us", "not_exact")

    size_bytes: int
    nccl_chooses: str
    times_us: dict[str, Round3] = field(default_factory=dict)
    not_exact: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The fastest candidate."""
        return min(self.times_us, key=self.times_us.__getitem__)

    @property
    def nccl_best(self) -> str:
        """The fastest candidate of NCCL."""
        return min(
            (name for name in self.times_us if name not in CUSTOM),
            key=self.times_us.__getitem__,
        )


@dataclass(frozen=True, slots=True)
class Crossover(JsonObject):
    """The best algorithm of every size.

    Attributes
    ----------
    includes : str
        Scope of the times.
    left_out : dict
        Candidates that cannot run here, with the reason.
    names : tuple of str
        Candidates; NCCL's are algorithm and protocol.
    """

    KEYS = (
        "topology=setup.comm.name",
        "collective",
        "num_ranks=setup.num_ranks",
        "nccl_version",
        "includes",
        "left_out",
        "faults=setup.broken.lines",
        "notes",
        "sizes",
    )

    setup: Setup
    collective: str
    names: tuple[str, ...]
    sizes: list[CrossoverRow]
    left_out: dict[str, str]
    includes: str = LAUNCHED

    @property
    def nccl_version(self) -> str:
        """NCCL version of the plans."""
        return str(self.setup.comm.version)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on NCCL's plans."""
        sizes = tuple(row.size_bytes for row in self.sizes)
        requests = (
            Request(self.setup, self.collective, size_bytes) for size_bytes in sizes
        )
        return (
            *self.setup.said(COLLECTIVE_OF[self.collective], sizes),
            *idle_notes(requests),
        )


def crossover(
    setup: Setup,
    operation: str = "allreduce",
    sizes: Sequence[int] = SIZES,
    *,
    jobs: Jobs = None,
    progress: Progress | None = None,
) -> Crossover:
    """Simulate every candidate at every size."""
    if operation not in COLLECTIVE_OF:
        listing = ", ".join(COLLECTIVE_OF)
        raise InputError(
            f"collective {operation!r}: no choice of algorithms; use one of {listing}"
        )
    comm = setup.comm
    choices = {f"{a.value} {p.value}": (a, p) for a, p in runnable(comm, operation)}
    custom = CUSTOM if operation == "allreduce" and comm.group.num_nodes == 1 else ()
    # Custom kernels do not read NCCL's variables.
    plain = replace(setup, version="", env=(), per_node=None, ranks=comm.ranks)
    cases = {}
    for size in sizes:
        for name, choice in choices.items():
            cases[size, name] = Request(
                setup, operation, size, wanted=NcclOverrides(*choice)
            )
        for name in custom:
            if size <= ONESHOT_MOST or not name.startswith("oneshot"):
                cases[size, name] = Request(plain, operation, size, name)
    result = kernels(cases.values(), jobs=jobs, progress=progress)
    host, harness = host_of(comm), Harness(iterations=DEFAULT_ITERATIONS)
    rows = {
        size: CrossoverRow(size, _choice(setup, operation, size)) for size in sizes
    }
    left_out: dict[str, str] = {}
    for (size, name), case in cases.items():
        kernel = result[case]
        if isinstance(kernel, Failure):
            left_out[name] = kernel.reason
        else:
            time_ps = harness.time_ps(host, operation, kernel)
            rows[size].times_us[name] = time_ps / 1e6
            if kernel.notes:
                rows[size].not_exact[name] = "; ".join(kernel.notes)
    if not all(row.times_us for row in rows.values()):
        reason = next(iter(left_out.values()))
        raise InputError(f"{operation}: no candidate could be simulated: {reason}")
    names = [
        name
        for name in (*choices, *custom)
        if any(name in row.times_us for row in rows.values())
    ]
    return Crossover(setup, operation, tuple(names), list(rows.values()), left_out)


def _choice(setup: Setup, operation: str, size: int) -> str:
    chosen = setup.comm.select(COLLECTIVE_OF[operation], size)
    return f"{chosen.algorithm.value} {chosen.protocol.value}"


def table_lines(result: Crossover) -> list[str]:
    """Return a table of times with the best marked, and the loss of NCCL's choice.

    The loss is relative to the best of NCCL's algorithms.
    """
    group = result.setup.comm.group
    titles = [re.split(r" |(?<=-)", name) for name in result.names]
    rows = [
        ["", *(words[0] for words in titles)],
        ["size", *(" ".join(words[1:]) for words in titles)],
    ]
    for row in result.sizes:
        times, best = row.times_us, row.best
        cells = [
            f"{times[name]:,.1f}{'*' if name == best else ' '}"
            if name in times
            else "- "
            for name in result.names
        ]
        rows.append([format_size(row.size_bytes), *cells])
    lines = [
        f"{result.collective} on {result.setup.comm.name}: {group.num_ranks} GPUs,"
        f" NCCL {result.setup.comm.version}",
        f"  times: us, {LAUNCHED}; * best",
        "",
        *text_table("{:>9}" + " {:>6..}" * len(result.names), rows),
        "",
        "NCCL chooses",
    ]
    choices = spans((row.size_bytes, _verdict(row)) for row in result.sizes)
    lines += text_table("  {:<19}  {}", choices)
    lines += [
        f"omitted: {name}: {why.removeprefix(f'{name}: ')}"
        for name, why in result.left_out.items()
    ]
    rough = sum(len(row.not_exact) for row in result.sizes)
    if rough:
        lines.append(
            f"{rough} of {sum(len(row.times_us) for row in result.sizes)} times are not of exact packets:"
            " docs/accuracy-approximations.md has how far off these may be, --json which they are"
        )
    return [*lines, *note_lines(result.setup.broken.lines, result.notes)]


def _verdict(row: CrossoverRow) -> str:
    chosen, times = row.nccl_chooses, row.times_us
    if chosen not in times:
        return f"{chosen} (not simulated)"
    loss = times[chosen] / times[row.nccl_best] - 1
    return chosen if loss < 0.005 else f"{chosen}, {loss:.0%} over {row.nccl_best}"


def tuner_csv(result: Crossover) -> list[str]:
    """Return input for NCCL's example tuner plugin: the best algorithm per range of sizes.

    Only NCCL's algorithms are included.
    """
    group = result.setup.comm.group
    lines = [
        f"# {one_line(line)}"
        for line in note_lines(result.setup.broken.lines, result.notes)
    ]
    lines += [
        "# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
    ]
    names = {
        f"{a.value} {p.value}": (a, p)
        for a, p in runnable(result.setup.comm, result.collective)
    }
    collective = result.collective.replace("_", "")
    first = 0
    for row, after in zip(result.sizes, [*result.sizes[1:], None], strict=True):
        if after is not None and after.nccl_best == row.nccl_best:
            continue
        end = (
            LAST_BYTE
            if after is None
            else _between(row.size_bytes, after.size_bytes)
        )
        algorithm, protocol = names[row.nccl_best]
        lines.append(
            f"{collective},{first},{end},{algorithm.plugin},{protocol.key},"
            f"-1,{group.num_nodes},{group.num_ranks},-1,-1"
        )
        first = end + 1
    return lines


def _between(low: int, high: int) -> int:
    """Return the geometric mean of two sizes; the exact size of the change is not known."""
    return int((low * high) ** 0.5)
