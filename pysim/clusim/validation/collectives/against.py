"""Measured curve of nccl-tests against its prediction, and hypotheses that explain a slow system.

**Model** A hypothesis is a change of the system or of NCCL's environment, such as a failed NVLink or disabled
GPUDirect RDMA. Each is simulated at up to `SAMPLED` of the measured sizes; its misfit is the mean of
``|ln(measured / simulated)|``, as a percentage. Hypotheses whose times equal the unchanged system's, within
`SAME`, are omitted; those with equal times are one row. Positions (which GPU, which NIC) do not matter for
most collectives: one representative of each kind is simulated.
**Not modelled** ACS redirection of PCIe peer-to-peer traffic, processes on a remote NUMA node, other jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from typing_extensions import TypedDict

from clusim.base.display import Plot, need_matplotlib
from clusim.base.errors import ClusimError, InputError
from clusim.base.executors import Jobs
from clusim.base.files import note_input
from clusim.base.tables import text_table
from clusim.base.terms.times import REGIMES
from clusim.base.units import format_size
from clusim.formats.logs import read_logs
from clusim.lowering import parse_faults
from clusim.nccl.launch import host_of
from clusim.nccltests.api import Table
from clusim.nccltests.jobs import Failure, PerfKernel, Progress, kernels
from clusim.nccltests.options import PerfOptions
from clusim.nccltests.sweep import Program, harness_of, program_named, row_request
from clusim.report.charts import curves
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology import Fabric

SAMPLED = 6
"""Most sizes at which a hypothesis is simulated."""

SAME = 0.01
"""Relative difference below which two times are equal."""

SLOW = 1.1
"""Ratio of measured to predicted time, the median of a regime of sizes, from which hypotheses are simulated."""

SHOWN = 8
"""Most hypotheses in text."""


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Measured times by size, and their launch.

    Attributes
    ----------
    times_us : dict of int to float
        Size [bytes] -> median time of its rows [us].
    dtype, redop : str
        Type and reduction of the rows, by nccl-tests' names.
    gpus, threads : int
        ``-g`` and ``-t`` of the program; 0 if the output does not contain them.
    num_ranks : int
        0 if the output does not contain it.
    """

    path: str
    times_us: dict[int, float]
    dtype: str
    redop: str
    gpus: int = 0
    threads: int = 0
    num_ranks: int = 0

    def applied(self, options: PerfOptions) -> PerfOptions:
        """Return the flags with the measured sizes, and the curve's type, reduction and launch if not given."""
        missing = {
            "d": ("datatype", self.dtype),
            "o": ("op", self.redop if self.redop != "none" else ""),
            "g": ("ngpus", self.gpus),
            "t": ("nthreads", self.threads),
        }
        taken: dict[str, Any] = {
            name: value
            for letter, (name, value) in missing.items()
            if value and letter not in options.given
        }
        if options.given & {"g", "t"}:
            taken.pop("ngpus", None)
            taken.pop("nthreads", None)
        return replace(options, **taken, listed=tuple(self.times_us))


def read_curve(path: str | Path, test: Program) -> MeasuredCurve:
    """Return the rows of a program in an nccl-tests output; out of place where both are measured.

    Raises
    ------
    InputError
        The file has no row of the program.
    """
    note_input(path)
    runs = [run for run in read_logs([str(path)]).runs if run.sizes]
    named = [run for run in runs if _may_be(run.collective(), test)]
    if not named:
        others = sorted({run.collective() or "unknown" for run in runs})
        has = f"; it has {', '.join(others)}" if others else ""
        raise InputError(f"{path}: no rows of {test.binary}{has}")
    first = named[0]
    times: dict[int, list[float]] = {}
    for run in named:
        both = zip(run.column("time"), run.column("time_in_place"), strict=True)
        for size, (outside, inside) in zip(run.sizes, both, strict=True):
            time_us = outside if outside > 0 else inside
            if size > 0 and time_us > 0:
                times.setdefault(size, []).append(float(time_us))
    if not times:
        raise InputError(f"{path}: no row of {test.binary} with a size and a time above 0")
    return MeasuredCurve(
        str(path),
        {size: median(some) for size, some in sorted(times.items())},
        *(first.types[0], first.ops[0]),
        *(first.config.get("nGpus", 0), first.config.get("nThread", 0), first.n_ranks),
    )


