"""Best algorithm by size: NCCL's algorithms, and custom kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clusim.base.errors import InputError, one_line
from clusim.base.executors import Jobs
from clusim.base.tables import text_table
from clusim.base.terms.operations import COLLECTIVE_OF
from clusim.base.terms.times import LAUNCHED
from clusim.base.units import format_size
from clusim.nccl.choice import NcclOverrides, runnable
from clusim.nccl.launch import DEFAULT_ITERATIONS, host_of
from clusim.nccltests.jobs import Failure, Progress, kernels
from clusim.nccltests.perfjson import CrossoverJson
from clusim.nccltests.sweep import Harness
from clusim.report.runreport import said
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
class Crossover:
    """Times per size.

    Attributes
    ----------
    names : tuple of str
        Candidates; NCCL's are algorithm and protocol.
    times_us : list of dict
        Per size: candidate -> time of an iteration [us].
    chosen : tuple of str
        NCCL's choice per size.
    left_out : dict
        Candidate that cannot run here -> why.
    coarse : list of dict
        Per size: candidate -> granularity, if not exact packets.
    """

    setup: Setup
    operation: str
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    times_us: list[dict[str, float]]
    chosen: tuple[str, ...]
    left_out: dict[str, str]
    coarse: list[dict[str, str]] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on NCCL's plans."""
        return self.setup.said(COLLECTIVE_OF[self.operation], self.sizes)

    def best(self, index: int, *, nccl_only: bool = False) -> str:
        """Return the fastest candidate at a size."""
        times = self.times_us[index]
        known = [name for name in times if not (nccl_only and name in CUSTOM)]
        return min(known, key=lambda name: times[name])

    def to_json(self) -> CrossoverJson:
        """Return all times for JSON."""
        return {
            "topology": self.setup.comm.name,
            "collective": self.operation,
            "num_ranks": self.setup.num_ranks,
            "nccl_version": str(self.setup.comm.version),
            "includes": LAUNCHED,
            "left_out": self.left_out,
            "faults": list(self.setup.broken.lines),
            "notes": list(self.notes),
            "sizes": [
                {
                    "size_bytes": size,
                    "best": self.best(index),
                    "nccl_chooses": self.chosen[index],
                    "times_us": {k: round(v, 3) for k, v in self.times_us[index].items()},
                    "not_exact": self.coarse[index],
                }
                for index, size in enumerate(self.sizes)
            ],
        }


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
        known = ", ".join(COLLECTIVE_OF)
        raise InputError(f"collective {operation!r}: no choice of algorithms; use one of {known}")
    comm = setup.comm
    ways = {f"{a.value} {p.value}": (a, p) for a, p in runnable(comm, operation)}
    custom = CUSTOM if operation == "allreduce" and comm.group.num_nodes == 1 else ()
    # Custom kernels do not read NCCL's variables.
    plain = replace(setup, version="", env=(), per_node=None, ranks=comm.ranks)
    cases = {}
    for size in sizes:
        for name, way in ways.items():
            cases[size, name] = Request(setup, operation, size, wanted=NcclOverrides(*way))
        for name in custom:
            if size <= ONESHOT_MOST or not name.startswith("oneshot"):
                cases[size, name] = Request(plain, operation, size, name)
    result = kernels(cases.values(), jobs=jobs, progress=progress)
    host, harness = host_of(comm), Harness(iterations=DEFAULT_ITERATIONS)
    times: list[dict[str, float]] = [{} for _ in sizes]
    coarse: list[dict[str, str]] = [{} for _ in sizes]
    left_out: dict[str, str] = {}
    for (size, name), case in cases.items():
        kernel = result[case]
        if isinstance(kernel, Failure):
            left_out[name] = kernel.reason
        else:
            time_ps = harness.time_ps(host, operation, kernel.time_ps, kernel.channels)
            times[sizes.index(size)][name] = time_ps / 1e6
            if kernel.notes:
                coarse[sizes.index(size)][name] = "; ".join(kernel.notes)
    if not all(times):
        reason = next(iter(left_out.values()))
        raise InputError(f"{operation}: no candidate could be simulated: {reason}")
    names = [name for name in (*ways, *custom) if any(name in row for row in times)]
    return Crossover(
        *(setup, operation, tuple(sizes), tuple(names), times),
        tuple(_choice(setup, operation, size) for size in sizes),
        left_out,
        coarse,
    )


def _choice(setup: Setup, operation: str, size: int) -> str:
    chosen = setup.comm.select(COLLECTIVE_OF[operation], size)
    return f"{chosen.algorithm.value} {chosen.protocol.value}"


def table_lines(result: Crossover) -> list[str]:
    """Return a table of times with the best marked, and the loss of NCCL's choice.

    The loss is relative to the best of NCCL's algorithms.
    """
    group = result.setup.comm.group
    rows = [["size", *result.names, "NCCL chooses"]]
    for index, size in enumerate(result.sizes):
        times, best = result.times_us[index], result.best(index)
        cells = [
            f"{times[name]:,.1f}{'*' if name == best else ' '}" if name in times else "- "
            for name in result.names
        ]
        rows.append([format_size(size), *cells, _verdict(result, index)])
    layout = "{:>9}" + "".join(f"  {{:>{max(9, len(name) + 1)}}}" for name in result.names)
    lines = [
        f"{result.operation} on {result.setup.comm.name}: {group.num_ranks} GPUs,"
        f" NCCL {result.setup.comm.version}; time [us] {LAUNCHED}; * best",
        "",
        *text_table(layout + "  {}", rows),
    ]
    lines += [f"{name}: omitted: {why}" for name, why in result.left_out.items()]
    rough = sum(map(len, result.coarse))
    if rough:
        lines.append(
            f"{rough} of {sum(map(len, result.times_us))} times are not of exact packets: docs/granularity.md has how"
            " far off these may be, --json which they are"
        )
    return [*lines, *said(result.setup.broken.lines, result.notes)]


def _verdict(result: Crossover, index: int) -> str:
    chosen, times = result.chosen[index], result.times_us[index]
    if chosen not in times:
        return f"{chosen} (not simulated)"
    best = result.best(index, nccl_only=True)
    loss = times[chosen] / times[best] - 1
    return chosen if loss < 0.005 else f"{chosen}, {loss:.0%} over {best}"


def tuner_csv(result: Crossover) -> list[str]:
    """Return input for NCCL's example tuner plugin: the best algorithm per range of sizes.

    Only NCCL's algorithms are included.
    """
    group = result.setup.comm.group
    lines = [f"# {one_line(line)}" for line in said(result.setup.broken.lines, result.notes)]
    lines += [
        "# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
    ]
    names = {
        f"{a.value} {p.value}": (a, p) for a, p in runnable(result.setup.comm, result.operation)
    }
    collective = result.operation.replace("_", "")
    best = [result.best(index, nccl_only=True) for index in range(len(result.sizes))]
    first = 0
    for index, size in enumerate(result.sizes):
        last = index == len(result.sizes) - 1
        if not last and best[index + 1] == best[index]:
            continue
        end = LAST_BYTE if last else _between(size, result.sizes[index + 1])
        algorithm, protocol = names[best[index]]
        lines.append(
            f"{collective},{first},{end},{algorithm.plugin},{protocol.own},"
            f"-1,{group.num_nodes},{group.num_ranks},-1,-1"
        )
        first = end + 1
    return lines


def _between(low: int, high: int) -> int:
    """Return the geometric mean of two sizes; the exact size of the change is not known."""
    return int((low * high) ** 0.5)