def _may_be(collective: str, test: Program) -> bool:
    return test.name in (program_named(word).name for word in collective.split(" or ") if word)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A change that may explain a curve.

    Attributes
    ----------
    title : str
        Cause, as a noun phrase.
    change : str
        Options of ``clusim`` that make it.
    """

    title: str
    change: str
    setup: Setup


def hypotheses(setup: Setup, channels: int) -> Iterator[Hypothesis]:
    """Yield the causes that apply to a system.

    Parameters
    ----------
    channels : int
        Most channels of the unchanged runs.
    """
    fabric = setup.fabric
    gpu, nics = fabric.ranks[0], [node.name for node in fabric.nodes if node.kind == "nic"]
    switches = [node.name for node in fabric.nodes if node.tier == "switch" and node.zone == 0]
    several = fabric.num_zones > 1
    faults = {
        "one NVLink down": [f"link {gpu}:nvl1 down"],
        "one NVSwitch down": [f"plane {name} down" for name in switches[:1]],
        "PCIe of one GPU at half of its lanes": [f"lanes {gpu}:pcie 1/2"],
        "CTAs of one GPU slow (x2)": [f"rank {gpu} slow x2"],
    }
    if several:
        faults |= {
            "one NIC down": [f"node {name} down" for name in nics[:1]],
            "one NIC at half of its PCIe lanes": [f"lanes {name}:pcie 1/2" for name in nics[:1]],
            "half of the NICs down": [f"node {name} down" for name in _every_second(fabric)],
        }
    for title, texts in faults.items():
        if texts:
            change = " ".join(f"--fault '{text}'" for text in texts[:2])
            more = f" ... ({len(texts)} faults)" if len(texts) > 2 else ""
            broken = replace(setup, faults=(*setup.faults, *texts))
            yield Hypothesis(title, change + more, broken)
    variables = {
        "P2P disabled": ("NCCL_P2P_DISABLE", "1"),
        "LL128 disabled": ("NCCL_PROTO", "^LL128"),
        "NVLS disabled": ("NCCL_NVLS_ENABLE", "0"),
        "trees disabled": ("NCCL_ALGO", "^Tree"),
        "half of the channels": ("NCCL_MAX_NCHANNELS", str(channels // 2)),
    }
    if several:
        variables |= {
            "no GPUDirect RDMA": ("NCCL_NET_GDR_LEVEL", "LOC"),
            "PXN disabled": ("NCCL_PXN_DISABLE", "1"),
        }
    given = dict(setup.env)
    for title, (name, value) in variables.items():
        if name not in given and (channels > 1 or title != "half of the channels"):
            changed = replace(setup, env=(*setup.env, (name, value)))
            yield Hypothesis(title, f"--env {name}={value}", changed)


def _every_second(fabric: Fabric) -> list[str]:
    """Return every second NIC of each node; empty for nodes with one."""
    result: list[str] = []
    for zone in range(fabric.num_zones):
        names = [node.name for node in fabric.nodes if node.kind == "nic" and node.zone == zone]
        result += names[1::2]
    return result


@dataclass(frozen=True, slots=True)
class Explained:
    """A hypothesis with its times.

    Attributes
    ----------
    titles : tuple of str
        Its title, and those of hypotheses with equal times.
    times_us : dict of int to float
        Size [bytes] -> simulated time [us].
    """

    titles: tuple[str, ...]
    change: str
    times_us: dict[int, float]

    def misfit_pct(self, measured_us: dict[int, float]) -> float:
        """Return the mean deviation of measured from these times, of their ratio's logarithm [%]."""
        return misfit_pct(measured_us, self.times_us, tuple(self.times_us))


class AgainstRowJson(TypedDict):
    """A measured size and its prediction; `error_pct` is positive for too long predictions."""

    size_bytes: int
    measured_us: float
    predicted_us: float
    error_pct: float
    algorithm: str


class HypothesisJson(TypedDict):
    """A simulated cause.

    Attributes
    ----------
    titles : list of str
        Causes with equal times.
    change : str
        Options of ``clusim`` that make the first.
    misfit_pct : float
        Mean deviation of the measured from the simulated times [%].
    times_us : dict
        Size [bytes] -> simulated time [us].
    """

    titles: list[str]
    change: str
    misfit_pct: float
    times_us: dict[str, float]


class AgainstJson(TypedDict):
    """Measured times against predicted times.

    Attributes
    ----------
    misfit_pct : float
        Mean deviation of the measured from the predicted times, at the sizes of the hypotheses [%].
    hypotheses : list
        By misfit; empty if the measurement is not slower than predicted.
    not_simulated : dict
        Cause that cannot be simulated -> reason.
    """

    path: str
    rows: list[AgainstRowJson]
    misfit_pct: float
    hypotheses: list[HypothesisJson]
    not_simulated: dict[str, str]


@dataclass(frozen=True, slots=True)
class Against:
    """A measured curve, its prediction, and the hypotheses by misfit."""

    curve: MeasuredCurve
    table: Table
    sampled: tuple[int, ...]
    explained: tuple[Explained, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def predicted_us(self) -> dict[int, float]:
        """Return the predicted time of every size [us]."""
        return {line.size: line.halves[0].time_us for line in self.table.lines}

    @property
    def misfit_pct(self) -> float:
        """Return the mean deviation of the measured from the predicted times at the sampled sizes [%]."""
        return misfit_pct(self.curve.times_us, self.predicted_us, self.sampled)

    def rows(self) -> list[AgainstRowJson]:
        """Return a row per size."""
        predicted = self.predicted_us
        algorithms = {line.size: line.algorithm for line in self.table.lines}
        return [
            {
                "size_bytes": size,
                "measured_us": time_us,
                "predicted_us": round(predicted[size], 3),
                "error_pct": round(100 * (predicted[size] / time_us - 1), 2),
                "algorithm": algorithms[size],
            }
            for size, time_us in self.curve.times_us.items()
        ]

    def to_json(self) -> AgainstJson:
        """Return rows and hypotheses."""
        return {
            "path": self.curve.path,
            "rows": self.rows(),
            "misfit_pct": round(self.misfit_pct, 2),
            "hypotheses": [
                {
                    "titles": list(item.titles),
                    "change": item.change,
                    "misfit_pct": round(item.misfit_pct(self.curve.times_us), 2),
                    "times_us": {str(size): round(us, 3) for size, us in item.times_us.items()},
                }
                for item in self.explained
            ],
            "not_simulated": dict(self.failed),
        }

    def lines(self) -> Iterator[str]:
        """Yield the text: a row per size, and the best hypotheses."""
        setup = self.table.where.setup
        yield f"{self.table.test.binary} on {setup.name}, {setup.num_ranks} GPUs: {self.curve.path}"
        yield ""
        cells = [("size", "measured", "predicted", "error", "algorithm")]
        for row in self.rows():
            cells.append(
                (
                    format_size(row["size_bytes"]),
                    f"{row['measured_us']:,.2f} us",
                    f"{row['predicted_us']:,.2f} us",
                    f"{row['error_pct']:+.1f}%",
                    row["algorithm"],
                )
            )
        yield from text_table("{:>9}  {:>14}  {:>14}  {:>8}  {}", cells)
        yield ""
        yield from (f"  {item.text()}" for item in self.table.expected)
        if not self.explained and not self.failed:
            yield (
                f"  no hypothesis simulated: in no range of sizes is the measurement slower than {SLOW:g} times the"
                " prediction"
            )
            return
        yield ""
        sizes = ", ".join(map(format_size, self.sampled))
        yield f"hypotheses: mean deviation of the measurement at {sizes}"
        rows = [(f"{self.misfit_pct:.1f}%", "unchanged system", "")]
        rows += [
            (f"{item.misfit_pct(self.curve.times_us):.1f}%", " or ".join(item.titles), item.change)
            for item in self.explained[:SHOWN]
        ]
        yield from text_table("  {:>7}  {:<40}  {}", rows)
        yield from (f"  not simulated: {title}: {why}" for title, why in self.failed)
        best = self.explained[0] if self.explained else None
        if best is None or best.misfit_pct(self.curve.times_us) >= self.misfit_pct:
            yield "  none explains the measurement better than the unchanged system"

    def plot(self) -> Plot:
        """Draw the bus bandwidth of every size: measured and predicted."""
        need_matplotlib()
        sizes = list(self.curve.times_us)
        test, ranks = self.table.test, self.table.where.setup.num_ranks
        factor = test.of.bus_factor(ranks)
        series = {"measured": self.curve.times_us, "predicted": self.predicted_us}
        drawn = {
            name: [size / times[size] / 1000 * factor for size in sizes]
            for name, times in series.items()
        }
        return Plot(curves(sizes, drawn, f"{test.binary} on {self.table.where.setup.name}"))


def misfit_pct(
    measured_us: dict[int, float], simulated_us: dict[int, float], sizes: Sequence[int]
) -> float:
    """Return the mean of ``|ln(measured / simulated)|`` as a percentage."""
    return 100 * (exp(fmean(abs(log(measured_us[s] / simulated_us[s])) for s in sizes)) - 1)


def sampled(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return at most `SAMPLED` sizes, evenly spaced and including the largest."""
    if len(sizes) <= SAMPLED:
        return tuple(sizes)
    return tuple(sizes[round(at * (len(sizes) - 1) / (SAMPLED - 1))] for at in range(SAMPLED))


def is_slow(measured_us: dict[int, float], predicted_us: dict[int, float]) -> bool:
    """Return True if the median of a regime of sizes is slower than `SLOW` times the prediction."""
    for low, high in REGIMES.values():
        ratios = [us / predicted_us[s] for s, us in measured_us.items() if low <= s < high]
        if ratios and median(ratios) > SLOW:
            return True
    return False


def compare(
    curve: MeasuredCurve,
    table: Table,
    *,
    jobs: Jobs = None,
    progress: Progress | None = None,
) -> Against:
    """Compare a curve with its prediction; if it is slow, rank the hypotheses.

    Parameters
    ----------
    table : Table
        Prediction of all sizes of the curve.
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core, 1 works in this process.

    Raises
    ------
    InputError
        The curve is of another number of GPUs.
    """
    setup = table.where.setup
    if curve.num_ranks not in (0, setup.num_ranks):
        raise InputError(
            f"{curve.path}: {curve.num_ranks} GPUs; {setup.name} runs {setup.num_ranks}: change --nodes or -g"
        )
    result = Against(curve, table, sampled(tuple(curve.times_us)))
    if not is_slow(curve.times_us, result.predicted_us):
        return result
    causes, failed = simulated_causes(table, result.sampled, jobs=jobs, progress=progress)
    return replace(result, explained=ranked(causes, curve.times_us), failed=failed)


def ranked(causes: Sequence[Explained], measured_us: dict[int, float]) -> tuple[Explained, ...]:
    """Return causes by the deviation of a measurement from them, the best first."""
    return tuple(sorted(causes, key=lambda item: item.misfit_pct(measured_us)))


def simulated_causes(
    table: Table,
    sizes: Sequence[int],
    *,
    jobs: Jobs = None,
    progress: Progress | None = None,
) -> tuple[tuple[Explained, ...], tuple[tuple[str, str], ...]]:
    """Simulate the hypotheses of a system at some sizes of a table.

    Returns
    -------
    (tuple of Explained, tuple of (str, str))
        Causes with other times than the unchanged system's, and title and reason of those that cannot be simulated.
    """
    heads = {
        line.size: (line.size, line.count, line.type, line.redop)
        for line in table.lines
        if line.size in sizes
    }
    options = replace(table.options, check=0)

    def request(setup: Setup, size: int) -> Request:
        where = replace(table.where, setup=setup)
        return row_request(where, table.test, options, heads[size])

    setup = table.where.setup
    unchanged = kernels([request(setup, size) for size in heads], jobs=jobs).values()
    channels = [kernel.channels for kernel in unchanged if isinstance(kernel, PerfKernel)]
    possible, failed = _possible(setup, max(channels, default=0))
    cases = {(item.title, size): request(item.setup, size) for item in possible for size in heads}
    done = kernels(cases.values(), jobs=jobs, progress=progress)
    made = [Explained((), "", {line.size: line.halves[0].time_us for line in table.lines})]
    for item in possible:
        times: dict[int, float] = {}
        for size in heads:
            kernel = done[cases[item.title, size]]
            if isinstance(kernel, Failure):
                failed.append((item.title, kernel.reason))
                break
            times[size] = _time_us(table, item.setup, kernel)
        else:
            equal = next((n for n, other in enumerate(made) if _same(times, other.times_us)), None)
            if equal is None:
                made.append(Explained((item.title,), item.change, times))
            else:
                made[equal] = replace(made[equal], titles=(*made[equal].titles, item.title))
    # The first is the unchanged system, with the causes that have no effect.
    return tuple(made[1:]), tuple(failed)


def _possible(setup: Setup, channels: int) -> tuple[list[Hypothesis], list[tuple[str, str]]]:
    """Return the hypotheses that a system can have, and the reasons of the others that fail."""
    possible, failed = [], []
    for item in hypotheses(setup, channels):
        try:
            parse_faults(item.setup.fabric, item.setup.faults)
        except InputError:  # a part that the system does not have
            continue
        try:
            _ = item.setup.comm
        except ClusimError as error:
            failed.append((item.title, str(error)))
            continue
        possible.append(item)
    return possible, failed


def _time_us(table: Table, setup: Setup, kernel: PerfKernel) -> float:
    host = kernel.host or host_of(setup.comm)
    harness = harness_of(table.options, table.where.kind)
    return harness.time_ps(host, table.test.of.name, kernel.time_ps, kernel.channels) / 1e6


def _same(times: dict[int, float], others: dict[int, float]) -> bool:
    return all(abs(log(us / others[size])) < SAME for size, us in times.items())
